"""Quantised folders: DeepSeek's FP8 and gpt-oss's MXFP4 load as the plain weights that they stand for, bit for bit.

Each product is judged twice, by transformers' own dequantisation and by one written here another way: blocks padded and cropped, or one
value after the other.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from judge import judge, make, prompts
from pellucid.api.model import Model, load
from pellucid.checkpoint import fill
from pellucid.checkpoint import small_floats as dequantise
from pellucid.checkpoint.folder import WEIGHTS, Folder
from tiny import swapped

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
Tensors = dict[str, Tensor]


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def written(path: Path, tensors: Tensors, method: dict[str, Any] | None, config: dict[str, Any] | None = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps((config or {}) | ({"quantization_config": method} if method else {})))
    save_file(tensors, path / WEIGHTS, {"format": "pt"})
    return path


# FP8


def to_fp8(w: Tensor, block: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """float8 values [... out in] and the scales of their blocks; a ragged block is padded with zeros."""
    (out, width), (b0, b1) = w.shape[-2:], block
    blocks = F.pad(w, (0, -width % b1, 0, -out % b0)).unflatten(-1, (-1, b1)).unflatten(-3, (-1, b0))
    scale = blocks.abs().amax((-3, -1)).clamp(min=1e-6).float() / 448
    values = (blocks / scale[..., :, None, :, None]).to(torch.float8_e4m3fn)
    return values.flatten(-2).flatten(-3, -2)[..., :out, :width].contiguous(), scale


def from_fp8(values: Tensor, scale: Tensor, block: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """The product by padding to whole blocks and cropping."""
    (out, width), (b0, b1) = values.shape[-2:], block
    wide = F.pad(values.to(dtype), (0, -width % b1, 0, -out % b0)).unflatten(-1, (-1, b1)).unflatten(-3, (-1, b0))
    return (wide * scale.to(dtype)[..., :, None, :, None]).flatten(-2).flatten(-3, -2)[..., :out, :width]


SHAPES = [
    ((5, 7), (2, 3)),
    ((28, 20), (16, 16)),
    ((576, 256), (128, 128)),
    ((3, 4), (128, 128)),
    ((8, 6), (1, 6)),
    ((3, 9, 10), (4, 4)),
    ((0, 4), (2, 2)),
]


def fp8_folder(
    path: Path, shape: tuple[int, ...], block: tuple[int, int], kind: torch.dtype = torch.float32
) -> tuple[Folder, Tensor, Tensor]:
    values, scale = to_fp8(rand(*shape), block)
    scale = scale.to(kind)
    name = "x.weight" if len(shape) == 2 else "experts.up"
    method = FP8 | {"weight_block_size": list(block)}
    return Folder(written(path, {name: values, f"{name}_scale_inv": scale, "plain": torch.ones(2)}, method)), values, scale


@pytest.mark.parametrize(("shape", "block"), SHAPES)
def test_fp8_is_values_times_scales(shape: tuple[int, ...], block: tuple[int, int], tmp_path: Path) -> None:
    for kind in (torch.float32, torch.bfloat16):
        folder, values, scale = fp8_folder(tmp_path / str(kind), shape, block, kind)
        (name,) = set(folder.names()) - {"plain"}
        assert folder.shape(name) == shape and folder.dtype(name) == torch.bfloat16 and folder.read("plain").tolist() == [1, 1]
        for dtype in (torch.float64, torch.float32):
            want = from_fp8(values, scale, block, dtype)
            got = folder.read(name, torch.full(shape, math.nan, dtype=dtype))
            assert torch.equal(got, want) and torch.equal(got, _dequantize_fp8_weight(values, scale, list(block), dtype))
        assert torch.equal(folder.read(name), from_fp8(values, scale, block, torch.float32).bfloat16())
        transposed = torch.empty(shape, dtype=torch.float64).mT.contiguous().mT
        assert torch.equal(folder.read(name, transposed), from_fp8(values, scale, block, torch.float64))


@pytest.mark.parametrize("mutant", ["inverse", "turned", "edge", "shift"])
def test_fp8_mutants_are_seen(mutant: str, tmp_path: Path) -> None:
    """A scale divided by, a grid turned, a last block left out, and blocks of another width (what the grid's shape alone would suggest)."""
    folder, values, scale = fp8_folder(tmp_path, (28, 28), (16, 16))
    want = from_fp8(values, scale, (16, 16), torch.float64)
    assert torch.equal(folder.read("x.weight", torch.empty(28, 28, dtype=torch.float64)), want)
    finite, times = dequantise.finite, dequantise.times_grid
    wrong: dict[str, tuple[str, Any]] = {
        "inverse": ("finite", lambda s, e: 1 / finite(s, e)),
        "turned": ("finite", lambda s, e: finite(s, e).mT),
        "edge": ("times_grid", lambda b, parts, into: (times(b, parts, into), into[16:].zero_())),
        "shift": ("times_grid", lambda b, parts, into: times((14, 14), parts, into)),
    }
    name, stand_in = wrong[mutant]
    with swapped(dequantise, name, stand_in):
        again = Folder(folder.path)
        got = again.read("x.weight", torch.empty(28, 28, dtype=torch.float64))
    assert not torch.equal(got, want)


# MXFP4


def to_mxfp4(w: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks [E out in/32 16] and scales [E out in/32] of w [E in out], each value the nearest of the sixteen."""
    rows = w.mT.unflatten(-1, (-1, 32))
    power = (rows.abs().amax(-1) / 6).clamp(min=1e-6).log2().ceil()
    table = torch.tensor(VALUES + [-v for v in VALUES], dtype=w.dtype)
    codes = ((rows / 2 ** power[..., None])[..., None] - table).abs().argmin(-1)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8), (power + 127).to(torch.uint8)


def from_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """One value after the other."""
    experts, out, groups, _ = blocks.shape
    result = torch.empty(experts, groups * 32, out, dtype=torch.float64)
    for e in range(experts):
        for o in range(out):
            for g in range(groups):
                power = 2.0 ** (int(scales[e, o, g]) - 127)
                for b, byte in enumerate(blocks[e, o, g].tolist()):
                    for half, code in enumerate((byte % 16, byte // 16)):
                        result[e, g * 32 + 2 * b + half, o] = VALUES[code % 8] * (-1 if code > 7 else 1) * power
    return result


def mxfp4_folder(path: Path) -> tuple[Folder, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (2, 3, 2, 16), generator=draw).to(torch.uint8)
    blocks[0, 0, 0] = torch.arange(16) * 17  # every code, in both halves
    scales = torch.tensor([0, 1, 126, 127, 128, 130, 200, 90, 120, 127, 127, 126]).to(torch.uint8).view(2, 3, 2)
    return Folder(written(path, {"e.up_blocks": blocks, "e.up_scales": scales, "plain": torch.ones(2)}, MXFP4)), blocks, scales


def test_mxfp4_is_values_times_powers(tmp_path: Path) -> None:
    folder, blocks, scales = mxfp4_folder(tmp_path)
    want = from_mxfp4(blocks, scales)
    assert set(folder.names()) == {"e.up", "plain"} and folder.shape("e.up") == (2, 64, 3) and folder.dtype("e.up") == torch.bfloat16
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        got = folder.read("e.up", torch.full((2, 64, 3), math.nan, dtype=dtype))
        assert torch.equal(got, want.to(dtype))
        assert torch.equal(got, convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).to(dtype))
    assert torch.equal(folder.read("e.up"), want.bfloat16())
    assert folder.bytes == blocks.numel() + scales.numel() + 8


@pytest.mark.parametrize("mutant", ["halves", "power", "sign", "two"])
def test_mxfp4_mutants_are_seen(mutant: str, tmp_path: Path) -> None:
    """The high half first, a scale off by one, a sign forgotten, two values exchanged in the table."""
    folder, blocks, scales = mxfp4_folder(tmp_path)
    read, table = dequantise.read_tensor, dequantise.E2M1

    def halves(entry: Any, *a: Any, **kw: Any) -> Tensor:
        values = read(entry, *a, **kw)
        return (values << 4 | values >> 4) if entry.name.endswith("_blocks") else values

    wrong: dict[str, tuple[str, Any]] = {
        "halves": ("read_tensor", halves),
        "power": ("E8M0", (*dequantise.E8M0[1:], math.nan)),
        "sign": ("E2M1", table[:8] * 2),
        "two": ("E2M1", (*table[:6], table[7], table[6], *table[8:])),
    }
    with swapped(dequantise, *wrong[mutant]):
        got = folder.read("e.up", torch.empty(2, 64, 3, dtype=torch.float64))
    assert not torch.equal(got, from_mxfp4(blocks, scales))


# Whole models


def is_quantised(name: str, tensor: Tensor) -> bool:
    """Which of DeepSeek's tensors are stored in float8: the matrices of linears, but neither router nor tables."""
    return tensor.ndim >= 2 and not any(part in name for part in ("embed_tokens", "lm_head", "mlp.gate.", "layers.1.self_attn.o_proj"))


def deepseek(path: Path, fused: bool = False) -> tuple[Path, Path]:
    """A tiny DeepSeek-V3 in float8 with ragged blocks, and the folder of the plain weights that it stands for."""
    j = judge("deepseek_v3")
    j.hf.save_pretrained(path / "given", save_original_format=not fused)
    small, plain = Tensors(), Tensors()
    for name, w in load_file(path / "given" / WEIGHTS).items():
        small[name] = plain[name] = w
        if is_quantised(name, w):
            small[name], small[f"{name}_scale_inv"] = to_fp8(w, (16, 16))
            plain[name] = from_fp8(small[name], small[f"{name}_scale_inv"], (16, 16), torch.float64).contiguous()
    method = FP8 | {"modules_to_not_convert": ["model.layers.1.self_attn.o_proj", "lm_head"]}
    return written(path / "small", small, method, j.config), written(path / "plain", plain, None, j.config)


def gpt_oss(path: Path) -> tuple[Path, Path]:
    """A tiny gpt-oss in MXFP4, and the folder of the plain weights that it stands for."""
    j = make("gpt_oss", intermediate_size=32)
    small, plain = Tensors(), Tensors()
    for name, w in load_file(j.folder / WEIGHTS).items():
        if name.endswith(("gate_up_proj", "down_proj")):
            small[f"{name}_blocks"], small[f"{name}_scales"] = to_mxfp4(w)
            plain[name] = from_mxfp4(small[f"{name}_blocks"], small[f"{name}_scales"])
        else:
            small[name] = plain[name] = w
    return written(path / "small", small, MXFP4, j.config), written(path / "plain", plain, None, j.config)


def fused(path: Path) -> tuple[Path, Path]:
    """DeepSeek again, all experts of a layer in one float8 tensor."""
    return deepseek(path, fused=True)


@pytest.fixture(scope="module", params=[deepseek, fused, gpt_oss])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return request.param(tmp_path_factory.mktemp(request.param.__name__))


def same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def rounded(model: Model) -> Tensors:
    """Float64 weights as a quantised folder in bfloat16 holds them: what came quantised by way of float32."""
    return {n: t.float().bfloat16() if "e_score" not in n else t for n, t in model.tensors().items()}


def test_a_quantised_model_is_the_plain_one(folders: tuple[Path, Path]) -> None:
    """Bit for bit in float64 and in the bfloat16 that it counts as; the same logits as transformers' with the plain weights."""
    small, plain = (load(f, dtype="float64") for f in folders)
    assert same(small.tensors(), plain.tensors()) and small.left == ()
    assert not same(small.tensors(), load(judge(small.family.name).folder).tensors())  # the weights were rounded indeed
    method = "fp8" if small.family.name == "deepseek_v3" else "mxfp4"
    assert load(folders[0]).precision.formats == method and method in load(folders[0]).precision_note and not plain.precision.formats
    assert load(folders[0]).precision.stored == torch.bfloat16 and load(folders[0], device="meta").dtype == torch.bfloat16
    assert same(load(folders[0], dtype="bfloat16").tensors(), rounded(plain))
    ids = prompts(small.family.name)[0]
    with torch.no_grad():
        assert torch.equal(small(ids), plain(ids))


def test_what_is_saved_is_plain(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """No method in config.json, nothing but weights beside it; transformers reads the folder and gives our logits."""
    model = load(folders[0], dtype="float32")
    model.save(tmp_path / "m")
    assert "quantization_config" not in json.loads((tmp_path / "m" / "config.json").read_text())
    stored = load_file(tmp_path / "m" / WEIGHTS)
    assert {t.dtype for n, t in stored.items() if "correction" not in n} == {torch.float32}
    hf = AutoModelForCausalLM.from_pretrained(tmp_path / "m", attn_implementation="eager", experts_implementation="eager").eval()
    ids = prompts(model.family.name)[0]
    with torch.no_grad():
        theirs, ours = hf(ids).logits, model(ids)
    assert same(load(tmp_path / "m").tensors(), model.tensors())
    assert (theirs - ours).abs().max() < 1e-4 * theirs.abs().max()


def extra_memory(path: Path) -> int:
    """How many of a folder's tensors are read elsewhere than into the storage of the model's own parameters."""
    read, into = Folder.read, list[Tensor]()

    def spy(self: Folder, name: str, place: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        into.append(read(self, name, place, dtype))
        return into[-1]

    with swapped(Folder, "read", spy):
        model = load(path, dtype="float32")
    own = {t.untyped_storage().data_ptr() for t in fill.targets(model.module).values()}
    return sum(t.untyped_storage().data_ptr() not in own for t in into)


def test_weights_are_read_into_their_place(folders: tuple[Path, Path]) -> None:
    """Only where gate and up lie in one tensor is that tensor held beside them; a loader that first reads and then copies is seen."""
    expected = {"deepseek": 0, "fused": 2, "gpt_oss": 4}[folders[0].parent.name.rstrip("0")]  # two layers, and gpt-oss's biases
    assert extra_memory(folders[0]) == extra_memory(folders[1]) == expected

    def copies(source: Any, disk: Any, g: Any, places: list[Tensor]) -> None:
        values = g.layout.read([source.read(n) for n in disk], [tuple(p.shape) for p in places])
        for place, value in zip(places, values, strict=True):
            place.copy_(value)

    with swapped(fill, "take", copies):
        assert extra_memory(folders[0]) > 30
