"""A trace as one HTML file that opens without a network: every tensor, every cell, and the numbers that a cell is the sum of.

The values travel as the bytes of a safetensors file, so that the page shows the bits that ran; summands come from the records' own terms.
Equal columns are stored once: the row that meets 128 rows of a weight is one column, not 128.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from pellucid.axes import LEGEND, letters, parse, show
from pellucid.checkpoint.disk import replacing
from pellucid.draw.formula import formula
from pellucid.draw.number import number
from pellucid.errors import TraceError
from pellucid.tracing import Trace
from pellucid.watching import Seen
from pellucid.words import language, phrases

SCHEMA = 1
NUMBERS = 2_000_000  # of the columns that a file carries
CELLS = 20_000  # whose summands it carries
MOST_BYTES = 64_000_000  # of the tensors' values; a page is read whole
WORDS = (
    "page.title", "page.model", "page.prompt", "page.ids", "page.next", "page.filter", "page.more", "page.path",
    "page.axes", "page.dtype", "page.made", "page.least", "page.mean", "page.greatest", "page.step", "page.rows", "page.columns",
    "page.map", "page.hint", "page.empty", "page.odd", "page.told", "page.beyond", "page.untold", "page.term", "page.product",
    "page.sum", "page.cell", "page.rounded", "page.rest", "page.executed", "page.recomputed", "page.reference", "page.edited",
    "page.language",
)  # fmt: skip
HERE = Path(__file__).parent

Group = dict[tuple[str, ...], list[tuple[int, ...]]]  # names of factors: rows of (cell, column of each factor)


def trace_html(trace: Trace, pieces: Sequence[str] = (), numbers: int = NUMBERS, cells: int = CELLS, most_bytes: int = MOST_BYTES) -> str:
    """The page of a trace, as text. It shows summands where the trace was made with terms=True.

    pieces: the texts of the prompt's tokens and of the new ones, as labels of rows.  numbers, cells: how many summands' factors, and of how
    many cells, the page carries at most; the last token's cells go first, in a tensor the greatest values.
    """
    for s in trace:
        if not isinstance(s.value, Tensor) or s.value.is_meta:
            raise TraceError("page.value", path=s.path, found=s.value.device if isinstance(s.value, Tensor) else type(s.value).__name__)
    size = sum(s.value.nbytes for s in trace)
    if size > most_bytes:
        raise TraceError("page.large", size=size, limit=most_bytes)
    tensors = {str(i): plain(s.value) for i, s in enumerate(trace)}
    columns = Columns(numbers, cells)
    for i, group in columns.fill(list(trace)):
        for j, (names, rows) in enumerate(group.items()):
            tensors[f"{i}.{j}.{','.join(names)}"] = torch.tensor(rows, dtype=torch.int32)
    tensors |= columns.tensors()
    dims = {s.path: s.dims for s in trace}
    about = {
        "schema": SCHEMA,
        "language": language(),
        "words": {spoken: words(spoken, dims.values()) for spoken in ("en", "zh")},
        "run": {"model": trace.model, "prompt": trace.prompt, "ids": trace.ids, "new": trace.new, "pieces": list(pieces)},
        "tensors": [described(s, dims) for s in trace],
        "told": columns.told,
        "cells": sum(s.value.numel() for s in trace),
    }
    return page(about, save(tensors))


def save_html(trace: Trace, path: str | Path, pieces: Sequence[str] = (), **how: Any) -> None:
    """Write `trace_html` to a file that its owner alone may read; whole, or not at all."""
    text = trace_html(trace, pieces, **how)
    with replacing(Path(path), TraceError) as part:
        part.touch(0o600)
        part.write_text(text, encoding="utf-8")


class Columns:
    """The distinct columns of factors that a page carries, within a budget of numbers and of cells."""

    def __init__(self, numbers: int, cells: int) -> None:
        self.numbers, self.cells, self.told = numbers, cells, 0
        self.known: dict[bytes, int] = {}
        self.spans: list[tuple[int, int, int]] = []  # pool, begin, end
        self.pools: tuple[list[Any], list[Any]] = ([], [])  # float32 where that is exact, and float64
        self.lengths = [0, 0]

    def fill(self, records: Sequence[Seen]) -> Iterator[tuple[int, Group]]:
        """The cells of every record that the budget holds: number of the record, and rows by names of factors.

        Token by token, the last one first; among the tensors of one token the small ones first, each with an equal share of what is left.
        """
        groups: dict[int, Group] = {}
        distances = {i: distance(s) for i, s in enumerate(records) if s.terms is not None and s.value.numel()}
        for d in sorted(set().union(*(set(v.tolist()) for v in distances.values()))):
            here = [(i, (v == d).nonzero().flatten()) for i, v in distances.items() if bool((v == d).any())]
            here.sort(key=lambda found: cost(records[found[0]], found[1]))
            for left, (i, spots) in zip(range(len(here), 0, -1), here, strict=True):
                self.take(records[i], spots, self.numbers // left, self.cells // left, groups.setdefault(i, {}))
        yield from sorted((i, g) for i, g in groups.items() if g)

    def take(self, seen: Seen, spots: Tensor, numbers: int, cells: int, group: Group) -> None:
        """Cells at these flat spots of a record, until its share of numbers or cells is used."""
        assert seen.terms is not None
        least = self.numbers - numbers
        order = spots[seen.value.flatten()[spots].double().argsort(descending=True, stable=True)]
        for spot in order[:cells].tolist():
            if self.numbers <= least:
                return
            at = tuple(int(n) for n in np.unravel_index(spot, seen.shape))
            factors = seen.terms(at).factors
            group.setdefault(tuple(factors), []).append((spot, *map(self.column, factors.values())))
            self.told, self.cells = self.told + 1, self.cells - 1

    def column(self, factor: Tensor) -> int:
        """The number of a column, stored if it is new."""
        values = factor.contiguous().numpy()
        key = values.tobytes()
        if (found := self.known.get(key)) is None:
            with np.errstate(over="ignore"):
                short = values.astype(np.float32)
            pool = int(not np.array_equal(short.astype(np.float64), values, equal_nan=True))
            self.pools[pool].append(values if pool else short)
            self.spans.append((pool, self.lengths[pool], self.lengths[pool] + len(values)))
            self.lengths[pool] += len(values)
            self.numbers -= len(values)
            found = self.known[key] = len(self.known)
        return found

    def tensors(self) -> dict[str, Tensor]:
        """The columns end to end, and where each begins and ends."""
        short, long = (
            torch.from_numpy(np.concatenate(p) if p else np.zeros(0, t)) for p, t in zip(self.pools, (np.float32, np.float64), strict=True)
        )
        return {"spans": torch.tensor(self.spans, dtype=torch.int32).view(-1, 3), "short": short, "long": long}


def plain(value: Tensor) -> Tensor:
    """The tensor's own bytes, apart from all others."""
    return value.detach().cpu().contiguous().clone()


def distance(seen: Seen) -> Tensor:
    """How many tokens before the last one each cell belongs to, flat; 0 where a tensor has no axis of tokens."""
    axes = seen.dims.split()
    at = next((axes.index(a) for a in "TN" if a in axes), None)
    if at is None:
        return torch.zeros(prod(seen.shape), dtype=torch.long)
    n = seen.shape[at]
    row = seen.rows if axes[at] == "N" and seen.rows is not None else torch.arange(n)
    back = (row.max() - row).view([n if i == at else 1 for i in range(len(axes))])
    return back.expand(seen.shape).flatten()


def cost(seen: Seen, spots: Tensor) -> int:
    """About how many numbers the summands of these cells take."""
    assert seen.terms is not None
    at = tuple(int(n) for n in np.unravel_index(int(spots[0]), seen.shape))
    return len(spots) * len(seen.terms(at).summands)


def described(seen: Seen, dims: dict[str, str]) -> dict[str, Any]:
    """What the page's list tells of a tensor."""
    wide = seen.value.double().flatten()
    finite = wide[wide.isfinite()]
    low, mean, high = (number(float(f(finite))) if len(finite) else "-" for f in (torch.min, torch.mean, torch.max))
    return {
        "path": seen.path,
        "axes": [show(axis) for axis in parse(seen.dims)],
        "shape": list(seen.shape),
        "dtype": str(seen.dtype).removeprefix("torch."),
        "op": seen.op,
        "made": formula(seen, None, dims),
        "source": seen.source,
        "error": None if seen.error is None else number(seen.error),
        "step": seen.step,
        "call": seen.call,
        "low": low,
        "mean": mean,
        "high": high,
        "odd": int(len(wide) - len(finite)),
        "top": float(finite.abs().max()) if len(finite) else 0.0,
        "terms": seen.terms is not None,
    }


def words(spoken: str, dims: Any) -> dict[str, str]:
    """The page's words in one language, and those of the axes that it shows."""
    used = {letter for d in dims for letter in letters(d)}
    return {key: phrases(spoken)[key] for key in (*WORDS, *(f"axis.{a}" for a in LEGEND if a in used))}


def page(about: dict[str, Any], values: bytes) -> str:
    """The template with its parts put in; what runs is told by hash, so that no other script can."""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    parts = {
        "style_hash": digest(style),
        "script_hash": digest(script),
        "language": about["language"],
        "style": style,
        "script": script,
        "about": inert(about),
        "values": base64.b64encode(values).decode(),
    }
    template = (HERE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def digest(text: str) -> str:
    """What a content security policy calls a script or style by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def inert(content: dict[str, Any]) -> str:
    """JSON in which no text can end the element that holds it."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
