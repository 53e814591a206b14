"""Multi-head latent attention: what is stored is one latent and one rotary key that all heads share. arXiv 2405.04434."""

from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.mask import Mask, causal
from pellucid.batch.step import Step
from pellucid.distributed import ALONE
from pellucid.nn.indexer import Indexer, limited
from pellucid.nn.linear import Linear
from pellucid.nn.norm import RmsNorm
from pellucid.watching.tap import tap


class Latent(nn.Module):
    """x [B T D] -> [B T D]. It stores a latent [B S C] and a rotary key [B S R]; kv_b's matrix is read, never called.

    Queries come from x by q, or through a latent of their own by q_a, q_norm and q_b.
    """

    axes = {"q_a": "Q D", "q_b": "(H (K+R)) Q", "q": "(H (K+R)) D", "kv_a": "(C+R) D", "kv_b": "(H (K+W)) C", "o": "D (H W)",
            "q_norm": "Q", "kv_norm": "C"}  # fmt: skip
    window = None  # a query sees all before it
    ranks = ALONE  # that share its heads
    reads_source: tuple[str, ...] = ()
    reads_matrix = ("kv_b",)
    q: Linear
    q_norm: RmsNorm
    q_b: Linear

    def __init__(self, cfg: c.Config, spec: c.Latent) -> None:
        super().__init__()
        self.spec, rotary = spec, spec.rope.width
        heads_out = spec.heads * (spec.key + rotary)
        self.q_a = None if spec.q_rank is None else Linear(cfg.width, spec.q_rank, spec.bias)
        if spec.q_rank is None:
            self.q = Linear(cfg.width, heads_out, False)
        else:
            self.q_norm = RmsNorm(spec.q_rank, spec.eps)
            self.q_b = Linear(spec.q_rank, heads_out, False)
        self.kv_a = Linear(cfg.width, spec.kv_rank + rotary, spec.bias)
        self.kv_norm = RmsNorm(spec.kv_rank, spec.eps)
        self.kv_b = Linear(spec.kv_rank, spec.heads * (spec.key + spec.value), False)
        self.o = Linear(spec.heads * spec.value, cfg.width, spec.bias)
        self.scale = (spec.key + rotary) ** -0.5 if spec.scale is None else spec.scale
        self.indexer = Indexer(cfg, spec.index, spec.q_rank or cfg.width) if spec.index else None

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s, rope = self.spec, self.spec.rope
        angles = step.shared((rope, x.dtype), lambda: ops.angles(step.positions, rope, x.dtype, step.totals))
        if self.q_a is not None:
            q_latent = tap(self.q_norm(tap(self.q_a(x), "q_a: B T Q")), "q_norm: B T Q")
            q = self.q_b(self.ranks.shared(q_latent))
        else:
            q_latent = x
            q = self.q(self.ranks.shared(x))
        q = tap(q.unflatten(-1, (-1, s.key + rope.width)), "q: B T H K+R")
        if s.grows is not None:  # before the turn, which a factor of the whole row may pass
            q = tap(ops.scale_by_position(q, step.position_ids, s.grows), "q_grown: B T H K+R")
        content, rotary = q.split([s.key, rope.width], -1)
        q_rot = tap(ops.rotate(rotary, angles, rope.interleaved, rope), "q_rot: B T H R")
        latent, shared = tap(self.kv_a(x), "kv_a: B T C+R").split([s.kv_rank, rope.width], -1)
        latent = tap(self.kv_norm(latent), "latent: B T C")
        k_shared = tap(ops.rotate(shared.unsqueeze(2), angles, rope.interleaved, rope).squeeze(2), "k_shared: B T R")
        kv_cache = step.store(self, self.ranks.shared(latent), self.ranks.shared(k_shared))
        up = self.kv_b.dense_weight().unflatten(0, (-1, s.key + s.value))
        mask = self.mask(step)
        if self.indexer is not None:
            mask = limited(mask, kv_cache, self.indexer(x, q_latent, angles, rope, step))
        z = tap(ops.attend_latent(content, q_rot, kv_cache, up, mask, self.scale, s.form), "z: B T H W")
        return self.o(z.flatten(-2))  # type: ignore[no-any-return]

    def mask(self, step: Step) -> Mask:
        """Return the mask of this step: the caller's, or causal. An indexer leaves the chosen keys of it."""
        return step.mask or causal
