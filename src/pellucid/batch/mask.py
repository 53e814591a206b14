"""The mask and the bias of attention scores: two functions of positions. `&` lets a query see what both masks let it see.

    causal & window(4)                       # itself and the three before it
    replace(causal, bias=alibi(slopes))      # the same, and a slope by distance

It becomes a tensor only inside an op's reference. Padding is position -1 and is never seen; a row that sees nothing gives 0.
A Band, an AlibiBias and a RelativeBias are plain data as well, which a kernel takes as numbers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.config import Alibi, Buckets
from pellucid.errors import UseError
from pellucid.watching.tap import Settings

Allowed = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Band:
    """A mask given by numbers: causal (keys before `until` count as past), a sliding `window`, the size of a `chunk`.

    around: the window reaches as far ahead as back (ModernBERT). With none of them, every key is visible. Called with positions q and k
    that broadcast, it says which pairs are.
    """

    causal: bool = False
    window: int | None = None
    chunk: int | None = None
    until: int = 0
    around: bool = False

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        seen = (q == q) & (k == k)  # all true, in the shape of both
        if self.causal:
            seen = (k <= q) | (k < self.until) if self.until else k <= q
        if self.window is not None:
            seen = seen & (((q - k).abs() if self.around else q - k) < self.window)
        return seen if self.chunk is None else seen & (q // self.chunk == k // self.chunk)

    def conditions(self) -> str:
        """Return the conditions under which a query at t sees a key at s, "s ≤ t and t − s < 4"; "" if it sees all."""
        limits = [f"s ≤ t or s < {self.until}" if self.until else "s ≤ t"] if self.causal else []
        limits += [] if self.window is None else [f"|t − s| < {self.window}" if self.around else f"t − s < {self.window}"]
        limits += [] if self.chunk is None else [f"⌊s / {self.chunk}⌋ = ⌊t / {self.chunk}⌋"]
        return " and ".join(f"({limit})" if " or " in limit and len(limits) > 1 else limit for limit in limits)

    def __and__(self, other: "Band") -> "Band":
        windows = [w for w in (self.window, other.window) if w is not None]
        until = min((band.until for band in (self, other) if band.causal), default=0)
        chunk = other.chunk if self.chunk is None else self.chunk
        return Band(self.causal or other.causal, min(windows, default=None), chunk, until, self.around or other.around)


def conditions_of(allowed: Allowed) -> str | None:
    """Return the conditions of a Band as text, None for any other rule."""
    return allowed.conditions() if isinstance(allowed, Band) else None


def both(a: Allowed, b: Allowed) -> Allowed:
    """Return the rule that allows the keys which both a and b allow: one Band if both are, and their chunks and windows agree."""
    if isinstance(a, Band) and isinstance(b, Band):
        chunks, windows = a.chunk is None or b.chunk in (None, a.chunk), a.around == b.around or None in (a.window, b.window)
        if chunks and windows:
            return a & b
    return lambda q, k: a(q, k) & b(q, k)


@dataclass(frozen=True, eq=False)
class Mask:
    """A rule and a bias of scores: allowed(q, k) and bias(q, k) of positions q [B 1 T 1] and k [B 1 1 S] -> [B H T S].

    cap: a soft limit of scores.  sinks [H]: an extra key's score.  fill: the score of a key that the rule hides, −∞ if None; where there
    is no key, as in padding, it is −∞ in any case.  weights, inputs: the parameters and tensors that took part, for a watch.
    by_segment(mask, segment): the mask of one segment, where positions do not decide alone, as with an indexer's chosen keys.
    """

    allowed: Allowed
    bias: Allowed | None = None
    cap: float | None = None
    sinks: Tensor | None = None
    weights: tuple[Tensor, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    by_segment: "Callable[[Mask, Any], Mask] | None" = None
    fill: float | None = None

    def of(self, segment: Any) -> "Mask":
        """Return the mask of one segment of the cache."""
        return self if self.by_segment is None else self.by_segment(self, segment)

    def with_weights(self, weights: tuple[Tensor, ...]) -> "Mask":
        """Return the mask with other tensors in the place of its weights, in their order."""
        bias, new = self.bias, {id(old): w for old, w in zip(self.weights, weights, strict=True)}
        if isinstance(bias, RelativeBias):
            bias = replace(bias, table=new[id(bias.table)])
        return replace(self, bias=bias, sinks=None if self.sinks is None else new[id(self.sinks)], weights=weights)

    def settings(self) -> Settings:
        """Return the numbers of a bias that is plain data, {} for any other."""
        return self.bias.settings() if isinstance(self.bias, AlibiBias | RelativeBias) else {}

    def __and__(self, other: "Mask") -> "Mask":
        """Let a query see what both masks let it see. A UseError if `other` changes scores: write `replace(mask, bias=...)` for that."""
        if any(x is not None for x in (other.bias, other.cap, other.sinks, other.by_segment, other.fill)):
            raise UseError("mask.scores")
        return replace(self, allowed=both(self.allowed, other.allowed))

    def materialize(self, q_at: Tensor, k_at: Tensor) -> tuple[Tensor, Tensor | None]:
        """Make the tensors for positions q_at [B T] and k_at [B S]: allowed [B 1 T S], and the bias [B H T S] or None."""
        q, k = q_at[:, None, :, None], k_at[:, None, None, :]
        return self.allowed(q, k) & (k >= 0) & (q >= 0), None if self.bias is None else self.bias(q, k)

    def present(self, q_at: Tensor, k_at: Tensor, allowed: Tensor) -> Tensor:
        """Return the pairs that a softmax counts [B 1 T S]: those that are allowed, or under a `fill` all in which there is a key."""
        return allowed if self.fill is None else (k_at[:, None, None, :] >= 0) & (q_at[:, None, :, None] >= 0)

    def hide(self, scores: Tensor, allowed: Tensor, present: Tensor) -> Tensor:
        """Return scores with `fill` for pairs that are not allowed, and −∞ for those that are not present."""
        if self.fill is not None:
            scores = torch.where(allowed, scores, scores.new_tensor(self.fill))  # one beyond the dtype is infinite
        return torch.where(present, scores, float("-inf"))


causal = Mask(Band(causal=True))
bidirectional = Mask(Band())


def window(n: int) -> Mask:
    """See the last n positions, the query's own included."""
    return Mask(Band(window=n))


def around(n: int) -> Mask:
    """See the positions less than n away, on both sides."""
    return Mask(Band(window=n, around=True))


def chunk(n: int) -> Mask:
    """See the query's own chunk of n positions: 0 to n - 1, n to 2n - 1, and so on."""
    return Mask(Band(chunk=n))


def prefix(n: int | Tensor) -> Mask:
    """See the first n positions always, the rest causally. n may differ from row to row: [B]."""
    if isinstance(n, int):
        return Mask(Band(causal=True, until=n))
    until = n[:, None, None, None]
    return Mask(lambda q, k: (k <= q) | (k < until))


def document(of: Tensor) -> Mask:
    """See the query's own document; of [rows]: the document of each position."""
    return Mask(lambda q, k: of[q] == of[k])


PLAIN = Alibi()


def slopes(heads: int) -> list[float]:
    """Return ALiBi's slopes [H], arXiv 2108.12409: 2^(-8/n), 2^(-16/n), ... for n heads; between powers of two, every other of the next.

    4 heads: 1/4, 1/16, 1/64, 1/256.
    """
    power = 2 ** int(math.log2(heads))
    main = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return main + [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]


@dataclass(frozen=True, eq=False)
class AlibiBias:
    """A bias that falls with distance, one slope a head: slopes [H] in float64. places: copies on other devices, made once."""

    slopes: Tensor
    spec: Alibi
    places: dict[torch.device, Tensor] = field(default_factory=dict, init=False)

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        if k.device not in self.places:
            self.places[k.device] = self.slopes.to(k.device)
        steep = self.places[k.device][:, None, None]
        if self.spec.rounded:  # by the key's position: a row's softmax sees no difference but the rounding
            return (steep.bfloat16() * k).double() * self.spec.scale
        return steep * -(q - k).abs() * self.spec.scale

    def settings(self) -> Settings:
        """Return the slope of each head as it multiplies, and the scale of all."""
        slopes = self.slopes.bfloat16() if self.spec.rounded else self.slopes
        return {"slopes": slopes.double().tolist(), "slope_scale": self.spec.scale, "rounded": self.spec.rounded}


def alibi(slopes: Tensor | list[float], spec: Alibi = PLAIN) -> AlibiBias:
    """Return the bias of slopes [H], scaled and rounded as `spec` says."""
    return AlibiBias(torch.as_tensor(slopes, dtype=torch.float64, device="cpu"), spec)


def bucket(distance: Tensor, count: int, reach: int, bidirectional: bool) -> Tensor:
    """Return T5's bucket of distance = k - q, arXiv 1910.10683: half are exact, the rest grow as the logarithm.

    The table was trained with float32 logarithms, so this integer is always taken from them.
    """
    side: Tensor | int = 0
    if bidirectional:
        count //= 2
        side, distance = (distance > 0).long() * count, distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = count // 2
    grown = torch.log(distance.clamp(min=1).float() / exact) / math.log(reach / exact) * (count - exact)
    far = exact + grown.long()
    return side + torch.where(distance < exact, distance, far.clamp(max=count - 1))


@dataclass(frozen=True, eq=False)
class RelativeBias:
    """A learned bias for each bucket of distance and head; table [U H]."""

    table: Tensor
    spec: Buckets

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        buckets = bucket(k - q, self.spec.count, self.spec.reach, self.spec.bidirectional)
        return F.embedding(buckets, self.table).movedim(-1, 1).squeeze(2)

    def settings(self) -> Settings:
        """Return the number of buckets, and the settings that map distances to them."""
        return {"buckets": self.spec.count, "reach": self.spec.reach, "both_ways": self.spec.bidirectional}


relative = RelativeBias
