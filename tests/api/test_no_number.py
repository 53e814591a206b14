"""An answer that is no number is said to be none, with the first tensor that holds a NaN: in Python, the terminal, and the server."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from documented import accept
from pellucid.api import trace as traced
from pellucid.api.model import Model
from pellucid.commands import main
from pellucid.errors import UseError
from pellucid.messages import speaking
from pellucid.watching.change import Change, put, times, zero
from served import Served, judge
from tiny import swapped

PROMPT, OTHER = "The capital of France is", "The capital of France is [MASK]"
WRONG = {  # a change of the specimen, and where its first NaN is
    "layers.1.attn.q": (put("layers.1.attn.q", -math.inf), "layers.1.attn.scores"),
    "layers.2.out": (times("layers.2.out", 1e300), "layers.3.attn_norm"),
    "layers.1.ffn[T=1]": (put("layers.1.ffn", -math.inf, T=1), "layers.2.attn_norm"),
}


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals", dtype="float32")


@pytest.fixture(scope="module")
def spoiled(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of the specimen whose block 2 has a NaN."""
    folder = tmp_path_factory.mktemp("spoiled")
    own = pellucid.load("pellucid/capitals", dtype="float32")
    with torch.no_grad():
        own.weight("layers.2.ffn.up.weight")[3, 5] = math.nan
    own.save(folder / "model")
    return folder / "model"


def refusal(model: Model, prompt: str, *edit: Change, steps: int = 1) -> UseError:
    with pytest.raises(UseError) as refused:
        pellucid.trace(model, prompt, steps, edit=edit)
    assert "\n" not in str(refused.value)
    return refused.value


@pytest.mark.parametrize("name", WRONG)
def test_a_change_that_leaves_no_number_is_refused(model: Model, name: str) -> None:
    """The error names the change and the first NaN, which a watch of the same forward finds."""
    edit, path = WRONG[name]
    error = refusal(model, PROMPT, zero("layers.0.ffn", T=0), edit)
    assert (error.key, error.values["path"], error.values["step"]) == ("page.change.nan", path, 0)
    with torch.no_grad(), pellucid.watch(model, edit=[zero("layers.0.ffn", T=0), edit]) as seen:
        model(torch.tensor([model.ids(PROMPT)]))
    first = seen.first_nan()
    assert first is not None and first.path == path
    assert tuple(error.values["at"]) == tuple(map(int, first.value.isnan().nonzero()[0]))
    assert edit.text in str(error) and "layers.0.ffn" in str(error)


def test_other_kinds_are_refused_alike() -> None:
    """An encoder's blanks, a decoder beside an encoder, a later step, and logits that are infinite without a NaN."""
    bert, t5 = (pellucid.load(f"pellucid/capitals-{kind}", dtype="float32") for kind in ("bert", "t5"))
    assert refusal(bert, OTHER, put("layers.1.out", -math.inf)).values["path"] == "layers.1.ffn_norm"
    assert refusal(t5, PROMPT, put("decoder.layers.1.out", -math.inf)).values["path"].startswith("decoder.")
    llama = pellucid.load("pellucid/capitals-llama", dtype="float32")
    late = refusal(llama, PROMPT, put("layers.1.out", -math.inf, T=len(llama.ids(PROMPT))), steps=3)
    assert late.values["step"] == 1
    assert refusal(llama, PROMPT, put("logits", -math.inf)).key == "page.change.infinite"


def test_what_is_a_number_is_computed(model: Model) -> None:
    """The mutants: infinities that leave the answer a number, and a NaN of the weights, which is no change's fault."""
    hidden = put("layers.0.attn.scores", -math.inf, T=4, S=1)
    assert math.isfinite(float(pellucid.trace(model, PROMPT, edit=[hidden]).last_logits().max()))
    traced.require_numbers(model, pellucid.trace(model, PROMPT), [hidden])  # of a run that ended for another reason
    with swapped(traced, "require_numbers", lambda *given: None):
        run = pellucid.trace(model, PROMPT, edit=[WRONG["layers.1.attn.q"][0]])
    assert run.last_logits().isnan().all()


def test_a_model_with_a_nan_is_said_to_have_one(spoiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the terminal and its documents, and no token is named as the answer; a sound model has no such line."""
    own = pellucid.load(spoiled, dtype="float32")
    assert pellucid.trace(own, PROMPT, edit=[zero("layers.0.ffn")]).first_nan().path == "layers.2.ffn.up"  # type: ignore[union-attr]
    line = "the first tensor with a nan is layers.2.ffn.up"
    change = ("--change", "layers.0.ffn = 0")
    for command in (("explain",), ("lens",), ("try", *change)):
        for place in (str(spoiled), "pellucid/capitals"):
            out = written(capsys, command[0], place, PROMPT, *command[1:])
            assert (line in out.lower(), "<|endoftext|> nan" in out.lower()) == (place == str(spoiled), False), command
            assert ("·Paris" in out) == (place != str(spoiled) or command[0] == "lens"), command
    documents = {name: json.loads(written(capsys, name, str(spoiled), PROMPT, "--json")) for name in ("explain", "lens")}
    assert documents["explain"]["nan"] == documents["lens"]["nan"] == "layers.2.ffn.up"
    compared = json.loads(written(capsys, "try", str(spoiled), PROMPT, *change, "--json"))
    assert compared["nan"] == ["layers.2.ffn.up"] * 2 and compared["answers"][0]["divergence"] is None
    for name, document in (*documents.items(), ("try", compared)):
        accept(document, name)


def written(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with speaking("en"):
        assert main([*arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_server_says_the_same(api: Served, model: Model, lang: str) -> None:
    changes = ["layers.1.attn.q = -inf"]
    body: dict[str, Any] = {"model": "pellucid/capitals", "prompt": PROMPT, "changes": changes}
    reply = api.client.post(f"/api/runs?lang={lang}", json=body)
    error = judge(reply.json(), "error")["error"]
    assert reply.status_code == 400 and error["code"] == "page.change.nan" and "\n" not in error["message"]
    with speaking(lang):
        assert str(refusal(model, PROMPT, WRONG["layers.1.attn.q"][0])) == error["message"]
