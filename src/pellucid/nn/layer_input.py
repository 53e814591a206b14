"""What a block reads of its tokens beside the rows that enter it (Gemma 4 E2B and E4B, 2026): its own table's rows, and a product of the
rows that enter the first block.
"""

from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.step import Step
from pellucid.nn.linear import Embedding, Linear
from pellucid.nn.norm import AnyNorm
from pellucid.watching.tap import tap


class LayerInput(nn.Module):
    """x [B T D] -> up(act(gate(x)) · input) [B T D], where input [B T L] = (norm(project(entered)) + table[ids]) / √2.

    norm: of all blocks together.
    """

    axes = {"table": "V L", "project": "L D", "norm": "L", "gate": "L D", "up": "D L"}

    def __init__(self, cfg: c.Config, spec: c.LayerInput, norm: AnyNorm) -> None:
        super().__init__()
        self.table_scale, self.project_scale, self.act = spec.width**0.5, cfg.width**-0.5, spec.act
        self.table, self.project = Embedding(spec.rows, spec.width), Linear(cfg.width, spec.width, False)
        self.norm = norm
        self.gate, self.up = Linear(cfg.width, spec.width, False), Linear(spec.width, cfg.width, False)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        own = self.own(step)
        gate = tap(self.gate(x), "gate: B T L")
        return self.up(tap(ops.gate(gate, own, self.act), "neurons: B T L"))  # type: ignore[no-any-return]

    def own(self, step: Step) -> Tensor:
        """Return the input [B T L] of the step's tokens."""
        assert step.ids is not None and step.entered is not None
        rows = tap(self.table(step.ids), "table: B T L")
        rows = tap(ops.scaled(rows, ops.rounded(self.table_scale, rows.dtype)), "table_scaled: B T L")
        product = tap(ops.scaled(tap(self.project(step.entered), "project: B T L"), self.project_scale), "project_scaled: B T L")
        both = tap(ops.add(tap(self.norm(product), "norm: B T L"), rows), "both: B T L")
        return tap(ops.scaled(both, 2**-0.5), "own: B T L")
