"""A device without hardware: its tensors lie in the machine's memory, and may be mixed with others as little as a GPU's may.

    with other_device():
        x = torch.ones(3, device=NAME)
        x + torch.ones(3)            # RuntimeError: the tensors are on two devices

It computes by torch's CPU kernels and counts what a GPU would have to wait for: values read on the host, and copies from or to it.
A `TorchGraph` refuses both, as the capture of a CUDA graph does, and replays the ops that it has recorded, on the same memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "privateuseone"
aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default}
READS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default, aten.is_nonzero.default}


class Counts:
    """The values read on the host, the copies between devices, and the graph that is being recorded."""

    reads = copies = 0
    graph: "TorchGraph | None" = None


class Elsewhere(Tensor):
    """A tensor of the other device. own: its numbers, on the CPU."""

    own: Tensor

    @staticmethod
    def __new__(cls, own: Tensor) -> "Elsewhere":
        made: Elsewhere = Tensor._make_wrapper_subclass(
            cls, own.shape, strides=own.stride(), storage_offset=own.storage_offset(), dtype=own.dtype, device=NAME
        )
        made.own = own
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Elsewhere({self.own})"

    def tolist(self) -> Any:
        waited("a list")
        return self.own.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("numpy cannot read a tensor of another device")

    def data_ptr(self) -> int:
        return self.own.data_ptr()

    def untyped_storage(self) -> Any:
        return self.own.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        return run(func, args, dict(kwargs or {}))


class Factories(TorchDispatchMode):
    """A mode in which functions that make tensors know the other device."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first op imports torch's compiler, for a second

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return run(func, args, dict(kwargs or {}))


class Lists(TorchFunctionMode):
    """A mode in which a tensor of a list is made on the CPU and then copied: torch makes it below every other mode."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        how = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and how.get("device") is not None and torch.device(how["device"]).type == NAME:
            return func(*args, **how | {"device": "cpu"}).to(NAME)
        return func(*args, **how)


def waited(what: str) -> None:
    """Count a value that the host reads."""
    if Counts.graph is not None:
        raise RuntimeError(f"a capture would have to wait for {what}")
    Counts.reads += 1


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors among a call's arguments or results."""
    return [t for t in _pytree.tree_leaves(tree) if isinstance(t, Tensor)]


def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call an op on the tensors' own numbers. Raises RuntimeError for tensors of two devices."""
    tensors = tensors_of((args, kwargs))
    ours = [t for t in tensors if isinstance(t, Elsewhere)]
    device = kwargs.get("device")
    there = bool(ours) if device is None else torch.device(device).type == NAME
    if func not in COPIES and func is not aten.set_.source_Storage:
        if ours and any(not isinstance(t, Elsewhere) and t.dim() for t in tensors):
            raise RuntimeError(f"{func}: tensors of two devices")
    elif len({isinstance(t, Elsewhere) for t in tensors} | {there}) == 2:
        if Counts.graph is not None:
            raise RuntimeError(f"{func}: a capture would copy between devices")
        Counts.copies += 1
    if func in READS:
        waited(str(func))
    if device is not None and there:
        kwargs["device"] = torch.device("cpu")
    kwargs.pop("pin_memory", None)
    mine = {id(t.own): t for t in ours}
    inner_args, inner = _pytree.tree_map(lambda t: t.own if isinstance(t, Elsewhere) else t, (args, kwargs))
    if Counts.graph is not None and func._schema.is_mutable:
        Counts.graph.before += [(t, t.clone()) for t in tensors_of((inner_args, inner))]
    out = func(*inner_args, **inner)
    if Counts.graph is not None:
        Counts.graph.ops.append((func, inner_args, inner, out))
    if func is aten.copy_.default:
        return args[0]
    wrap = there if device is not None or not ours else True
    if func is aten._to_copy.default and device is None:
        wrap = bool(ours)

    def back(t: Any) -> Any:
        if not isinstance(t, Tensor) or not wrap:
            return t
        return mine[id(t)] if id(t) in mine else Elsewhere(t)

    return _pytree.tree_map(back, out)


@contextmanager
def other_device() -> Iterator[None]:
    """Let tensors be made on the other device inside."""
    if not hasattr(torch, NAME):
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend  # of torch 2.13

        _setup_privateuseone_for_python_backend()
    with Factories(), Lists():
        yield


class TorchGraph:
    """A graph of the other device: the ops that were called while it was recorded. It keeps their numbers, as a CUDA graph does."""

    def __init__(self) -> None:
        self.ops: list[tuple[Any, Any, Any, Any]] = []
        self.before: list[tuple[Tensor, Tensor]] = []  # memory that an op writes to, and what it had there

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what is computed inside; its results are forgotten, as a capture computes nothing."""
        Counts.graph = self
        try:
            yield
        finally:
            Counts.graph = None
        for t, old in reversed(self.before):
            t.copy_(old)
        for _, args, kwargs, out in self.ops:
            given = {t.untyped_storage().data_ptr() for t in tensors_of((args, kwargs))}
            for t in tensors_of(out):
                if t.is_floating_point() and t.untyped_storage().data_ptr() not in given:
                    t.fill_(float("nan"))

    def replay(self) -> None:
        """Call the ops again, and write their results where they lay."""
        for func, args, kwargs, old in self.ops:
            new = func(*args, **kwargs)
            if not func.is_view:
                for a, b in zip(_pytree.tree_leaves(old), _pytree.tree_leaves(new), strict=True):
                    if isinstance(a, Tensor) and a is not b:
                        a.copy_(b)


def moved(module: nn.Module) -> nn.Module:
    """Move the weights of a module to the other device, tied ones as one."""
    seen: dict[int, Any] = {}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, t in list(table.items()):
                if t is not None:
                    there = seen.setdefault(id(t), Elsewhere(t.detach()))
                    table[name] = nn.Parameter(there, requires_grad=False) if isinstance(t, nn.Parameter) else there
                    seen[id(t)] = table[name]
    return module
