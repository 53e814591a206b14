"""A prompt in any of its kinds gives the same new ids, and `stream` gives what `generate` returns."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from pellucid.api.model import Model
from pellucid.commands import main
from pellucid.errors import PellucidError
from spaced import spaced_folder
from tiny import swapped

PROMPT = "The capital of France is"
NAMES = ["pellucid/capitals", "pellucid/capitals-t5", "pellucid/reader"]


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest) -> Model:
    return pellucid.load(request.param)


def kinds(ids: list[int]) -> dict[str, Any]:
    """Return one text's ids in each kind, by what `generate` gives back for it."""
    row = torch.tensor(ids)
    return {
        "list": ids,
        "tuple": tuple(ids),
        "array": np.array(ids),
        "array of 32 bits": np.array(ids, dtype=np.int32),
        "NumPy's numbers": [np.int64(i) for i in ids],
        "torch's numbers": list(row),
        "tensor [T]": row,
        "tensor [B T]": row[None],
        "array [B T]": np.array([ids]),
        "lists": [ids],
        "tensors": [row],
        "arrays": [np.array(ids)],
    }


def given_back(model: Model, given: Any, new: int) -> list[int]:
    """Return the new ids of one text, and check that they came in the kind that was given."""
    got = model.generate(given, new)
    if isinstance(given, torch.Tensor):
        assert isinstance(got, torch.Tensor) and got.ndim == given.ndim
        got = got.tolist()
    return got[0] if isinstance(got[0], list) else got


def test_every_kind_gives_the_same(model: Model) -> None:
    ids = model.tokenizer.encode(PROMPT)
    want = model.generate(ids, 4)
    for name, given in kinds(ids).items():
        assert given_back(model, given, 4) == want, name
        if name not in ("tensors", "arrays", "lists"):
            assert pellucid.trace(model, given, 1).new == want[:1], name


@pytest.mark.parametrize("wrong", [5, 2.5, None, {}, np.array(5), torch.tensor(5), [1.5], np.array([1.5]), [None]])
def test_what_is_no_prompt_is_refused(wrong: Any) -> None:
    with pytest.raises(PellucidError) as refused:
        pellucid.load("pellucid/capitals").generate(wrong, 1)
    assert "\n" not in str(refused.value)


def streamed(model: Model, **how: Any) -> list[int]:
    return [out.token.id for out in model.stream([model.tokenizer.encode(PROMPT)], 9, **how) if out.token is not None]


def test_a_stream_ends_where_the_text_ends(model: Model) -> None:
    """Both end at the model's own stops; without any both go on."""
    ids = model.tokenizer.encode(PROMPT)
    assert streamed(model) == model.generate(ids, 9)
    assert streamed(model, stops=()) == model.generate(ids, 9, eos=None) and len(streamed(model, stops=())) == 9


def test_mutant() -> None:
    """A stream without the model's stops goes on."""
    model = pellucid.load("pellucid/capitals")
    with swapped(Model, "stops", ()):
        longer = streamed(model)
    assert longer != model.generate(model.tokenizer.encode(PROMPT), 9)


def test_a_text_goes_on_from_its_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The space before its first word stays where the tokenizer drops one before a text, in Python and in the terminal."""
    model = pellucid.load(spaced_folder(tmp_path))
    bias = {model.tokenizer.id_of("▁the"): 100.0}
    assert model.generate("The cap", 2, bias=bias) == " the the"
    assert model.generate(["The cap", "cap"], 1, bias=bias) == [" the", " the"]
    for given in (["The cap"], ["The cap", "--prompt", "cap"]):
        assert main(["run", str(tmp_path), *given, "--max-new-tokens", "3", "--json"]) == 0
        for line in capsys.readouterr().out.splitlines():
            document = json.loads(line)
            assert document["text"] == model.generate(document["prompt"], 3)
            assert document["text"] == model.tokenizer.after(document["ids"], skip_special=True).over(document["new"])
