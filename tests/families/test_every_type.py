"""Every model type beside transformers where no other test asks it: texts of several lengths over a paged cache, and parameters counted."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from judge import FAMILIES, KINDS, SEQ2SEQ, WRITES, Judge, judge, ours
from pellucid.api.count import count
from pellucid.api.model import load
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.page_allocator import PageAllocator
from tiny import far, ids, serve, swapped

PLAN = [{"a": 5, "d": 2}, {"a": 1, "b": 11, "d": 1}, {"b": 1, "a": 3, "d": 1, "c": 9}, {"a": 2, "c": 1, "b": 3, "d": 9}]
LENGTHS = {r: sum(chunks.get(r, 0) for chunks in PLAN) for r in "abcd"}
WRITING = [family for family in FAMILIES if KINDS[family].task in WRITES]
AT_ONCE = {"openai-gpt"}  # a hidden key has a share, so that a text that is read in pieces is another one


@cache
def texts(family: str) -> dict[str, Tensor]:
    """Return a prompt for each request, without the ids that transformers takes for padding."""
    drawn = {r: ids(n, seed=i) for i, (r, n) in enumerate(LENGTHS.items())}
    return {r: t + (t == KINDS[family].absent) for r, t in drawn.items()}


def gap(j: Judge, model: Any, size: int = 4) -> float:
    """Return the largest difference of a text's logits, read in pieces among others, from transformers' of that text alone."""
    own = texts(j.family)
    sources = {r: ids(n // 2 + 3, seed=9) for r, n in LENGTHS.items()} if j.family in SEQ2SEQ else None
    with torch.no_grad():
        got = serve(model, own, PLAN, PagedCache(64, size), sources=sources)
    given = {r: (t[None],) if sources is None else (sources[r][None], t[None]) for r, t in own.items()}
    return max(far(got[r], j.logits(*given[r])[0]) for r in own)


@pytest.mark.parametrize("family", [family for family in WRITING if family not in AT_ONCE])
@pytest.mark.quick(10)
def test_texts_read_in_pieces_among_others_are_transformers(family: str) -> None:
    j = judge(family)
    assert gap(j, ours(j.folder)[1]) < 1e-9


def another_page(self: PageAllocator, real: Callable[..., Tensor], *given: Any) -> Tensor:
    """Return the rows of a request with the first two exchanged."""
    slots = real(self, *given)
    return slots[[1, 0, *range(2, len(slots))]] if len(slots) > 1 else slots


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "t5"])
def test_rows_that_lie_elsewhere_mutant(family: str) -> None:
    j, real = judge(family), PageAllocator.slots
    model = ours(j.folder)[1]
    with swapped(PageAllocator, "slots", lambda self, *given: another_page(self, real, *given)):
        assert gap(j, model) > 1e-6


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(10)
def test_parameters_are_as_many_as_transformers_has(family: str) -> None:
    j = judge(family)
    computed = sum(p.numel() for p in j.hf.parameters() if not p.requires_grad)  # sinusoids, which transformers stores
    biases = sum(b.numel() for n, b in j.hf.named_buffers() if n == "final_logits_bias")  # which are no parameter there
    assert int(count(str(j.folder))["parameters.total"]) == j.hf.num_parameters() - computed + biases


def test_a_head_that_is_stored_is_counted() -> None:
    """mT5 leaves open in config.json whether its head is the embedding; count asks the folder, as load does."""
    j = judge("mt5", "own head")
    total = int(count(str(j.folder))["parameters.total"])
    assert total == j.hf.num_parameters() == load(j.folder, device="meta").num_parameters()
    assert int(count(str(j.folder / "config.json"))["parameters.total"]) < total
