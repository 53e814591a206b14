"""Parts of tensors for the page: as they are or pooled to fewer cells, as the bytes of a safetensors file.

at "0,:,2,0:64" takes what x[0, :, 2, 0:64] takes. Level "k" keeps of every 2^k x 2^k cells the one that is farthest from 0, with its
sign: [[1, -7], [2, 3]] at level 1 is -7. Level "j,k" has a number for each of the two axes: rows 2^j times, columns 2^k times shorter.
"""

import hashlib
import re
from math import prod

import torch
from safetensors.torch import save
from torch import Tensor

from pellucid.errors import RequestError
from pellucid.runs.limits import Limits

Part = tuple[int | slice, ...]
Level = tuple[int, int]  # of the last two axes: each 2^level times shorter; of a single axis the second
DEEPEST = 30


def part_of(at: str | None, shape: tuple[int, ...], name: str = "at") -> Part:
    """Parse `at` as an index into a tensor of this shape; None takes all of it. A RequestError if it does not fit."""
    if at is None:
        return (slice(None),) * len(shape)
    words = at.split(",") if at else []
    if len(words) != len(shape):
        raise RequestError("server.axes", 400, name, name=name, found=len(words), allowed=len(shape))
    part: list[int | slice] = []
    for word, n in zip(words, shape, strict=True):
        if not (match := re.fullmatch(r"([0-9]{1,15})|([0-9]{0,15}):([0-9]{0,15})", word)):
            raise RequestError("server.part", 400, name, name=name, found=word)
        if match[1]:
            low, high = int(match[1]), int(match[1]) + 1
        else:
            low, high = int(match[2] or 0), int(match[3]) if match[3] else n
        if not 0 <= low < high <= n and not (low == high == n == 0):
            raise RequestError("server.outside", 400, name, name=name, found=word, size=n)
        part.append(low if match[1] else slice(low, high))
    return tuple(part)


def written(part: Part, shape: tuple[int, ...]) -> str:
    """Write a part in its canonical spelling."""
    return ",".join(str(p) if isinstance(p, int) else ":" if (p.start or 0) == 0 and p.stop in (None, n) else f"{p.start}:{p.stop}"
                    for p, n in zip(part, shape, strict=True))  # fmt: skip


def size_of(part: Part, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the part."""
    return tuple(len(range(*p.indices(n))) for p, n in zip(part, shape, strict=True) if isinstance(p, slice))


def level_of(text: str) -> Level:
    """Parse a level: "3" for both axes, "0,3" for each its own. A RequestError for anything else."""
    if not (match := re.fullmatch(r"([0-9]{1,2})(?:,([0-9]{1,2}))?", text)) or max(map(int, match.groups("0"))) > DEEPEST:
        raise RequestError("server.field", 400, "level", name="level", found=text, allowed=f"0..{DEEPEST} | 0..{DEEPEST},0..{DEEPEST}")
    return int(match[1]), int(match[2] or match[1])


def level_text(level: Level) -> str:
    """Write a level in its canonical spelling."""
    return str(level[0]) if level[0] == level[1] else f"{level[0]},{level[1]}"


def require(part: Part, shape: tuple[int, ...], dtype: torch.dtype, level: Level, limits: Limits) -> None:
    """Raise a RequestError for a part that is too large to pool, or at this level too large to send."""
    size = size_of(part, shape)
    source = prod(size) * dtype.itemsize
    sent = prod(pooled_size(size, level)) * dtype.itemsize
    if source > limits.source or sent > limits.slice:
        raise RequestError("server.large", 413, "at", size=max(source, sent) if source > limits.source else sent, limit=limits.slice)


def pooled_size(size: tuple[int, ...], level: Level) -> tuple[int, ...]:
    """Return the shape of a part at a level."""
    own = (*[0] * len(size), *level)[-len(size) :] if size else ()
    return tuple(-(-n // (1 << k)) for n, k in zip(size, own, strict=True))


def pooled(x: Tensor, level: Level) -> Tensor:
    """Return x with its last two axes 2^level times shorter. A block at the border may be smaller; one with a NaN is NaN."""
    if level == (0, 0) or x.ndim == 0 or x.numel() == 0:
        return x
    if x.dtype == torch.bool:
        return pooled(x.to(torch.uint8), level).bool()
    wide = x if x.ndim > 1 else x[None]
    rows, cells = wide.shape[-2:]
    down, across = min(1 << level[0], rows) if x.ndim > 1 else 1, min(1 << level[1], cells)
    edge = [-(-n // s) * s - n for n, s in ((rows, down), (cells, across))]
    if any(edge):  # a border's last row again changes no block's farthest cell
        index = [torch.arange(n + e, device=x.device).clamp(max=n - 1) for n, e in zip((rows, cells), edge, strict=True)]
        wide = wide.index_select(-2, index[0]).index_select(-1, index[1])
    bands = wide.unflatten(-2, (-1, down))  # rows first, whose cells lie side by side: a tenth of the time
    high, low = (f(f(bands, -2).unflatten(-1, (-1, across)), -1) for f in (torch.amax, torch.amin))
    out = torch.where(high >= -low, high, low) if x.dtype.is_signed else high
    return out if x.ndim > 1 else out[0]


def plain(x: Tensor) -> Tensor:
    """Copy the values into memory of their own, contiguous."""
    return torch.empty(x.shape, dtype=x.dtype).copy_(x.detach())  # one number of a row is contiguous too, and keeps the row's stride


def raw(x: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor."""
    return x.reshape(-1).view(torch.uint8).numpy().data


def digest(x: Tensor) -> str:
    """Return the SHA-256 of a contiguous tensor's bytes."""
    return hashlib.sha256(raw(x)).hexdigest()


def packed(x: Tensor, part: Part, level: Level, path: str) -> bytes:
    """Return the part of x, pooled, as the bytes of a safetensors file with one tensor, "x".

    Its metadata hold path, part, level, and the hash of the part before pooling.
    """
    values = plain(x[part])
    metadata = {"path": path, "at": written(part, tuple(x.shape)), "level": level_text(level), "sha256": digest(values)}
    return save({"x": pooled(values, level).contiguous()}, metadata)
