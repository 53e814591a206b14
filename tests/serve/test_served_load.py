"""The quick form of the load on a real port, and the faults that it must find; and clients of every bad kind beside it."""

from typing import Any

import pytest

from campaigns.served_load import campaign
from covering import FULL
from pellucid.engine.engine import Engine
from pellucid.ops import native
from pellucid.server.openai.served_model import Submitted
from tiny import swapped

pytestmark = pytest.mark.skipif(not native.available(), reason="no kernels here")


def test_every_answer_is_that_of_its_lone_run() -> None:
    report = campaign(40, 3, 10) if FULL else campaign(24, 3, 5)
    assert report["faults"] == [] and not any(report["left"].values()), report
    assert report["answered"] > (20 if FULL else 10) and report["left"].keys() > {"pages", "coroutines", "began", "threads", "files"}


def faulty(name: str) -> Any:
    """Return the mutant `name` of the server, or of what judges it: (owner, attribute, stand-in)."""
    sample = Engine.sample

    def shared(self: Engine, s: Any, logits: Any, *how: Any) -> None:
        sample(self, s, logits * (1 + 0.2 * (len(self.queue.running) > 1)), *how)

    mutants: dict[str, Any] = {
        "a draw depends on the batch": (Engine, "sample", shared),
        "a queue outlives its answer": (Submitted, "close", lambda self: [self.thread.cancel(number) for number in self.numbers]),
    }
    return mutants[name]


@pytest.mark.parametrize("name", ["a draw depends on the batch", "a queue outlives its answer"])
@pytest.mark.quick(2)
def test_mutants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("campaigns.served_load.ENDS", 1.0)
    monkeypatch.setattr(Engine, "allow_burst", lambda engine, chunks: None)  # so that Python draws every token
    with swapped(*faulty(name)):
        report = campaign(24, 3, 5)
    assert report["faults"] or any(report["left"].values())
