"""Path patching against a run written by hand: the sender's difference added to the stream, then the receiver's own norm and product."""

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid import path_patch, put, take, trace
from pellucid.api import path_patch as patching
from pellucid.api.model import Model
from pellucid.batch.step import Step
from pellucid.errors import PellucidError

FRANCE, JAPAN, WORDS = "The capital of France is", "The capital of Japan is", (" Paris", " Tokyo")
NAMES = ["pellucid/capitals", "pellucid/capitals-llama", "pellucid/capitals-deepseek"]


def opened(name: str) -> Model:
    return pellucid.load(name, dtype="float64")


def number(model: Model, logits: Tensor) -> float:
    a, b = (model.tokenizer.encode(w, special=False)[0] for w in WORDS)
    return float(logits[a] - logits[b])


def added(model: Model, layer: int, head: int) -> Tensor:
    """Return what head `head` of a block adds to the stream beside what it had added, by a run with that head alone patched."""
    clean, base = trace(model, FRANCE), trace(model, JAPAN)
    one = trace(model, JAPAN, edit=[take(f"layers.{layer}.attn.z", clean, H=head)])
    difference: Tensor = one[f"layers.{layer}.attn"].value - base[f"layers.{layer}.attn"].value
    return difference


def by_hand_to_logits(model: Model, layer: int, head: int) -> float:
    base = trace(model, JAPAN)
    stream = base[f"layers.{len(model.config.layers) - 1}.out"].value + added(model, layer, head)
    with torch.no_grad():
        return number(model, model.module.logits(model.module.last_norm(stream), Step.plain(torch.tensor([base.ids])))[0, -1])


def by_hand_to_query(model: Model, layer: int, head: int, receiver: int, at: int) -> float:
    """Read one head's query from the stream with the sender's difference, put it into a run, and return its number."""
    base = trace(model, JAPAN)
    stream = base[f"layers.{receiver - 1}.out"].value + added(model, layer, head)
    run = trace(model, JAPAN, only=f"layers.{receiver}.attn.q", edit={f"layers.{receiver - 1}.out": lambda x: stream})
    query = run[f"layers.{receiver}.attn.q"].value[0, :, at]
    return number(model, trace(model, JAPAN, edit=[put(f"layers.{receiver}.attn.q", query, H=at)]).last_logits(0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick(4)
def test_to_the_logits(name: str) -> None:
    model = opened(name)
    s = path_patch(model, FRANCE, JAPAN, "layers.*.attn.z", "H", "logits", WORDS)
    for layer in range(len(model.config.layers)):
        for head in range(0, s.values.shape[1], 2):
            assert float(s.values[layer, head]) == pytest.approx(by_hand_to_logits(model, layer, head), abs=1e-9)
    assert s.base == pytest.approx(number(model, trace(model, JAPAN).last_logits(0)), abs=1e-9)


def test_to_a_query() -> None:
    model = opened(NAMES[0])
    s = path_patch(model, FRANCE, JAPAN, "layers.*.attn.z", "H", {"layers.2.attn.q": {"H": 1}}, WORDS)
    for layer, head in ((0, 3), (1, 0)):
        assert float(s.values[layer, head]) == pytest.approx(by_hand_to_query(model, layer, head, 2, 1), abs=1e-9)
    assert s.values[2:].flatten().tolist() == pytest.approx([s.base] * 8, abs=1e-9)  # a receiver hears of nothing that comes after it
    assert number(model, s.run("layers.0.attn.z", H=3).last_logits(0)) == pytest.approx(float(s.values[0, 3]), abs=1e-9)


def test_paths_through_other_parts_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: parts between sender and receiver follow the change, as in plain patching."""
    model = opened(NAMES[0])
    monkeypatch.setattr(patching, "PARTS", ())
    s = path_patch(model, FRANCE, JAPAN, "layers.*.attn.z", "H", "logits", WORDS)
    assert abs(float(s.values[0, 3]) - by_hand_to_logits(model, 0, 3)) > 1


@pytest.mark.parametrize("fields", [{"corrupted": "Japan"}, {"receivers": "layers.9.attn.q"}, {"over": "layers.9.attn.z"}, {"by": "Q"}])
def test_refusals(fields: dict[str, str]) -> None:
    given = {"clean": FRANCE, "corrupted": JAPAN, "over": "layers.*.attn.z", "by": "H", "receivers": "logits"} | fields
    with pytest.raises(PellucidError) as refused:
        path_patch(opened(NAMES[0]), **given, metric=WORDS)
    assert "\n" not in str(refused.value)


def test_a_taken_row_of_logits_is_its_own() -> None:
    """Where only some rows have logits, `take` gives each the other run's row at its position; a mutant gave the first row."""
    model = opened(NAMES[0])
    clean = trace(model, FRANCE)
    s = pellucid.sweep(model, JAPAN, {"all": [take("logits", clean)]}, WORDS)
    assert s.values["all"] == pytest.approx(number(model, clean.last_logits(0)), abs=1e-9)
    with pellucid.watch(model, only=(), edit=[take("logits", clean)]):
        assert model.generate(JAPAN, 1) == " Paris"
