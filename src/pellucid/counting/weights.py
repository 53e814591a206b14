"""The weights of a model with their axes, from the parts' own tables: "layers.0.attn.q.weight" is (H K) D."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from pellucid.axes import letters, parse, show
from pellucid.ops.blocks import Blocks
from pellucid.watching.records import Seen


@dataclass(frozen=True)
class Weight:
    """A parameter, or a buffer that changes what is computed: path, axes (None if no table has them), shape."""

    path: str
    dims: str | None
    shape: tuple[int, ...]
    dtype: str
    parameter: bool = True

    @property
    def count(self) -> int:
        """The number of numbers."""
        return prod(self.shape)

    @property
    def axes(self) -> str:
        """The axes with sizes: (H×K) 128, D 128; sizes alone if no table has them."""
        if self.dims is None:
            return ", ".join(map(str, self.shape))
        named = (f"({a})" if "×" in (a := show(axis)) else a for axis in parse(self.dims))
        return ", ".join(f"{a} {n}" for a, n in zip(named, self.shape, strict=True))


def weights(module: nn.Module) -> Iterator[Weight]:
    """Yield every weight of a model once, in the order of its parts; a tied one under its first path."""
    for path, p in module.named_parameters():
        yield weight(module, path, p, True)
    for path, b in module.named_buffers():
        yield weight(module, path, b, False)


def weight(module: nn.Module, path: str, p: Tensor, parameter: bool) -> Weight:
    dims = axes_of(module, path, p.ndim)
    width = getattr(getattr(module, "config", None), "width", None)
    if dims is not None and any(axis == "D" and n != width for axis, n in zip(dims.split(), p.shape, strict=False)):
        dims = None  # a norm within a head calls its width D as well
    stored = p.format if isinstance(p, Blocks) else str(p.dtype).removeprefix("torch.")
    return Weight(path, dims, tuple(p.shape), stored, parameter)


def axes_of(module: nn.Module, path: str, ndim: int) -> str | None:
    """Return the axes of a weight, from the table of its part or of the part around it; a bias has its matrix's first axis."""
    parts = path.split(".")
    for cut in (-2, -1):
        owner, name = module.get_submodule(".".join(parts[:cut])) if len(parts) >= -cut else None, parts[cut] if len(parts) >= -cut else ""
        dims: str | None = getattr(owner, "axes", {}).get(name) if owner is not None else None
        if dims is not None:
            axes = [show(axis) for axis in parse(dims)]
            if len(axes) == ndim:
                return dims
            return f"({axes[0].replace('×', ' ')})" if ndim == 1 and "×" in axes[0] else axes[0] if ndim == 1 else None
    return None


def by_first_use(seen: Iterable[Seen], own: Mapping[str, Weight]) -> Iterator[tuple[Weight, ...]]:
    """Yield for each record of a step the weights of `own` that no earlier record used, so that each weight has one place.

    MLA's kv_b makes k, v and z; T5's first layer holds the table that all layers of its stack read.
    """
    used: set[str] = set()
    for s in seen:
        new = [path for path in dict.fromkeys(s.weights) if path in own and path not in used]
        used.update(new)
        yield tuple(own[path] for path in new)


def parameters(weights: Iterable[Weight]) -> int:
    """Return the number of parameters in these weights. A buffer, such as the router's correction, is none."""
    return sum(w.count for w in weights if w.parameter)


def legend(dims: Iterator[str] | list[str]) -> list[str]:
    """Return the letters of these labels, in the order in which they first come."""
    return list(dict.fromkeys(x for d in dims for x in sorted(letters(d), key=d.index)))
