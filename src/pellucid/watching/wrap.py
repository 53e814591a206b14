"""The wrap of every module's forward while any thread watches it, by which a tap knows the part that runs."""

import functools
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from pellucid.batch.step import Step
from pellucid.watching.forward_values import enter
from pellucid.watching.tap import Call, here

if TYPE_CHECKING:
    from pellucid.watching.watch import Watch

_lock = threading.Lock()
wrapped: dict[nn.Module, list[Any]] = {}  # the number of watches, and the instance's own forward, if any, that the wrapper hides


def run_watched(module: nn.Module, forward: Callable[..., Any], *args: Any, **kw: Any) -> Any:
    """Run in place of `module.forward` while any thread watches it: note the running part, if this thread watches, and call `forward`."""
    watches, calls, terms = here.watches, here.calls, here.terms
    if not watches:
        return forward(*args, **kw)
    outer = calls[-1] if calls else None
    paths: dict[Watch, str | None] = {}
    steps = tuple([a for a in (*args, *kw.values()) if isinstance(a, Step)])
    for w in watches:
        options = w.where.get(module) or next((o.where[module] for o in watches if o.model is w.model and module in o.where), None)
        paths[w] = options[0] if options else None
        if options and len(options) > 1 and outer is not None and (above := outer.path.get(w)):
            paths[w] = next((p for p in options if p.startswith(above + ".")), options[0])
        if module is w.model:
            w.step, w.count, w.given = w.step + 1, {}, (tuple([a for a in args if isinstance(a, Tensor)]), steps)
    sizes: dict[str, int] = {}
    if outer is not None:
        steps = steps or outer.steps
        sizes = {d: outer.sizes[d] for d in "BT" if d in outer.sizes}
    here.calls = (*calls, Call(module, paths, sizes, steps))
    here.terms = terms if calls else {}
    for w in watches:
        args = enter(w, args) if w.enters else args
    try:
        return forward(*args, **kw)
    finally:
        here.calls, here.terms = calls, terms


def wrap_forwards(modules: Iterable[nn.Module], change: int) -> None:
    """Wrap every module's forward at its first watch, and unwrap it when the last watch of any thread ends."""
    with _lock:
        for m in modules:
            if m not in wrapped:
                wrapped[m] = [0, m.__dict__.get("forward")]
                m.__dict__["forward"] = functools.partial(run_watched, m, m.forward)
            wrapped[m][0] += change
            if wrapped[m][0] == 0:
                _, own = wrapped.pop(m)
                del m.__dict__["forward"]
                m.__dict__.update({} if own is None else {"forward": own})
