"""Multi-head latent attention: what is stored is one latent and one rotary key that all heads share. arXiv 2405.04434."""

from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.kv_cache import KVCache
from pellucid.batch.mask import Mask, causal
from pellucid.batch.step import Step
from pellucid.nn.indexer import Indexer, limited
from pellucid.nn.linear import Linear
from pellucid.nn.norm import RmsNorm
from pellucid.watching.tap import tap


class Latent(nn.Module):
    """x [B T D] -> [B T D]. Its cache is (latent [B S C], shared rotary key [B S R]); kv_b's matrix is read, never called."""

    axes = {"q_a": "Q D", "q_b": "(H (K+R)) Q", "q": "(H (K+R)) D", "kv_a": "(C+R) D", "kv_b": "(H (K+W)) C", "o": "D (H W)",
            "q_norm": "Q", "kv_norm": "C"}  # fmt: skip
    window = None  # a query sees all before it

    def __init__(self, cfg: c.Config, spec: c.Latent) -> None:
        super().__init__()
        self.spec, turned = spec, spec.rope.width
        heads_out = spec.heads * (spec.key + turned)
        if spec.q_rank is None:
            self.q, self.queries = Linear(cfg.width, heads_out, False), self.direct
        else:
            self.q_a, self.q_norm = Linear(cfg.width, spec.q_rank, spec.bias), RmsNorm(spec.q_rank, spec.eps)
            self.q_b, self.queries = Linear(spec.q_rank, heads_out, False), self.through_rank
        self.kv_a, self.kv_norm = Linear(cfg.width, spec.kv_rank + turned, spec.bias), RmsNorm(spec.kv_rank, spec.eps)
        self.kv_b = Linear(spec.kv_rank, spec.heads * (spec.key + spec.value), False)
        self.o = Linear(spec.heads * spec.value, cfg.width, spec.bias)
        self.scale = (spec.key + turned) ** -0.5 if spec.scale is None else spec.scale
        self.indexer = Indexer(cfg, spec.index, spec.q_rank or cfg.width) if spec.index else None
        self.mask = self.whole if spec.index is None else self.chosen

    def direct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.q(x), x

    def through_rank(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low = tap(self.q_norm(tap(self.q_a(x), "q_a: B T Q")), "q_norm: B T Q")
        return self.q_b(low), low

    def whole(self, x: Tensor, low: Tensor, turn: tuple[Tensor, Tensor], kv_cache: KVCache, step: Step) -> Mask:
        return step.mask or causal

    def chosen(self, x: Tensor, low: Tensor, turn: tuple[Tensor, Tensor], kv_cache: KVCache, step: Step) -> Mask:
        assert self.indexer is not None
        return limited(step.mask or causal, kv_cache, self.indexer(x, low, turn, self.spec.rope, step))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s, rope = self.spec, self.spec.rope
        turn = step.shared((rope, x.dtype), lambda: ops.angles(step.positions, rope, x.dtype, step.totals))
        q, low = self.queries(x)
        q = tap(q.unflatten(-1, (-1, s.key + rope.width)), "q: B T H K+R")
        content, turning = q.split([s.key, rope.width], -1)
        q_rot = tap(ops.rotate(turning, turn, rope.interleaved, rope), "q_rot: B T H R")
        latent, shared = tap(self.kv_a(x), "kv_a: B T C+R").split([s.kv_rank, rope.width], -1)
        latent = tap(self.kv_norm(latent), "latent: B T C")
        k_shared = tap(ops.rotate(shared.unsqueeze(2), turn, rope.interleaved, rope).squeeze(2), "k_shared: B T R")
        kv_cache = step.store(self, latent, k_shared)
        up_k, up_v = self.kv_b.matrix().unflatten(0, (-1, s.key + s.value)).split([s.key, s.value], 1)
        mask = self.mask(x, low, turn, kv_cache, step)
        z = tap(ops.attend_latent(content, q_rot, kv_cache, up_k, up_v, mask, self.scale), "z: B T H W")
        return self.o(z.flatten(-2))  # type: ignore[no-any-return]
