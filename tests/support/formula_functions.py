"""The functions that formulas name, by their definitions, over tensors that carry their axes' letters; formulas.py reads the texts."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.axes import parse, show

FAR = float("-inf")


@dataclass
class Named:
    """A tensor and the letters of its axes; "(H K)" is one axis of two letters."""

    x: Tensor
    axes: tuple[str, ...] = ()
    path: str = ""  # of an operand as it was recorded

    def over(self, axes: tuple[str, ...]) -> Tensor:
        """Return the tensor with these axes in this order, of size 1 where it lacks one."""
        order = [self.axes.index(a) for a in axes if a in self.axes]
        out = self.x.permute(order)
        for i, a in enumerate(axes):
            out = out if a in self.axes else out.unsqueeze(i)
        return out


class UnresolvedError(AssertionError):
    """A name or a sign of a formula that the record does not define."""


def named(x: Tensor, dims: str) -> Named:
    x = x.double() if x.is_floating_point() else x
    return Named(x, tuple(f"({show(a)})" if len(a) > 1 else show(a) for a in parse(dims)))


def pair(a: Named, b: Named) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Return both tensors over the union of their axes. Fails for rows by expert beside rows by token."""
    if ("N" in a.axes and "A" in b.axes) or ("N" in b.axes and "A" in a.axes):
        raise UnresolvedError("rows by expert beside rows by token")
    axes = a.axes + tuple(x for x in b.axes if x not in a.axes)
    return a.over(axes), b.over(axes), axes


def repeated(k: Named, heads: int) -> Named:
    """Repeat each key head G for the query heads H that share it."""
    if "G" not in k.axes:
        return k
    at = k.axes.index("G")
    return Named(k.x.repeat_interleave(heads // k.x.shape[at], at), tuple("H" if a == "G" else a for a in k.axes))


def spelt(path: str) -> Iterator[str]:
    """Yield the spellings of a weight in a formula: W_q, W_attn.q; a table of experts W_gate, its biases b_gate; others as they are."""
    owner, _, last = path.rpartition(".")
    for parts in range(1, path.count(".") + 1):
        tail = ".".join(owner.split(".")[-parts:])
        if last in ("weight", "bias"):
            yield f"{'W' if last == 'weight' else 'b'}_{tail}"
    for parts in range(1, path.count(".") + 2):
        name = ".".join(path.split(".")[-parts:])
        yield f"b_{name.removesuffix('_bias')}" if last.endswith("_bias") else f"W_{name}" if last in ("gate", "up", "down") else name


def each(f: Callable[[Tensor], Tensor]) -> Callable[..., Named]:
    return lambda reader, x: Named(f(x.x), x.axes)


def softmax(reader: Any, x: Named, sinks: Named | None = None) -> Named:
    """Return e^x over the sum of its row and of its sink; 0 for a row that is all hidden."""
    row = x.x if sinks is None else torch.cat([x.x, sinks.x[:, None, None].expand(*x.x.shape[:-1], 1)], -1)
    top = row.amax(-1, keepdim=True).clamp(min=-1e300)
    e = (row - top).exp()
    return Named((e / e.sum(-1, keepdim=True).clamp(min=1e-300))[..., : x.x.shape[-1]], x.axes)


def masked_fill(reader: Any, x: Named, number: Named) -> Named:
    """Return x, and the number where the record's mask hides a key."""
    hidden = reader.mask(reader.seen.settings["mask"]).x == FAR
    return Named(torch.where(hidden, number.x, x.x), x.axes)


def rms(reader: Any, x: Named) -> Named:
    return Named((x.x.pow(2).mean(-1) + reader.seen.settings["eps"]).sqrt(), x.axes[:-1])


def rms_heads(reader: Any, x: Named) -> Named:
    return Named((x.x.pow(2).mean((-2, -1)) + reader.seen.settings["eps"]).sqrt(), x.axes[:-2])


def rms_groups(reader: Any, x: Named) -> Named:
    groups = reader.seen.settings["groups"]
    square = x.x.unflatten(-2, (groups, -1)).pow(2).mean((-2, -1)).repeat_interleave(x.x.shape[-2] // groups, -1)
    return Named((square + reader.seen.settings["eps"]).sqrt(), x.axes[:-1])


def conv(reader: Any, x: Named, w: Named) -> Named:
    """Sum the last rows of x [B T ...], those of earlier steps among them, each times its row of w [J ...]."""
    rows, count = earlier(reader, x), len(w.x)
    rows = torch.nn.functional.pad(rows, (*(0, 0) * (rows.ndim - 2), count - 1, 0))
    sums = [(rows[:, t : t + count] * w.x).sum(1) for t in range(rows.shape[1] - count + 1)]
    return Named(torch.stack(sums, 1)[:, -x.x.shape[1] :], x.axes)


def earlier(reader: Any, x: Named) -> Tensor:
    """Return the rows of x [B T ...] behind those of earlier steps."""
    return torch.cat([*(s.value.double() for s in reader.run.kv_cache.get(x.path, ())), x.x], 1)


def delta(reader: Any, k: Named, v: Named, decay: Named, beta: Named) -> Named:
    """Return the state of each head after each row [B T H K W], from the first row of the text on."""
    keys, values, decays, betas = (earlier(reader, x) for x in (k, v, decay, beta))
    keys = keys.repeat_interleave(values.shape[2] // keys.shape[2], 2) * reader.seen.settings["scale"]
    state, states = torch.zeros(*values.shape[:1], *keys.shape[2:], values.shape[3], dtype=torch.float64), []
    for t in range(keys.shape[1]):
        state = state * decays[:, t, :, None, None]
        under_key = (state * keys[:, t, ..., None]).sum(2)
        state = state + keys[:, t, ..., None] * (betas[:, t, :, None] * (values[:, t] - under_key))[:, :, None]
        states.append(state)
    return Named(torch.stack(states, 1)[:, -k.x.shape[1] :], ("B", "T", "H", "K", "W"))


def ssd(reader: Any, b: Named, x: Named, decay: Named, dt: Named) -> Named:
    """Return the state of each head after each row [B T H K W], from the first row of the text on."""
    keys, rows, decays, steps = (earlier(reader, x) for x in (b, x, decay, dt))
    keys = keys.repeat_interleave(rows.shape[2] // keys.shape[2], 2)
    total, states = torch.zeros(*rows.shape[:1], *keys.shape[2:], rows.shape[3], dtype=torch.float64), []
    for t in range(keys.shape[1]):
        total = decays[:, t, :, None, None] * total + steps[:, t, :, None, None] * keys[:, t, ..., None] * rows[:, t, :, None]
        states.append(total)
    return Named(torch.stack(states, 1)[:, -b.x.shape[1] :], ("B", "T", "H", "K", "W"))


def selective(reader: Any, b: Named, x: Named, decay: Named, dt: Named) -> Named:
    """Return the state of all channels after each row [B T H K W], from the first row of the text on."""
    keys, rows, decays, steps = (earlier(reader, x) for x in (b, x, decay, dt))
    total, states = torch.zeros(*decays[:, 0].shape, dtype=torch.float64), []
    for t in range(keys.shape[1]):
        total = decays[:, t] * total + keys[:, t, :, None] * (steps[:, t] * rows[:, t, 0])[:, None]
        states.append(total[:, None])
    return Named(torch.stack(states, 1)[:, -b.x.shape[1] :], ("B", "T", "H", "K", "W"))


def read(reader: Any, q: Named, state: Named) -> Named:
    """Return what each query reads from its head's state; a query without heads reads from the only one."""
    if q.axes[2] == "K":
        q = Named(q.x.unsqueeze(2), ("B", "T", "H", "K"))
    q = repeated(Named(q.x * reader.seen.settings["scale"] ** 2, q.axes), state.x.shape[2])
    return Named((state.x * q.x[..., None]).sum(3), ("B", "T", "H", "W"))


def rope(reader: Any, x: Named) -> Named:
    """Rotate pairs of channels by t · θ^(−2i/R), as the scaling bends it."""
    s = reader.seen.settings
    half = s["width"] // 2
    t = torch.arange(x.x.shape[1], dtype=torch.float64) + reader.run.before
    speed, amount = speeds(s, reader.run.before + x.x.shape[1])
    angle = t[:, None] * speed
    shape = [1, len(t), *[1] * (x.x.ndim - 3), half]
    cos, sin = (f(angle).mul(amount).view(shape) for f in (torch.cos, torch.sin))
    adjacent = s["pairs"] == "adjacent"
    a, b = (x.x[..., 0 : 2 * half : 2], x.x[..., 1 : 2 * half : 2]) if adjacent else (x.x[..., :half], x.x[..., half : 2 * half])
    one, two = a * cos - b * sin, a * sin + b * cos
    out = torch.stack([one, two], -1).flatten(-2) if adjacent else torch.cat([one, two], -1)
    return Named(torch.cat([out, x.x[..., 2 * half :]], -1), x.axes)


def speeds(s: Mapping[str, Any], length: int) -> tuple[Tensor, float]:
    """Return radians a token of each pair, and the factor of cosines and sines."""
    speed, amount = forward_speeds(s, length)
    return (-speed if s.get("backwards") else speed), amount


def forward_speeds(s: Mapping[str, Any], length: int) -> tuple[Tensor, float]:
    """Return radians a token of each pair without their direction, and the factor of cosines and sines."""
    r, theta = s["width"], s["theta"]
    i = torch.arange(r // 2, dtype=torch.float64)
    plain, kind = theta ** (-2 * i / r), s.get("scaling")
    if kind is None:
        return plain, 1.0
    if kind == "linear":
        return plain / s["factor"], 1.0
    if kind == "proportional":
        return plain / s["factor"] * (i < s["turning"]), 1.0
    if kind == "llama3":
        turns = s["original"] * plain / (2 * math.pi)
        smooth = ((turns - s["low"]) / max(s["high"] - s["low"], 1e-30)).clamp(0, 1)
        return plain / s["factor"] * (1 - smooth) + plain * smooth, 1.0
    if kind == "dynamic":
        longer = max(length, s["original"])
        base = theta * (s["factor"] * longer / s["original"] - s["factor"] + 1) ** (r / (r - 2))
        return base ** (-2 * i / r), 1.0
    if kind == "longrope":
        return plain / torch.tensor(s["long"] if length > s["original"] else s["short"], dtype=torch.float64), s["amount"]
    assert kind == "yarn"
    ends = [r * math.log(s["original"] / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (s["fast"], s["slow"])]
    low, high = (math.floor(ends[0]), math.ceil(ends[1])) if s["truncate"] else ends
    low, high = max(low, 0), min(high, r - 1)
    ramp = ((i - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / s["factor"] * ramp + plain * (1 - ramp), s["amount"]


def bucket(reader: Any, d: Named) -> Named:
    """Return T5's bucket of a distance key − query (arXiv 1910.10683), by the float32 logarithm that the tables were trained with."""
    s, x = reader.seen.settings, d.x.long()
    count, ahead = s["buckets"], torch.zeros_like(d.x.long())
    if s["both_ways"]:
        count //= 2
        ahead, x = (x > 0).long() * count, x.abs()
    else:
        x = (-x).clamp(min=0)
    exact = count // 2
    far = torch.log(x.clamp(min=1).float() / exact) / math.log(s["reach"] / exact) * (count - exact)
    return Named(ahead + torch.where(x < exact, x, (exact + far.long()).clamp(max=count - 1)), d.axes)


def sincos(reader: Any, t: Named) -> Named:
    """Return sines of t / 10000^(2i/D), then their cosines. Distances ahead count as 0, for attention never sees them."""
    width = reader.run.weights["embed.weight"][0].shape[-1] if t.axes == ("T", "S") else reader.seen.shape[-1]
    i = torch.arange(0, width, 2, dtype=torch.float64)
    angle = t.x.clamp(min=0)[..., None] / 10_000.0 ** (i / width)
    waves = torch.cat([angle.sin(), angle.cos()[..., : width // 2]], -1).float().double()
    if t.axes == ("T", "S"):
        return Named(waves, ("T", "S", "D"))
    return Named(waves.expand(reader.seen.shape), ("B", *t.axes, "D"))


def xielu(reader: Any, x: Named, a: Named, b: Named, beta: Named, eps: Named) -> Named:
    """Return softplus(a)·x² + β·x above 0, and below it (β + softplus(b))·(e^min(x, ε) − 1 − x) + β·x."""
    up, down = torch.log1p(a.x.exp()), beta.x + torch.log1p(b.x.exp())
    below = (torch.minimum(x.x, eps.x).exp() - 1 - x.x) * down
    return Named(torch.where(x.x > 0, up * x.x**2, below) + beta.x * x.x, x.axes)


def sparsemixer(reader: Any, x: Named, chosen: Named, near: Named) -> Named:
    """Return for each choice 1 / Σ e^(x_e − x_c), over itself and the experts near it that no better choice took."""
    out = torch.zeros(chosen.x.shape, dtype=torch.float64)
    for place in itertools.product(*map(range, chosen.x.shape[:-1])):
        row, taken = x.x[place].tolist(), set[int]()
        for a, c in enumerate(chosen.x[place].long().tolist()):
            left = [e for e in range(len(row)) if e not in taken and row[c] - row[e] <= float(near.x) * max(abs(row[e]), row[c])]
            out[(*place, a)] = 1 / sum(math.exp(row[e] - row[c]) for e in left)
            taken.add(c)
    return Named(out, chosen.axes)


def waves(reader: Any, t: Named) -> Named:
    """Return sines of t / 10000^(i / (D/2 − 1)), then their cosines."""
    half = reader.seen.shape[-1] // 2
    angle = t.x[..., None] * torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10_000.0) / (half - 1)))
    both = torch.cat([angle.sin(), angle.cos()], -1)
    return Named(both.expand(reader.seen.shape), ("B", *t.axes, "D"))


def top(reader: Any, x: Named, count: Named) -> Named:
    """Return the indices of the largest, from the largest down and the first of equals; for keys, a mask of them."""
    n = int(count.x)
    order = x.x.argsort(dim=-1, descending=True, stable=True)[..., :n]
    if x.axes[-1] == "S":
        chosen = torch.zeros_like(x.x, dtype=torch.bool).scatter(-1, order, True)
        return Named(chosen & (x.x > FAR), x.axes)
    return Named(order, (*x.axes[:-1], "A"))


def best(reader: Any, x: Named, kept: Named, groups: Named, few: Named) -> Named:
    """Return −∞ for experts outside of the best groups. A group is as good as the sum of its best few."""
    split = x.x.unflatten(-1, (int(groups.x), -1))
    good = split.sort(dim=-1, descending=True)[0][..., : int(few.x)].sum(-1)
    chosen = good.argsort(dim=-1, descending=True, stable=True)[..., : int(kept.x)]
    inside = torch.zeros_like(good, dtype=torch.bool).scatter(-1, chosen, True)
    return Named(split.masked_fill(~inside[..., None], FAR).flatten(-2), x.axes)


def clamp(reader: Any, x: Named, low: Named, high: Named) -> Named:
    return Named(x.x.clamp(float(low.x), float(high.x)), x.axes)


def least(reader: Any, x: Named, bound: Named) -> Named:
    return Named(x.x.clamp(max=float(bound.x)), x.axes)


def most(reader: Any, x: Named, bound: Named | None = None) -> Named:
    return Named(x.x.max() if bound is None else x.x.clamp(min=float(bound.x)), () if bound is None else x.axes)


def cut(keep: Callable[[Tensor, float], Tensor]) -> Callable[..., Named]:
    return lambda reader, x, setting: Named(torch.where(keep(x.x, float(setting.x)), x.x, FAR), x.axes)


def nucleus(x: Tensor, p: float) -> Tensor:
    """Return a mask of the fewest values whose probabilities reach p together."""
    values, order = x.sort(stable=True, dim=-1, descending=True)
    before = values.softmax(-1).cumsum(-1) - values.softmax(-1)
    return torch.zeros_like(x, dtype=torch.bool).scatter(-1, order, before < p)


def phi(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


FUNCTIONS: dict[str, Callable[..., Named]] = {
    "softmax": softmax, "masked_fill": masked_fill, "rms": rms, "rms_heads": rms_heads, "rms_groups": rms_groups, "RoPE": rope,
    "bucket": bucket, "sincos": sincos, "waves": waves, "xielu": xielu, "conv": conv, "delta": delta, "ssd": ssd,
    "selective": selective, "read": read,
    "exp": each(torch.exp), "softplus": each(lambda x: (1 + x.exp()).log()),
    "top": top, "best": best, "sparsemixer": sparsemixer, "clamp": clamp,
    "min": least, "max": most, "sigmoid": each(lambda x: 1 / (1 + (-x).exp())), "tanh": each(torch.tanh), "ln": each(torch.log),
    "silu": each(lambda x: x / (1 + (-x).exp())), "relu": each(lambda x: x * (x > 0)), "gelu": each(lambda x: x * phi(x)),
    "gelu_tanh": each(lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    "relu2": each(lambda x: x.clamp(min=0) ** 2),
    "gelu_bloom": each(lambda x: x / 2 * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))),
    "float32": each(lambda x: x.float().double()), "bfloat16": each(lambda x: x.bfloat16().double()),
    "top_k": cut(lambda x, k: x >= x.sort(descending=True)[0][int(k) - 1]), "top_p": cut(nucleus),
    "min_p": cut(lambda x, p: x >= x.max() + math.log(p)),
}  # fmt: skip
