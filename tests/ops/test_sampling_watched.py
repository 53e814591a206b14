"""The stages of a draw under a watch have paths, axes and terms; reading changes no bit, and an edit takes effect."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid.errors import ShapeError, TraceError, UseError
from pellucid.ops.sampling.settings import Sampling
from pellucid.watching.tap import after, here
from pellucid.watching.watch import Watch, watch
from tiny import V, swapped, tiny

sample = importlib.import_module("pellucid.ops.sampling.stages")
PROMPT, NEW = (5, 3, 80, 11), 6
ALL = Sampling(0.7, 40, 0.95, 0.01, 1.2, 0.3, 0.2, {4: 2.0, 90: -1.0}, 3)
ORDER = ["logits", "bias", "repetition", "presence", "frequency", "temperature", "top_k", "top_p", "min_p", "probabilities"]


def written(how: Sampling, model: Any, request: object = 0, index: int = 0) -> list[int]:
    """Return an engine's tokens: forwards, and after each a draw of this request."""
    out: list[int] = []
    while len(out) < NEW:
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT, *out]]))[0, -1]
        with after(model, "sample", request):
            out.append(sample.choose(logits, how, PROMPT, out, index))
    return out


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", [ALL, Sampling(1.0, top_p=0.8, seed=4), Sampling(1.0, seed=4), Sampling(repetition=1.3), Sampling()])
@pytest.mark.quick(5)
def test_reading_moves_no_bit(how: Sampling, dtype: torch.dtype) -> None:
    """The tokens are the same; each stage that ran is recorded once a step, with the value of `stages`."""
    model = tiny("llama", dtype)
    plain = written(how, model)
    with watch(model) as seen:
        assert written(how, model) == plain
    for step in range(NEW):
        expected = sample.stages(seen.all("logits")[step].value[0, -1], how, PROMPT, plain[:step])
        records = [s for s in seen if s.step == step and s.path.startswith("sample.")]
        assert [s.path for s in records] == [f"sample.{name}" for name, _ in expected]
        for s, (_, value) in zip(records, expected, strict=True):
            assert torch.equal(s.value, value) and (s.dims, s.shape, s.request) == ("V", (V,), 0)
        if how is ALL:
            assert [name for name, _ in expected] == ORDER
            assert [s.inputs for s in records[1:]] == [(f"sample.{name}",) for name in ORDER[:-1]]
    assert not here.calls and not here.terms and here.segment is None


def off_by(seen: Watch) -> float:
    """Return how far sums of terms are from their cells."""
    gaps = [0.0]
    for s in seen:
        if s.path != "sample.logits":
            assert s.terms is not None
            for v in (0, 3, 4, 5, 11, 80, 90, 96):
                cell, total = float(s.value[v]), s.terms((v,)).total()
                gaps.append(0.0 if cell == total else abs(cell - total))
    return max(gaps)


@pytest.mark.parametrize("mutant", ["", "bias", "part_of_row"])
def test_terms_sum_to_their_cells(mutant: str) -> None:
    model = tiny("gpt2")
    lies: dict[str, tuple[Any, str, Any]] = {
        "": (sample, "COLDEST", sample.COLDEST),
        "bias": (Sampling, "biases", property(lambda self: (torch.tensor([*self.bias]), torch.ones(2)))),
        "part_of_row": (sample, "part_of_row", lambda x, i: sample.Terms(e=x[i].exp(), over=1.0)),
    }
    with swapped(*lies[mutant]), watch(model, only="sample.*", terms=True) as seen:
        written(ALL, model)
        gap = off_by(seen)
    assert len(seen) == NEW * len(ORDER)
    assert gap > 1e-6 if mutant else gap < 1e-12


EDITS: list[tuple[str, Callable[[Tensor], Tensor], int]] = [
    ("bias", lambda x: x.index_fill(0, torch.tensor(77), 50.0), 77),
    ("top_k", lambda x: torch.full_like(x, -torch.inf).index_fill(0, torch.tensor(66), 1.0), 66),
    ("min_p", lambda x: torch.full_like(x, -torch.inf).index_fill(0, torch.tensor(1), 1.0), 1),
    ("probabilities", lambda x: torch.zeros_like(x).index_fill(0, torch.tensor(2), 0.3), 2),
]


@pytest.mark.parametrize(("name", "edit", "token"), EDITS)
def test_an_edit_is_gone_on_from(name: str, edit: Callable[[Tensor], Tensor], token: int) -> None:
    """An edit takes effect on the draw, also one that brings back a cut token."""
    model = tiny("llama")
    with watch(model, edit={f"sample.{name}": edit}) as seen:
        assert written(ALL, model) == [token] * NEW
    assert {s.source for s in seen if s.path == f"sample.{name}"} == {"edited"}


def test_only_the_watched_request() -> None:
    """A watch records one request's draws, nothing of another model, and an exception leaves nothing behind."""
    model, other = tiny("llama"), tiny("gpt2")
    with watch(model, request="mine") as seen:
        for request in ("mine", "other"):
            with after(model, "sample", request):
                sample.choose(torch.arange(float(V)), ALL)
        with after(other, "sample", "mine"):
            sample.choose(torch.arange(float(V)), ALL)
        with pytest.raises(UseError), after(model, "sample", "mine"):
            sample.choose(torch.full((V,), -torch.inf), ALL)
    assert [s.path for s in seen] == [*(f"sample.{name}" for name in ORDER), *(f"sample.{name}" for name in ORDER[:6])] and {
        s.request for s in seen
    } == {"mine"}
    assert not here.calls and here.segment is None and not here.terms
    with pytest.raises(ShapeError), watch(model, edit={"sample.top_k": lambda x: x[1:]}):
        written(ALL, model)
    with pytest.raises(TraceError, match=r"sample\.top_k"), watch(model, edit={"sample.topk": lambda x: x}):
        written(ALL, model)
