"""Several prompts in one batch: the rows as they ran, the padded table that holds the same texts, and each answer beside its lone run.

engine    a   b c d e   f g h i j         every row is a token of its prompt
padded    · · · · a     · b c d e         rows of equal length; a mask hides "·"
          f g h i j
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pellucid.analysis.needs import UNPADDED, unmet
from pellucid.analysis.ragged_batch import alone, in_engine, left_padded, padded
from pellucid.analysis.rows import largest_gap
from pellucid.api.model import Model
from pellucid.errors import UseError
from pellucid.messages import say


@dataclass(frozen=True, eq=False)
class BatchedPrompt:
    """One prompt of a batch. prompt: None if it was given as ids.  first: the number of its first row.  logits: of its last token [V].

    gap, padded_gap: the largest difference of a logit from its lone run, in the engine's batch and in the padded one.
    """

    prompt: str | None
    ids: list[int]
    first: int
    logits: Tensor
    gap: float
    padded_gap: float


@dataclass(frozen=True, eq=False)
class PromptBatch:
    """Prompts that ran in one batch. rows: that the engine computed."""

    prompts: list[BatchedPrompt]
    rows: int

    def table(self) -> list[list[int | None]]:
        """Return each prompt's line of the padded table: its ids, after None for each place of padding."""
        return left_padded([one.ids for one in self.prompts], None)


def batched(model: Model, prompts: Sequence[str | Sequence[int]]) -> PromptBatch:
    """Run prompts as one batch of the engine, as a padded batch, and each alone.

    A UseError for an empty prompt, and for a model whose prompts cannot be padded, since rows see later ones or come from an encoder.
    """
    if (missed := unmet(UNPADDED, model.config)) is not None:
        need, has = missed
        raise UseError("batch.model", model=model.name, wanted=say(f"need.{need.what}", **dict(need.numbers)), has=has)
    ids = [model.prompt_ids(prompt) for prompt in prompts]
    if not all(ids):
        raise UseError("generate.empty", name="prompt")
    engine, lone, masked = in_engine(model, ids), alone(model, ids), padded(model, ids)
    out, first = list[BatchedPrompt](), 0
    for n, (prompt, own) in enumerate(zip(prompts, ids, strict=True)):
        gaps = (largest_gap(way.logits[n], lone.logits[n]) for way in (engine, masked))
        out.append(BatchedPrompt(prompt if isinstance(prompt, str) else None, own, first, engine.logits[n], *gaps))
        first += len(own)
    return PromptBatch(out, engine.rows)
