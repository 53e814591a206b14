"""The code behind a tensor: the source of the op that made it and of the part it ran in, and lines of Python that make a cell again."""

from typing import Annotated, Final, Literal, TypedDict

from pellucid.analysis.op_source import SourceCode, op_source, part_source
from pellucid.analysis.rerun import Rerun, cell_lines
from pellucid.axes import index_of
from pellucid.documents.definition import Count, Path, RunId
from pellucid.runs.kept_run import Run

SCHEMA: Final = 1


class SourceDocument(TypedDict):
    """Lines of a file of this package."""

    what: Annotated[Literal["op", "part"], "the op that made the tensor, or the part that it ran in"]
    name: str
    file: Annotated[str, "from the package on: pellucid/ops/linear.py"]
    first: Annotated[Count, "the number of its first line"]
    last: Count
    text: str


class CodeDocument(TypedDict):
    """The code behind a tensor, and lines that make one of its cells again."""

    schema: Literal[1]
    run: RunId
    path: Path
    op: str | None
    sources: list[SourceDocument]
    python: Annotated[list[str], "that make the cell again; none: the run cannot be made by a few lines"]


def code_document(run: Run, n: int, index: str) -> CodeDocument:
    """Return the code behind tensor `n` of a run. index: of the cell that the lines make again, the first where empty."""
    seen, model = run.seen(n), run.model
    place = index_of(seen.path, seen.dims, seen.shape, index or ",".join("0" for _ in seen.shape))
    known: dict[Literal["op", "part"], SourceCode | None] = {
        "op": op_source(seen, model),
        "part": None if model is None else part_source(seen, model),
    }
    again = rerun_of(run)
    return {
        "schema": SCHEMA,
        "run": run.id,
        "path": seen.path,
        "op": seen.op,
        "sources": [source(what, code) for what, code in known.items() if code is not None],
        "python": [] if again is None else cell_lines(again, run.trace, seen, place),
    }


def source(what: Literal["op", "part"], code: SourceCode) -> SourceDocument:
    """Return lines of a file."""
    return {"what": what, "name": code.name, "file": code.file, "first": code.first, "last": code.last, "text": code.text}


def rerun_of(run: Run) -> Rerun | None:
    """Return how a run is made again. None of a trace that was opened, of a run with changes, and of tokens that were drawn."""
    request, model = run.request, run.model
    drawn = request is not None and run.trace.steps > 1 and any(value for name, value in request.sampling.items() if name != "seed")
    if request is None or model is None or request.changes or drawn:
        return None
    prompt = tuple(request.ids) if request.ids is not None else str(request.prompt)
    dtype = str(model.dtype).removeprefix("torch.")
    return Rerun(request.model, prompt, tuple(request.switches), (), max(run.trace.steps, 1), dtype)
