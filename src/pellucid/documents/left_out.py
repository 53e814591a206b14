"""What a run of training would be without some of its documents, as data: the document of `diff RUN --without`."""

from typing import Annotated, TypedDict

from pellucid.api.run import Run
from pellucid.documents.definition import Count
from pellucid.documents.number import finite
from pellucid.documents.why import LONGEST
from pellucid.training.left_out import LeftOut, LossChange

MOST = 8  # documents whose texts are listed


class LossPair(TypedDict):
    """A loss in nats, of the run and without the documents."""

    own: float | None
    without: float | None


class LeftOutTextDocument(TypedDict):
    """A document that is left out."""

    number: Count
    source: Annotated[str, "where it comes from"]
    text: str


class PromptChangeDocument(TypedDict):
    """What both go on with after a prompt, and the loss of the run's own answer in each."""

    prompt: str
    own: str
    without: str
    loss: LossPair


class QuestionChangeDocument(TypedDict):
    """Held-out questions that are answered right. lost: by the run alone.  won: without the documents alone."""

    count: Count
    own: Count
    without: Count
    lost: list[str]
    won: list[str]


class LeftOutDocument(TypedDict):
    """A run with some of its documents and without them."""

    run: Annotated[str, "its folder"]
    documents: Annotated[list[Count], "numbers of those that are left out"]
    texts: Annotated[list[LeftOutTextDocument], "the first of them"]
    steps: Annotated[list[Count], "that had one of them"]
    first: Annotated[Count, "the step after which it was trained again"]
    last: Annotated[Count, "the step that both are compared after"]
    loss: Annotated[LossPair, "of what is left out"]
    held_out: Annotated[LossPair | None, "null: nothing is held out"]
    prompts: list[PromptChangeDocument]
    questions: Annotated[QuestionChangeDocument | None, "null: of texts"]


def pair(change: LossChange) -> LossPair:
    """Return both numbers of a loss."""
    return {"own": finite(change.own), "without": finite(change.without)}


def left_out_document(run: Run, left: LeftOut) -> LeftOutDocument:
    """Return what documents did in a run."""
    q = left.questions
    return {
        "run": str(run.folder),
        "documents": list(left.documents),
        "texts": [{"number": n, "source": run.source(n), "text": run.text(n)[:LONGEST]} for n in left.documents[:MOST]],
        "steps": list(left.steps),
        "first": left.first,
        "last": left.last,
        "loss": pair(left.loss),
        "held_out": None if left.held_out is None else pair(left.held_out),
        "prompts": [{"prompt": p.prompt, "own": p.answers[0], "without": p.answers[1], "loss": pair(p.loss)} for p in left.prompts],
        "questions": None
        if q is None
        else {"count": q.count, "own": q.right[0], "without": q.right[1], "lost": list(q.lost), "won": list(q.won)},
    }
