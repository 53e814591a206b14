"""Small models of about the same number of parameters, deep or wide, trained from nothing on the same batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from pellucid import config as c
from pellucid.analysis.rows import mean
from pellucid.analysis.small_training import corpus, train, untrained
from pellucid.counting.meta_run import meta_model

HEADS, RATE, WINDOW = 4, 5e-3, 10  # steps of which a loss is the mean
TOTAL = 70_000  # parameters of every shape, as nearly as a whole width allows


@dataclass(frozen=True)
class TrainedShape:
    """A shape and its training. blocks, width, neurons: of the model.  losses: a mean for every `WINDOW` steps."""

    blocks: int
    width: int
    neurons: int
    parameters: int
    losses: Sequence[float]


def config_of(vocab: int, blocks: int, width: int, neurons: int) -> c.Config:
    """Return a config of equal blocks, with RoPE and a tied head."""
    size = width // HEADS
    layer = c.Layer(c.Attention(HEADS, HEADS, size, rope=c.Rope(size)), c.Mlp(neurons, gated=False))
    return c.Config(vocab, width, (layer,) * blocks, True, 1e-5, "rms")


def parameters(cfg: c.Config) -> int:
    """Return the number of parameters of what a config builds."""
    return sum(p.numel() for p in meta_model(cfg, torch.float32).parameters())


def neurons_for(vocab: int, blocks: int, width: int) -> int:
    """Return the neurons of each block with which a model comes nearest to TOTAL parameters."""
    one, two = (parameters(config_of(vocab, blocks, width, neurons)) for neurons in (1, 2))
    return max(1, round((TOTAL - one) / (two - one)) + 1)


@cache
def trained_shape(blocks: int, width: int, steps: int, equal: bool = True) -> TrainedShape:
    """Train a shape for `steps` steps. equal: False leaves the neurons at four times the width, whatever the sum."""
    vocab = corpus()[0].tokenizer.get_vocab_size()
    cfg = config_of(vocab, blocks, width, neurons_for(vocab, blocks, width) if equal else 4 * width)
    _, losses = train(untrained(cfg), steps, RATE)
    return TrainedShape(blocks, width, cfg.layers[0].ffn.width, parameters(cfg), list(means(losses)))


def means(losses: Sequence[float]) -> Iterator[float]:
    """Yield the mean of every `WINDOW` losses."""
    yield from (mean(losses[i : i + WINDOW]) for i in range(0, len(losses), WINDOW))


def steps_shown(steps: int) -> list[int]:
    """Return the last step of every window."""
    return [min(i + WINDOW, steps) for i in range(0, steps, WINDOW)]


def apart(counts: Sequence[int]) -> float:
    """Return by what share the largest count exceeds the smallest."""
    return max(counts) / min(counts) - 1
