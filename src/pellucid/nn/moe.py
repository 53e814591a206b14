"""A mixture of experts: each token goes to the few that its router likes best, and rows are sorted so that each expert runs once.

arXiv 1701.06538; the routing with a correction that only selects, and with groups, is DeepSeek-V3's, arXiv 2412.19437, eq. 12 to 16.
"""

import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.errors import UseError
from pellucid.nn.linear import Linear
from pellucid.nn.mlp import GatedMlp
from pellucid.watching.tap import tap


class Moe(nn.Module):
    """x [B T D] -> the chosen experts' outputs times their shares, plus the shared expert's."""

    axes = {"router": "E D", "correction": "E", "shared_gate": "1 D", "gate": "E F D", "up": "E F D", "down": "E D F",
            "gate_bias": "E F", "up_bias": "E F", "down_bias": "E D"}  # fmt: skip

    correction: Tensor
    gate_bias: Tensor | None
    up_bias: Tensor | None
    down_bias: Tensor | None

    def __init__(self, cfg: c.Config, spec: c.Moe) -> None:
        super().__init__()
        self.spec, E, F, D = spec, spec.experts, spec.width, cfg.width
        self.router = Linear(D, E, spec.bias)
        self.score = {"sigmoid": self.by_sigmoid, "softmax": self.by_softmax}[spec.affinity]
        self.register_buffer("correction", torch.zeros(E) if spec.corrected else None)
        self.changes = [self.correct] * spec.corrected
        self.gate, self.up, self.down = (nn.Parameter(torch.empty(s)) for s in ((E, F, D), (E, F, D), (E, D, F)))
        for name, n in {"gate": F, "up": F, "down": D}.items():
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(E, n)) if spec.bias else None)
        self.shared = GatedMlp(cfg, c.Mlp(spec.shared, spec.act)) if spec.shared else None
        self.shared_gate = Linear(D, 1, False) if spec.shared_gate else None
        self.enter = self.weighted if spec.share_first else self.unweighted
        self.leave = self.summed if spec.share_first else self.combined
        self.finish = self.alone if self.shared is None else self.beside if self.shared_gate is None else self.gated

    def forward(self, x: Tensor, step: object = None) -> Tensor:
        # in float32 at least: a tie broken by rounding would send a token elsewhere
        logits = tap(ops.linear_wide(x, self.router.matrix(), self.router.bias), "router: B T E")
        share, chosen = self.choose(logits)
        order, token, ends = ops.sort(chosen, self.spec.experts, x)
        rows = self.enter(tap(ops.pick(x, token), "routed: N D", token), share, order, token)
        gate = tap(ops.grouped(rows, self.gate, ends, self.gate_bias), "gate: N F", token)
        up = tap(ops.grouped(rows, self.up, ends, self.up_bias), "up: N F", token)
        neurons = tap(ops.gate(gate, up, self.spec.act), "neurons: N F", token)
        y = tap(ops.grouped(neurons, self.down, ends, self.down_bias), "down: N D", token)
        return self.finish(self.leave(y, share, order, x), x)

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of all experts; those that a correction and groups let win are chosen, and the scores alone tell how much each counts."""
        affinity = tap(self.score(logits), "affinity: B T E")
        # by logits where nothing is added: a softmax can round two of them to one
        ranked, seen = (affinity, affinity) if self.spec.corrected else (logits, logits)
        for change in self.changes:
            ranked, seen = change(ranked, seen)
        best = ops.best(ranked, seen, self.spec)
        chosen = tap(best, "chosen: B T A")
        if chosen is not best:
            self.require(chosen)
        return self.shares(affinity, chosen)

    def require(self, chosen: Tensor) -> None:
        """Refuse an edit that names an expert which does not exist: kernels write where its rows would lie."""
        if chosen.is_meta:
            return
        wrong = chosen[(chosen < 0) | (chosen >= self.spec.experts)]
        if wrong.numel():
            raise UseError("edit.expert", found=int(wrong[0]), last=self.spec.experts - 1)

    def by_softmax(self, logits: Tensor) -> Tensor:
        return ops.softmax(logits)

    def by_sigmoid(self, logits: Tensor) -> Tensor:
        return ops.sigmoid(logits)

    def correct(self, ranked: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        y = tap(ops.corrected(ranked, self.correction), "corrected: B T E")
        return y, y

    def unweighted(self, rows: Tensor, share: Tensor, order: Tensor, token: Tensor) -> Tensor:
        return rows

    def weighted(self, rows: Tensor, share: Tensor, order: Tensor, token: Tensor) -> Tensor:
        return tap(ops.weighted(rows, share, order), "weighted: N D", token)

    def combined(self, y: Tensor, share: Tensor, order: Tensor, x: Tensor) -> Tensor:
        return ops.combine(y, share, order, x)

    def summed(self, y: Tensor, share: Tensor, order: Tensor, x: Tensor) -> Tensor:
        """Experts have read their rows times the shares, so what they made counts whole."""
        return ops.combine(y, share, order, x, whole=True)

    def alone(self, y: Tensor, x: Tensor) -> Tensor:
        return y

    def beside(self, y: Tensor, x: Tensor) -> Tensor:
        assert self.shared is not None
        return ops.add(tap(y, "routed_out: B T D"), tap(self.shared(x), "shared: B T D"))

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        """The shared expert counts as much as one more product says."""
        assert self.shared is not None and self.shared_gate is not None
        raw, gate = tap(self.shared(x), "shared: B T D"), tap(self.shared_gate(x), "shared_gate: B T 1")
        return ops.add(tap(y, "routed_out: B T D"), tap(ops.gated(raw, gate), "shared_out: B T D"))

    def shares(self, affinity: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """How much each chosen expert counts; normalised, the shares of a token sum to the scale, as a softmax over the chosen would."""
        return tap(ops.shares(affinity, chosen, self.spec), "share: B T A"), chosen
