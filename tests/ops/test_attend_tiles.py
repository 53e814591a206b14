"""Attention in tiles: as exact as torch's, the same bits in any chunk and any company, and tables of what it computed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid import ops
from pellucid.batch.kv_cache import KVCache, Paged, PagedRows, Segment
from pellucid.batch.mask import Mask, bidirectional, causal, chunk, prefix, window
from pellucid.ops import native
from pellucid.ops.native import attention, library
from test_kept_tables import truth as tables_of
from test_native import near, no_worse, paged
from test_native_rows import SINKS, truth
from tiny import swapped

pytestmark = pytest.mark.skipif(library.lib is None or not library.lib.tiles, reason="no tiles here (AMX)")
HALF = torch.bfloat16
SHAPES = ((4, 2, 32, 32, 3), (6, 1, 64, 96, 16), (3, 3, 128, 64, 7))  # heads, groups, key, value, rows a page
LARGE = ((8, 2, 32, 32, 16), (14, 2, 64, 96, 64), (5, 1, 64, 64, 3), (20, 1, 128, 64, 32), (32, 2, 32, 32, 48))  # groups, for rows alone
FEW = ((1, 1), (2, 2), (16, 16), (17, 3), (130, 1), (301, 9))
TEXTS = ((17, 17), (50, 50), (301, 33), (301, 130), (700, 450))  # tokens, rows
MASKS = {
    "causal": causal, "window": causal & window(5), "wide window": causal & window(70), "chunk": causal & chunk(40),
    "sinks": replace(causal, sinks=torch.tensor(SINKS, dtype=HALF)), "bidirectional": bidirectional, "prefix": prefix(20),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def shaped(mask: Mask, heads: int) -> Mask:
    """Return a mask with a sink for each head."""
    return mask if mask.sinks is None else replace(mask, sinks=mask.sinks.repeat(8)[:heads])


def attended(q: Tensor, segment: Segment, mask: Mask, rows: slice = slice(None), tables: native.KeptTables | None = None) -> Tensor:
    """Attend from some of the rows in one call of the kernel in tiles."""
    at = segment.paged
    assert at is not None and native.fits_attend(q[:, rows], at.pools, at.table, segment.q_at[:, rows].contiguous(), mask, at.end)
    with called(tiles=True):
        return native.attend(q[:, rows], at.pools, at.table, segment.q_at[:, rows].contiguous(), at.size, 0.2, mask, at.end, tables)


@contextmanager
def called(tiles: bool) -> Iterator[None]:
    """Assert that the one call inside is of the kernel in tiles, or is not."""
    names, real = list[str](), attention.call

    def call(name: str, *how: Any, **words: Any) -> None:
        names.append(name)
        real(name, *how, **words)

    with swapped(attention, "call", call):
        yield
    assert names == ["attend_tiles" if tiles else "attend"]


def check(name: str, shape: tuple[int, ...], texts: tuple[tuple[int, int], ...] = TEXTS) -> None:
    """Compare with float64 and with torch's error, and a row's bits with those in another chunk, or alone."""
    mask = shaped(MASKS[name], shape[0])
    for seen, rows in texts:
        q, segment = paged(HALF, seen, rows, *shape)
        z, want = attended(q, segment, mask), truth(q, segment, mask, 0.2)
        with native.off():
            theirs = ops.attend(q, KVCache([segment]), mask, 0.2)
        assert near(z, want, 2) and no_worse(z, theirs, want), (seen, rows)
        if rows >= 34 or rows <= 16:
            cuts = (slice(17), slice(17, None)) if rows >= 34 else (slice(i, i + 1) for i in range(rows))
            assert torch.equal(torch.cat([attended(q, segment, mask, s) for s in cuts], 1), z), (seen, rows)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_rows_in_tiles(name: str, shape: tuple[int, ...]) -> None:
    check(name, shape)


@pytest.mark.parametrize("shape", LARGE, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_few_rows_in_tiles(name: str, shape: tuple[int, ...]) -> None:
    check(name, shape, FEW)


@pytest.mark.parametrize(("shape", "texts"), [(SHAPES[0], ((60, 60), (301, 40))), (LARGE[0], FEW), (LARGE[3], FEW)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_tables_are_what_it_computed(name: str, shape: tuple[int, ...], texts: tuple[tuple[int, int], ...]) -> None:
    for seen, rows in texts:
        mask = shaped(MASKS[name], shape[0])
        q, segment = paged(HALF, seen, rows, *shape)
        tables = native.KeptTables(*(torch.full((1, shape[0], rows, seen), float("nan"), dtype=HALF) for _ in range(2)), 0)
        z = attended(q, segment, mask, tables=tables)
        assert torch.equal(z, attended(q, segment, mask))
        scores, pattern = tables_of(q, segment, mask, 0.2)
        assert near(tables.scores, scores) and near(tables.pattern, pattern)
        assert torch.equal(tables.pattern == 0, tables.pattern.masked_fill(pattern == 0, 0) == 0)


def test_what_runs_in_tiles() -> None:
    """Few rows in small groups, scores with a cap, odd widths and a deterministic engine keep to the kernel of lone rows' bits."""
    q, segment = paged(HALF, 70, 70, *SHAPES[0])
    at: Any = segment.paged
    few, how = slice(54, 70), (at.size, 0.2, causal, at.end)
    with called(tiles=False):
        native.attend(q[:, few].contiguous(), at.pools, at.table, segment.q_at[:, few].contiguous(), *how)
    with native.any_rows(), called(tiles=False):
        alone = native.attend(q, at.pools, at.table, segment.q_at, *how)
    with native.any_rows(alone=False), called(tiles=True):
        assert near(native.attend(q, at.pools, at.table, segment.q_at, *how), alone.double())
    assert not native.fits_attend(q, at.pools, at.table, segment.q_at, replace(causal, cap=2.0))
    odd, other = paged(HALF, 70, 70, 4, 2, 24, 32, 3)
    assert not native.fits_attend(odd, other.paged.pools, other.paged.table, other.q_at, causal)


def test_a_row_without_keys_gives_0() -> None:
    q, segment = paged(HALF, 90, 90, *SHAPES[0])
    at: Any = segment.paged
    lost, z = segment.q_at.clone(), attended(q, segment, causal)
    lost[0, 5] = -1
    again = native.attend(q, at.pools, at.table, lost, at.size, 0.2, causal, at.end)
    assert again[:, 5].eq(0).all() and torch.equal(again[:, 6:], z[:, 6:])


def texts_at_once(dtype: torch.dtype, lengths: list[tuple[int, int]], shape: tuple[int, ...]) -> tuple[Tensor, PagedRows, list[Segment]]:
    """Return the rows of several texts in one pool, for one call, with some rows behind them that have no token."""
    heads, groups, key, value, size = shape
    segments, qs, tables, positions, starts, first = [], list[Tensor](), list[Tensor](), list[Tensor](), [0], 0
    longest = max(-(-seen // size) + 3 for seen, _ in lengths)
    pools: list[list[Tensor]] = [[], []]
    for i, (seen, rows) in enumerate(lengths):
        q, s = paged(dtype, seen, rows, heads, groups, key, value, size, seed=i)
        assert s.paged is not None
        own = s.paged.table + first
        first += len(own)
        for pool, t in zip(pools, s.paged.pools, strict=True):
            pool.append(t + i)
        qs.append(q)
        tables.append(torch.nn.functional.pad(own, (0, longest - len(own))).expand(rows, -1))
        positions.append(s.q_at)
        starts.append(starts[-1] + rows)
        segments.append(Segment(i, slice(starts[-2], starts[-1]), s.q_at, lambda: s.k_at, s.read, True, Paged((), own, size, seen)))
    joined = tuple(torch.cat(pool) for pool in pools)
    for s in segments:
        assert s.paged is not None
        s.paged = replace(s.paged, pools=joined)
    spare = 5
    q = torch.cat([*qs, qs[0][:, :1].expand(-1, spare, -1, -1)], 1)
    at = torch.cat([*positions, torch.full((1, spare), -1)], 1)
    table = torch.cat([*tables, torch.zeros(spare, longest, dtype=torch.long)])
    runs = torch.tensor([len(lengths), *starts, *[0] * 9])
    return q, PagedRows(joined, table, size, at, runs=runs), segments


def check_texts(dtype: torch.dtype, mask: Mask, shape: tuple[int, ...]) -> None:
    """Compare one call for the rows of several texts with a call for each, to the bit."""
    q, rows, segments = texts_at_once(dtype, [(40, 1), (50, 50), (301, 33), (9, 3), (70, 16), (130, 1)], shape)
    how = rows.size, 0.2, mask
    z = native.attend(q, rows.pools, rows.tables, rows.positions, *how, runs=rows.runs)
    for s in segments:
        assert s.paged is not None
        one = native.attend(q[:, s.rows].contiguous(), s.paged.pools, s.paged.table, s.q_at, *how, s.paged.end)
        assert torch.equal(z[:, s.rows], one), s.rows


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("name", ["causal", "window", "sinks"])
def test_texts_of_several_rows_in_one_call(name: str, alone: bool) -> None:
    with native.any_rows(alone):
        check_texts(HALF, shaped(MASKS[name], 4), SHAPES[0])


@pytest.mark.parametrize("name", ["causal", "window", "sinks"])
@pytest.mark.parametrize("shape", [LARGE[1], LARGE[2]], ids=str)
def test_many_texts_of_a_row_each(name: str, shape: tuple[int, ...]) -> None:
    """Compare one call for a row of each of many texts, and some rows of none, with a call for each, to the bit."""
    mask = shaped(MASKS[name], shape[0])
    q, rows, segments = texts_at_once(HALF, [(n, 1) for n in (40, 1, 301, 9, 70, 130) * 3], shape)
    with called(tiles=True):
        z = native.attend(q, rows.pools, rows.tables, rows.positions, rows.size, 0.2, mask)
    for i, s in enumerate(segments):
        assert s.paged is not None
        with called(tiles=True):
            one = native.attend(q[:, i : i + 1], s.paged.pools, s.paged.table, s.q_at, rows.size, 0.2, mask, s.paged.end)
        assert torch.equal(z[:, i : i + 1], one), i
    assert z[:, len(segments) :].eq(0).all()


def check_hidden(shape: tuple[int, ...], mask: Mask, spoilt: int = 0) -> None:
    """Compare the bits of a row before and after all memory but that of the keys that it sees, less `spoilt`, has become NaN."""
    for seen in (1, 17, 50, 130):
        q, segment = paged(HALF, seen, 1, *shape)
        at, z = segment.paged, attended(q, segment, mask)
        assert at is not None
        first = max(0, seen - 5) if mask is not causal else 0
        slots = at.table[torch.arange(seen) // at.size] * at.size + torch.arange(seen) % at.size
        for pool in at.pools:
            kept = pool[slots[first + spoilt :]].clone()
            pool.fill_(float("nan"))[slots[first + spoilt :]] = kept
        assert torch.equal(attended(q, segment, mask), z), seen


@pytest.mark.parametrize("shape", LARGE, ids=str)
@pytest.mark.parametrize("name", ["causal", "window"])
def test_memory_of_other_keys_is_not_in_the_sums(name: str, shape: tuple[int, ...]) -> None:
    check_hidden(shape, MASKS[name])
    with pytest.raises(AssertionError):
        check_hidden(shape, MASKS[name], spoilt=1)


MUTANTS = {
    "a key too many": lambda q, pools, table, at, *how, **more: (q, pools, table, at + 1, *how),
    "a key too few": lambda q, pools, table, at, *how, **more: (q, pools, table, at - 1, *how),
    "another scale": lambda q, pools, table, at, size, scale, *how, **more: (q, pools, table, at, size, scale * 1.2, *how),
}


@pytest.mark.parametrize(("shape", "texts"), [(SHAPES[0], ((50, 50),)), (LARGE[0], ((50, 9),))], ids=str)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_seen(mutant: str, shape: tuple[int, ...], texts: tuple[tuple[int, int], ...]) -> None:
    real = native.attend
    with swapped(native, "attend", lambda *how, **more: real(*MUTANTS[mutant](*how, **more), **more)), pytest.raises(AssertionError):
        check("causal", shape, texts)


def test_a_text_that_begins_elsewhere_is_seen() -> None:
    real = native.attend

    def wrong(*how: Any, runs: Tensor | None = None) -> Tensor:
        return real(*how, runs=None if runs is None else runs - (torch.arange(len(runs)) == 2).long())

    with swapped(native, "attend", wrong), pytest.raises(AssertionError):
        check_texts(HALF, causal, SHAPES[0])
