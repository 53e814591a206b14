"""Several prompts in one batch as JSON: their rows, the padded table, and each answer beside that of its lone run."""

from typing import Annotated, Final, Literal, TypedDict

from pellucid.analysis.prompt_batch import BatchedPrompt, PromptBatch
from pellucid.api.model import Model
from pellucid.documents.definition import Count
from pellucid.documents.number import finite
from pellucid.documents.run import CandidateDocument, candidate_of
from pellucid.runs.answers import best_candidates, piece_of, tokenizer_of, visible

SCHEMA: Final = 1


class BatchedPromptDocument(TypedDict):
    """One prompt of a batch."""

    prompt: Annotated[str | None, "null: it was given as ids"]
    ids: list[Count]
    pieces: Annotated[list[str], "of the ids, as they are shown"]
    first: Annotated[Count, "number of its first row"]
    candidates: list[CandidateDocument]
    gap: Annotated[float | None, "largest difference of a logit from its lone run"]
    padded_gap: Annotated[float | None, "the same, of a padded batch"]


class PromptBatchDocument(TypedDict):
    """Several prompts in one batch."""

    schema: Literal[1]
    model: str
    rows: Annotated[Count, "that ran; each is a token of a prompt"]
    padded: Annotated[list[list[Count | None]], "ids as rows of equal length; null: padding, which a mask hides"]
    prompts: list[BatchedPromptDocument]


def prompt_batch_document(batch: PromptBatch, model: Model, best: int) -> PromptBatchDocument:
    """Return a batch as JSON. best: candidates of each answer."""
    prompts = [prompt_document(one, model, best) for one in batch.prompts]
    return {"schema": SCHEMA, "model": model.name, "rows": batch.rows, "padded": batch.table(), "prompts": prompts}


def prompt_document(one: BatchedPrompt, model: Model, best: int) -> BatchedPromptDocument:
    """Return one prompt of a batch as JSON."""
    tokenizer = tokenizer_of(model)
    return {
        "prompt": one.prompt,
        "ids": one.ids,
        "pieces": [visible(piece_of(tokenizer, i)) for i in one.ids],
        "first": one.first,
        "candidates": [candidate_of(c.piece, c) for c in best_candidates(tokenizer, one.logits, best)],
        "gap": finite(one.gap),
        "padded_gap": finite(one.padded_gap),
    }
