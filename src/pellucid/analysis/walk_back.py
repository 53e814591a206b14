"""A walk from cells of a recorded tensor back to what they were made of, through every op that is linear with something constant.

    a sum, a product, a copy of rows   linear as they are
    a norm                             linear with the row's scale constant
    attention                          linear in its values with the pattern constant
    an activation, a gate, a soft cap  one factor, constant, times its input
    experts                            linear with the choice and the shares constant

All else (a softmax, a choice, an edit) is an end. The records name each tensor's op, operands and weights, so the walk knows no family.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.config import MIXERS
from pellucid.ops.gate import ACTS, clamped
from pellucid.ops.linear import dense_weight
from pellucid.watching.records import Seen

PARTS = (*MIXERS, "cross", "ffn")


@dataclass(frozen=True)
class PartKey:
    """Where a walk ended: a tensor's row, and what of a part. row, source: positions of the text."""

    path: str
    row: int | None = None
    head: int | None = None
    source: int | None = None
    expert: int | None = None
    neuron: int | None = None


class Walk:
    """A walk back from one cell or several. g [N R C]: the gradient of each of the N cells in C channels of R rows of a tensor.

    by: letters of what parts are split by: H heads, S positions read, E experts, F neurons.
    parts, rest: what every origin adds to each cell [N], in float64.  constant: what was taken as constant on the way.
    """

    def __init__(self, module: Any, records: Iterable[Seen], value: Callable[[Seen], Tensor], by: Iterable[str] = "H") -> None:
        self.module, self.value, self.by = module, value, frozenset(by)
        self.records: dict[tuple[int, str], Seen] = {}
        self.lengths: dict[int, int] = {}
        for s in records:
            self.records.setdefault((s.step, s.path), s)
            if s.dims.startswith("B T") and not s.path.startswith("encoder."):
                self.lengths.setdefault(s.step, s.shape[1])
        self.parts: dict[PartKey, Tensor] = {}
        self.rest: dict[PartKey, Tensor] = {}
        self.constant: dict[str, None] = {}
        self.opened = ""  # the feed-forward part that the walk is in
        self.backs: Mapping[str, Callable[[Seen, Tensor, Tensor], None]] = {
            "add": self.sum, "correct": self.sum, "identity": self.sum, "pick": self.sum, "linear": self.product, "adapted": self.product,
            "rms": self.norm, "layer norm": self.norm, "rotate": self.rotation, "gate": self.gate, "combine": self.combine,
            **dict.fromkeys(("scaled", "multiplied", "tempered", "weighted", "gated"), self.factor),
            **dict.fromkeys(("act", "cap", "clip", "jump", "tanh", "xielu"), self.ratio),
            "experts": self.experts, "attend": self.attend, "attend latent": self.attend,
        }  # fmt: skip

    def at(self, s: Seen, rows: Tensor) -> Tensor:
        """Return rows of a tensor as [R C], in float64."""
        x = self.value(s)
        return (x[0] if s.dims.startswith("B ") else x)[rows].double().flatten(1)

    def inputs(self, s: Seen) -> list[Seen] | None:
        """Return the records of a tensor's operands. None if one is missing, or there are none."""
        known = [self.records.get((s.step, path)) for path in s.inputs]
        return [k for k in known if k is not None] if known and None not in known else None

    def position(self, s: Seen, row: int) -> int:
        """Return the position in its text of a row of a tensor."""
        if s.rows is not None:
            row = int(s.rows[row])
        own = s.dims.startswith("B S") or s.path.startswith("encoder.") or s.path == "source"
        return row if own else row + sum(n for step, n in self.lengths.items() if step < s.step)

    def start(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        """Begin at rows of a tensor. The part that it is in is split by all letters."""
        if s.source == "edited":
            return self.end(s, rows, g, False)
        if s.path.rpartition(".")[2] in ("attn", "cross"):
            self.by |= {"H", "S"}
            return self.part(s, rows, g)
        if ".ffn" in s.path and self.has_neurons(s):
            self.opened, self.by = s.path[: s.path.index(".ffn") + len(".ffn")], self.by | {"E", "F"}
        self.through(s, rows, g)
        self.opened = ""
        return None

    def has_neurons(self, s: Seen) -> bool:
        """True if a tensor of a feed-forward part is made of its neurons."""
        made = [t for t in self.inputs(s) or [] if ".ffn." in t.path]
        return any(t.path.endswith(".neurons") or self.has_neurons(t) for t in made)

    def back(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        """Go on through a tensor. A part, or a tensor that is not linear in what made it, is an end."""
        part = s.path.rpartition(".")[2] in PARTS
        if s.source == "edited":  # it is not what its op made
            self.end(s, rows, g, part)
        elif part and not self.opened:
            self.part(s, rows, g)
        elif self.opened and self.closes(s):
            self.neurons(s, rows, g)
        else:
            self.through(s, rows, g)

    def through(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        """Go through the op of a tensor if it is linear and its operands are recorded."""
        back = self.backs.get(s.op or "")
        if back is not None and self.inputs(s) is not None:
            back(s, rows, g)
        else:
            self.end(s, rows, g, False)

    def on(self, s: Seen, t: Seen, rows: Tensor, g: Tensor) -> None:
        """Go on from rows of s to the rows of its operand t that they were made of."""
        if s.rows is not None and t.rows is None:
            return self.back(t, s.rows.to(rows.device)[rows], g)
        if s.dims.split()[1:2] == ["S"] and t.dims.split()[1:2] == ["T"]:
            return self.spread(t, s.shape[1], rows, g)
        return self.back(t, rows, g)

    def spread(self, t: Seen, count: int, rows: Tensor, g: Tensor) -> None:
        """Go on to rows among the last `count` of a tensor, which was made in several steps."""
        for s, own, at in self.stored(t, count) or []:
            hit = (rows[:, None] == at).nonzero()
            if len(hit):
                self.back(s, own[hit[:, 1]], g[:, hit[:, 0]])

    def stored(self, t: Seen, count: int) -> list[tuple[Seen, Tensor, Tensor]] | None:
        """Return the records that hold the last `count` rows of a tensor up to its step: (record, its rows, their numbers).

        None if fewer were recorded.
        """
        made = [self.records[k, t.path] for k in range(t.step + 1) if (k, t.path) in self.records]
        if t.dims.split()[1] == "S" and t.shape[1] == count:
            made = [t]
        start, out = count - sum(s.shape[1] for s in made), []
        if start > 0:
            return None
        for s in made:
            at = torch.arange(start, start + s.shape[1])
            out.append((s, torch.arange(s.shape[1])[at >= 0], at[at >= 0]))
            start += s.shape[1]
        return [entry for entry in out if len(entry[1])]

    def end(self, s: Seen, rows: Tensor, g: Tensor, part: bool) -> None:
        """Add all of what a tensor's rows contribute."""
        for r, x in enumerate((g * self.at(s, rows)).sum(-1).unbind(1)):
            self.add(self.parts if part else self.rest, PartKey(s.path, self.position(s, int(rows[r]))), x)

    def add(self, sums: dict[PartKey, Tensor], origin: PartKey, x: Tensor) -> None:
        """Add x [N] to an origin's sum."""
        sums[origin] = sums[origin] + x if origin in sums else x

    def bias(self, path: str, bias: Tensor, g: Tensor) -> None:
        """Add what a bias [C] contributes to every row."""
        self.add(self.rest, PartKey(path), (g @ bias.double().flatten()).sum(1))

    # Parts

    def part(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        """Add an attention's output by heads, and a feed-forward part's as a whole or, if `by` says so, by experts or neurons."""
        inputs = self.inputs(s)
        if s.path.endswith("ffn"):
            if not self.by & {"E", "F"} or inputs is None:
                return self.end(s, rows, g, True)
            self.opened = s.path
            self.back(s, rows, g)
            self.opened = ""
            return None
        if inputs is None or "H" not in inputs[0].dims.split() or not self.by & {"H", "S"}:
            return self.end(s, rows, g, True)
        return self.heads(inputs[0], s, rows, self.weighed(s, g))

    def heads(self, z: Seen, s: Seen, rows: Tensor, g: Tensor) -> None:
        """Add what each head contributes through z [T H K], by the positions that it reads if `by` says so. g: the gradient in z."""
        heads, made = z.shape[2], self.inputs(z) or []
        attended, gates = (made[0], made[1:]) if z.op == "times" and made else (z, [])
        if "S" in self.by and (read := self.values_of(attended)) is not None:
            self.constant["pattern"] = None
            for gate in gates:
                self.constant["gate"], g = None, g * self.at(gate, rows)
            for v, own, at, weights in read:
                x = self.at(v, own).unflatten(1, v.shape[2:]).repeat_interleave(heads // v.shape[2], 1)  # [S H W]
                added = torch.einsum("nrhw,shw,hrs->nrhs", g.unflatten(-1, (heads, -1)), x, weights[:, rows][..., at])
                for r, row in enumerate(rows.tolist()):
                    for h in range(heads):
                        for i, source in enumerate(own.tolist()):
                            origin = PartKey(s.path, self.position(s, row), h, self.position(v, source))
                            self.add(self.parts, origin, added[:, r, h, i])
            return
        added = (g * self.at(z, rows)).unflatten(-1, (heads, -1)).sum(-1)
        for r, row in enumerate(rows.tolist()):
            for h in range(heads):
                self.add(self.parts, PartKey(s.path, self.position(s, row), h), added[:, r, h])

    def closes(self, s: Seen) -> bool:
        """True if the walk through an open feed-forward part ends at this tensor."""
        if s.path.endswith(".neurons"):
            return True
        return "F" not in self.by and s.op in ("linear", "adapted", "experts")

    def neurons(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        """End in an open feed-forward part: in each neuron, or in an expert's output."""
        experts = self.experts_of(s)
        x = self.at(s, rows)
        for r, row in enumerate(rows.tolist()):
            place, expert = self.position(s, row), None if experts is None else int(experts[row])
            if s.path.endswith(".neurons"):
                for n, added in enumerate((g[:, r] * x[r]).unbind(1)):
                    self.add(self.parts, PartKey(s.path, place, expert=expert, neuron=n), added)
            else:
                self.add(self.parts, PartKey(s.path, place, expert=expert), g[:, r] @ x[r])

    # Ops: each goes on to the operands of a tensor, or ends

    def sum(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        for t in self.inputs(s) or []:
            self.on(s, t, rows, g)
        for path in s.weights:  # a router's correction
            self.bias(path, self.tensor(path), g)

    def tensor(self, path: str) -> Tensor:
        """Return a parameter or a buffer by its path."""
        owner, _, name = path.rpartition(".")
        return getattr(self.module.get_submodule(owner), name)  # type: ignore[no-any-return]

    def matrix(self, s: Seen, channels: Tensor) -> Tensor:
        """Return the rows `channels` of the matrix that made a tensor [channels in], in float64."""
        owner = self.module.get_submodule(s.weights[0].rpartition(".")[0])
        if s.path in ("logits", "uncapped", "unscaled"):  # whose table may be the embedding's
            owner = self.module.head
        own = owner.dense_weight() if hasattr(owner, "dense_weight") else dense_weight(self.tensor(s.weights[0]))
        if s.path.endswith((".k", ".v")) and len(s.shape) == 4 and own.shape[0] != s.shape[2] * s.shape[3]:
            # the matrix of a latent makes each head's keys, then its values
            per_head = own.unflatten(0, (s.shape[2], -1))
            own = (per_head[:, : s.shape[3]] if s.path.endswith(".k") else per_head[:, -s.shape[3] :]).flatten(0, 1)
        return own[channels].double()

    def weighed(self, s: Seen, g: Tensor) -> Tensor:
        """Return the gradient in the operand of a product, and add its bias."""
        for path in s.weights[1:]:
            if path.endswith("bias"):
                self.bias(path, self.tensor(path), g)
        channels = g.flatten(0, 1).any(0).nonzero()[:, 0]
        return g[..., channels] @ self.matrix(s, channels)

    def product(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        (x, *_) = self.inputs(s) or []
        self.on(s, x, rows, self.weighed(s, g))

    def columns(self, s: Seen, x: Seen) -> slice:
        """Return the part of x's last axis that s was made of: of "K+R" the last R, or the first."""
        n, axis = s.shape[-1], s.dims.split()[-1]
        last = x.shape[-1] > n and x.dims.split()[-1].split("+")[-1] == axis
        return slice(x.shape[-1] - n, None) if last else slice(0, n)

    def widened(self, g: Tensor, s: Seen, x: Seen) -> Tensor:
        """Return the gradient in all columns of x, of that in those that s was made of [N R H K]."""
        wide = g.new_zeros(*g.shape[:-1], x.shape[-1])
        wide[..., self.columns(s, x)] = g
        return wide.flatten(2)

    def norm(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        """Go through a norm with its scale constant: a product with a diagonal matrix, of x less its mean if centred."""
        self.constant["norm"] = None
        (t,) = self.inputs(s) or []
        centred = s.op == "layer norm"
        if len(s.weights) > 1:  # of one head, or of all
            bias = self.tensor(s.weights[1]).flatten()
            self.bias(s.weights[1], bias.repeat(g.shape[-1] // len(bias)), g)
        gain = 1.0 if not s.weights else self.tensor(s.weights[0]).double().view(-1, s.shape[-1]) + s.settings.get("offset", 0)
        x = self.at(t, rows).unflatten(1, (-1, t.shape[-1]))[..., self.columns(s, t)]
        x = x - x.mean(-1, keepdim=True) if centred else x
        g = g.unflatten(-1, (-1, s.shape[-1])) * gain * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + s.settings["eps"])
        self.on(s, t, rows, self.widened(g - g.mean(-1, keepdim=True) if centred else g, s, t))

    def rotation(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        """Go through rotary positions: all heads of a row turn a pair by one angle, which its numbers before and after determine."""
        (t,) = self.inputs(s) or []
        width, adjacent = s.settings["width"], s.settings["pairs"] == "adjacent"

        def pairs(x: Tensor) -> Tensor:
            """Return the first `width` channels as complex numbers, a pair each."""
            x = x[..., :width].unflatten(-1, (-1, 2) if adjacent else (2, -1))
            return torch.complex(*x.unbind(-1 if adjacent else -2))

        x, y = (self.at(r, rows).unflatten(1, (-1, r.shape[-1])) for r in (t, s))
        before, after = pairs(x[..., self.columns(s, t)]), pairs(y)
        size = before.abs().pow(2).sum(1, keepdim=True)
        turn = (before.conj() * after).sum(1, keepdim=True) / size.clamp(min=torch.finfo(size.dtype).tiny)
        g = g.unflatten(-1, (-1, s.shape[-1]))
        rotated = torch.view_as_real(pairs(g) * turn.conj())
        rotated = rotated.flatten(-2) if adjacent else rotated.transpose(-1, -2).flatten(-2)
        self.on(s, t, rows, self.widened(torch.cat([rotated, g[..., width:]], -1), s, t))

    def factor(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        """Go through a product with one factor a row, which its numbers before and after determine."""
        (t, *more) = self.inputs(s) or []
        if more:
            self.constant["experts" if s.op == "weighted" else "gate"] = None
        x, y = self.at(t, rows), self.at(s, rows)
        self.on(s, t, rows, g * ((y * x).sum(-1) / x.pow(2).sum(-1).clamp(min=torch.finfo(x.dtype).tiny))[:, None])

    def ratio(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        """Go through an activation: f(x) = x · (f(x) / x), with the quotient constant. f(0) is 0."""
        self.constant["gate"] = None
        (t,) = self.inputs(s) or []
        x = self.at(t, rows)
        self.on(s, t, rows, g * torch.where(x == 0, 0.0, self.at(s, rows) / torch.where(x == 0, 1.0, x)))

    def gate(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        """Go through act(gate) · up with act(gate) constant, on to up."""
        self.constant["gate"] = None
        gate, up = self.inputs(s) or []
        x, act = self.at(up, rows), s.settings["act"]
        if act != "clamped":
            return self.on(s, up, rows, g * ACTS[act](self.at(gate, rows)))
        slope = clamped(self.at(gate, rows)) * (x.abs() < 7.0)
        added = (g * (self.at(s, rows) - slope * x)).sum(-1)  # of the 1 that up gains, and of a clamp
        for r, row in enumerate(rows.tolist()):
            self.add(self.rest, PartKey(s.path, self.position(s, row)), added[:, r])
        return self.on(s, up, rows, g * slope)

    # Experts and attention: rows of several tensors

    def experts_of(self, s: Seen) -> Tensor | None:
        """Return the expert of each row [N] of a routed tensor. None for any other, or if the choice was not recorded."""
        chosen = self.records.get((s.step, f"{s.path.rpartition('.')[0]}.chosen"))
        if s.rows is None or chosen is None:
            return None
        return self.value(chosen).flatten().sort(stable=True)[0]

    def experts(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        """Go through the product of each row with its expert's matrix."""
        (x,), numbers = self.inputs(s) or [], self.experts_of(s)
        if numbers is None:
            return self.end(s, rows, g, False)
        self.constant["experts"] = None
        for e in numbers[rows].unique().tolist():
            hit = (numbers[rows] == e).nonzero()[:, 0]
            if len(s.weights) > 1:
                self.bias(s.weights[1], self.tensor(s.weights[1])[e], g[:, hit])
            self.on(s, x, rows[hit], g[:, hit] @ dense_weight(self.tensor(s.weights[0])[e]).double())
        return None

    def combine(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        """Go through the sum of a token's experts, times their shares."""
        (down, *shares), place = self.inputs(s) or [], s.path if s.path.endswith("ffn") else s.path.rpartition(".")[0]
        chosen = self.records.get((s.step, f"{place}.chosen"))
        if chosen is None or down.rows is None:
            return self.end(s, rows, g, False)
        self.constant["experts"] = None
        order = self.value(chosen).flatten().argsort(stable=True)
        hit = (rows[:, None] == down.rows).nonzero()
        g = g[:, hit[:, 0]]
        for share in shares:
            g = g * self.value(share).flatten()[order][hit[:, 1]].double()[:, None]
        return self.back(down, hit[:, 1], g)

    def values_of(self, z: Seen) -> list[tuple[Seen, Tensor, Tensor, Tensor]] | None:
        """Return what a head's output is made of: (values, their rows, the rows' numbers among the keys, the pattern [H T S]).

        None if the pattern or a value was not recorded.
        """
        place = z.path.rpartition(".")[0]
        values = next((path for path in z.inputs if path.rpartition(".")[2].split("_")[0] == "v"), f"{place}.v")  # v, or v_clipped
        pattern = self.records.get((z.step, f"{place}.pattern"))
        steps = [k for k in range(z.step, -1, -1) if (k, values) in self.records]
        if pattern is None or not steps:
            return None
        newest = self.records[steps[0], values]
        weights = self.value(pattern)[0].double()
        stored = self.stored(newest, weights.shape[-1])
        return None if stored is None else [(v, own, at, weights) for v, own, at in stored]

    def attend(self, s: Seen, rows: Tensor, g: Tensor) -> None:
        """Go through attention with the pattern constant, on to the values of every position that is read."""
        read = self.values_of(s)
        if read is None:
            return self.end(s, rows, g, False)
        self.constant["pattern"] = None
        for v, own, at, weights in read:
            groups = v.shape[2]
            split = g.unflatten(-1, (groups, -1, v.shape[3]))  # [N R G H/G W]
            shares = weights[:, rows][..., at].unflatten(0, (groups, -1))  # [G H/G R S]
            self.back(v, own, torch.einsum("nrgjw,gjrs->nsgw", split, shares).flatten(2))
        return None
