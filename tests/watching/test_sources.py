"""Every recorded tensor is made from tensors of the run, and every one but the last is read by another."""

import pytest
import torch

import pellucid
from pellucid.api.model import specimens
from pellucid.engine import forward
from pellucid.tracing import Trace

PROMPTS = {"pellucid/capitals-bert": "The capital of France is ___.", "pellucid/capitals-t5": "The capital of France is Paris."}
LAST = {"logits", "sample.logits"}


def orphans(name: str) -> list[str]:
    """Return tensors without a source that are no table's rows, and tensors that nothing reads, step by step."""
    model = pellucid.load(name, dtype="float32")
    bert = name.endswith("bert")
    run = pellucid.trace(model, PROMPTS.get(name, "The capital of France is"), 1 if bert else 3)
    return [path for step in range(run.steps) for path in alone(run, step)]


def alone(run: Trace, step: int) -> list[str]:
    records = [s for s in run if s.step == step]
    paths = {s.path for s in run if s.step <= step}
    own, used = {s.path for s in records}, {p for s in records for p in s.inputs}
    used |= {s.path.rpartition(".")[0] + f".{name}" for s in records if (s.op or "").startswith("attend") for name in ("pattern", "v")}
    out = [f"{step}: {s.path} comes from nowhere" for s in records if not s.inputs and s.op != "look"]
    out += [f"{step}: {s.path} comes from {p}, which is not here" for s in records for p in s.inputs if p not in paths]
    return out + [f"{step}: {p} goes nowhere" for p in own - used - LAST]


@pytest.mark.parametrize("name", specimens())
@pytest.mark.quick(4)
def test_each_tensor_has_its_makers(name: str) -> None:
    assert orphans(name) == []


def test_rows_that_are_copied_lose_their_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = forward.Forward.rows
    monkeypatch.setattr(forward.Forward, "rows", lambda self, chunks: {s: x.clone() for s, x in plain(self, chunks).items()})
    assert "0: sample.logits comes from nowhere" in orphans("pellucid/capitals")
    assert torch.is_grad_enabled()
