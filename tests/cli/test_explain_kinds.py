"""`explain` for every kind of model: filled blanks, both sides of a translation, a prompt whose tokens see all of it."""

import json
import re
from typing import Any

import pytest
import torch

import pellucid
from documented import accept
from pellucid.api.model import specimens
from pellucid.commands import main
from pellucid.errors import UseError

CAPITAL = "The capital of France is"
PROMPTS = {"pellucid/capitals-bert": f"{CAPITAL} ___.", "pellucid/capitals-t5": f"{CAPITAL} Paris."}
PROMPTS |= {"pellucid/reader": "The key of Alda is red. The key of Borin is blue. The key of Alda is"}
ENDS = {"pellucid/reader": "·red"}


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["explain", *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    accept(document, "explain")
    return document


@pytest.mark.parametrize("name", specimens())
@pytest.mark.quick(4)
def test_every_specimen_is_explained_to_its_end(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The document has the API's numbers, and both languages end in Paris, or in what the text says."""
    prompt = PROMPTS.get(name, CAPITAL)
    document = explained(capsys, name, prompt)
    model = pellucid.load(name, dtype="float32")
    trace = pellucid.trace(model, prompt)
    assert document["new"] == trace.new and [t["id"] for t in document["tokens"]] == trace.ids
    assert [t["path"] for t in document["tensors"]] == [s.path for s in trace.seen]
    assert [t["max"] for t in document["tensors"]] == [s.value.max().item() for s in trace.seen]
    parameters = {n for n, _ in model.module.named_parameters()}
    assert parameters == {w for t in document["tensors"] for w in t["weights"]} & parameters
    for language in ("en", "zh"):
        assert main(["explain", name, prompt, "--lang", language]) == 0
        output = capsys.readouterr().out
        assert "Paris" in output if name not in ENDS else re.search(rf"(?m)^ → .*{ENDS[name]}", output)


def test_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    """Each blank has its row, its candidates and its token, and they are those of a forward."""
    name = "pellucid/capitals-bert"
    model = pellucid.load(name, dtype="float32")
    document = explained(capsys, name, f"{CAPITAL} ___.")
    ids = torch.tensor([[t["id"] for t in document["tokens"]]])
    (blank,) = document["blanks"]
    logits = model(ids)[0, blank["row"]]
    assert ids[0, blank["row"]] == model.tokenizer.special["mask"]
    assert blank["next"]["id"] == document["next"]["id"] == int(logits.argmax()) == document["new"][0]
    assert [c["probability"] for c in blank["candidates"]] == pytest.approx(logits.softmax(-1).sort(descending=True)[0][:5].tolist())
    assert len(explained(capsys, name, "___ is the capital of ___.")["blanks"]) == 2
    document = explained(capsys, name, CAPITAL)
    assert document["next"] is None and document["candidates"] == [] and "blanks" not in document
    with pytest.raises(UseError, match="generates nothing"):
        pellucid.trace(model, "___", steps=2)
    with pytest.raises(UseError, match="generates nothing"):
        model.generate(ids)


def test_a_prompt_that_sees_itself() -> None:
    """Tokens of the prompt attend to all of it, later ones causally; without `prefix`, `model(ids)` takes all ids for the prompt."""
    model = pellucid.load("pellucid/capitals-prefix", dtype="float32")
    trace = pellucid.trace(model, CAPITAL, steps=2)
    first, later = (s.value[0] for s in trace.all("layers.0.attn.pattern"))
    assert (first > 0).all() and first.shape[-2:] == (5, 5) and later.shape[-2:] == (1, 6)
    ids = torch.tensor([trace.ids])
    assert torch.equal(model(ids), model(ids, prefix=5))
    assert not torch.equal(model(ids)[0, 0], model(ids, prefix=0)[0, 0])


def test_both_sides_of_a_translation(capsys: pytest.CaptureFixture[str]) -> None:
    document = explained(capsys, "pellucid/capitals-t5", f"{CAPITAL} Paris.", "--steps", "12")
    paths = {t["path"].partition(".")[0] for t in document["tensors"]}
    assert {"source", "encoder", "decoder", "logits"} <= paths
    assert any(".cross.pattern" in t["path"] for t in document["tensors"])
    model = pellucid.load("pellucid/capitals-t5")
    assert "巴黎" in model.tokenizer.decode(document["new"], skip_special=True)
