"""Why a weight moved in a step of training: the document of `explain RUN --weight`, whose numbers are those of `Run.why`."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypedDict

from pellucid.analysis.weight_tile import weight_tile
from pellucid.api.run import Run
from pellucid.documents.definition import Constraint, Count, Path
from pellucid.documents.number import finite
from pellucid.nn.transformer import Decoder
from pellucid.runs.answers import piece_of, visible
from pellucid.training.why import TokenPull, Why

SCHEMA: Final = 1
MOST = 20  # tokens of a document; the sum is of all
LONGEST = 200  # characters of a document's text
PIECES = 120  # tokens of it


class WhyTokenDocument(TypedDict):
    """A token's contribution to a gradient: x · δ."""

    path: Annotated[str, "the tensor that the weight's op made"]
    document: Annotated[Count, "its number"]
    position: Annotated[int, Constraint(minimum=-1), "in the document; -1: padding"]
    id: Annotated[int, Constraint(minimum=-1), "-1: unknown"]
    piece: Annotated[str | None, "null: no piece has this id"]
    x: Annotated[list[float | None], "the derivative of each dependent number by the weight; of a product, its input"]
    delta: Annotated[list[float | None], "the loss's derivative by each"]
    product: float | None


class WhyPieceDocument(TypedDict):
    """A token of a training document, with its part of the gradient."""

    piece: Annotated[str | None, "null: no piece has this id"]
    sum: Annotated[float | None, "of x · δ over all its rows; 0: none counts"]


class WhyTextDocument(TypedDict):
    """A training document that tokens are in."""

    number: Count
    source: Annotated[str, "where it comes from"]
    text: str
    pieces: Annotated[list[WhyPieceDocument], "its first tokens"]


class MoveDocument(TypedDict):
    """How far a step moved a weight: the sum of three parts."""

    total: float | None
    gradient: Annotated[float | None, "by this step's gradient"]
    momentum: Annotated[float | None, "by those of earlier steps"]
    decay: Annotated[float | None, "by the weight's own decay"]
    clip: Annotated[float | None, "the factor by which the step's gradients were clipped"]


class WhyUseDocument(TypedDict):
    """A tensor that was made with the weight, and the sum of its tokens."""

    path: str
    sum: float | None


class WhyDocument(TypedDict):
    """A weight's gradient as a sum over tokens of documents, and how far the step moved it."""

    schema: Literal[1]
    run: Annotated[str, "its folder"]
    step: Count
    path: Path
    index: list[Count]
    weight: Annotated[float | None, "before the step"]
    gradient: Annotated[float | None, "autograd's, before it is clipped"]
    total: Annotated[float | None, "the sum over all tokens"]
    count: Annotated[Count, "all tokens"]
    rest: Annotated[float | None, "the sum over those that are not listed"]
    tokens: Annotated[list[WhyTokenDocument], "the largest, in size"]
    documents: list[WhyTextDocument]
    uses: Annotated[list[WhyUseDocument], "tied weights have several"]
    others: Annotated[list[str], "tensors whose op reads the weight, but does not say how"]
    move: MoveDocument


class WeightTileDocument(TypedDict):
    """How far a recorded step moved the cells of a weight about one of them."""

    schema: Literal[1]
    step: Count
    path: Path
    lead: Annotated[list[Count], "the indices before the last two"]
    rows: Annotated[list[Count], "indices; of a vector 0"]
    columns: list[Count]
    moved: Annotated[list[list[float | None]], "by the step"]
    largest: Annotated[float | None, "move of a cell of the tile, over all recorded steps"]


def tile_document(run: Run, step: int, path: str, cell: Sequence[int]) -> WeightTileDocument:
    """Return how far a recorded step moved the cells of a parameter about one of them."""
    tile = weight_tile(run, step, path, cell)
    return {
        "schema": SCHEMA,
        "step": step,
        "path": path,
        "lead": list(tile.lead),
        "rows": list(tile.rows),
        "columns": list(tile.columns),
        "moved": [[finite(x) for x in row] for row in tile.moved.tolist()],
        "largest": finite(tile.largest),
    }


def why_document(run: Run, step: int, path: str, cell: Sequence[int]) -> WhyDocument:
    """Return why parameter `path` moved at `cell` in a step of a run."""
    why: Why = run.why(path, cell, step)
    assert why.move is not None
    tokens = why.tokens
    named, rest = tokens[:MOST], 0.0
    for token in tokens[MOST:]:
        rest += token.product
    numbers = dict.fromkeys(token.document for token in named)
    weight = run.to(step - 1).model.get_parameter(path).detach()[why.cell]
    return {
        "schema": SCHEMA,
        "run": str(run.folder),
        "step": step,
        "path": path,
        "index": list(why.cell),
        "weight": finite(float(weight)),
        "gradient": finite(why.gradient),
        "total": finite(why.total()),
        "count": len(tokens),
        "rest": finite(rest),
        "tokens": [token_document(run, token) for token in named],
        "documents": [
            {"number": n, "source": run.source(n), "text": run.text(n)[:LONGEST], "pieces": pieces(run, n, tokens)} for n in numbers
        ],
        "uses": [{"path": use, "sum": finite(total)} for use, total in why.by_path().items()],
        "others": list(why.others),
        "move": {
            "total": finite(why.move.total()),
            "gradient": finite(why.move.gradient),
            "momentum": finite(why.move.momentum),
            "decay": finite(why.move.decay),
            "clip": finite(why.move.clip),
        },
    }


def pieces(run: Run, number: int, tokens: Sequence[TokenPull]) -> list[WhyPieceDocument]:
    """Return the first tokens of a training document, each with the sum of its contributions to a gradient."""
    sums, ids = dict[int, float](), dict[int, int]()
    for token in tokens:
        if token.document == number and token.position >= 0:
            sums[token.position] = sums.get(token.position, 0.0) + token.product
            ids[token.position] = token.id
    document = run.built[0].documents[number]
    if run.objective.kind is Decoder and len(document.given) + len(document.target) > max(ids, default=0):
        ids = dict(enumerate([*document.given, *document.target])) | {at: id for at, id in ids.items() if id >= 0}
    return [{"piece": piece(run, id), "sum": finite(sums.get(at, 0.0))} for at, id in sorted(ids.items())[:PIECES]]


def piece(run: Run, id: int) -> str | None:
    """Return a token's piece, with each of its bytes shown. None if no piece has this id."""
    return (visible(piece_of(run.tokenizer, id)) or None) if id >= 0 else None


def token_document(run: Run, token: TokenPull) -> WhyTokenDocument:
    """Return one token's contribution."""
    fields: dict[str, Any] = token._asdict()
    x, delta = ([finite(value) for value in values] for values in (token.x, token.delta))
    return {**fields, "piece": piece(run, token.id), "x": x, "delta": delta, "product": finite(token.product)}  # type: ignore[typeddict-item]
