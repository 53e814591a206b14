"""Adapters with magnitudes (DoRA, arXiv 2402.09353), judged by PEFT in float64: read, merged, added up, written, watched, refused."""

import copy
import sys
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import adapters
from judge import judge, promoted, prompts
from pellucid.api.model import Model, load
from pellucid.checkpoint import adapter
from pellucid.documents.formula import formula
from pellucid.errors import PellucidError
from pellucid.nn.adapted import AdaptedLinear
from pellucid.watching.watch import watch
from tiny import far, swapped

FAMILIES = list(adapters.TARGETS)
Q = "base_model.model.model.layers.0.self_attn.q_proj"


def own(family: str) -> Model:
    """Return our model of a family with PEFT's adapter with magnitudes."""
    folder, place, _ = adapters.case(family, use_dora=True)
    return load(folder, dtype="float64", adapter=place)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_pefts_also_merged(family: str) -> None:
    *_, want = adapters.case(family, use_dora=True)
    model = own(family)
    assert far(model(*prompts(family)), want) < 1e-9
    model.merge()
    assert far(model(*prompts(family)), want) < 1e-9 and not model.adapters


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_written_is_what_peft_wrote_and_reads(family: str) -> None:
    _, place, want = adapters.case(family, use_dora=True)
    own(family).save_adapter(again := adapters.fresh())
    a, b = (load_file(f / "adapter_model.safetensors") for f in (place, again))
    assert {n for n in a if "base_layer" not in n} == b.keys() and all(torch.equal(a[n], b[n]) for n in b)
    with promoted():
        theirs = peft.PeftModel.from_pretrained(copy.deepcopy(judge(family).hf), again).double().eval()
    assert far(adapters.logits(theirs, *prompts(family)), want) == 0


def test_a_narrow_model_keeps_the_files_magnitudes() -> None:
    """Its gains are made from them before they are rounded, and they are written as they were read."""
    folder, place, _ = adapters.case("llama", use_dora=True)
    model = load(folder, dtype="bfloat16", adapter=place)
    model.save_adapter(again := adapters.fresh())
    a, b = (load_file(f / "adapter_model.safetensors") for f in (place, again))
    name = f"{Q}.lora_magnitude_vector"
    assert torch.equal(a[name], b[name])
    layer = model.module.layers[0].attn.q  # type: ignore[union-attr]
    (addition,) = layer.additions()
    low = addition.scale * (addition.lora_b.weight.double() @ addition.lora_a.weight.double())
    assert torch.equal(addition.gain, (a[name] / (layer.weight.double() + low).norm(dim=1)).bfloat16())


def test_several_add_up_by_name() -> None:
    """Two with magnitudes and a plain one on the same matrices; each taken off again."""
    j, x = judge("llama"), prompts("llama")
    each = [adapters.trained(j, seed, use_dora=dora) for seed, dora in ((1, True), (2, True), (3, False))]
    places = [adapters.saved(one) for one in each]
    model, theirs = adapters.plain("llama"), each[0]
    before = model(*x)
    for n, place in enumerate(places):
        model.adapt(place, f"a{n}")
        if n:
            theirs.load_adapter(place, adapter_name=f"a{n}")
    theirs.base_model.set_adapter(["default", "a1", "a2"])
    want = adapters.logits(theirs.double(), *x)
    assert far(model(*x), want) < 1e-9
    model.unadapt("a1")
    theirs.base_model.set_adapter(["default", "a2"])
    assert far(model(*x), adapters.logits(theirs, *x)) < 1e-9 < far(model(*x), want)
    model.merge()
    assert far(model(*x), adapters.logits(theirs, *x)) < 1e-9
    again = adapters.plain("llama")
    again.adapt(places[0])
    again.unadapt()
    assert torch.equal(again(*x), before)


def test_numbers_are_pefts_trainable_ones() -> None:
    plain, model = adapters.plain("llama"), own("llama")
    theirs = adapters.trained(judge("llama"), use_dora=True)
    assert model.num_parameters() - plain.num_parameters() == sum(p.numel() for n, p in theirs.named_parameters() if "lora_" in n)


def test_a_quantised_base_has_the_lengths_of_its_own_rows() -> None:
    """Of int8 blocks and the values that they stand for, on which the adapter is merged, the same logits."""
    folder, place, _ = adapters.case("llama", use_dora=True)
    model = load(folder, dtype="float64", quant="int8", adapter=place)
    before = model(*prompts("llama"))
    model.merge(dequantise=True)
    assert far(model(*prompts("llama")), before) < 1e-9


@pytest.mark.parametrize("family", ["llama", "gpt2", "deepseek_v3"])
def test_each_cell_is_the_sum_of_its_terms(family: str) -> None:
    model = own(family)
    with torch.no_grad(), watch(model.module, terms=True) as seen:
        model(*prompts(family))
    cells = [s for s in seen if s.op == "adapted"]
    assert len(cells) > 3
    for s in cells:
        at = tuple(n // 2 for n in s.shape)
        assert s.terms(at).total() == pytest.approx(float(s.value[at]), abs=1e-10)
        assert "ᵀ · gain" in formula(s, {}) and " + gain · " in formula(s, {})


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (adapter, "gain", lambda magnitude, *_: torch.ones_like(magnitude)),
        (adapter, "gain", lambda magnitude, weight, a, b, scale: magnitude / weight.norm(dim=1)),
        (adapter, "gain", lambda magnitude, weight, a, b, scale: magnitude / (weight + b @ a).norm(dim=1)),
        (sys.modules["pellucid.ops.linear"], "gained", lambda gains: [None, *gains]),
        (AdaptedLinear, "forward", lambda self, x: torch.nn.functional.linear(x, self.dense_weight(), self.bias * 2)),
    ],
    ids=["none", "of the plain matrix", "without the scale", "not on the matrix", "a bias, too"],
)
def test_mutants_are_far(owner: Any, name: str, mutant: Any) -> None:
    *_, want = adapters.case("gpt2", use_dora=True)
    with swapped(owner, name, mutant):
        assert far(own("gpt2")(*prompts("gpt2")), want) > 1e-3


@pytest.mark.parametrize(
    ("tensors", "settings", "words"),
    [
        ({f"{Q}.lora_magnitude_vector": None}, {}, "q_proj.lora_magnitude_vector"),
        ({f"{Q}.lora_magnitude_vector": torch.ones(3)}, {}, "q_proj.lora_magnitude_vector"),
        ({}, {"use_dora": False}, "lora_magnitude_vector"),
        ({f"{Q}.lora_A.weight": None}, {}, "q_proj.lora_A.weight"),
    ],
    ids=["none", "shape", "not said", "no A"],
)
def test_what_does_not_fit_is_refused_by_name(tensors: dict[str, Tensor | None], settings: dict[str, Any], words: str) -> None:
    folder, place, _ = adapters.case("llama", use_dora=True)
    model = load(folder, dtype="float64")
    with pytest.raises(PellucidError, match=words):
        model.adapt(adapters.changed(place, tensors, **settings))
    assert not model.adapters


def test_the_newer_name_of_magnitudes_is_read() -> None:
    folder, place, want = adapters.case("llama", use_dora=True)
    stored = load_file(place / "adapter_model.safetensors")
    longer = {n: None for n in stored if n.endswith("magnitude_vector")} | {
        f"{n}.weight": t for n, t in stored.items() if n.endswith("magnitude_vector")
    }
    assert longer
    model = load(folder, dtype="float64", adapter=adapters.changed(place, longer))
    assert far(model(*prompts("llama")), want) < 1e-9
