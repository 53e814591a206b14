"""The cached rows of a run that another prompt would reuse: the engine's own answer, from a prefix cache that the run's prompt has filled.

The engine reuses whole pages: with pages of one row all rows of the common prefix, with pages of 64 rows its full pages.
"""

from collections.abc import Sequence as Tokens
from itertools import takewhile
from typing import Annotated, Final, Literal, TypedDict

from pellucid.api.model import Model
from pellucid.documents.definition import Constraint, Count, RunId
from pellucid.documents.lens import model_of
from pellucid.engine.engine import Engine
from pellucid.engine.memory import page_size
from pellucid.engine.requests import Sequence
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import RequestError, UseError
from pellucid.nn.transformer import Encoder
from pellucid.runs.answers import piece_of, tokenizer_of, visible
from pellucid.runs.kept_run import Run
from pellucid.runs.worker import Stop

SCHEMA: Final = 1


class ReusedDocument(TypedDict):
    """The cached rows that the engine reuses with pages of one size."""

    size: Annotated[int, Constraint(minimum=1), "rows of a page"]
    reused: Count


class ReuseDocument(TypedDict):
    """The cached rows of a run that another prompt would reuse."""

    schema: Literal[1]
    run: RunId
    ids: Annotated[list[Count], "of the other prompt"]
    pieces: list[str]
    same: Annotated[Count, "tokens of the common prefix"]
    pages: list[ReusedDocument]


def reuse_document(run: Run, ids: Tokens[int], stop: Stop) -> ReuseDocument:
    """Return the tokens `ids`, the length of the prefix they share with the run, and the rows that the engine would reuse by page size."""
    model = model_of(run)
    if isinstance(model.module, Encoder):
        raise RequestError("server.past", 400, "run", model=model.name)
    if not ids:
        raise UseError("generate.empty", name="prompt")
    tokenizer = tokenizer_of(model)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(run.trace.ids, ids, strict=False)))
    pages: list[ReusedDocument] = []
    for size in (1, page_size(model.module)):  # rows of a page
        stop.check()
        pages.append({"size": size, "reused": reused(model, run.trace.ids, ids, size)})
    pieces = [visible(piece_of(tokenizer, i)) for i in ids]
    return {"schema": SCHEMA, "run": run.id, "ids": list(ids), "pieces": pieces, "same": same, "pages": pages}


def reused(model: Model, first: Tokens[int], second: Tokens[int], size: int) -> int:
    """Return the number of rows of `second` that the engine finds stored after it ran `first`. size: rows of a page."""
    one, two = model.requests([first, second], 1)
    budget = max(one.budget, two.budget)
    engine = Engine.of(model.module, 2 * budget + 2 * size, SchedulerLimits(budget, 1), size)
    engine.submit(one)
    for output in engine.outputs():
        if output.error is not None:
            raise output.error
    engine.validate(two)
    text = Sequence(1, 0, two, list(two.prompt))
    rows = engine.storage.open(text)
    engine.storage.close(text)
    return rows
