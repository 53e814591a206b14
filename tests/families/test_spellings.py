"""Old and new spellings of one checkpoint fill the same model, unused tensors are named, and memory is checked first."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from judge import FAMILIES, judge
from pellucid.api.model import load
from pellucid.checkpoint import fill as fill_module
from pellucid.checkpoint import opening
from pellucid.checkpoint.disk import require_memory
from pellucid.checkpoint.fill import take
from pellucid.checkpoint.folder import WEIGHTS, Folder
from pellucid.errors import CheckpointError
from pellucid.families import family as family_of
from pellucid.families import names
from pellucid.families.names import Layout
from test_names import disk, filled
from tiny import swapped

FUSED = [f for f in FAMILIES if any(re.search(r"experts\.0\.", n) for n in disk(f))]  # experts lie one by one on disk


def alike(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("family", FUSED)
@pytest.mark.quick(7)
def test_experts_in_one_tensor(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' own spelling is read; up before gate, and a folder in both spellings, are seen."""
    j = judge(family)
    j.hf.save_pretrained(tmp_path, save_original_format=False)
    tensors = load_file(tmp_path / WEIGHTS)
    assert any(n.endswith("experts.gate_up_proj") for n in tensors) and not any("experts.0." in n for n in tensors)
    plain = filled(family, disk(family))
    assert alike(filled(family, tensors), plain) and alike(load(tmp_path).module, load(j.folder).module)
    with pytest.raises(CheckpointError, match=r"experts\.0\.") as caught:
        filled(family, tensors | disk(family))
    assert caught.value.key == "weights.extra"
    with pytest.raises(CheckpointError, match=r"experts\.down_proj") as caught:
        filled(family, {n: t for n, t in tensors.items() if not n.endswith("experts.down_proj")})
    assert caught.value.key == "weights.missing"
    wide = next(n for n in tensors if n.endswith("experts.gate_up_proj"))
    with pytest.raises(CheckpointError, match=wide) as caught:
        filled(family, tensors | {wide: tensors[wide][:, 1:].clone()})
    assert caught.value.key == "weights.shape"
    monkeypatch.setattr(names, "FUSED", Layout(lambda disk, _: list(disk[0].chunk(2, 1))[::-1], lambda ours: [torch.cat(ours[::-1], 1)]))
    assert not alike(filled(family, tensors), plain)


def test_what_is_saved_is_in_the_old_spelling(tmp_path: Path) -> None:
    """Experts are saved one by one, as published files have them."""
    judge("deepseek_v3").hf.save_pretrained(tmp_path / "a", save_original_format=False)
    load(tmp_path / "a").save(tmp_path / "b")
    assert load_file(tmp_path / "b" / WEIGHTS).keys() == disk("deepseek_v3").keys()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(7)
def test_gamma_and_beta(family: str) -> None:
    """TensorFlow's names of a norm's weights are read in any family; both spellings at once are an error."""
    good = disk(family)
    norms = {n for n, t in good.items() if t.ndim == 1 and ("norm" in n.lower() or "ln_" in n)}
    if not norms:
        assert all("norm" not in name for name in good), "OLMo's norms alone have no weights"
        return

    def old(name: str) -> str:
        return name.removesuffix(".weight") + ".gamma" if name.endswith(".weight") else name.removesuffix(".bias") + ".beta"

    respelled = {old(n) if n in norms else n: t for n, t in good.items()}
    assert respelled.keys() != good.keys() and alike(filled(family, respelled), filled(family, good))
    first = min(norms)
    with pytest.raises(CheckpointError, match=first) as caught:
        filled(family, good | {old(first): good[first]})
    assert caught.value.key == "weights.extra"


@pytest.mark.parametrize(
    ("family", "name"), [("mixtral", "layers.0.mlp.gate.weight"), ("granitemoe", "layers.0.block_sparse_moe.router.weight")]
)
def test_a_spelling_begins_with_the_complete_name(family: str, name: str) -> None:
    """transformers' names in memory, without their "model."."""
    known = family_of(family)
    assert known.canonical(name) == known.canonical(f"model.{name}") != f"model.{name}"


def test_beta_is_no_weight() -> None:
    """The mutant exchanges a norm's two names, which fills a model without an error but with other logits."""
    good = disk("gpt2")
    ends = {".ln_1.weight": ".ln_1.beta", ".ln_1.bias": ".ln_1.gamma"}
    wrong = {next((n.replace(a, b) for a, b in ends.items() if n.endswith(a)), n): t for n, t in good.items()}
    assert not alike(filled("gpt2", wrong), filled("gpt2", good))


def arrives(layout: Layout) -> bool:
    """Return True if numbers put into a layout's tensors appear in the model."""
    ours = torch.zeros(4, 6, 8)
    for t in layout.write([ours]):
        t.fill_(1)
    return bool(ours.all())


@pytest.mark.parametrize("name", [n for n, v in vars(names).items() if isinstance(v, Layout)])
def test_what_a_layout_says_of_its_views(name: str) -> None:
    """A layout that claims views gives views, since a tensor read into a copy would be lost."""
    layout = getattr(names, name)
    assert arrives(layout) or not layout.views


def test_a_copy_that_passes_for_a_view_is_seen() -> None:
    assert not any(map(arrives, (names.SPLIT, names.SPLIT_TURNED, names.PAIRED, names.FUSED)))
    assert not alike(filled("gpt2", disk("gpt2")), filled_as_views("gpt2"))


def filled_as_views(family: str) -> Any:
    """Fill a model with layouts that all claim views, the mutant."""

    def trusting(source: Any, disk: Any, g: Any, places: Any) -> None:
        take(source, disk, replace(g, layout=replace(g.layout, views=True)), places)

    with swapped(fill_module, "take", trusting):
        return filled(family, disk(family))


def changed(tmp_path: Path, family: str, more: dict[str, Tensor]) -> Path:
    """Return the folder of a family's judge with these tensors added."""
    (tmp_path / "config.json").write_bytes((judge(family).folder / "config.json").read_bytes())
    save_file(disk(family) | more, tmp_path / WEIGHTS, {"format": "pt"})
    return tmp_path


def test_what_is_left_is_named(tmp_path: Path) -> None:
    """The module that predicts a second token is named as on disk; a folder whose tensors are all used names none."""
    second = {n.replace("layers.2", "layers.3"): t for n, t in disk("deepseek_v3").items() if "layers.2" in n}
    second |= {f"model.layers.3.{n}.weight": torch.ones(2, 2) for n in ("eh_proj", "enorm", "hnorm", "shared_head.head")}
    model = load(changed(tmp_path, "deepseek_v3", second))
    assert model.left == tuple(sorted(second)) and alike(model.module, load(judge("deepseek_v3").folder).module)
    assert load(judge("deepseek_v3").folder).left == load(judge("gpt2").folder).left == ()


def test_memory_is_asked_before_reading(tmp_path: Path) -> None:
    """By the requested dtype, a model that does not fit is refused before a tensor is read; on meta nothing is checked."""
    folder = judge("llama").folder
    parameters = load(folder, device="meta").num_parameters()

    def free(available: int | None) -> Any:
        return swapped(opening, "require_memory", partial(require_memory, free=lambda: available))

    def unread(*_: Any) -> Any:
        raise AssertionError("read")

    for dtype, width in (("float64", 8), ("float32", 4), ("bfloat16", 2)):
        with free(parameters * width):
            assert load(folder, dtype=dtype).num_parameters() == parameters
        with free(parameters * width - 1), swapped(Folder, "read", unread), pytest.raises(CheckpointError) as caught:
            load(folder, dtype=dtype)
        assert caught.value.key == "file.memory" and str(folder) in str(caught.value) and "\n" not in str(caught.value)
    with free(0):
        assert load(folder, device="meta").dtype == torch.float64
    with free(None):
        load(folder)
