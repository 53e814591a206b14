"""A mixture of experts: each token goes to the few that its router likes best, and rows are sorted so that each expert runs once.

arXiv 1701.06538; the routing with a correction that only selects, and with groups, is DeepSeek-V3's, arXiv 2412.19437, eq. 12 to 16.
"""

import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.parts.linear import Linear
from pellucid.parts.mlp import GatedMlp
from pellucid.tap import tap


class Moe(nn.Module):
    """x [B T D] -> the chosen experts' outputs times their shares, plus the shared expert's."""

    axes = {"router": "E D", "correction": "E", "gate": "E F D", "up": "E F D", "down": "E D F",
            "gate_bias": "E F", "up_bias": "E F", "down_bias": "E D"}  # fmt: skip

    correction: Tensor
    gate_bias: Tensor | None
    up_bias: Tensor | None
    down_bias: Tensor | None

    def __init__(self, cfg: c.Config, spec: c.Moe) -> None:
        super().__init__()
        self.spec, E, F, D = spec, spec.experts, spec.width, cfg.width
        self.router = Linear(D, E, spec.bias)
        self.choose = {"sigmoid": self.by_sigmoid, "softmax": self.by_softmax}[spec.affinity]
        self.register_buffer("correction", torch.zeros(E) if spec.affinity == "sigmoid" else None)
        self.gate, self.up, self.down = (nn.Parameter(torch.empty(s)) for s in ((E, F, D), (E, F, D), (E, D, F)))
        for name, n in {"gate": F, "up": F, "down": D}.items():
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(E, n)) if spec.bias else None)
        self.shared = GatedMlp(cfg, c.Mlp(spec.shared, spec.act)) if spec.shared else None

    def forward(self, x: Tensor, step: object = None) -> Tensor:
        # in float32 at least: a tie broken by rounding would send a token elsewhere
        logits = tap(ops.linear_wide(x, self.router.weight, self.router.bias), "router: B T E")
        share, chosen = self.choose(logits)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)  # an unstable sort would make a crowd differ from a lone run
        token = order // self.spec.chosen
        ends = torch.searchsorted(flat[order], torch.arange(self.spec.experts, device=x.device), right=True).int()
        rows = tap(ops.pick(x, token), "routed: N D", token)
        gate = tap(ops.grouped(rows, self.gate, ends, self.gate_bias), "gate: N F", token)
        up = tap(ops.grouped(rows, self.up, ends, self.up_bias), "up: N F", token)
        neurons = tap(ops.gate(gate, up, self.spec.act), "neurons: N F", token)
        y = tap(ops.grouped(neurons, self.down, ends, self.down_bias), "down: N D", token)
        y = ops.combine(y, share, order, x)
        return y if self.shared is None else ops.add(tap(y, "routed_out: B T D"), tap(self.shared(x), "shared: B T D"))

    def by_softmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The largest logits are chosen; their shares come from a softmax over all experts."""
        affinity = tap(ops.each(logits.softmax(-1), "softmax", logits), "affinity: B T E")
        return self.shares(affinity, tap(ops.each(logits.topk(self.spec.chosen, -1)[1], "top", logits), "chosen: B T A"))

    def by_sigmoid(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Sigmoid scores; a correction and groups decide who is chosen, the scores alone how much each counts."""
        s = self.spec
        affinity = tap(ops.each(logits.sigmoid(), "sigmoid", logits), "affinity: B T E")
        corrected = tap(ops.each(affinity + self.correction, "correct", affinity, weights=(self.correction,)), "corrected: B T E")
        grouped = corrected.unflatten(-1, (s.groups, -1))
        best = grouped.topk(min(2, grouped.shape[-1]), -1)[0].sum(-1).topk(s.groups_chosen, -1)[1]
        kept = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, True)
        ranked = grouped.masked_fill(~kept[..., None], float("-inf")).flatten(-2)
        return self.shares(affinity, tap(ops.each(ranked.topk(s.chosen, -1)[1], "top", corrected), "chosen: B T A"))

    def shares(self, affinity: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """How much each chosen expert counts; normalised, the shares of a token sum to the scale, as a softmax over the chosen would."""
        share = affinity.gather(-1, chosen)
        below = share.sum(-1, keepdim=True) + 1e-20 if self.spec.normalised else 1.0
        return tap(ops.each(share / below * self.spec.scale, "share", affinity, chosen), "share: B T A"), chosen
