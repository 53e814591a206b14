"""Edits with extreme numbers are computed or refused in one line; the server never fails."""

from itertools import product
from typing import Any

import pytest
import torch

import pellucid
from pellucid.errors import UseError
from pellucid.runs import execute
from served import Served, judge

CAPITAL = "The capital of France is"
FLOATS = ["embed", "layers.1.attn.z", "layers.1.attn.scores", "layers.2.out", "logits", "sample.logits"]
FAR: list[float] = [0, -0.0, 5e-324, 1e-45, 0.5, -1, 3.4e38, 3.5e38, -1e300, 1e308, -1.7976931348623157e308]
WHOLE: list[float] = [0, 7, 8, -1, 0.5, 2**31, 2**63, 1e19, 1e308]  # of the 8 experts of the specimen


def code(api: Served, model: str, path: str, **change: Any) -> str:
    """Return "" for an edit that is computed, else the error's code."""
    reply = api.client.post("/api/runs", json={"model": model, "prompt": CAPITAL, "edits": [{"path": path, **change}]})
    if reply.status_code == 200:
        return ""
    error = judge(reply.json(), "error")["error"]
    assert reply.status_code == 400 and "\n" not in error["message"]
    return str(error["code"])


@pytest.mark.parametrize("path", FLOATS)
def test_any_finite_number_is_computed_or_refused(api: Served, path: str) -> None:
    for way, number in product(("to", "times"), FAR):
        error = code(api, "pellucid/capitals", path, **{way: number})
        assert error == ("server.field" if way == "to" and abs(number) > torch.finfo(torch.float32).max else ""), (way, number)


def test_a_choice_of_experts_is_of_those_there_are(api: Served) -> None:
    """An expert that does not exist is refused; it was read beyond the end of the weights."""
    for way, number in product(("to", "times"), WHOLE):
        error = code(api, "pellucid/capitals-deepseek", "layers.1.ffn.chosen", **{way: number})
        fits = number in (0, 7) if way == "to" else number == 0
        assert (error == "") == fits or (way == "times" and error in ("", "edit.expert")), (way, number, error)
        assert error in ("", "edit.expert", "server.field")


def test_python_is_told_the_same() -> None:
    model = pellucid.load("pellucid/capitals-deepseek", dtype="float32")
    with pytest.raises(UseError, match=r"0\.\.7"), pellucid.watch(model, edit={"layers.1.ffn.chosen": lambda x: x + 8}):
        model(torch.tensor([[1, 2, 3]]))
    with pellucid.watch(model, edit={"layers.1.ffn.chosen": lambda x: 7 - x}) as seen:
        model(torch.tensor([[1, 2, 3]]))
    assert seen["layers.1.ffn.chosen"].source == "edited"


def test_without_the_range_the_server_fails(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "check_number", lambda *arguments: None)
    with pytest.raises(AssertionError):
        code(api, "pellucid/capitals", "embed", to=1e308)
