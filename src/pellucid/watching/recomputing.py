"""Values inside a fused op: its reference runs again beside the kernel, and their gradients follow from that of the kernel's z.

dL/dpattern  =  dz/dpattern · dL/dz        by autograd over the reference, once a backward has reached z
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pellucid.watching.tap import here


@contextmanager
def recomputing(z: Tensor) -> Iterator[Callable[[Tensor], None]]:
    """Mark taps within the block as recomputed beside a kernel that gave z. Call the yielded function with the reference's own z.

    It notes the largest difference. If a watch wants gradients, they are filled when a backward reaches z; the run's own do not change.
    """
    outer, here.recomputed = here.recomputed, []
    records = here.recomputed
    graph = torch.is_grad_enabled() and z.requires_grad and any(w.grad for w in here.watches)

    def compare(reference: Tensor) -> None:
        error = gap(reference, z)
        for seen, *_ in records:
            seen.error = error
        wanted = [(weakref.ref(seen), x, part) for seen, x, part in records if x is not None and x.requires_grad]

        def fill(gradient: Tensor) -> None:
            new = torch.autograd.grad(reference, [x for _, x, _ in wanted], gradient, retain_graph=True, allow_unused=True)
            for (of, _, part), own in zip(wanted, new, strict=True):
                if (seen := of()) is not None and own is not None:
                    seen.grad = own[part] if part else own

        if wanted:
            z.register_hook(fill)

    try:
        with torch.set_grad_enabled(graph):
            yield compare
    finally:
        here.recomputed = outer


def gap(a: Tensor, b: Tensor) -> float | None:
    """Return the largest |a - b|, None on meta."""
    return None if a.device.type == "meta" else float((a - b).detach().abs().max())
