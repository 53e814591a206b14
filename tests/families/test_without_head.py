"""Folders of a model without its head: transformers writes the names inside the model, and each type completes them.

The law, for every model type: what AutoModel writes loads, with the logits or rows of the complete folder, or is refused by the names of
the head alone. A model that sees around a text model is also read in the spellings of older files.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import test_gemma3
import test_gemma4
import test_llama4
import test_llava
import test_mistral3
import test_positions_on_three_axes
import test_qwen3_5
from judge import FAMILIES, judge, promoted, prompts
from pellucid.api.model import Model, load
from pellucid.checkpoint.folder import WEIGHTS
from pellucid.errors import CheckpointError
from pellucid.families import family as family_of
from pellucid.families import known, understand
from pellucid.families.family import HEADLESS, Family
from pellucid.nn.transformer import Encoder
from seeing import seeing
from tiny import far, swapped

Tensors = dict[str, Tensor]
LOGITS_BIAS = "final_logits_bias"  # of zeros where a file lacks it
SEEING: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("gemma3_text", test_gemma3.EYES),
    "llama4": ("llama4_text", test_llama4.EYES),
    "gemma4": ("gemma4_text", test_gemma4.EYES["gemma4"]),
    "gemma4_unified": ("gemma4_unified_text", test_gemma4.EYES["gemma4_unified"]),
    "llava": ("llama", test_llava.EYES),
    "mistral3": ("mistral", test_mistral3.EYES),
    **{kind: (text, test_qwen3_5.EYES) for kind, text in test_qwen3_5.WITHIN.items()},
    **{kind: (text, test_positions_on_three_axes.EYES | eyes) for kind, (text, eyes) in test_positions_on_three_axes.OF.items()},
}
ALIKE = {"kimi_k2", "minicpm", "gpt-sw3"}  # their names are those of others, and transformers has no model of theirs
FIRST = ("bert", "biogpt", "camembert", "gpt_neox", "mamba2", "roberta")  # whose own prefix comes before "model."


def written(folder: Path, config: Path, tensors: Tensors) -> Path:
    """Return a new folder with these tensors and the config.json of another."""
    folder.mkdir()
    shutil.copy(config / "config.json", folder)
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / WEIGHTS)
    return folder


def head_names(family: str, folder: Path) -> set[str]:
    """Return the names on disk of what stands behind the last norm."""
    cfg = load(folder, device="meta").config
    last = (r.disk for r in family_of(family).rules_for(cfg) if r.names[0].startswith(("head.", "transform.")))
    return {name.replace("*", end) for name in last for end in ("weight", "bias")}


def opened(folder: Path) -> tuple[Model | None, CheckpointError | None]:
    """Return a folder's model, or its refusal."""
    try:
        return load(folder), None
    except CheckpointError as refused:
        return None, refused


def law(bare: Path, rows: Tensor, ids: tuple[Tensor, ...], head: set[str]) -> bool:
    """Assert that a folder gives these rows, to the bit but for transformers' own, or lacks nothing but a head. True if it loads."""
    model, refused = opened(bare)
    if model is None:
        assert refused is not None and refused.key == "weights.missing", refused
        assert {*str(refused.values["names"]).split(", ")} <= head, refused
        return False
    assert far(model(*ids), rows) <= (1e-9 if isinstance(model.module, Encoder) else 0.0)
    return True


def base(family: str, tmp_path: Path) -> tuple[Path, Tensor, set[str]]:
    """Return the folder that transformers writes without the head, its rows or the complete folder's logits, and the head's names."""
    j = judge(family)
    inner, ids = j.hf.base_model, prompts(family)
    inner.save_pretrained(tmp_path / "bare")
    complete = load_file(j.folder / WEIGHTS)
    if LOGITS_BIAS in complete and LOGITS_BIAS not in load_file(tmp_path / "bare" / WEIGHTS):
        complete[LOGITS_BIAS] = torch.zeros_like(complete[LOGITS_BIAS])
    model = load(written(tmp_path / "whole", j.folder, complete))
    if j.hf.config.is_encoder_decoder or "MaskedLM" not in type(j.hf).__name__:
        return tmp_path / "bare", model(*ids), head_names(family, tmp_path / "whole")
    with promoted(), torch.no_grad():
        return tmp_path / "bare", inner(*ids).last_hidden_state, set()


def test_every_type_is_asked() -> None:
    assert {*FAMILIES, *SEEING, *ALIKE} == {*known()}
    for other, same in (("kimi_k2", "deepseek_v3"), ("minicpm", "llama"), ("gpt-sw3", "gpt2")):
        assert family_of(other).rules == family_of(same).rules and family_of(other).respell is family_of(same).respell


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(11)
@torch.no_grad()
def test_a_model_without_its_head(family: str, tmp_path: Path) -> None:
    """It loads if the head is the embedding alone, or none is needed; both spellings of one tensor are an error."""
    bare, rows, head = base(family, tmp_path)
    kind, cfg = family_of(family), understand(judge(family).config)[1]
    tied = cfg.tied and cfg.transform is None
    tensors, complete = load_file(bare / WEIGHTS), load_file(judge(family).folder / WEIGHTS)
    everything = tensors.keys() >= complete.keys()  # Llama 4 and T5 have no class without a head
    assert law(bare, rows, prompts(family), head) is (tied or everything or not head)
    if first := min((n for n in tensors if n not in complete and kind.canonical(n) in complete), default=None):
        with pytest.raises(CheckpointError) as caught:
            load(written(tmp_path / "both", judge(family).folder, complete | {first: tensors[first]}))
        assert caught.value.key == "weights.extra" and first in kind.canonical(str(caught.value.values["names"]))


def test_what_is_too_much_is_named_as_on_disk(tmp_path: Path) -> None:
    """A classifier behind BERT's rows is no tensor of BERT's."""
    with pytest.raises(CheckpointError, match=r"\bclassifier\.weight") as caught:
        load(
            written(
                tmp_path / "more",
                judge("bert").folder,
                load_file(judge("bert").folder / WEIGHTS) | {"classifier.weight": torch.ones(2, 32)},
            )
        )
    assert caught.value.values["names"] == "classifier.weight"


def spellings(kind: str, folder: Path, hf: Any) -> dict[str, Tensors]:
    """Return the tensors of a model that sees in each spelling of its files: written with its head and without, and of older files."""
    inner = getattr(hf, "model", hf)  # Llama 4 has no class without a head
    inner.save_pretrained(folder / "bare")
    hf.save_pretrained(folder / "memory", save_original_format=False)
    inner.save_pretrained(folder / "bare memory", save_original_format=False)
    out = {name: load_file(folder / name / WEIGHTS) for name in ("bare", "memory", "bare memory")}
    new = out["memory"]
    plain = {n.removeprefix("model."): t for n, t in new.items()}
    older = ((r"^language_model\.(?!model\.|lm_head)", "language_model.model."), (r"^lm_head", "language_model.lm_head"))
    out["text first"] = {re.sub(*older[1], re.sub(*older[0], n)): t for n, t in plain.items()}
    out["text outside"] = {n.replace("model.language_model.", "model.").replace("model.visual.", "visual."): t for n, t in new.items()}
    return out


@pytest.mark.parametrize("kind", SEEING)
@torch.no_grad()
@pytest.mark.quick(5)
def test_a_model_that_sees(kind: str, tmp_path: Path) -> None:
    text, eyes = SEEING[kind]
    hf = seeing(kind, text, eyes)
    hf.save_pretrained(tmp_path / "whole")
    ids = prompts(text)
    model = load(tmp_path / "whole")
    rows, head = model(*ids), head_names(kind, tmp_path / "whole")
    for name, tensors in spellings(kind, tmp_path, hf).items():
        loads = law(written(tmp_path / f"read {name}", tmp_path / "whole", tensors), rows, ids, head)
        assert loads is (model.config.tied or any("lm_head" in n for n in tensors)), name


def unfinished(self: Family, name: str) -> str:
    """Leave the prefix out where the file does, the first mutant."""
    return name


def model_first(self: Family, name: str) -> str:
    """Put "model." before names that a family completes with its own prefix, the second mutant."""
    return self.respell(f"model.{name}" if name.startswith(HEADLESS) else name)


def respelled_alone(self: Family, name: str) -> str:
    """Know a family's own prefix alone, the third mutant."""
    return self.respell(name)


MUTANTS: dict[str, tuple[Callable[[Family, str], str], tuple[str, ...]]] = {
    "a prefix is missing": (unfinished, (*FIRST, "falcon", "gpt2", "llama", "marian", "mpt", "opt")),
    '"model." first': (model_first, FIRST),
    'never "model."': (respelled_alone, ("gemma", "llama", "nemotron_h")),
}


@pytest.mark.parametrize(("mutant", "family"), [(m, f) for m, (_, families) in MUTANTS.items() for f in families])
@torch.no_grad()
@pytest.mark.quick(5)
def test_mutants_are_seen(mutant: str, family: str, tmp_path: Path) -> None:
    bare, rows, head = base(family, tmp_path)
    law(bare, rows, prompts(family), head)
    with swapped(Family, "canonical", MUTANTS[mutant][0]), pytest.raises(AssertionError):
        law(bare, rows, prompts(family), head)
