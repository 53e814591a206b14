"""Small models with experts, trained in memory on shipped sentences: with a correction, with an auxiliary loss, or with neither."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch

from pellucid import config as c
from pellucid.analysis.small_training import corpus, train, untrained
from pellucid.nn.transformer import Decoder
from pellucid.training.loop import TrainingRun
from pellucid.training.targets import real_rows

EXPERTS, WIDTH, RATE = 8, 32, 1e-2
EVALUATED = 512  # documents whose rows are routed after the training


@dataclass(frozen=True)
class Trained:
    """A run of training. losses: of each step.  loads: each expert's share of the rows that the trained model routes."""

    losses: Sequence[float]
    loads: Sequence[float]

    @property
    def loss(self) -> float:
        """Return the mean loss of the last tenth of the steps."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(last) / len(last)

    @property
    def starved(self) -> int:
        """Count the experts with less than half of an even share."""
        return sum(2 * len(self.loads) * load < 1 for load in self.loads)

    @property
    def overload(self) -> float:
        """Return the fullest expert's load over an even one."""
        return max(self.loads) * len(self.loads)


def model_of(vocab: int) -> Decoder:
    """Return a model of one block with first weights; each token goes to one expert."""
    experts = c.Moe(EXPERTS, 1, WIDTH, affinity="softmax", normalised=False)
    attention = c.Attention(2, 2, WIDTH // 2, rope=c.Rope(WIDTH // 2))
    return untrained(c.Config(vocab, WIDTH, (c.Layer(attention, experts),), True, 1e-5, "rms"))


@cache
def trained(steps: int, correction: float, auxiliary: float) -> Trained:
    """Train from the same weights on the same batches. correction: by how much it moves in a step.  auxiliary: the factor of that loss."""
    run, losses = train(model_of(corpus()[0].tokenizer.get_vocab_size()), steps, RATE, correction, auxiliary)
    return Trained(losses, loads(run))


def loads(run: TrainingRun) -> list[float]:
    """Return each expert's share of the rows of a part of a run's documents."""
    batch = run.objective.batch(run.documents[:EVALUATED])
    with torch.no_grad(), run.balance.counting(partial(real_rows, batch)):
        run.model(*batch.inputs)
    load = run.balance.loads["layers.0.ffn"]  # of these rows alone: a step ends with its counts at zero
    shares: list[float] = (load.double() / load.sum()).tolist()
    return shares
