"""Models of the catalogue by their numbers: what their configurations say and what is counted from them."""

from dataclasses import dataclass

from pellucid import catalog
from pellucid.api.count import described


@dataclass(frozen=True)
class Biases:
    """Of several models: their number, and how many have a bias at the head, and in the products of queries, keys and values."""

    models: int
    head: int
    attention: int


def biases(start: str) -> Biases:
    """Count the models of the catalogue whose id begins with `start` that have a bias at the head, and in attention."""
    configs = [described(name)[1] for name in catalog.models() if name.startswith(start)]
    attention = [all(getattr(layer.attn, "bias", False) for layer in cfg.layers) for cfg in configs]
    return Biases(len(configs), sum(cfg.head_bias for cfg in configs), sum(attention))
