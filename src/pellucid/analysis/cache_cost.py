"""What a kind of attention leaves in the KV cache, counted from the Config: bytes of a token, bytes that a step reads, FLOPs."""

from dataclasses import dataclass

from pellucid.api.count import billed, described
from pellucid.config import Config
from pellucid.counting.variants import kinds, with_attention


@dataclass(frozen=True)
class CacheCost:
    """The cost of a model's cache in bfloat16. token: bytes that a token leaves.  read: bytes that a step reads after `context` tokens.

    flops: of that step.  kind: of its attention.
    """

    kind: str
    token: int
    read: int
    flops: int
    context: int


def cache_cost(cfg: Config, family: str, name: str) -> CacheCost:
    """Count the cache of a config. family, name: of its model."""
    bill = billed(cfg, family, name)
    token, read, flops = (int(bill[key]) for key in ("cache.bytes_per_token", "cache.bytes", "flops.decode"))
    return CacheCost(kinds(cfg), token, read, flops, bill.setting.context)


def groupings(cfg: Config) -> list[int]:
    """Return the numbers of key/value heads that a model's own can be averaged to, the largest first."""
    own = cfg.layers[0].attn.kv_heads or 1
    return [n for n in range(own, 0, -1) if own % n == 0]


def shared_by_all(name: str) -> tuple[CacheCost, CacheCost, int]:
    """Return the costs of a catalogue's model with a key/value head for each head and with one for all, and their ratio by token."""
    family, cfg = described(name)
    own, one = (cache_cost(with_attention(cfg, kind), family, name) for kind in ("mha", "mqa"))
    return own, one, own.token // one.token
