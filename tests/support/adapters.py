"""PEFT's adapters on tiny models, the judge of reading, merging and writing adapters."""

import copy
import json
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from judge import Judge, judge, promoted, prompts, run
from pellucid.api.model import Model, load

# Several names of each family: a list that every layer has, or a pattern.
TARGETS: dict[str, list[str] | str] = {
    "llama": ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "qwen3": r".*\.(q|k|gate)_proj",
    "deepseek_v3": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
    "t5": ["q", "k", "v", "o", "wi", "wo"],
}
_folders = tempfile.TemporaryDirectory(prefix="pellucid-adapters-")


def trained(j: Judge, seed: int = 1, **settings: Any) -> Any:
    """Return PEFT's model of the judge's: every low-rank matrix random, in float64. settings: of LoraConfig."""
    settings = {"r": 3, "lora_alpha": 7, "target_modules": TARGETS[j.family], "fan_in_fan_out": j.family == "gpt2"} | settings
    with promoted(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(copy.deepcopy(j.hf), peft.LoraConfig(init_lora_weights=False, **settings)).double().eval()
    draw = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            p.data = (torch.randn(p.shape, generator=draw) * 0.3).bfloat16().double()
    return model


def logits(model: Any, *ids: Tensor) -> Tensor:
    """Return PEFT's logits in float64."""
    with promoted(), torch.no_grad():
        return run(model, *ids)


def fresh() -> Path:
    """Return an empty folder."""
    return Path(tempfile.mkdtemp(dir=_folders.name))


def saved(model: Any) -> Path:
    """Return a folder written by PEFT."""
    folder = fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    return folder


@cache
def case(family: str, **settings: Any) -> tuple[Path, Path, Tensor]:
    """Return a family's model folder, an adapter's folder, and PEFT's logits of `prompts`. Tests share them: do not change them."""
    j = judge(family)
    model = trained(j, **settings)
    return j.folder, saved(model), logits(model, *prompts(family))


def plain(family: str, dtype: str = "float64") -> Model:
    """Return our model of a family without an adapter."""
    return load(judge(family).folder, dtype=dtype)


def changed(folder: Path, tensors: dict[str, Tensor | None] | None = None, **settings: Any) -> Path:
    """Return an adapter's folder with other settings and tensors; None removes a tensor."""
    out = fresh()
    table = json.loads((folder / "adapter_config.json").read_text())
    (out / "adapter_config.json").write_text(json.dumps(table | settings))
    stored = load_file(folder / "adapter_model.safetensors") | (tensors or {})
    save_file({n: t.contiguous() for n, t in stored.items() if t is not None}, out / "adapter_model.safetensors", {"format": "pt"})
    return out
