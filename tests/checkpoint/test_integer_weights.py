"""Folders of GPTQ, AWQ, compressed-tensors and bitsandbytes load as the weights that they stand for, bit for bit.

Each is packed here from known integers, one word at a time, and the product is taken before anything is packed: nothing here unpacks.
"""

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from judge import judge, prompts
from pellucid.analysis.verify import verify
from pellucid.api.count import count
from pellucid.api.model import load
from pellucid.checkpoint import integer_weights, normal_floats, small_floats
from pellucid.checkpoint.folder import WEIGHTS, Folder
from pellucid.errors import PellucidError
from test_quantised import Tensors, written
from tiny import swapped

Made = tuple[Tensors, Tensor]  # what lies on disk of a weight "X.weight", and the weight [out in] in float64
FLOAT4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def integers(most: int, *shape: int, seed: int) -> Tensor:
    return torch.randint(0, most, shape, generator=draw(seed))


def scales(*shape: int, seed: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return (torch.rand(shape, generator=draw(seed)) * 0.02 + 0.001).to(dtype)


def words(values: Tensor, bits: int, places: Callable[[int], int] = lambda i: i) -> Tensor:
    """Pack unsigned values [n m] along their last axis. places: of a word, where its i-th value is found."""
    pack, rows = 32 // bits, []
    for row in values.tolist():
        row += [0] * (-len(row) % pack)
        packed = [sum(row[at + places(i)] << (bits * i) for i in range(pack)) for at in range(0, len(row), pack)]
        rows.append([struct.unpack("<i", struct.pack("<I", word))[0] for word in packed])
    return torch.tensor(rows, dtype=torch.int32)


def gptq(out: int, width: int, seed: int, bits: int = 4, group: int = 16, shift: int = 1, ordered: bool = False) -> Made:
    most, groups = 1 << bits, width // group
    q, z, s = integers(most, width, out, seed=seed), integers(most, groups, out, seed=seed + 1), scales(groups, out, seed=seed + 2)
    order = torch.arange(width) // group
    order = order[torch.randperm(width, generator=draw(seed))] if ordered else order
    plain = (q - z[order] - shift).double() * s.double()[order]
    disk = {"X.qweight": words(q.mT, bits).mT.contiguous(), "X.qzeros": words(z, bits), "X.scales": s}
    return disk | ({"X.g_idx": order.int()} if ordered or seed % 2 else {}), plain.mT


def awq(out: int, width: int, seed: int, group: int = 16) -> Made:
    q, z = integers(16, width, out, seed=seed), integers(16, width // group, out, seed=seed + 1)
    s, order = scales(width // group, out, seed=seed + 2), [0, 2, 4, 6, 1, 3, 5, 7]
    plain = (q - z.repeat_interleave(group, 0)).double() * s.double().repeat_interleave(group, 0)
    return {"X.qweight": words(q, 4, order.__getitem__), "X.qzeros": words(z, 4, order.__getitem__), "X.scales": s}, plain.mT


def packed(out: int, width: int, seed: int, bits: int = 4, group: int | None = 16, zeros: bool = False, ordered: bool = False) -> Made:
    half, size = 1 << (bits - 1), group or width
    q, s = integers(2 * half, out, width, seed=seed) - half, scales(out, width // size, seed=seed + 1, dtype=torch.bfloat16)
    z = integers(2 * half, out, width // size, seed=seed + 2) - half if zeros else torch.zeros(out, width // size, dtype=torch.long)
    order = torch.arange(width) // size
    order = order[torch.randperm(width, generator=draw(seed))] if ordered else order
    disk = {"X.weight_packed": words(q + half, bits), "X.weight_scale": s, "X.weight_shape": torch.tensor([out, width])}
    disk |= {"X.weight_zero_point": words((z + half).mT, bits).mT.contiguous()} if zeros else {}
    return disk | ({"X.weight_g_idx": order.int()} if ordered else {}), (q - z[:, order]).double() * s.double()[:, order]


def int8(out: int, width: int, seed: int, columns: int = 1, zeros: bool = False) -> Made:
    q, s = integers(256, out, width, seed=seed) - 128, scales(out, columns, seed=seed + 1, dtype=torch.float32)
    z = integers(20, out, columns, seed=seed + 2) - 10 if zeros else torch.zeros(out, columns, dtype=torch.long)
    plain = (q - z.repeat_interleave(width // columns, 1)).double() * s.double().repeat_interleave(width // columns, 1)
    return {"X.weight": q.to(torch.int8), "X.weight_scale": s} | ({"X.weight_zero_point": z.to(torch.int8)} if zeros else {}), plain


def float8(out: int, width: int, seed: int, block: tuple[int, int] | None = None, single: bool = False) -> Made:
    q = torch.randn(out, width, generator=draw(seed)).to(torch.float8_e4m3fn)
    if block is not None:
        s = scales(-(-out // block[0]), -(-width // block[1]), seed=seed, dtype=torch.float32)
        each = s.double().repeat_interleave(block[0], 0)[:out].repeat_interleave(block[1], 1)[:, :width]
    else:
        s = scales(1, seed=seed, dtype=torch.float32) if single else scales(out, 1, seed=seed, dtype=torch.bfloat16)
        each = s.double()
    return {"X.weight": q, "X.weight_scale": s, "X.input_scale": torch.ones(1)}, q.double() * each


def nvfp4(out: int, width: int, seed: int) -> Made:
    q, s = integers(16, out, width, seed=seed), (torch.rand(out, width // 16, generator=draw(seed)) * 200 + 1).to(torch.float8_e4m3fn)
    factor = torch.tensor([123.5])
    values = torch.tensor(FLOAT4 + [-v for v in FLOAT4], dtype=torch.float64)[q]
    plain = values * (s.double() / factor.double()).repeat_interleave(16, 1)
    return {"X.weight_packed": (q[:, ::2] + 16 * q[:, 1::2]).to(torch.uint8), "X.weight_scale": s, "X.weight_global_scale": factor}, plain


def mxfp4(out: int, width: int, seed: int) -> Made:
    disk, _ = nvfp4(out, width, seed)
    powers = integers(9, out, width // 32, seed=seed) + 122
    values = torch.tensor(FLOAT4 + [-v for v in FLOAT4], dtype=torch.float64)
    q = torch.stack([disk["X.weight_packed"] % 16, disk["X.weight_packed"] // 16], -1).flatten(1).int()
    plain = values[q] * (2.0 ** (powers.double() - 127)).repeat_interleave(32, 1)
    return {"X.weight_packed": disk["X.weight_packed"], "X.weight_scale": powers.to(torch.uint8)}, plain


def four_bits(out: int, width: int, seed: int, kind: str = "nf4", nested: bool = True) -> Made:
    table, q = torch.rand(16, generator=draw(seed)).sort().values * 2 - 1, integers(16, out * width, seed=seed)
    blocks = -(-out * width // 64)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": [out, width]}
    disk = {"X.weight": torch.cat([q, q.new_zeros(len(q) % 2)]).view(-1, 2).matmul(torch.tensor([16, 1])).to(torch.uint8)[:, None]}
    if nested:
        codes, levels = integers(256, blocks, seed=seed), torch.rand(256, generator=draw(seed + 1))
        factors = torch.rand(-(-blocks // 256), generator=draw(seed + 2))
        absmax = levels[codes] * factors.repeat_interleave(256)[:blocks] + 0.25
        state |= {"nested_blocksize": 256, "nested_offset": 0.25, "nested_dtype": "float32"}
        disk |= {"X.weight.absmax": codes.to(torch.uint8), "X.weight.nested_absmax": factors, "X.weight.nested_quant_map": levels}
    else:
        absmax = torch.rand(blocks, generator=draw(seed))
        disk["X.weight.absmax"] = absmax
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    plain = table.double()[q] * absmax.double().repeat_interleave(64)[: len(q)]
    return disk | {"X.weight.quant_map": table, f"X.weight.quant_state.bitsandbytes__{kind}": text}, plain.view(out, width)


def rows_of_int8(out: int, width: int, seed: int) -> Made:
    q, s = integers(255, out, width, seed=seed) - 127, scales(out, seed=seed, dtype=torch.float32)
    return {"X.weight": q.to(torch.int8), "X.SCB": s, "X.weight_format": torch.tensor(0, dtype=torch.uint8)}, q.double() * (
        s.double() / 127
    )[:, None]


def tensors_of(bits: int = 4, strategy: str = "group", **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "strategy": strategy} | more
    named = {"sparsity_config": {}, "transform_config": {}, "moe_sparsity_config": None}  # as release 0.20 writes them
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}, "ignore": ["lm_head"], **named}


GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 16}
AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
BNB: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FORMS: dict[str, tuple[dict[str, Any], Callable[[int, int, int], Made]]] = {
    "gptq": (GPTQ, gptq),
    "gptq, one group": (GPTQ | {"group_size": -1}, lambda o, i, s: gptq(o, i, s, group=i)),
    "gptq, 8 bits, in any order": (GPTQ | {"bits": 8, "desc_act": True}, lambda o, i, s: gptq(o, i, s, 8, ordered=True)),
    "gptq, 2 bits, second version": (GPTQ | {"bits": 2, "checkpoint_format": "gptq_v2"}, lambda o, i, s: gptq(o, i, s, 2, shift=0)),
    "awq": (AWQ, awq),
    "packed": (tensors_of(), packed),
    "packed, a row": (tensors_of(strategy="channel"), lambda o, i, s: packed(o, i, s, group=None)),
    "packed, zeros, 8 bits": (tensors_of(8), lambda o, i, s: packed(o, i, s, 8, zeros=True)),
    "packed, zeros, in any order": (tensors_of(), lambda o, i, s: packed(o, i, s, zeros=True, ordered=True)),
    "int8": (tensors_of(8, "channel"), int8),
    "int8, groups and zeros": (tensors_of(8), lambda o, i, s: int8(o, i, s, 2, zeros=True)),
    "float8, a row": (tensors_of(8, "channel", type="float"), float8),
    "float8, a tensor": (tensors_of(8, "tensor", type="float"), lambda o, i, s: float8(o, i, s, single=True)),
    "float8, blocks": (tensors_of(8, "block", block_structure=[16, 24]), lambda o, i, s: float8(o, i, s, (16, 24))),
    "nvfp4": (tensors_of(4, "tensor_group", type="float", group_size=16), nvfp4),
    "mxfp4": (tensors_of(4, type="float", group_size=32), mxfp4),
    "nf4": (BNB, four_bits),
    "fp4, plain scales": (BNB | {"bnb_4bit_quant_type": "fp4"}, lambda o, i, s: four_bits(o, i, s, "fp4", nested=False)),
    "int8 by rows": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, rows_of_int8),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_weight_is_its_product(form: str, tmp_path: Path) -> None:
    """In any dtype and layout; strips that are shorter than the weight change nothing."""
    method, make = FORMS[form]
    disk, plain = make(40, 64, 7)
    folder = Folder(written(tmp_path / "f", disk | {"plain": torch.ones(2)}, method))
    assert set(folder.names()) == {"X.weight", "plain"} and folder.shape("X.weight") == (40, 64)
    exact = torch.full((40, 64), math.nan, dtype=torch.float64)
    close = {"atol": 0.0, "rtol": 1e-6 if form == "nvfp4" or "4" in form[:3] or "by rows" in form else 0.0}
    torch.testing.assert_close(folder.read("X.weight", exact), plain, **close)
    for strip in (integer_weights, normal_floats):
        with swapped(strip, "STRIP", 8 if strip is integer_weights else 128):
            torch.testing.assert_close(folder.read("X.weight", torch.empty(64, 40, dtype=torch.float64).mT), exact, atol=0.0, rtol=0.0)
    assert folder.dtype("X.weight") in (torch.float16, torch.bfloat16)
    half = folder.read("X.weight", torch.empty(40, 64, dtype=torch.bfloat16))
    assert float((half.double() - plain).abs().max()) <= 2**-8 * float(plain.abs().max())


WHOLE = ["gptq, 8 bits, in any order", "awq", "packed, zeros, in any order", "float8, a row", "nf4"]


def folders(form: str, path: Path) -> tuple[Path, Path]:
    """Return a tiny Llama whose projections are in this form, and the folder of the plain weights that it stands for."""
    j, small, plain = judge("llama"), Tensors(), Tensors()
    for i, (name, w) in enumerate(sorted(load_file(j.folder / WEIGHTS).items())):
        small[name] = plain[name] = w
        if name.endswith("proj.weight") and all(n % 16 == 0 for n in w.shape):
            disk, plain[name] = FORMS[form][1](w.shape[0], w.shape[1], i)
            del small[name]
            small |= {n.replace("X", name.removesuffix(".weight"), 1): t for n, t in disk.items()}
            plain[name] = plain[name].contiguous()
    assert len(small) > len(plain)
    return written(path / "small", small, FORMS[form][0], j.config), written(path / "plain", plain, None, j.config)


@pytest.mark.parametrize("form", WHOLE)
def test_a_model_is_the_plain_one(form: str, tmp_path: Path) -> None:
    small, plain = (load(f, dtype="float64") for f in folders(form, tmp_path))
    assert small.left == ()
    ids = prompts("llama")[0]
    with torch.no_grad():
        error = float((small(ids) - plain(ids)).abs().max() / plain(ids).abs().max())
    assert error < (1e-5 if form == "nf4" else 1e-12)
    model = load(tmp_path / "small", dtype="float32")
    model.save(tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    assert verify(tmp_path / "saved", dtype="float32").agrees
    bill = count(tmp_path / "small")
    assert int(bill["parameters.total"]) == plain.num_parameters()
    (note,) = bill.notes
    assert FORMS[form][0]["quant_method"] in note and f"{Folder(tmp_path / 'small').bytes:,} bytes" in note
    assert count(tmp_path / "plain").notes == []
    (tmp_path / "small" / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1")  # what a clone without weights has
    (note,) = count(tmp_path / "small").notes
    assert FORMS[form][0]["quant_method"] in note and " bytes" not in note


def test_a_matrix_is_put_into_blocks(tmp_path: Path) -> None:
    """A folder of AWQ may be held in our own int8, as one in the float16 that it counts as may."""
    path, plain = folders("awq", tmp_path)
    tensors = {n: w.half() if n.endswith("proj.weight") else w for n, w in load_file(plain / WEIGHTS).items()}
    half = written(tmp_path / "half", tensors, None, judge("llama").config)
    small, other = (load(at, dtype="float32", quant="int8") for at in (path, half))
    ids = prompts("llama")[0]
    with torch.no_grad():
        assert torch.equal(small(ids), other(ids))


STATE = "X.weight.quant_state.bitsandbytes__nf4"
ENDLESS = torch.tensor(list(b'{"shape": [40, 64], "dtype": "bfloat16", "blocksize": 1000000000000}'), dtype=torch.uint8)
Change = Callable[[Tensors], Any]
HOSTILE: dict[str, tuple[str, dict[str, Any], Change, str]] = {
    "no scales": ("awq", {}, lambda t: t.pop("X.scales"), "X.scales"),
    "no zeros": ("gptq", {}, lambda t: t.pop("X.qzeros"), "X.qzeros"),
    "zeros of another shape": ("gptq", {}, lambda t: t.update({"X.qzeros": t["X.qzeros"][:1]}), "X.qzeros"),
    "scales of another shape": ("awq", {}, lambda t: t.update({"X.scales": t["X.scales"][:3]}), "X.scales"),
    "a group that is not there": ("gptq, 8 bits, in any order", {}, lambda t: t["X.g_idx"].__setitem__(3, 99), "X.g_idx"),
    "an infinite scale": ("packed", {}, lambda t: t["X.weight_scale"].__setitem__((0, 0), math.inf), "X.weight_scale"),
    "a shape that does not fit": ("packed", {}, lambda t: t["X.weight_shape"].__setitem__(1, 80), "X.weight_packed"),
    "floats for integers": ("gptq", {}, lambda t: t.update({"X.qweight": t["X.qweight"].float()}), "X.qweight"),
    "a state that is none": ("nf4", {}, lambda t: t.update({STATE: torch.tensor([1]).byte()}), "quant_state"),
    "too few values": ("nf4", {}, lambda t: t.update({"X.weight": t["X.weight"][:-1]}), "X.weight"),
    "no values beside a shape": ("packed", {}, lambda t: [t.pop(n) for n in ("X.weight_packed", "X.weight_scale")], "X.weight_packed"),
    "no values beside a factor": ("nvfp4", {}, lambda t: [t.pop(n) for n in ("X.weight_packed", "X.weight_scale")], "X.weight_packed"),
    "no factor beside float8": ("nvfp4", {}, lambda t: t.pop("X.weight_global_scale"), "X.weight_scale"),
    "a power that is none": ("mxfp4", {}, lambda t: t["X.weight_scale"].__setitem__((3, 0), 255), "X.weight_scale"),
    "no values beside a state": ("nf4", {}, lambda t: [t.pop(n) for n in ("X.weight", "X.weight.absmax")], "X.weight"),
    "a block without end": ("nf4", {}, lambda t: t.update({STATE: ENDLESS}), "quant_state"),
    "bits that are no integer": ("packed", {"config_groups": {"a": {"weights": {"num_bits": 4.0}}}}, lambda t: t, "num_bits"),
    "three bits": ("gptq", {"bits": 3}, lambda t: t, "bits"),
    "another layout": ("awq", {"version": "gemv"}, lambda t: t, "version"),
    "another format": ("gptq", {"checkpoint_format": "marlin"}, lambda t: t, "checkpoint_format"),
    "rotated weights": ("packed", {"transform_config": {"R1": {}}}, lambda t: t, "transform_config"),
    "sparse weights": ("packed", {"sparsity_config": {"format": "sparse-24-bitmask"}}, lambda t: t, "sparsity_config"),
    "sparse experts": ("packed", {"moe_sparsity_config": {"layers": {}}}, lambda t: t, "moe_sparsity_config"),
    "no groups": ("packed", {"config_groups": None}, lambda t: t, "config_groups"),
    "another method": ("gptq", {"quant_method": "quip"}, lambda t: t, "quant_method"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_what_does_not_fit_is_named(case: str, tmp_path: Path) -> None:
    form, settings, change, named = HOSTILE[case]
    disk, _ = FORMS[form][1](40, 64, 6)
    change(disk)
    folder = Folder(written(tmp_path / "f", disk, FORMS[form][0] | settings))
    with pytest.raises(PellucidError, match=named) as caught:
        folder.read("X.weight")
    assert "\n" not in str(caught.value)


MUTANTS: dict[str, tuple[str, Any, str, Any]] = {
    "high bits first": ("gptq", integer_weights, "unpacked", lambda w, b, f=integer_weights.unpacked: f(w, b).flip(-1)),
    "columns in a row": ("awq", integer_weights, "INTERLEAVED", tuple(range(8))),
    "groups in order": ("gptq, 8 bits, in any order", integer_weights, "group_of", lambda e, rows, n: torch.arange(rows) // (rows // n)),
    "zeros along columns": (
        "packed, zeros, 8 bits", integer_weights, "unpacked_rows",
        lambda w, b: integer_weights.unpacked(w, b).permute(2, 0, 1).flatten(0, 1),
    ),
    "powers from 126": ("mxfp4", integer_weights, "E8M0", (1.0, *small_floats.E8M0[:-1])),
    "a table turned": ("nvfp4", integer_weights, "E2M1", tuple(FLOAT4 + FLOAT4)),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(name: str, tmp_path: Path) -> None:
    form, owner, attribute, mutant = MUTANTS[name]
    disk, plain = FORMS[form][1](40, 64, 7)
    folder = Folder(written(tmp_path / "f", disk, FORMS[form][0]))
    with swapped(owner, attribute, mutant):
        got = folder.read("X.weight", torch.empty(40, 64, dtype=torch.float64))
    assert float((got - plain).abs().max()) > 1e-3
