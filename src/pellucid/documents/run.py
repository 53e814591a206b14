"""A run as JSON: its tokens, its steps with what could come next, and its tensors, step by step, in the order in which they were made.

`explain --json`, the server, a file and a notebook carry this one document.
"""

from dataclasses import fields
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

from pellucid.counting.weights import Weight, parameters
from pellucid.documents.cell import CellDocument
from pellucid.documents.cell_parts import CellPartsDocument
from pellucid.documents.definition import As, Constraint, Count, Path
from pellucid.documents.formula import block
from pellucid.documents.number import finite
from pellucid.documents.part_settings import MaskDocument, RoutingDocument, masks, routings
from pellucid.documents.tensor import TensorDocument, tensors
from pellucid.nn.transformer import Encoder
from pellucid.ops.sampling.settings import Sampling
from pellucid.runs.answers import Answer, Candidate, piece_of, visible
from pellucid.runs.kept_run import Run, kept
from pellucid.tokenizer.pieces import Piece
from pellucid.tokenizer.tokenizer import Tokenizer

SCHEMA: Final = 1


class TokenDocument(TypedDict):
    """A token of the prompt."""

    id: Count
    text: Annotated[str, "its bytes as text; U+FFFD where they are none"]
    bytes: Annotated[str, Constraint(pattern="^([0-9a-f]{2})*$")]


class CandidateDocument(TypedDict):
    """A token that could stand in one place."""

    id: Count
    text: Annotated[str | None, "null: no piece has this id"]
    piece: Annotated[str, "as it is shown, each of its bytes visible"]
    logit: float | None
    probability: float | None


class AnswerDocument(TypedDict):
    """The candidates of one place, and the picked one."""

    row: Annotated[int, Constraint(minimum=-1), "of a blank; -1: after the last row"]
    picked: CandidateDocument
    candidates: list[CandidateDocument]


class RunStepDocument(TypedDict):
    """A step of a run without its tensors."""

    step: Count
    fed: Annotated[list[Count], "ids that its rows stand for"]
    past: Annotated[Count, "rows that the KV cache held before"]
    first: Annotated[Count, "number of its first tensor"]
    count: Annotated[Count, "its tensors"]
    answers: list[AnswerDocument]
    next: Annotated[CandidateDocument | None, "what was picked in the first of its answers"]
    candidates: Annotated[list[CandidateDocument], "of the first of its answers"]


class BlockDocument(TypedDict):
    """A block of the model."""

    path: Path
    parameters: Annotated[Count | None, "null: the model is not here"]


class BlankDocument(TypedDict):
    """A blank that an encoder filled."""

    row: Count
    next: CandidateDocument | None
    candidates: list[CandidateDocument]


class SamplingDocument(TypedDict, total=False):
    """Settings of sampling."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition: float
    presence: float
    frequency: float
    bias: dict[str, float]
    seed: int


class RunDocument(TypedDict):
    """A run of a prompt through a model."""

    schema: Literal[1]
    run: Annotated[str, Constraint(pattern="^([0-9a-f]{32})?$"), "the id under which the server keeps it; empty: no server does"]
    model: str
    switches: Annotated[list[str], "NAME=VALUE: how the model that ran differs from the one of this name"]
    family: str | None
    kind: Annotated[str | None, As(Literal["decoder", "prefix", "encoder", "encoder-decoder"] | None)]
    parameters: Count | None
    dtype: str | None
    values: Annotated[bool, "false: shapes and counts alone"]
    prompt: str | None
    ids: list[Count]
    pieces: Annotated[list[str], "of the ids, as they are shown"]
    tokens: list[TokenDocument]
    blocks: Annotated[list[BlockDocument], "of the first step, in order"]
    new: list[Count]
    new_pieces: list[str]
    ended: Annotated[bool, "the last new token is one that ends a text"]
    text: Annotated[str | None, "of the new tokens"]
    sampling: Annotated[SamplingDocument, "how the new tokens were drawn; {}: not known"]
    forced: Annotated[dict[str, Count], "new tokens, by step, that were given and not drawn"]
    edited: list[Path]
    torn: Annotated[list[str], "files of a trace that are damaged"]
    masks: Annotated[dict[str, MaskDocument], "of each attention: what its queries may see"]
    routings: Annotated[dict[str, RoutingDocument], "of each mixture of experts: how it chooses"]
    next: Annotated[CandidateDocument | None, "of the first step"]
    candidates: Annotated[list[CandidateDocument], "of the first step"]
    blanks: NotRequired[Annotated[list[BlankDocument], "of an encoder"]]
    nan: NotRequired[Annotated[Path, "the first tensor with a NaN, where the last answer is no number"]]
    steps: list[RunStepDocument]
    tensors: Annotated[list[TensorDocument], "of the first step; of all in explain --json"]
    cell: NotRequired[Annotated[CellDocument, "of explain --json --cell"]]
    parts: NotRequired[Annotated[CellPartsDocument, "of explain --json --cell --parts"]]


class StepDocument(TypedDict):
    """The tensors of one step of a run."""

    schema: Literal[1]
    run: str
    step: Count
    tensors: list[TensorDocument]


def run_document(run: Run, steps: int = 1) -> RunDocument:
    """Return the run with the tensors of its first `steps` steps; those of the others are in their `step_document`."""
    pieces, new = ([run.piece(i) for i in ids] for ids in (run.trace.ids, run.trace.new))
    request, tokenizer, steps_alone = run.request, run.tokenizer, [step(run, k) for k in range(run.trace.steps)]
    first: list[AnswerDocument] = steps_alone[0]["answers"] if steps_alone else []
    shown = [t for k in range(min(steps, run.trace.steps)) for t in tensors(run, k)]
    document: RunDocument = {
        "schema": SCHEMA,
        "run": run.id,
        "model": run.trace.model,
        "switches": run.switches,
        "family": run.loaded.family or None if run.loaded is not None else None,
        "kind": run.kind,
        "parameters": None if run.loaded is None else sum(p.numel() for p in run.loaded.module.parameters()),
        "dtype": None if run.loaded is None else run.loaded.dtype,
        "values": any(map(kept, run.trace)),
        "prompt": run.trace.prompt,
        "ids": run.trace.ids,
        "pieces": pieces,
        "tokens": [{"id": p.id, "text": p.text, "bytes": p.raw.hex()} for p in map(run.token, run.trace.ids)],
        "blocks": blocks(run),
        "new": run.trace.new,
        "new_pieces": new,
        "ended": run.kind != "encoder" and run.model is not None and bool(run.trace.new) and run.trace.new[-1] in run.model.stops,
        "text": None if tokenizer is None else text(run, tokenizer),
        "sampling": drawn(run),
        "forced": {} if request is None else {str(k): id for k, id in request.forced.items()},
        "edited": [] if request is None else [c.path for c in request.changes],
        "torn": run.trace.torn,
        "masks": masks(run),
        "routings": routings(run),
        "next": first[0]["picked"] if first else None,
        "candidates": first[0]["candidates"] if first else [],
        "steps": steps_alone,
        "tensors": shown,
    }
    if (broken := run.first_nan) is not None:
        document["nan"] = broken.path
    if run.kind == "encoder" and first:
        document["blanks"] = [{"row": a["row"], "next": a["picked"], "candidates": a["candidates"]} for a in first]
    return document


def text(run: Run, tokenizer: Tokenizer) -> str:
    """Return the text of the new tokens, which goes on from a decoder's prompt."""
    prompt = run.trace.ids if run.kind in ("decoder", "prefix") and run.trace.prompt is not None else []
    return tokenizer.after(prompt).over(i for i in run.trace.new if piece_of(tokenizer, i).raw)


def blocks(run: Run) -> list[BlockDocument]:
    """Return the blocks of the first step in order, with their parameters. A table that layers share belongs to the first of them."""
    paths = list(dict.fromkeys(block(s.path)[0] for s in run.trace.seen[: run.firsts[1]])) if run.trace.steps else []
    if run.loaded is None:
        return [{"path": path, "parameters": None} for path in paths if path]
    own: dict[str, list[Weight]] = {}
    for w in run.loaded.weights.values():
        own.setdefault(block(w.path)[0], []).append(w)
    return [{"path": path, "parameters": parameters(own.get(path, []))} for path in paths if path]


def drawn(run: Run) -> SamplingDocument:
    """Return the settings of sampling of the run's tokens; {} for a trace, whose settings are not known, and a run without new tokens.

    An encoder fills its blanks with the likeliest tokens whatever the request says.
    """
    if run.request is None or not run.trace.new:
        return {}
    used = Sampling() if isinstance(run.loaded and run.loaded.module, Encoder) else Sampling.of(run.request.sampling)
    settings: Any = {f.name: value for f in fields(used) if (value := getattr(used, f.name)) is not None}
    return settings  # type: ignore[no-any-return]


def step_document(run: Run, k: int) -> StepDocument:
    """Return the tensors of step `k`."""
    return {"schema": SCHEMA, "run": run.id, "step": k, "tensors": tensors(run, k)}


def step(run: Run, k: int) -> RunStepDocument:
    """Return step `k` without its tensors. An encoder has one answer for each blank, every other model one."""
    fed, cached = run.fed(k)
    answers = [answer(run, a) for a in (run.answers[k] if k < len(run.answers) else [])]
    return {
        "step": k,
        "fed": fed,
        "past": cached,
        "first": run.firsts[k],
        "count": run.firsts[k + 1] - run.firsts[k],
        "answers": answers,
        "next": answers[0]["picked"] if answers else None,
        "candidates": answers[0]["candidates"] if answers else [],
    }


def answer(run: Run, a: Answer) -> AnswerDocument:
    """Return the document of answer `a`."""
    return {"row": a.row, "picked": candidate(run, a.picked), "candidates": [candidate(run, c) for c in a.candidates]}


def candidate(run: Run, c: Candidate) -> CandidateDocument:
    """Return the document of candidate `c`, its piece as the run knows it."""
    return candidate_of(run.token(c.id), c)


def candidate_of(own: Piece, c: Candidate) -> CandidateDocument:
    """Return the document of candidate `c` whose piece is `own`."""
    text = own.text if own.raw else None
    return {"id": c.id, "text": text, "piece": visible(own), "logit": finite(c.logit), "probability": finite(c.probability)}
