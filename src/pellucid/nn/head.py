"""From the last norm to the logits: mostly one product."""

from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.step import Step
from pellucid.nn.linear import Embedding, Linear
from pellucid.nn.norm import NORMS
from pellucid.watching.tap import tap


class Transform(nn.Module):
    """One more product, activation and norm before the head, as in BERT (arXiv 1810.04805)."""

    axes = {"dense": "D D", "norm": "D"}

    def __init__(self, cfg: c.Config) -> None:
        super().__init__()
        assert cfg.transform is not None
        width = cfg.embed_width if cfg.narrow_entry and cfg.embed_width is not None else cfg.width
        self.letter = "D" if width == cfg.width else "L"
        self.axes = self.axes | {"dense": f"{self.letter} D", "norm": self.letter}
        self.act, self.dense = cfg.transform, Linear(cfg.width, width, cfg.transform_bias)
        self.norm = NORMS[cfg.norm](width, cfg.eps)

    def forward(self, x: Tensor, length: str, rows: Tensor | None) -> Tensor:
        dense = tap(self.dense(x), f"dense: B {length} {self.letter}", rows)
        return self.norm(tap(ops.gate(dense, None, self.act), f"acted: B {length} {self.letter}", rows))  # type: ignore[no-any-return]


class LogitsHead(nn.Module):
    """A model's head, tied or not, and what the config asks for on both sides of it."""

    head: Linear

    def add_head(self, cfg: c.Config, embed: Embedding) -> None:
        self.head = Linear(cfg.embed_width or cfg.width, cfg.vocab, cfg.head_bias)
        if cfg.head_bias:
            nn.init.zeros_(self.head.bias)
        if cfg.tied:  # one table for the first and the last product, arXiv 1608.05859
            self.head.weight = embed.weight
        self.logit_scale = cfg.logit_scale if cfg.logit_scale != 1.0 else None
        self.logit_factor = cfg.logit_factor if cfg.logit_factor != 1.0 else None
        self.logit_cap = cfg.logit_cap
        narrows = cfg.embed_width is not None and not (cfg.narrow_entry and cfg.transform)  # else the transform does
        self.narrow = Linear(cfg.width, cfg.embed_width, False) if narrows else None  # type: ignore[arg-type]
        self.transform = Transform(cfg) if cfg.transform is not None else None

    def logits(self, x: Tensor, step: Step) -> Tensor:
        """x [B T D] -> logits [B T V], or of the rows that the step wants alone, [B N V]."""
        rows = step.wanted
        x, length = (x, "T") if rows is None else (ops.picked(x, rows), "N")
        if self.logit_scale is not None:
            x = tap(ops.scaled(x, self.logit_scale), f"head_scaled: B {length} D", rows)
        if self.narrow is not None:
            x = tap(self.narrow(x), f"narrow: B {length} L", rows)
        if self.transform is not None:
            x = tap(self.transform(x, length, rows), f"transform: B {length} {self.transform.letter}", rows)
        logits = self.head(x)
        if self.logit_factor is not None:
            logits = ops.scaled(tap(logits, f"unscaled: B {length} V", rows), self.logit_factor)
        if self.logit_cap is not None:
            logits = ops.capped(tap(logits, f"uncapped: B {length} V", rows), self.logit_cap)
        return tap(logits, f"logits: B {length} V", rows)
