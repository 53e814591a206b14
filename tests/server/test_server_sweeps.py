"""A sweep on request: its numbers are `patch`'s, cell by cell, and every wrong request is one line."""

from dataclasses import replace
from typing import Any

import pytest

import pellucid
from pellucid.documents.number import finite
from pellucid.runs.limits import LIMITS
from served import Served, judge, served

NAME, CLEAN, CHANGED = "pellucid/capitals", "The capital of France is", "The capital of Japan is"
BODY = {"model": NAME, "clean": CLEAN, "changed": CHANGED, "over": "layers.*.attn.z", "by": "H,T"}


def posted(api: Served, **fields: Any) -> tuple[int, dict[str, Any]]:
    reply = api.client.post("/api/sweeps", json=BODY | fields)
    return reply.status_code, judge(reply.json(), "sweep" if reply.status_code == 200 else "error")


@pytest.mark.parametrize("metric", [[" Paris", " Tokyo"], None])
def test_numbers_are_those_of_patch(api: Served, metric: list[str] | None) -> None:
    """Without words the answers of both prompts are compared, which are these two."""
    status, document = posted(api, **({} if metric is None else {"metric": metric}))
    own = pellucid.patch(pellucid.load(NAME, dtype="float32"), CLEAN, CHANGED, BODY["over"], "H T", (" Paris", " Tokyo"))
    assert status == 200 and document["shape"] == [4, 4, 5] and document["by"] == ["H", "T"]
    assert document["values"] == pytest.approx([finite(x) for x in own.values.flatten().tolist()], abs=1e-4)
    assert (document["base"], document["clean"]) == pytest.approx((own.base, own.clean), abs=1e-4)
    assert "Paris" in document["metric"] and "Tokyo" in document["metric"]


def test_a_variant_is_swept(api: Served) -> None:
    plain, other = posted(api)[1], posted(api, **{"with": ["layers.*.attn.scale=1"], "metric": [" Paris", " Tokyo"]})[1]
    assert plain["values"] != other["values"] and "scale" in other["model"]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"clean": ""}, "clean"),
        ({"changed": 3}, "changed"),
        ({"metric": [" Paris"]}, "metric"),
        ({"metric": [" Paris", "nonsense word"]}, "nonsense"),
        ({"by": "H,Q"}, "Q"),
        ({"over": "layers.9.z"}, "layers.9.z"),
        ({"clean": "France"}, "France"),
        ({"clean": CHANGED}, "Tokyo"),
        ({"more": 1}, "more"),
        ({"with": ["norm"]}, "norm"),
    ],
)
def test_a_wrong_request_is_one_line(api: Served, fields: dict[str, Any], word: str) -> None:
    status, document = posted(api, **fields)
    message = document["error"]["message"]
    assert status == 400 and word in message and "\n" not in message


def test_trials_are_bounded() -> None:
    with served(limits=replace(LIMITS, trials=79)) as api:
        status, document = posted(api)
        assert status == 400 and "80" in document["error"]["message"]
    with served(limits=replace(LIMITS, trials=80)) as api:
        assert posted(api)[0] == 200
