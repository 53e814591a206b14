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
    """The run that a request waits for."""

    schema: Literal[1]
    running: Annotated[GoingRunDocument | None, "null: it has not begun, or none is waited for"]
    other: Annotated[bool, "another request's run is computed first"]


def progress_document(progress: Progress | None, waiter: str) -> ProgressDocument:
    """Return how far the run that is computed has come, if it is that of `waiter`; "" takes any."""
    running: GoingRunDocument | None = None
    own = progress is not None and waiter in ("", progress.waiter)
    if progress is not None and own:
        running = {"prompt": progress.prompt, "tensors": progress.tensors, "new": [*progress.pieces]}
    return {"schema": SCHEMA, "running": running, "other": progress is not None and not own}
