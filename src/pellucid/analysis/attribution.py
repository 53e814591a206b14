"""Direct attribution: a logit as the sum of the contributions of each head and each feed-forward part.

    logit = row of the head · norm(start + head 0 of block 0 + head 1 + ... + ffn of the last block) + bias

A norm divides by a scale that depends on all parts. With the scale of this run held constant the norm is linear, and the logit is a sum
over parts. The records have each tensor's operands, so the walk goes from the logits back along sums, norms and products in any order.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from pellucid.analysis.lens import plain
from pellucid.errors import UseError
from pellucid.notebook import checked
from pellucid.tracing import Trace
from pellucid.watching.watch import Seen

PARTS = ("attn", "cross", "ffn")


@dataclass(frozen=True)
class Share:
    """A tensor's contribution to the logit. head: the head of an attention's output, None for all of it."""

    path: str
    head: int | None
    value: float


@dataclass
class Attribution:
    """A logit and its parts. path: the logits, or the input of their soft cap.  value: the number.

    parts: heads and feed-forward parts, in order.  rest: all other summands: the embedding, positions, biases.
    """

    path: Literal["logits", "uncapped"]
    value: float
    parts: list[Share] = field(default_factory=list)
    rest: list[Share] = field(default_factory=list)

    @property
    def total(self) -> float:
        """Return the sum of all parts, the value up to rounding."""
        return sum(s.value for s in (*self.parts, *self.rest))


@checked
def attribution(
    model: Any, trace: Trace, id: int | str, step: int = 0, row: int = -1, value: Callable[[Seen], Tensor] = plain
) -> Attribution:
    """Return the parts of a token's logit, in one row of a step; sums are taken in float64.

    id: of the token, or its text, which must be one token.
    value: returns the value of a record that has dropped it.
    """
    if isinstance(id, str):
        id = one_id(model, id)
    records = {s.path: s for s in trace if s.step == step}
    if "logits" not in records:
        raise UseError("lens.head", model=model.name)
    path: Literal["logits", "uncapped"] = "uncapped" if "uncapped" in records else "logits"
    with torch.no_grad():
        walk = Walk(model.module, records, row, value, Attribution(path, float(value(records[path])[0, row, id])))
        walk.head(records[path], id)
    return walk.result


def one_id(model: Any, text: str) -> int:
    """Return the id of a text that is one token. A UseError if it is not."""
    ids = model.tokenizer.encode(text, special=False)
    if len(ids) != 1:
        raise UseError("attribution.token", text=text, count=len(ids))
    return int(ids[0])


class Walk:
    """A walk from the logits back to their summands. g [width]: the logit's gradient in a tensor's channels."""

    def __init__(self, module: Any, records: dict[str, Seen], row: int, value: Callable[[Seen], Tensor], result: Attribution) -> None:
        self.module, self.records, self.row, self.value, self.result = module, records, row, value, result
        self.backs = {"add": self.sum, "rms": self.norm, "layer norm": self.norm, "scaled": self.scaled, "identity": self.sum}
        self.backs |= {"linear": self.product, "adapted": self.product}

    def at(self, s: Seen) -> Tensor:
        """Return the row of a tensor, in float64."""
        return self.value(s)[0, self.row].double()

    def head(self, s: Seen, id: int) -> None:
        """Take the first step back: one row of the last product's matrix."""
        if s.source == "edited":
            return self.rest(s.path, self.result.value)
        last = self.module.head
        if last.bias is not None:
            self.rest("head.bias", float(last.bias[id]))
        if not all(p in self.records for p in s.inputs):
            raise UseError("lens.missing", path=s.inputs[0])
        self.back(s.inputs[0], last.dense_weight()[id].double())
        return None

    def back(self, path: str, g: Tensor) -> None:
        """Go through a tensor that is a sum, a norm or a product; a part, or any other tensor, is an end."""
        s = self.records[path]
        part = path.rpartition(".")[2] in PARTS
        if s.source == "edited":  # it is not what its op made
            self.end(s, g, part)
        elif part:
            self.part(s, g)
        elif s.op in self.backs and all(p in self.records for p in s.inputs):
            self.backs[s.op](s, g)
        else:
            self.end(s, g, False)

    def end(self, s: Seen, g: Tensor, part: bool) -> None:
        """Add all of a tensor's contribution."""
        (self.result.parts if part else self.result.rest).append(Share(s.path, None, float(self.at(s) @ g)))

    def rest(self, path: str, value: float) -> None:
        self.result.rest.append(Share(path, None, value))

    def part(self, s: Seen, g: Tensor) -> None:
        """Add an attention's contribution by heads: each has columns of W_o of its own."""
        z = self.records.get(s.inputs[0]) if s.inputs else None
        out = getattr(self.module.get_submodule(s.path), "o", None)
        if z is None or out is None or "H" not in z.dims.split():
            return self.end(s, g, True)
        heads = self.at(z)  # [H W]
        added = (heads.flatten() * (g @ out.dense_weight().double())).unflatten(0, heads.shape).sum(-1)
        self.result.parts += [Share(s.path, h, float(x)) for h, x in enumerate(added)]
        if out.bias is not None:
            self.rest(f"{s.path}.o.bias", float(out.bias.double() @ g))
        return None

    def sum(self, s: Seen, g: Tensor) -> None:
        for path in s.inputs:
            self.back(path, g)

    def norm(self, s: Seen, g: Tensor) -> None:
        """Go through a norm with its scale held constant: a product with a diagonal matrix, of x less its mean if centred."""
        norm = self.module.get_submodule(s.path)
        norm = getattr(norm, "norm", norm)
        x = self.at(self.records[s.inputs[0]])
        bias = getattr(norm, "bias", None)
        if bias is not None:
            self.rest(f"{s.path}.bias", float(bias.double() @ g))
        x = x - x.mean() if norm.centred else x
        g = g * norm.gain().double() * torch.rsqrt(x.pow(2).mean() + norm.eps)
        self.back(s.inputs[0], g - g.mean() if norm.centred else g)

    def scaled(self, s: Seen, g: Tensor) -> None:
        """Go through a product with one factor, which the two rows determine."""
        x = self.at(self.records[s.inputs[0]])
        self.back(s.inputs[0], g * (self.at(s) @ x) / (x @ x))

    def product(self, s: Seen, g: Tensor) -> None:
        linear = self.module.get_submodule(s.path)
        if linear.bias is not None:
            self.rest(f"{s.path}.bias", float(linear.bias.double() @ g))
        self.back(s.inputs[0], g @ linear.dense_weight().double())
