"""A mixture of experts: each token goes to the few that its router ranks first, and rows are sorted so that each expert runs once.

arXiv 1701.06538; the routing with a correction that only selects, and with groups, is DeepSeek-V3's, arXiv 2412.19437, eq. 12 to 16.
"""

import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.distributed import ALONE
from pellucid.errors import UseError
from pellucid.nn.linear import Linear
from pellucid.nn.mlp import GatedMlp, Mlp
from pellucid.nn.norm import NORMS, AnyNorm
from pellucid.watching.tap import tap


def score(logits: Tensor, kind: str) -> Tensor:
    """Turn a router's logits into affinities, by "softmax" over all experts or a "sigmoid" each."""
    return ops.sigmoid(logits) if kind == "sigmoid" else ops.softmax(logits)


class Moe(nn.Module):
    """x [B T D] -> the chosen experts' outputs times their shares, plus the shared expert's."""

    axes = {"router": "E D", "correction": "E", "shared_gate": "1 D", "gate": "E F D", "up": "E F D", "down": "E D F",
            "gate_bias": "E F", "up_bias": "E F", "down_bias": "E D", "expert_scale": "E"}  # fmt: skip

    ranks = ALONE  # that share the neurons of every expert, or the experts
    shares_experts = True
    correction: Tensor | None
    gate: Tensor | None
    gate_bias: Tensor | None
    up_bias: Tensor | None
    down_bias: Tensor | None
    router_norm: AnyNorm | None
    routed_post_norm: AnyNorm | None

    def __init__(self, cfg: c.Config, spec: c.Moe) -> None:
        super().__init__()
        self.spec, E, F, D = spec, spec.experts, spec.width, cfg.width
        self.router = Linear(D, E, spec.bias)
        self.register_buffer("correction", torch.zeros(E) if spec.corrected else None)
        self.register_parameter("gate", nn.Parameter(torch.empty(E, F, D)) if spec.gated else None)
        self.up, self.down = nn.Parameter(torch.empty(E, F, D)), nn.Parameter(torch.empty(E, D, F))
        for name, n in {"gate": F, "up": F, "down": D}.items():
            own = spec.bias and (spec.gated or name != "gate")
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(E, n)) if own else None)
        shared = c.Mlp(spec.shared, spec.act, spec.gated)
        self.shared = None if not spec.shared else GatedMlp(cfg, shared) if spec.gated else Mlp(cfg, shared)
        self.shared_gate = Linear(D, 1, False) if spec.shared_gate else None
        self.expert_scale = nn.Parameter(torch.ones(E)) if spec.own_scale else None
        for norm in ("router_norm", "routed_norm", "routed_post_norm", "shared_norm", "shared_post_norm"):
            there = spec.norms and (spec.shared > 0 or not norm.startswith("shared"))
            self.register_module(norm, NORMS[cfg.norm](D, cfg.eps) if there else None)

    def forward(self, x: Tensor, step: object = None) -> Tensor:
        # in float32 at least: a tie broken by rounding would send a token elsewhere
        logits = tap(ops.linear_wide(self.router_rows(x), self.router.dense_weight(), self.router.bias), "router: B T E")
        share, chosen = self.choose(logits)
        y = self.route(self.normed("routed_norm", x), share, chosen)
        if self.shared is None:
            return y if self.routed_post_norm is None else ops.identity(self.routed_rows(y))
        x = self.normed("shared_norm", x)
        if self.shared_gate is None:
            return ops.add(self.routed_rows(y), self.normed("shared_post_norm", tap(self.shared(x), "shared: B T D")))
        shared, gate = tap(self.shared(x), "shared: B T D"), tap(self.shared_gate(x), "shared_gate: B T 1")
        return ops.add(self.routed_rows(y), self.normed("shared_post_norm", tap(ops.gated(shared, gate), "shared_out: B T D")))

    def routed_rows(self, y: Tensor) -> Tensor:
        """Return the sum of the experts' rows, by its norm where there is one."""
        return self.normed("routed_post_norm", tap(y, "routed_out: B T D"))

    def normed(self, norm: str, x: Tensor) -> Tensor:
        """Return x by the norm of this name; x itself where there is none."""
        part = getattr(self, norm)
        return x if part is None else tap(part(x), f"{norm}: B T D")

    def router_rows(self, x: Tensor) -> Tensor:
        """Return what the router reads: x, or a norm of it over the root of its width (Gemma 4)."""
        if self.router_norm is None:
            return x
        return tap(ops.scaled(self.normed("router_norm", x), x.shape[-1] ** -0.5), "router_reads: B T D")

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts by logits [B T E]. Returns the share of each chosen expert and its number, both [B T A].

        A correction and groups decide which are chosen, the affinities alone how much each counts. Where the spec says so, a token's shares
        are divided by their sum; then they are multiplied by its scale, and by the expert's own.
        """
        affinity = tap(score(logits, self.spec.affinity), "affinity: B T E")
        ranked = logits  # not the affinities: a softmax can round two of them to one
        if self.correction is not None:
            ranked = tap(ops.corrected(logits if self.spec.corrects_logits else affinity, self.correction), "corrected: B T E")
        elif self.spec.groups > 1 and self.spec.group_best > 1:
            ranked = affinity  # the sum of a group's best is one of affinities
        best = ops.best(ranked, self.spec)
        chosen = tap(best, "chosen: B T A")
        if chosen is not best:  # a watch has edited the choice
            self.check_experts(chosen)
        share = self.weigh(logits, affinity, chosen)
        if self.expert_scale is not None:
            share = ops.scaled_shares(tap(share, "share_plain: B T A"), chosen, self.expert_scale)
        return tap(share, "share: B T A"), chosen

    def weigh(self, logits: Tensor, affinity: Tensor, chosen: Tensor) -> Tensor:
        """Return the share of each chosen expert [B T A]."""
        return ops.shares(affinity, chosen, self.spec)

    def check_experts(self, chosen: Tensor) -> None:
        """Raise a UseError if an edit names an expert that does not exist: its number would make a kernel write out of bounds."""
        if chosen.is_meta:
            return
        wrong = chosen[(chosen < 0) | (chosen >= self.spec.experts)]
        if wrong.numel():
            raise UseError("edit.expert", found=int(wrong[0]), last=self.spec.experts - 1)

    def route(self, x: Tensor, share: Tensor, chosen: Tensor) -> Tensor:
        """Send each token of x [B T D] to its chosen experts, and add up their outputs times the shares.

        order [N]: the rows' numbers among the B·T·A choices, sorted by expert.  token [N]: the token of each row.
        """
        order, token, ends = self.ranks.own_rows(*ops.sort(chosen, self.spec.experts, x))
        rows = tap(ops.gather(self.ranks.shared(x), token), "routed: N D", token)
        return self.ranks.summed(ops.combine(self.run_experts(rows, token, ends), self.ranks.shared(share), order, x))

    def run_experts(self, rows: Tensor, token: Tensor, ends: Tensor) -> Tensor:
        """Run each expert once over its rows [N D], sorted by expert; ends [E] says where each expert's rows end."""
        gate = None if self.gate is None else tap(ops.grouped(rows, self.gate, ends, self.gate_bias), "gate: N F", token)
        up = tap(ops.grouped(rows, self.up, ends, self.up_bias), "up: N F", token)
        neurons = ops.gate(up, None, self.spec.act) if gate is None else ops.gate(gate, up, self.spec.act)
        neurons = tap(neurons, "neurons: N F", token)
        bias = None if self.down_bias is None else self.ranks.even(self.down_bias)
        return tap(ops.grouped(neurons, self.down, ends, bias), "down: N D", token)


class InputWeightedMoe(Moe):
    """Experts that read their rows times the shares, so that their outputs are added as they are (Llama 4)."""

    def route(self, x: Tensor, share: Tensor, chosen: Tensor) -> Tensor:
        order, token, ends = self.ranks.own_rows(*ops.sort(chosen, self.spec.experts, x))
        rows = tap(ops.gather(self.ranks.shared(x), token), "routed: N D", token)
        rows = tap(ops.weighted(rows, self.ranks.shared(share), order), "weighted: N D", token)
        return self.ranks.summed(ops.combine(self.run_experts(rows, token, ends), share, order, x, weighted=True))


class SparseMixerMoe(Moe):
    """Experts whose shares are a softmax each, over those near the choice (SparseMixer, arXiv 2409.12136)."""

    def weigh(self, logits: Tensor, affinity: Tensor, chosen: Tensor) -> Tensor:
        assert self.spec.near is not None
        return ops.mixed(logits, chosen, self.spec.near)
