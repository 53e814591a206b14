"""What a quantised folder can have wrong: each fault is one line that names the file and the tensor, or the field and its value."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from judge import judge
from pellucid.api.model import load
from pellucid.checkpoint.folder import WEIGHTS, Folder
from pellucid.errors import CheckpointError, ConfigError, PellucidError
from pellucid.families import understand
from test_quantised import FP8, MXFP4, Tensors, deepseek, from_mxfp4, gpt_oss, rand, to_fp8, written


def fault(path: Path, tensors: Tensors, method: dict[str, Any]) -> PellucidError:
    """What reading all of a folder raises."""
    folder = Folder(written(path, tensors, method))
    with pytest.raises(CheckpointError) as caught:
        _ = [folder.read(name) for name in folder.names()]
    assert "\n" not in str(caught.value) and WEIGHTS in str(caught.value)
    return caught.value


V8, S8 = to_fp8(rand(28, 20), (16, 16))
W = "model.layers.0.mlp.up_proj.weight"
INF, NAN = torch.tensor([[1.0, 1.0], [math.inf, 1.0]]), torch.tensor([[1.0, math.nan], [1.0, 1.0]])
FP8_FAULTS: dict[str, tuple[Tensors, str, list[str]]] = {
    "no weight": ({f"{W}_scale_inv": S8}, "quantised.alone", [f"{W}_scale_inv", f"without {W}"]),
    "no scale": ({W: V8}, "quantised.alone", [W, f"without {W}_scale_inv"]),
    "grid of whole blocks": ({W: V8, f"{W}_scale_inv": S8[:1, :1].clone()}, "weights.shape", [f"{W}_scale_inv", "(1, 1)", "(2, 2)"]),
    "grid turned": ({W: V8[:, :8].clone(), f"{W}_scale_inv": S8[:1]}, "weights.shape", ["(1, 2)", "(2, 1)"]),
    "grid of one axis": ({W: V8, f"{W}_scale_inv": S8.flatten()}, "weights.shape", ["(4,)", "(2, 2)"]),
    "one scale": ({W: V8, f"{W}_scale_inv": torch.tensor(1.0)}, "weights.shape", ["()", "(2, 2)"]),
    "vector": ({W: V8[0].clone(), f"{W}_scale_inv": S8}, "weights.shape", [W, "(20,)", "out, in"]),
    "plain weight": ({W: V8.bfloat16(), f"{W}_scale_inv": S8}, "weights.dtype", [W, "bfloat16", "float8_e4m3fn"]),
    "packed weight": ({W: V8.view(torch.int8), f"{W}_scale_inv": S8}, "weights.dtype", [W, "int8"]),
    "bytes for scales": ({W: V8, f"{W}_scale_inv": S8.to(torch.uint8)}, "weights.dtype", [f"{W}_scale_inv", "uint8", "float32"]),
    "infinite": ({W: V8, f"{W}_scale_inv": INF}, "quantised.scale", [f"{W}_scale_inv"]),
    "no number": ({W: V8, f"{W}_scale_inv": NAN}, "quantised.scale", [f"{W}_scale_inv"]),
}


@pytest.mark.parametrize("name", FP8_FAULTS)
def test_faults_of_fp8_are_one_line(name: str, tmp_path: Path) -> None:
    tensors, key, words = FP8_FAULTS[name]
    error = fault(tmp_path, tensors, FP8)
    assert error.key == key and all(w in str(error) for w in words), str(error)


B4, S4 = torch.zeros(2, 3, 2, 16, dtype=torch.uint8), torch.full((2, 3, 2), 127, dtype=torch.uint8)
X = "model.layers.0.mlp.experts.down_proj"
MXFP4_FAULTS: dict[str, tuple[Tensors, str, list[str]]] = {
    "no blocks": ({f"{X}_scales": S4}, "quantised.alone", [f"{X}_scales", f"without {X}_blocks"]),
    "no scales": ({f"{X}_blocks": B4}, "quantised.alone", [f"{X}_blocks", f"without {X}_scales"]),
    "scales of another shape": ({f"{X}_blocks": B4, f"{X}_scales": S4[:, :, :1].clone()}, "weights.shape", ["(2, 3, 1)", "(2, 3, 2)"]),
    "blocks of another width": ({f"{X}_blocks": B4[..., :8].clone(), f"{X}_scales": S4}, "weights.shape", ["(2, 3, 2, 8)", "16"]),
    "blocks in line": ({f"{X}_blocks": B4.flatten(2), f"{X}_scales": S4}, "weights.shape", ["(2, 3, 32)"]),
    "signed blocks": ({f"{X}_blocks": B4.view(torch.int8), f"{X}_scales": S4}, "weights.dtype", [f"{X}_blocks", "int8", "uint8"]),
    "scales as numbers": ({f"{X}_blocks": B4, f"{X}_scales": S4.float()}, "weights.dtype", [f"{X}_scales", "float32", "uint8"]),
    "no number": ({f"{X}_blocks": B4, f"{X}_scales": torch.full_like(S4, 255)}, "quantised.scale", [f"{X}_scales"]),
}


@pytest.mark.parametrize("name", MXFP4_FAULTS)
def test_faults_of_mxfp4_are_one_line(name: str, tmp_path: Path) -> None:
    tensors, key, words = MXFP4_FAULTS[name]
    error = fault(tmp_path, tensors, MXFP4)
    assert error.key == key and all(w in str(error) for w in words), str(error)


def test_faults_of_a_whole_folder(tmp_path: Path) -> None:
    """A tensor both plain and in blocks, and float8 in a folder whose config.json speaks of no method."""
    small, _ = gpt_oss(tmp_path / "a")
    tensors = load_file(small / WEIGHTS)
    name = next(n for n in tensors if n.endswith("down_proj_blocks")).removesuffix("_blocks")
    config = json.loads((small / "config.json").read_text())
    both = written(tmp_path / "both", tensors | {name: from_mxfp4(tensors[f"{name}_blocks"], tensors[f"{name}_scales"])}, MXFP4, config)
    del config["quantization_config"]
    unsaid = written(tmp_path / "unsaid", tensors, None, config)
    silent = written(tmp_path / "silent", load_file(deepseek(tmp_path / "d")[0] / WEIGHTS), None, judge("deepseek_v3").config)
    for folder, key, words in (
        (both, "weights.extra", [f"{name}_blocks", f"{name}_scales"]),
        (unsaid, "weights.missing", [name]),
        (silent, "weights.extra", ["_scale_inv"]),
    ):
        with pytest.raises(CheckpointError) as caught:
            load(folder)
        assert caught.value.key == key and all(w in str(caught.value) for w in words) and "\n" not in str(caught.value)


REFUSED: list[tuple[Any, str]] = [
    *(({"quant_method": m}, m) for m in ("aqlm", "hqq", "quip", "exl2", "fbgemm_fp8", "")),
    ({}, "quant_method"),
    ({"quant_method": ["fp8"]}, "quant_method"),
    ([], "quantization_config"),
    ("fp8", "quantization_config"),
    (FP8 | {"scale_fmt": "int8"}, "scale_fmt"),
    (FP8 | {"expert_dtype": "fp4"}, "fp4"),
    (FP8 | {"fmt": "e5m2"}, "e5m2"),
    (FP8 | {"activation_scheme": "static"}, "static"),
    *((FP8 | {"weight_block_size": b}, "weight_block_size") for b in ([128], [128, 0], [128, 1.0], [True, 1], 128, "128", [1, 1 << 30])),
    (FP8 | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
    (MXFP4 | {"modules_to_not_convert": [1]}, "modules_to_not_convert"),
    (MXFP4 | {"dequantize": 1}, "dequantize"),
    (FP8 | {"group_size": 64}, "quantization_config.group_size"),
    (MXFP4 | {"bits": 4}, "quantization_config.bits"),
]


@pytest.mark.parametrize(("method", "named"), REFUSED, ids=str)
def test_other_methods_are_refused_by_name(method: Any, named: str, tmp_path: Path) -> None:
    folder = judge("llama").folder
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": method}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    message = str(caught.value)
    assert named in message and "config.json" in message and "quantization_config" in message and "\n" not in message
    assert caught.value.key != "config.value" or "aqlm" not in named or "fp8, mxfp4" in message
    again = load(tmp_path, ignore_fields=["quantization_config"])  # set aside, its plain weights load
    assert again.config.ignored == ("quantization_config",)


def test_v4_is_refused_by_name() -> None:
    """DeepSeek's later files name the experts' format beside the method."""
    config = judge("deepseek_v3").config | {"quantization_config": FP8, "expert_dtype": "fp4"}
    with pytest.raises(ConfigError, match="expert_dtype"):
        understand(config)
    understand(config | {"expert_dtype": "fp8"})
