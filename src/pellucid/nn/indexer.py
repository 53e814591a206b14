"""The indexer of DeepSeek Sparse Attention: before attention runs, it chooses the few keys that each query sees. arXiv 2512.02556."""

from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.kv_cache import KVCache
from pellucid.batch.mask import Mask, causal
from pellucid.batch.step import Step
from pellucid.nn.linear import Linear, WideLinear
from pellucid.nn.norm import LayerNorm
from pellucid.watching.tap import tap


class Indexer(nn.Module):
    """x [B T D] and the query latent [B T Q] -> for each segment, which keys a row sees [B T S]. Its own cache is one key [B S K]."""

    axes = {"q": "(H K) Q", "k": "K D", "k_norm": "K", "weights": "H D"}
    window = None  # a query may choose any key before it

    def __init__(self, cfg: c.Config, spec: c.Index, latent: int) -> None:
        super().__init__()
        self.width, self.chosen, self.side_by_side = spec.width, spec.chosen, spec.side_by_side
        self.q = Linear(latent, spec.heads * spec.width, False)
        self.k, self.k_norm = Linear(cfg.width, spec.width, False), LayerNorm(spec.width, spec.eps)
        self.weights = WideLinear(cfg.width, spec.heads, False)

    def forward(self, x: Tensor, q_latent: Tensor, angles: tuple[Tensor, Tensor], rope: c.Rope, step: Step) -> list[Tensor]:
        q = tap(self.q(q_latent).unflatten(-1, (-1, self.width)), "q: B T H K")
        k = tap(self.k_norm(tap(self.k(x), "k: B T K")), "k_norm: B T K")
        # the pairs that turn here need not be those of the attention that this serves
        q = tap(ops.rotate(q, angles, self.side_by_side, rope), "q_rot: B T H K")
        k = tap(ops.rotate(k.unsqueeze(2), angles, self.side_by_side, rope).squeeze(2), "k_rot: B T K")
        weights = tap(self.weights(x), "weights: B T H")
        return ops.choose(q, weights, step.store(self, k), step.mask or causal, self.chosen)


def limited(mask: Mask, kv_cache: KVCache, chosen: list[Tensor]) -> Mask:
    """`mask` with only the chosen keys of each segment left; chosen: one table [B T S] a segment."""
    tables = dict(zip(kv_cache.segments, chosen, strict=True))
    return Mask(
        mask.allowed,
        inputs=tuple(chosen),
        by_segment=lambda mask, segment: mask & Mask(lambda q, k: tables[segment][:, None]),
    )
