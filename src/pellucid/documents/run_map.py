"""A run on one screen: a row per token, a column per block, and how strongly each token reads others there.

Every number is of tensors that ran. A long text is drawn in groups of neighbouring tokens, and a document has a bounded count of rows and
edges, whatever the model.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import Annotated, Final, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor

from pellucid.config import MIXERS
from pellucid.documents.definition import Constraint, Count, Path, RunId
from pellucid.documents.formula import block
from pellucid.documents.lens import LensLayerDocument, lens_document, reader
from pellucid.documents.number import finite
from pellucid.errors import PellucidError
from pellucid.runs.kept_run import Run, kept
from pellucid.runs.worker import Stop
from pellucid.watching.records import Seen

SCHEMA: Final = 1
CELLS = 1000  # rows times blocks; a row and a block meet in one mark
MOST, LEAST = 32, 8  # rows
EDGES = 900  # of all blocks
FAINT = 0.02  # a share below it is no edge
TABLES = 1 << 27  # numbers of patterns that are computed for the document; of more, none is
PARTS = (MIXERS, ("cross",), ("ffn",))
NAMES = tuple(name for names in PARTS for name in names)
BOTH = "both"  # the sum of two parts of a block, which is added to the stream at once
PATTERNS = ("attn.pattern", "cross.pattern")


class MapRowDocument(TypedDict):
    """A row: one token, or a group of neighbours."""

    first: Annotated[Count, "its first token"]
    count: Annotated[int, Constraint(minimum=1), "its tokens"]
    piece: Annotated[str, "of its last token; empty without a tokenizer"]
    id: Annotated[Count, "of its last token"]
    step: Annotated[Count, "that made its last token"]


class MapEdgeDocument(TypedDict):
    """What a row of a block reads from another: shares of attention, summed over the keys and averaged over the queries and heads."""

    query: Annotated[Count, "the row that reads"]
    key: Annotated[Count, "the row that is read; of a cross-attention a row of the first stack"]
    share: float
    head: Annotated[Count, "the head with the largest share"]
    most: Annotated[float, "its share"]


class MapBlockDocument(TypedDict):
    """A block, by the rows of its stack. Norms are Euclidean; a group's number is the mean over its tokens; null: no value is here."""

    path: Path
    norms: Annotated[list[float | None], "of the residual stream that leaves the block"]
    attention: Annotated[
        list[float | None],
        "norm of what the attention, or what stands in its place, adds, by the norm of the stream to which it is added",
    ]
    cross: Annotated[list[float | None], "the same of the cross-attention; []: the block has none"]
    feed: Annotated[list[float | None], "the same of the feed-forward part or the experts; []: the block has none"]
    edges: Annotated[list[MapEdgeDocument], "the strongest between different rows, the strongest first"]
    crossed: Annotated[list[MapEdgeDocument], "the strongest of the cross-attention"]


class MapStackDocument(TypedDict):
    """A stack of blocks: the only one, or an encoder and after it a decoder."""

    name: Annotated[str, "encoder, decoder, or empty"]
    rows: list[MapRowDocument]
    start: Annotated[list[float | None], "norms of the residual stream that enters the first block"]
    blocks: list[MapBlockDocument]


class MapDocument(TypedDict):
    """A run up to one of its steps, on one screen."""

    schema: Literal[1]
    run: RunId
    step: Count
    values: Annotated[bool, "false: shapes alone, every number is null"]
    stacks: list[MapStackDocument]
    faint: Annotated[float, "a smaller share is no edge"]
    left: Annotated[Count, "patterns whose edges were not computed: they are too large"]
    lens: Annotated[list[LensLayerDocument], "of the row that the answer stands in, before the first block and after each; []: none"]


class BlockSums(NamedTuple):
    """The records of one block in one step. added: (part, what is added, the stream before) in order."""

    enters: Seen
    added: list[tuple[str, Seen, Seen]]
    leaves: Seen
    pattern: Seen | None
    cross: Seen | None


class Rows(NamedTuple):
    """The tokens of a stack: of each the step and its row there. each: tokens of a group."""

    at: list[tuple[int, int]]
    each: int

    def grouped(self, x: Tensor) -> Tensor:
        """Return the mean over each group of the first axis."""
        return torch.stack([part.mean(0) for part in x.split(self.each)])

    def summed(self, x: Tensor) -> Tensor:
        """Return the sum over each group of the last axis."""
        return torch.stack([part.sum(-1) for part in x.split(self.each, -1)], -1)


def map_document(run: Run, k: int, stop: Stop) -> MapDocument:
    """Return the map of the steps 0 to `k`: each token's row is of the step that made it."""
    steps = [records(run, step) for step in range(k + 1)] if run.trace.steps else []
    names = list(dict.fromkeys(name_of(path) for path in (steps[0] if steps else {}) if block(path)[0]))
    blocks = {name: max(1, len(paths_of(steps[0], name))) for name in names}
    share = sum(blocks.values())
    drawn = Reader(run, run.firsts[k + 1] if steps else 0, stop)
    stacks, before = list[MapStackDocument](), None
    for name in names:
        rows = rows_of(run, steps, name, share)
        stacks.append(stack(run, steps, name, rows, before, share, drawn))
        before = rows
    row = next((a.row for a in (run.answers[k] if k < len(run.answers) else [])), -1)
    lens: list[LensLayerDocument] = []
    with suppress(PellucidError):  # a trace without its model, and a model without a head, have none
        lens = lens_document(run, k, row, None, 1, stop)["layers"]
    values = any(map(kept, run.trace))
    return {
        "schema": SCHEMA, "run": run.id, "step": k, "values": values, "stacks": stacks, "faint": FAINT, "left": drawn.left, "lens": lens,
    }  # fmt: skip


class Reader:
    """The values of a run's records. left: patterns that are not computed, since all of them together exceed the limit."""

    def __init__(self, run: Run, last: int, stop: Stop) -> None:
        self.run, self.value = run, reader(run, stop)
        later = [s for s in run.trace.seen[:last] if s.later is not None and s.path.endswith(PATTERNS)]
        self.left = len(later) if sum(prod(s.shape) for s in later) > TABLES else 0

    def norms(self, s: Seen | None) -> Tensor | None:
        """Return the Euclidean norms of a record's rows in float64, [T]; None if it has no value."""
        x = self.of(s)
        return None if x is None else x[0].double().norm(dim=-1)

    def of(self, s: Seen | None) -> Tensor | None:
        """Return a record's value; None without one."""
        if s is None or (not kept(s) and self.run.request is None) or (isinstance(s.value, Tensor) and s.value.is_meta and s.later is None):
            return None
        return self.value(s)

    def table(self, s: Seen | None) -> Tensor | None:
        """Return a pattern [H T S]; None if it is too large to be computed for one picture."""
        if s is None or (self.left and s.later is not None):
            return None
        x = self.of(s)
        return None if x is None else x[0].double()


def records(run: Run, k: int) -> dict[str, Seen]:
    """Return the records of step `k` by their paths."""
    return {s.path: s for s in run.trace.seen[run.firsts[k] : run.firsts[k + 1]]}


def name_of(path: str) -> str:
    """Return the name of the stack that a path is in, "" for the only one."""
    return block(path)[0].rpartition("layers.")[0].rstrip(".")


def paths_of(step: dict[str, Seen], name: str) -> list[str]:
    """Return the paths of a stack's blocks in order."""
    return list(dict.fromkeys(own for path in step if (own := block(path)[0]) and name_of(path) == name))


def block_of(step: dict[str, Seen], path: str) -> BlockSums | None:
    """Return the records of the block at `path`; None if the step lacks its sums."""
    own = {s.path.removeprefix(f"{path}."): s for s in step.values() if s.path.startswith(f"{path}.")}
    sums = [
        s
        for name, s in own.items()
        if "." not in name and name not in (*NAMES, BOTH) and s.op == "add" and s.dims == "B T D" and s.inputs and s.inputs[0] in step
    ]
    both = own[BOTH].inputs if BOTH in own else ()  # two parts that read x at once
    if not sums:
        return None
    added = [
        (next((p for p in NAMES if one.removeprefix(f"{path}.").startswith(p)), ""), step[one], step[s.inputs[0]])
        for s in sums for each in s.inputs[1:] for one in (both if each == f"{path}.{BOTH}" else (each,)) if one in step
    ]  # fmt: skip
    leaves = [s for name, s in own.items() if "." not in name and s.dims == "B T D"][-1]
    return BlockSums(step[sums[0].inputs[0]], added, leaves, *(own.get(name) for name in PATTERNS))


def rows_of(run: Run, steps: Sequence[dict[str, Seen]], name: str, blocks: int) -> Rows:
    """Return the tokens of a stack. A step that reads its text again begins at its first row."""
    at: list[tuple[int, int]] = []
    for k, step in enumerate(steps):
        paths = paths_of(step, name)
        one = next((b for p in paths if (b := block_of(step, p)) is not None), None)
        if one is None:
            continue
        cached = 0 if name == "encoder" else run.fed(k)[1]
        if cached > len(at):  # a step before it was not recorded
            break
        at = [*at[:cached], *((k, i) for i in range(one.leaves.shape[1]))]
    at = at[: len(stack_tokens(run, name))]  # a trace in part may not name all of its tokens
    most = max(LEAST, min(MOST, CELLS // blocks))
    return Rows(at, max(1, -(-len(at) // most)))


def stack(
    run: Run, steps: Sequence[dict[str, Seen]], name: str, rows: Rows, before: Rows | None, blocks: int, drawn: Reader
) -> MapStackDocument:
    """Return one stack. before: the rows of the stack that a cross-attention reads."""
    paths = paths_of(steps[0], name)
    per = max(4, EDGES // blocks)
    by_block = [{k: b for k in {k for k, _ in rows.at} if (b := block_of(steps[k], path)) is not None} for path in paths]
    documents: list[MapBlockDocument] = []
    for path, by_step in zip(paths, by_block, strict=True):
        parts = [by_part(by_step, rows, names, drawn) for names in PARTS]
        cross = any(b.cross is not None for b in by_step.values())
        documents.append(
            {
                "path": path,
                "norms": numbers(by_row(rows, partial(leaving, by_step, drawn))),
                "attention": numbers(parts[0]),
                "cross": numbers(parts[1]) if cross else [],
                "feed": numbers(parts[2]),
                "edges": edges(by_step, rows, rows, per // 2 if cross else per, lambda b: b.pattern, drawn, others=True),
                "crossed": edges(by_step, rows, before, per // 2, lambda b: b.cross, drawn) if cross and before is not None else [],
            }
        )
    start = by_row(rows, lambda k: drawn.norms(by_block[0][k].enters) if by_block and k in by_block[0] else None)
    return {"name": name, "rows": written(run, rows, name), "start": numbers(start), "blocks": documents}


def stack_tokens(run: Run, name: str) -> list[int]:
    """Return the ids of a stack's rows."""
    return list(run.trace.ids) if name == "encoder" else [*run.read, *run.trace.new]


def written(run: Run, rows: Rows, name: str) -> list[MapRowDocument]:
    """Return the rows with their pieces. A decoder beside an encoder reads its own tokens."""
    ids = stack_tokens(run, name)
    made: list[MapRowDocument] = []
    for first in range(0, len(rows.at), rows.each):
        last = min(first + rows.each, len(rows.at)) - 1
        id = ids[last]
        made.append({"first": first, "count": last - first + 1, "piece": run.piece(id), "id": id, "step": rows.at[last][0]})
    return made


def by_row(rows: Rows, of: Callable[[int], Tensor | None]) -> Tensor | None:
    """Return a number of each group of tokens. of: returns the numbers of a step's rows; None if one has none."""
    steps = {k: of(k) for k in dict.fromkeys(k for k, _ in rows.at)}
    if not rows.at or any(x is None for x in steps.values()):
        return None
    return rows.grouped(torch.stack([x[i] for k, i in rows.at if (x := steps[k]) is not None]))


def leaving(blocks: dict[int, BlockSums], drawn: Reader, k: int) -> Tensor | None:
    """Return the norms of the stream that leaves a block in step `k`; None if the step lacks it."""
    return drawn.norms(blocks[k].leaves) if k in blocks else None


def by_part(blocks: dict[int, BlockSums], rows: Rows, names: tuple[str, ...], drawn: Reader) -> Tensor | None:
    """Return by row the norm of what a part adds, by the norm of the stream to which it adds it. None if no part has one of the names."""

    def of(k: int) -> Tensor | None:
        own = [(drawn.norms(x), drawn.norms(stream)) for name, x, stream in (blocks[k].added if k in blocks else []) if name in names]
        ratios = [x / stream for x, stream in own if x is not None and stream is not None]
        return torch.stack(ratios).sum(0) if ratios else None

    return by_row(rows, of)


def edges(
    blocks: dict[int, BlockSums],
    rows: Rows,
    keys: Rows,
    most: int,
    of: Callable[[BlockSums], Seen | None],
    drawn: Reader,
    others: bool = False,
) -> list[MapEdgeDocument]:
    """Return the strongest edges. of: the pattern of a block.  others: only between different rows."""
    tables = {k: drawn.table(of(b)) for k, b in blocks.items()}
    if not rows.at or any(tables.get(k) is None for k, _ in rows.at):
        return []
    every = torch.zeros(len(rows.at), next(iter(tables.values())).shape[0], len(keys.at), dtype=torch.float64)  # type: ignore[union-attr]
    for n, (k, i) in enumerate(rows.at):
        own = tables[k][:, i, : len(keys.at)]  # type: ignore[index]
        every[n, :, : own.shape[-1]] = own
    heads = rows.grouped(keys.summed(every)).transpose(0, 1)  # [H queries keys]
    shares = drawable(heads.mean(0))
    if others:
        shares = shares - torch.diag(shares.diagonal())
    best = shares.flatten().argsort(descending=True, stable=True)[:most].tolist()
    strongest: list[MapEdgeDocument] = []
    for query, key in (divmod(n, shares.shape[1]) for n in best):
        if (share := float(shares[query, key])) < FAINT:
            break
        head = int(heads[:, query, key].argmax())
        strongest.append({"query": query, "key": key, "share": share, "head": head, "most": float(heads[head, query, key])})
    return strongest


def drawable(shares: Tensor) -> Tensor:
    """Return shares with 0 for NaN, which is no share and has no edge; it would be the strongest one."""
    return shares.nan_to_num(0.0)


def numbers(x: Tensor | None) -> list[float | None]:
    """Return numbers as JSON has them; [] without any."""
    return [] if x is None else [finite(n) for n in x.tolist()]
