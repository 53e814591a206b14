"""A deferred table inside a fused op is, once requested, what a watch beside the kernel records."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch

from pellucid.watching.tap import DeferredReference
from pellucid.watching.watch import Watch, watch
from tiny import FAMILIES, swapped, tiny

attend, latent = (import_module(f"pellucid.ops.{name}") for name in ("attend", "latent"))

record = DeferredReference.record
ABOUT = ("path", "dims", "shape", "dtype", "step", "request", "call", "source", "op", "inputs", "weights", "flops")


def recorded(family: str, inside: str, **how: Any) -> Watch:
    """Return the records of two texts of 7 tokens."""
    ids = torch.randint(0, 97, (2, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), watch(tiny(family), terms=True, inside=inside, **how) as seen:
        model = seen.model
        model(ids, ids[:, :5]) if family == "t5" else model(ids)
    return seen


def listings(family: str, **how: Any) -> int:
    """Return the number of deferred tensors after comparing each with the recomputed one: identity, value, error and a cell's terms."""
    read, deferred = recorded(family, "beside", **how), recorded(family, "listed", **how)
    count = 0
    for mine, other in zip(read, deferred, strict=True):
        assert all(getattr(mine, name) == getattr(other, name) for name in ABOUT)
        if other.later is not None:
            count += 1
            assert other.value.is_meta and other.error is None and other.terms is None
            other = other.later()
        assert torch.equal(mine.value, other.value) and (mine.error, mine.source) == (other.error, other.source)
        assert (mine.terms is None) == (other.terms is None)
        if mine.terms is not None and other.terms is not None:
            last = tuple(n - 1 for n in mine.shape)
            assert mine.terms(last).total() == other.terms(last).total()
    return count


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(4)
def test_a_deferred_table_is_the_one_that_is_read(family: str) -> None:
    tables = {"deepseek_v3": 3 * 4, "t5": 2 * 2 + 3 * 4}.get(family, 2 * 2)
    assert listings(family) == listings(family, request=1) == tables


@pytest.mark.parametrize(
    "mutant",
    [
        (DeferredReference, "record", lambda self, seen, part: record(self, replace(seen, path="pattern"), part)),
        (attend, "stored_rows", lambda segment: segment.read()[0].shape[1] - 1),
        (DeferredReference, "record", lambda self, seen, part: replace(record(self, seen, part), error=None)),
    ],
)
def test_mutants_are_seen(mutant: tuple[Any, str, Any]) -> None:
    """Seen are another tensor of the op, a missing key, and an unreported error."""
    with swapped(*mutant), pytest.raises(AssertionError):
        listings("llama")


@pytest.mark.parametrize(("family", "owner"), [("llama", attend), ("deepseek_v3", latent)])
def test_nothing_is_computed_before_it_is_asked_for(family: str, owner: Any) -> None:
    """The reference runs once for a requested table; with "beside", the mutant, for every layer at once."""
    calls, reference = [0], owner.attend_reference

    def counted(*given: Any, **more: Any) -> Any:
        calls[0] += 1
        return reference(*given, **more)

    with swapped(owner, "attend_reference", counted):
        seen = recorded(family, "listed", only="*.attn.*")
        assert calls == [0]
        table = seen["layers.1.attn.pattern"]
        assert table.later is not None and table.later().value.shape == (2, 4, 7, 7) and calls == [1]
        recorded(family, "beside")
        assert calls[0] > 2


def test_an_edit_inside_still_runs_the_reference() -> None:
    seen = recorded("llama", "listed", edit={"layers.0.attn.pattern": torch.zeros_like})
    assert seen["layers.0.attn.pattern"].source == "edited" and seen["layers.0.attn.scores"].source == "reference"
    assert not seen["layers.0.attn.z"].value.any() and seen["layers.1.attn.pattern"].later is not None


def test_a_watch_that_reads_beside_one_that_lists() -> None:
    """A second watch that records values gives both watches values."""
    model = tiny("llama")
    with torch.no_grad(), watch(model, inside="listed") as lists, watch(model) as reads:
        model(torch.tensor([[1, 2, 3]]))
    assert all(a.later is None and torch.equal(a.value, b.value) for a, b in zip(lists, reads, strict=True))
