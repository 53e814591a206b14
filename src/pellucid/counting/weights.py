"""The weights of a model with their axes, which the parts' own tables tell: "layers.0.attn.q.weight" is (H K) D."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from pellucid.axes import letters, parse, show
from pellucid.ops.blocks import Blocks


@dataclass(frozen=True)
class Weight:
    """A parameter, or a buffer that changes what is computed: its path, axes (None where no table tells), shape."""

    path: str
    dims: str | None
    shape: tuple[int, ...]
    dtype: str
    parameter: bool = True

    @property
    def count(self) -> int:
        """How many numbers."""
        return prod(self.shape)

    @property
    def axes(self) -> str:
        """(H×K) 128, D 128; sizes alone where no table tells."""
        if self.dims is None:
            return ", ".join(map(str, self.shape))
        named = (f"({a})" if "×" in (a := show(axis)) else a for axis in parse(self.dims))
        return ", ".join(f"{a} {n}" for a, n in zip(named, self.shape, strict=True))


def weights(module: nn.Module) -> Iterator[Weight]:
    """Every weight of a model once, in the order of its parts; a tied one under its first path."""
    for path, p in module.named_parameters():
        yield weight(module, path, p, True)
    for path, b in module.named_buffers():
        yield weight(module, path, b, False)


def weight(module: nn.Module, path: str, p: Tensor, parameter: bool) -> Weight:
    dims = axes_of(module, path, p.ndim)
    width = getattr(getattr(module, "config", None), "width", None)
    if dims is not None and any(axis == "D" and n != width for axis, n in zip(dims.split(), p.shape, strict=False)):
        dims = None  # a norm within a head calls its width D as well
    held = p.format if isinstance(p, Blocks) else str(p.dtype).removeprefix("torch.")
    return Weight(path, dims, tuple(p.shape), held, parameter)


def axes_of(module: nn.Module, path: str, ndim: int) -> str | None:
    """The axes of a weight: from the table of the part that holds it, or of the part around; a bias has its matrix's first."""
    words = path.split(".")
    for cut in (-2, -1):
        owner, name = module.get_submodule(".".join(words[:cut])) if len(words) >= -cut else None, words[cut] if len(words) >= -cut else ""
        dims: str | None = getattr(owner, "axes", {}).get(name) if owner is not None else None
        if dims is not None:
            axes = [show(axis) for axis in parse(dims)]
            if len(axes) == ndim:
                return dims
            return f"({axes[0].replace('×', ' ')})" if ndim == 1 and "×" in axes[0] else axes[0] if ndim == 1 else None
    return None


def legend(dims: Iterator[str] | list[str]) -> list[str]:
    """The letters that these labels speak of, in the order in which they first come."""
    return list(dict.fromkeys(x for d in dims for x in sorted(letters(d), key=d.index)))
