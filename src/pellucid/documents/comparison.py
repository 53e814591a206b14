"""Two runs side by side as JSON: both answers, and how far each tensor of one is from the other's."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypedDict

from pellucid.analysis.by_axis import along, loads
from pellucid.analysis.compare import AnswerDifference, Comparison, TensorDifference
from pellucid.analysis.depth import Depth
from pellucid.api.model import Model
from pellucid.documents.definition import Count, Path, Row
from pellucid.documents.number import finite
from pellucid.documents.run import CandidateDocument, candidate_of
from pellucid.documents.seed_table import SeedsDocument
from pellucid.runs.answers import best_candidates, tokenizer_of
from pellucid.tracing import Trace

SCHEMA: Final = 1


class TensorDifferenceDocument(TypedDict):
    """A tensor of both runs."""

    path: Path
    step: Count
    call: Count
    changed: bool
    largest: Annotated[float | None, "difference of a cell; null: not finite"]
    relative: Annotated[float | None, "size of the difference over that of the first run's tensor"]
    index: Annotated[list[Count], "of the cell that differs most"]
    values: Annotated[list[float | None], "of that cell, in the first run and the second"]


class ComparedRunDocument(TypedDict):
    """One of the two runs."""

    model: str
    prompt: str | None
    ids: list[Count]
    new: list[Count]
    changes: list[str]


class ComparedAnswerDocument(TypedDict):
    """The answers of both runs at one step."""

    step: Count
    row: Row
    candidates: Annotated[list[list[CandidateDocument]], "of the first run and the second"]
    divergence: Annotated[float | None, "KL of the first distribution from the second, in nats"]


class DepthDocument(TypedDict):
    """Both runs at one place of the stream, a number of each."""

    path: Path
    size: Annotated[list[float | None], "mean length of a row"]
    likeness: Annotated[list[float | None], "mean cosine between rows"]
    gradient: Annotated[list[float | None], "of the first run's answer; null: none"]


class AxisDifferenceDocument(TypedDict):
    """The difference of a tensor for each compared row and each head."""

    path: Path
    rows: Annotated[list[float | None], "‖b − a‖ / ‖a‖ of each compared row; null: a is 0; none: it has no rows"]
    heads: Annotated[list[float | None], "the same of each head; none: it has no heads"]


class LoadDocument(TypedDict):
    """How often each expert was chosen."""

    path: Path
    loads: Annotated[list[list[Count]], "of each expert, in the first run and the second"]


class ComparisonDocument(TypedDict):
    """Two runs side by side."""

    schema: Literal[1]
    runs: Annotated[list[ComparedRunDocument], "the first and the second"]
    rows: Annotated[list[list[Count]], "pairs of compared rows of the prompts"]
    answers: list[ComparedAnswerDocument]
    nan: Annotated[list[Path | None], "the first tensor with a NaN in each run whose answer is no number"]
    first: Annotated[Path | None, "the first tensor that differs"]
    tensors: list[TensorDifferenceDocument]
    along: list[AxisDifferenceDocument]
    loads: Annotated[list[LoadDocument], "of layers with experts"]
    only: Annotated[list[list[Path]], "paths of one run alone"]
    depth: Annotated[list[DepthDocument], "from the first block's input to the last one's output; none: not both are decoders"]
    seeds: Annotated[SeedsDocument | None, "the same over several seeds; null: of one, or of trained weights"]


def comparison_document(
    c: Comparison,
    models: tuple[Model, Model],
    changes: tuple[list[str], list[str]],
    most: int,
    depth: Sequence[Depth] = (),
    seeds: SeedsDocument | None = None,
) -> ComparisonDocument:
    """Return a comparison as JSON. models, changes: of the first run and the second.  most: candidates of an answer."""
    return {
        "schema": SCHEMA,
        "runs": [compared_run(trace, own) for trace, own in zip((c.a, c.b), changes, strict=True)],
        "rows": [list(pair) for pair in c.rows],
        "answers": [compared_answer(one, models, most) for one in c.answers],
        "nan": [None if first is None else first.path for first in c.nans],
        "first": None if c.first is None else c.first.path,
        "tensors": [compared_tensor(t) for t in c.tensors],
        "along": along_documents(c),
        "loads": [{"path": path, "loads": [a, b]} for path, (a, b) in loads(c).items()],
        "only": [c.only_a, c.only_b],
        "depth": [depth_document(d) for d in depth],
        "seeds": seeds,
    }


def along_documents(c: Comparison) -> list[AxisDifferenceDocument]:
    """Return the difference of each tensor by rows and by heads."""
    rows, heads = ({path: [finite(v) for v in own] for path, own in along(c, letter).items()} for letter in "TH")
    return [{"path": path, "rows": rows.get(path, []), "heads": heads.get(path, [])} for path in dict.fromkeys([*rows, *heads])]


def depth_document(d: Depth) -> DepthDocument:
    """Return both runs at one place of the stream."""
    size, alike, slope = ([finite(v) for v in own] for own in (d.size, d.likeness, d.gradient))
    return {"path": d.path, "size": size, "likeness": alike, "gradient": slope}


def compared_run(trace: Trace, changes: list[str]) -> ComparedRunDocument:
    """Return what a run was made from."""
    return {"model": trace.model, "prompt": trace.prompt, "ids": list(trace.ids), "new": list(trace.new), "changes": changes}


def compared_answer(one: AnswerDifference, models: tuple[Model, Model], most: int) -> ComparedAnswerDocument:
    """Return the likeliest tokens of both runs at one step."""
    best = [best_candidates(tokenizer_of(model), logits, most) for model, logits in zip(models, one.logits, strict=True)]
    documents = [[candidate_of(c.piece, c) for c in own] for own in best]
    return {"step": one.step, "row": one.row, "candidates": documents, "divergence": finite(one.divergence)}


def compared_tensor(t: TensorDifference) -> TensorDifferenceDocument:
    """Return the difference of a tensor."""
    return {
        "path": t.path, "step": t.step, "call": t.call, "changed": t.changed, "largest": finite(t.largest), "relative": finite(t.relative),
        "index": list(t.index), "values": [finite(v) for v in t.values],
    }  # fmt: skip
