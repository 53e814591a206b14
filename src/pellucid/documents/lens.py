"""The next token read from a run's residual stream: after each block by the logit lens, and head by head by direct attribution."""

from collections.abc import Callable
from typing import Annotated, Final, Literal, TypedDict

from torch import Tensor

from pellucid.analysis.attribution import Attribution, Share, attribution
from pellucid.analysis.lens import lens
from pellucid.api.model import Model
from pellucid.axes import index_of
from pellucid.documents.cell_parts import CellPartsDocument, cell_parts
from pellucid.documents.definition import Constraint, Count, Path, Row, RunId
from pellucid.documents.number import finite
from pellucid.documents.run import CandidateDocument, candidate, candidate_of
from pellucid.errors import RequestError
from pellucid.runs.answers import Candidate, candidates, piece_of, tokenizer_of, visible
from pellucid.runs.execute import full_record
from pellucid.runs.kept_run import Run
from pellucid.runs.worker import Stop
from pellucid.tokenizer.tokenizer import Tokenizer
from pellucid.tracing import Trace
from pellucid.watching.records import Seen, has_nan

SCHEMA: Final = 1


class LensLayerDocument(TypedDict):
    """The next token as the logit lens reads it after one block."""

    path: Path
    rank: Annotated[int, Constraint(minimum=1), "of the followed token among all"]
    followed: CandidateDocument
    candidates: list[CandidateDocument]


class LensDocument(TypedDict):
    """The logit lens of one row, after each block."""

    schema: Literal[1]
    run: RunId
    step: Count
    row: Row
    id: Annotated[Count, "the followed token"]
    layers: list[LensLayerDocument]


class ReadDocument(TypedDict):
    """The logit lens of one row of a prompt."""

    schema: Literal[1]
    model: str
    ids: list[Count]
    row: int
    piece: Annotated[str, "of the row"]
    id: Annotated[Count, "the followed token"]
    layers: list[LensLayerDocument]
    nan: Annotated[Path | None, "the first tensor with a NaN, where the last block's logits hold one"]


class ShareDocument(TypedDict):
    """A part's contribution to a logit."""

    path: Path
    head: Annotated[Count | None, "null: the whole part"]
    value: float | None


class AttributionDocument(TypedDict):
    """A token's logit as a sum over heads and parts."""

    schema: Literal[1]
    run: RunId
    step: Count
    row: Row
    id: Annotated[Count, "the token"]
    path: Annotated[Path, "of the value: the logits, or the input of their soft cap"]
    value: Annotated[float | None, "that ran"]
    total: Annotated[float | None, "the sum of all shares"]
    parts: Annotated[list[ShareDocument], "of heads and feed-forward parts"]
    rest: Annotated[list[ShareDocument], "of the embedding and of biases"]


def model_of(run: Run) -> Model:
    """Return the model of the run. A RequestError if only its tensors were opened."""
    if run.model is None:
        raise RequestError("server.alone", 400, "run", model=run.trace.model)
    return run.model


def reader(run: Run, stop: Stop) -> Callable[[Seen], Tensor]:
    """Return a function from a record to its value, which is computed again if it is not kept."""
    numbers = {id(s): n for n, s in enumerate(run.trace.seen)}
    return lambda s: full_record(run, numbers[id(s)], stop).value


def followed(run: Run, k: int, row: int, id: int | None) -> int:
    """Return the token to follow: `id`, or without one the token picked at `row` of step `k`. A RequestError if there is neither."""
    vocab = model_of(run).config.vocab
    if id is not None:
        if id >= vocab:
            raise RequestError("server.field", 400, "id", name="id", found=id, allowed=f"0..{vocab - 1}")
        return id
    picked = [a.picked.id for a in (run.answers[k] if k < len(run.answers) else []) if a.row == row]
    if not picked:
        raise RequestError("server.field", 400, "id", name="id", found="-", allowed=f"0..{vocab - 1}")
    return picked[0]


def check_row(run: Run, k: int, row: int) -> None:
    """Raise a RequestError for a row that step `k` does not have."""
    count = next((s.shape[1] for s in run.trace if s.step == k and s.path == "logits"), None)
    if count is None:
        raise RequestError("server.logits", 400, "step", step=k)
    if not -1 <= row < count:
        raise RequestError("server.field", 400, "row", name="row", found=row, allowed=f"0..{count - 1}")


def lens_document(run: Run, k: int, row: int, id: int | None, top: int, stop: Stop) -> LensDocument:
    """Return the best `top` candidates after each block, and the rank of the followed token among all."""
    model = model_of(run)
    check_row(run, k, row)
    one, tokenizer = followed(run, k, row, id), tokenizer_of(model)
    read = lens(model, run.trace, k, row, reader(run, stop))
    layers = [lens_layer(path, logits, one, top, tokenizer, lambda c: candidate(run, c)) for path, logits in read]
    return {"schema": SCHEMA, "run": run.id, "step": k, "row": row, "id": one, "layers": layers}


def lens_layer(
    path: str, logits: Tensor, one: int, top: int, tokenizer: Tokenizer | None, shown: Callable[[Candidate], CandidateDocument]
) -> LensLayerDocument:
    """Return what the lens reads after one block: the best `top` of logits [V], and the rank of the token `one`."""
    best = logits.argsort(descending=True, stable=True)
    own, *rest = map(shown, candidates(tokenizer, logits, [one, *best[:top].tolist()]))
    return {"path": path, "rank": int((best == one).nonzero()[0, 0]) + 1, "followed": own, "candidates": rest}


def read_document(model: Model, trace: Trace, row: int, id: int | None, top: int) -> ReadDocument:
    """Return the logit lens of one row of a trace's first step. id: the followed token, by default the row's likeliest."""
    tokenizer, read = tokenizer_of(model), lens(model, trace, 0, row)
    one = int(read[-1][1].argmax()) if id is None else id
    layers = [lens_layer(path, logits, one, top, tokenizer, lambda c: candidate_of(c.piece, c)) for path, logits in read]
    piece = visible(piece_of(tokenizer, trace.ids[row]))
    first = trace.first_nan() if has_nan(read[-1][1]) else None
    return {
        "schema": SCHEMA,
        "model": model.name,
        "ids": list(trace.ids),
        "row": row,
        "piece": piece,
        "id": one,
        "layers": layers,
        "nan": None if first is None else first.path,
    }


def attribution_document(run: Run, k: int, row: int, id: int | None, stop: Stop) -> AttributionDocument:
    """Return the contribution of each head and each feed-forward part to the followed token's logit, and all others."""
    model = model_of(run)
    check_row(run, k, row)
    one = followed(run, k, row, id)
    attributed: Attribution = attribution(model, run.trace, one, k, row, reader(run, stop))
    return {
        "schema": SCHEMA,
        "run": run.id,
        "step": k,
        "row": row,
        "id": one,
        "path": attributed.path,
        "value": finite(attributed.value),
        "total": finite(attributed.total),
        "parts": list(map(written, attributed.parts)),
        "rest": list(map(written, attributed.rest)),
    }


def written(s: Share) -> ShareDocument:
    """Return the document of a share."""
    return {"path": s.path, "head": s.head, "value": finite(s.value)}


def run_cell_parts(run: Run, n: int, index: str, stop: Stop) -> CellPartsDocument:
    """Return the parts of a cell of tensor `n` of a run."""
    seen = run.seen(n)
    place = index_of(seen.path, seen.dims, seen.shape, index)
    return cell_parts(model_of(run), run.trace, seen.path, place, seen.step, run.id, value=reader(run, stop))
