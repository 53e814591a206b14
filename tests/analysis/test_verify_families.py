"""`verify` on every model type, as a random folder, and on folders in FP8 and MXFP4: it says equal of what is equal, and not of a copy in
which one weight has moved by 1e-3.
"""

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import seeing as makers
import test_gemma3
import test_gemma4
import test_llama4
import test_llava
import test_mistral3
import test_positions_on_three_axes as three_axes
import test_quantised as packed
import test_qwen3_5
from judge import FAMILIES, judge, make
from pellucid.analysis import verify as verifying
from pellucid.analysis.verify import verify
from pellucid.commands import main
from pellucid.families import known
from tiny import swapped

_folders = TemporaryDirectory(prefix="pellucid-verify-")
# a matrix that every token meets: neither a table nor an expert
MET = re.compile(r".*(attn|attention|attn_norm|mlp|mixer|fc1|fc2|DenseReluDense|dense|intermediate)\b.*(weight|weight_scale_inv)")


def fresh() -> Path:
    """A folder of its own."""
    return Path(_folders.name) / str(len(list(Path(_folders.name).iterdir())))


def seeing(kind: str, text: str, eyes: dict[str, Any], **more: Any) -> Path:
    """The folder of a model with eyes, whose text model is read."""
    folder = fresh()
    makers.seeing(kind, text, eyes, **more).save_pretrained(folder)
    return folder


def three_axes_of(kind: str) -> Path:
    """A folder of a model with eyes, whose positions have three axes."""
    folder = fresh()
    three_axes.made(kind).save_pretrained(folder)
    return folder


def renamed(model_type: str, family: str, quirk: str = "plain") -> Path:
    """A family's folder under another model_type, which transformers need not know."""
    j = make(family, quirk)
    (j.folder / "config.json").write_text(json.dumps(j.config | {"model_type": model_type}))
    return j.folder


def fp8(family: str, block: int, dtype: torch.dtype) -> Path:
    """A folder in float8, whose last blocks may be ragged and whose other tensors are in a lesser dtype."""
    j, tensors = judge(family), dict[str, torch.Tensor]()
    for name, w in load_file(j.folder / packed.WEIGHTS).items():
        tensors[name] = w.to(dtype)
        if packed.is_quantised(name, w):
            tensors[name], tensors[f"{name}_scale_inv"] = packed.to_fp8(w, (block, block))
    method = packed.FP8 | {"weight_block_size": [block, block], "modules_to_not_convert": ["model.layers.1.self_attn.o_proj", "lm_head"]}
    return packed.written(fresh(), tensors, method, j.config | {"dtype": str(dtype).removeprefix("torch.")})


FORMS: dict[str, Callable[[], Path]] = {
    **{family: (lambda family=family: judge(family).folder) for family in FAMILIES},
    "falcon rw": lambda: judge("falcon", "rw").folder,
    "falcon, twelve heads": lambda: judge("falcon", "twelve heads").folder,
    "marian, two sides": lambda: judge("marian", "two sides").folder,
    "gemma3": lambda: seeing("gemma3", "gemma3_text", test_gemma3.EYES, mm_tokens_per_image=4),
    "gemma4": lambda: seeing("gemma4", "gemma4_text", test_gemma4.EYES["gemma4"]),
    "gemma4_text, experts": lambda: judge("gemma4_text", "experts").folder,
    "gemma4_text, as E2B": lambda: judge("gemma4_text", "as E2B").folder,
    "gemma4_unified": lambda: seeing("gemma4_unified", "gemma4_unified_text", test_gemma4.EYES["gemma4_unified"]),
    "llama4": lambda: seeing("llama4", "llama4_text", test_llama4.EYES),
    "llava": lambda: seeing("llava", "llama", test_llava.EYES),
    "mistral3": lambda: seeing("mistral3", "mistral", test_mistral3.EYES),
    "qwen3_5": lambda: seeing("qwen3_5", "qwen3_5_text", test_qwen3_5.EYES),
    "qwen3_5_moe": lambda: seeing("qwen3_5_moe", "qwen3_5_moe_text", test_qwen3_5.EYES),
    **{kind: (lambda kind=kind: three_axes_of(kind)) for kind in three_axes.OF},
    "gpt-sw3": lambda: renamed("gpt-sw3", "gpt2"),
    "kimi_k2": lambda: renamed("kimi_k2", "deepseek_v3", "one group"),
    "deepseek_v3 in FP8, ragged": lambda: packed.deepseek(fresh())[0],
    "deepseek_v3 in FP8, experts in one": lambda: packed.fused(fresh())[0],
    "llama in FP8, bfloat16": lambda: fp8("llama", 16, torch.bfloat16),
    "qwen3 in FP8, one block": lambda: fp8("qwen3", 128, torch.bfloat16),
    "gpt_oss in MXFP4": lambda: packed.gpt_oss(fresh())[0],
}


@cache
def folder(form: str) -> Path:
    """The folder of a form, made once."""
    return FORMS[form]()


def test_every_model_type_is_there() -> None:
    assert set(known()) - {"minicpm"} <= FORMS.keys()  # which transformers does not have


def moved(source: Path) -> tuple[Path, str]:
    """A copy in which one number differs by 1e-3, and the tensor's name."""
    copy = fresh()
    shutil.copytree(source, copy)
    tensors = load_file(copy / packed.WEIGHTS)
    met = [n for n in sorted(tensors) if MET.fullmatch(n) and "experts" not in n and tensors[n].ndim == 2 and tensors[n].dtype.itemsize > 1]
    name = met[len(met) // 2]
    x = tensors[name].float() if name.endswith("_scale_inv") else tensors[name].double()  # bfloat16 could not tell
    x[0, 0] += 1e-3
    save_file(tensors | {name: x}, copy / packed.WEIGHTS, {"format": "pt"})
    return copy, name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.quick(16)
def test_equal_is_equal_and_one_weight_is_found(form: str) -> None:
    report = verify(folder(form))
    assert report.agrees and report.logits < 1e-12, report.first
    assert len(report.modules) > 10 and max(c.error for c in report.modules) < 1e-9
    other, name = moved(folder(form))
    report = verify(folder(form), other)
    assert not report.agrees and (report.first is not None or report.logits > report.tolerance), name


@pytest.mark.parametrize(
    ("form", "part", "stand_in"),
    [
        ("falcon rw", "rounded", lambda layer: False),
        ("llama in FP8, bfloat16", "dequantised", lambda folder, method, dtype: {n: folder.read(n) for n in folder.names()}),
    ],
)
def test_mutants(form: str, part: str, stand_in: Any) -> None:
    """The attention that adds a bias twice; weights that were rounded on their way."""
    with swapped(verifying, part, stand_in):
        assert not verify(folder(form)).agrees


def test_another_librarys_fault_is_its_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, whichever of its calls breaks."""

    def broken(*given: object, **how: object) -> None:
        raise RuntimeError("expected m1 and m2\nto have the same dtype")

    for part in ("theirs", "run"):
        with monkeypatch.context() as patch:
            patch.setattr(verifying, part, broken)
            assert main(["verify", str(folder("llama"))]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "transformers cannot" in err and "expected m1 and m2" in err and "same dtype" not in err
