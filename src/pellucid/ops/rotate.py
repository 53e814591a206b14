"""Rotary positions, arXiv 2104.09864: pairs of channels turn by an angle that grows with position, the first fastest.

Pair i of a head of width R turns theta^(-2i/R) radians a token, i = 0, 1, ...: with R = 128 and theta = 10000 a full turn takes
6.28 tokens for the first and 54,410 for the last.
"""

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import cache

import torch
from torch import Tensor

from pellucid.config import Dynamic, LinearScaling, Llama3, LongRope, Proportional, Rope, Yarn
from pellucid.ops import gpu, native
from pellucid.ops.kinds import OpKind
from pellucid.ops.precision import wide
from pellucid.watching.tap import Settings, note
from pellucid.watching.terms import Index, Terms

ROTATE = OpKind("rotate", lambda m: f"RoPE({m.x})", labels={"turn": lambda m: "cos | sin"}, result="rotation")


def frequencies(rope: Rope, dtype: torch.dtype, device: torch.device | str = "cpu", totals: Tensor | None = None) -> Tensor:
    """Return the radians a token for each pair, [R/2], after the model's scaling, negative where pairs turn backwards.

    totals: the text's length for each row, [B T]. For a scaling that depends on it the result is [B T R/2].
    """
    speeds = forward_frequencies(rope, dtype, device, totals)
    return -speeds if rope.backwards else speeds


def forward_frequencies(rope: Rope, dtype: torch.dtype, device: torch.device | str, totals: Tensor | None) -> Tensor:
    """Return the radians a token for each pair without their direction, as `frequencies` does."""
    at = torch.arange(0, rope.width, 2, device=device, dtype=dtype) / rope.width
    plain = 1.0 / rope.theta**at
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3(factor, low, high, original):
            return llama3(plain, factor, low, high, original)
        case Yarn() as yarn:
            return blend(plain, rope, yarn)
        case Proportional(turning, factor):
            return torch.where(torch.arange(rope.width // 2, device=device) < turning, plain / factor, 0.0)
        case Dynamic(factor, original):
            assert totals is not None
            longer = factor * totals.clamp(min=original).to(dtype) / original - (factor - 1)
            base = rope.theta * longer ** (rope.width / (rope.width - 2))
            return 1.0 / base[..., None] ** at
        case LongRope(short, long, original):
            assert totals is not None
            factors = on_device(short, dtype, device), on_device(long, dtype, device)
            return plain / torch.where(totals[..., None] > original, factors[1], factors[0])


@cache
def on_device(factors: tuple[float, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Return the factors of pairs as a tensor, copied once: a graph of a GPU's step cannot copy."""
    return torch.tensor(factors, dtype=dtype, device=device)


def llama3(plain: Tensor, factor: float, low: float, high: float, original: int) -> Tensor:
    """Divide by `factor` the pairs that turn fewer than `low` times in the original context, keep those above `high`, blend the others."""
    turns = original * plain / (2 * math.pi)
    part = ((turns - low) / max(high - low, 1e-30)).clamp(0, 1)  # Llama 4 Scout has no pairs between
    return plain * part + plain / factor * (1 - part)


def blend(plain: Tensor, rope: Rope, yarn: Yarn) -> Tensor:
    """Scale by YaRN: keep the pairs above `fast` turns in the original context, divide those below `slow`, blend the others linearly."""

    def pair(turns: float) -> float:
        return rope.width * math.log(yarn.original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(yarn.fast), pair(yarn.slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.width - 1)
    ramp = (torch.arange(rope.width // 2, device=plain.device, dtype=plain.dtype) - low) / max(high - low, 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return plain / yarn.factor * (1 - kept) + plain * kept


@cache
def kept(rope: Rope) -> Tensor:
    """Return the frequencies in float64 for a native kernel, computed once a process."""
    with native.constant():
        return frequencies(rope, torch.float64)


@cache
def lists(rope: Rope, original: int) -> Tensor:
    """Return the frequencies of short texts and of long ones, [2 R/2]."""
    with native.constant():
        return frequencies(rope, torch.float64, totals=torch.tensor([[original, original + 1]]))[0].contiguous()


def row_frequencies(rope: Rope, totals: Tensor) -> Tensor:
    """Return each row's frequencies [N R/2], or [R/2] if no row's depend on its text's length, from totals [B T]."""
    match rope.scaling:
        case Dynamic(factor, original):
            return native.bend(totals, None, rope.width // 2, original, rope.theta, factor)
        case LongRope(original=original):
            return native.bend(totals, lists(rope, original), rope.width // 2, original, rope.theta, 1.0)
    return kept(rope)


def angles(positions: Tensor, rope: Rope, dtype: torch.dtype, totals: Callable[[], Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Compute cos and sin of every pair at positions [B T]. Returns two of [B T 1 R/2] in `dtype`.

    totals: returns the text's length for each row [B T]; called for the scalings that depend on it.
    """
    amount = rope.scaling.amount if isinstance(rope.scaling, Yarn | LongRope) else 1.0
    lengths = totals() if totals and rope.by_length else None
    if native.fits_angles(positions, dtype) and (lengths is None or (lengths.shape == positions.shape and native.numbers(lengths))):
        return native.angles(positions, kept(rope) if lengths is None else row_frequencies(rope, lengths), amount, dtype)
    w = wide(dtype)
    angle = (positions[..., None].to(w) * frequencies(rope, w, positions.device, lengths))[:, :, None, :]
    return (angle.cos() * amount).to(dtype), (angle.sin() * amount).to(dtype)


def settings_of(rope: Rope) -> Settings:
    """Return the numbers of rotary positions by name, then those of their scaling."""
    settings: dict[str, object] = {"theta": rope.theta, "width": rope.width}
    if rope.backwards:
        settings["backwards"] = True
    if rope.scaling is not None and rope.scaling_name is not None:
        settings |= {"scaling": rope.scaling_name.lower(), **asdict(rope.scaling)}
    return settings


def rotate(x: Tensor, turn: tuple[Tensor, Tensor], interleaved: bool, rope: Rope | None = None) -> Tensor:
    """Turn the pairs of the first R channels of x [B T . K] by (cos, sin) [B T 1 R/2]. The other channels stay.

    rope: the source of the angles, for the record.
    """
    cos, sin = turn
    half = cos.shape[-1]
    rotary, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (rotary[..., 0::2], rotary[..., 1::2]) if interleaved else rotary.chunk(2, -1)
    if native.fits_rotate(x, cos, sin):
        y = native.rotate(x, cos, sin, interleaved)
    elif gpu.fits_rotate(x, cos, sin):
        y = gpu.rotate(x, cos, sin, interleaved)
    else:
        first, second = a * cos - b * sin, b * cos + a * sin
        y = torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)
        y = torch.cat((y, rest), -1) if rest.shape[-1] else y

    def terms(i: Index) -> Terms:
        if i[-1] >= 2 * half:
            return Terms(x=x[i], turn=1.0)
        j, later = divmod(i[-1], 2) if interleaved else (i[-1] % half, i[-1] // half)
        at, spot = (*i[:-1], j), (*i[:2], 0, j)
        return Terms(x=[b[at], a[at]] if later else [a[at], b[at]], turn=[cos[spot], sin[spot] if later else -sin[spot]])

    def settings() -> Settings:
        return {"pairs": "adjacent" if interleaved else "halves", **({} if rope is None else settings_of(rope))}

    return note(y, ROTATE.name, (x,), (), terms, settings=settings)
