"""Changes with extreme numbers are computed or refused in one line; the server never fails."""

from itertools import product

import pytest
import torch

import pellucid
from pellucid.errors import UseError
from pellucid.watching import change
from served import Served, judge

CAPITAL = "The capital of France is"
FLOATS = ["embed", "layers.1.attn.z", "layers.1.attn.scores", "layers.2.out", "logits", "sample.logits"]
FAR: list[float] = [0, -0.0, 5e-324, 1e-45, 0.5, -1, 3.4e38, 3.5e38, -1e300, 1e308, -1.7976931348623157e308]
WHOLE: list[float] = [0, 7, 8, -1, 0.5, 2**31, 2**63, 1e19, 1e308]  # of the 8 experts of the specimen


def code(api: Served, model: str, path: str, sign: str, number: float) -> str:
    """Return "" for a change that is computed, else the error's code."""
    reply = api.client.post("/api/runs", json={"model": model, "prompt": CAPITAL, "changes": [f"{path} {sign} {number!r}"]})
    if reply.status_code == 200:
        return ""
    error = judge(reply.json(), "error")["error"]
    assert reply.status_code == 400 and "\n" not in error["message"]
    return str(error["code"])


@pytest.mark.parametrize("path", FLOATS)
@pytest.mark.quick(4)
def test_any_finite_number_is_computed_or_refused(api: Served, path: str) -> None:
    for sign, number in product(("=", "*="), FAR):
        error = code(api, "pellucid/capitals", path, sign, number)
        emptied = path.endswith("scores") and sign == "*=" and error == "change.emptied"  # all of a row's scores became minus infinity
        if emptied or error in ("page.change.nan", "page.change.infinite"):  # or the answer no number
            assert abs(number) > 1e30
            continue
        assert error == ("change.number" if sign == "=" and abs(number) > torch.finfo(torch.float32).max else ""), (sign, number)


def test_a_choice_of_experts_is_of_those_there_are(api: Served) -> None:
    """An expert that does not exist is refused; it was read beyond the end of the weights."""
    for sign, number in product(("=", "*="), WHOLE):
        error = code(api, "pellucid/capitals-deepseek", "layers.1.ffn.chosen", sign, number)
        fits = number in (0, 7) if sign == "=" else number == 0
        assert (error == "") == fits or (sign == "*=" and error in ("", "edit.expert")), (sign, number, error)
        assert error in ("", "edit.expert", "change.number")


def test_python_is_told_the_same() -> None:
    model = pellucid.load("pellucid/capitals-deepseek", dtype="float32")
    with pytest.raises(UseError, match=r"0\.\.7"), pellucid.watch(model, edit={"layers.1.ffn.chosen": lambda x: x + 8}):
        model(torch.tensor([[1, 2, 3]]))
    with pellucid.watch(model, edit={"layers.1.ffn.chosen": lambda x: 7 - x}) as seen:
        model(torch.tensor([[1, 2, 3]]))
    assert seen["layers.1.ffn.chosen"].source == "edited"


def test_without_the_range_no_number_is_refused(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change, "require_number", lambda *arguments: None)
    assert code(api, "pellucid/capitals", "embed", "=", 1e308) != "change.number"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_row_without_a_key_is_refused(api: Served, lang: str) -> None:
    changes = ["layers.0.attn.scores[T=4] = -inf"]
    reply = api.client.post(f"/api/runs?lang={lang}", json={"model": "pellucid/capitals", "prompt": CAPITAL, "changes": changes})
    error = judge(reply.json(), "error")["error"]
    assert reply.status_code == 400 and error["code"] == "change.emptied" and "\n" not in error["message"]
    assert "layers.0.attn.scores[T=4]" in error["message"] and "layers.0.attn.pattern[T=4] = 0" in error["message"]
