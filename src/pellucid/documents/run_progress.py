"""The run that is going on, for a page that waits for it."""

from typing import Annotated, Final, Literal, TypedDict

from pellucid.documents.definition import Count
from pellucid.runs.progress import Progress

SCHEMA: Final = 1


class GoingRunDocument(TypedDict):
    """How far a run has come."""

    prompt: Annotated[Count, "tokens of its prompt; 0 before they are known"]
    tensors: Annotated[Count, "that the step has computed so far"]
    new: Annotated[list[str], "pieces of the tokens that it has written"]


class ProgressDocument(TypedDict):
    """The run that is going on; null: none is."""

    schema: Literal[1]
    running: GoingRunDocument | None


def progress_document(progress: Progress | None) -> ProgressDocument:
    """Return how far the run has come."""
    running: GoingRunDocument | None = None
    if progress is not None:
        running = {"prompt": progress.prompt, "tensors": progress.tensors, "new": [*progress.pieces]}
    return {"schema": SCHEMA, "running": running}
