"""What training takes: weights, gradients, the optimizer's moments, and what a forward keeps for its backward; and the products of a step.

What is kept for the backward is what autograd itself saved in a forward on meta, each storage once, weights aside; with recompute, each
layer keeps its input alone, and one layer at a time keeps the rest.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.counting.bill import BYTES, Bill
from pellucid.counting.ghost import META, ghost
from pellucid.counting.number import Number, product, total
from pellucid.models import Decoder, Encoder
from pellucid.sight import prefix
from pellucid.step import Step


@dataclass(frozen=True)
class Way:
    """How one trains. rank: of LoRA on every matrix of the layers, or None for all weights.  shards: ranks that share weights, gradients
    and moments, each holding its part.  master: whether a float32 copy of the weights is kept beside bfloat16 ones.
    """

    rank: int | None = None
    recompute: bool = False
    shards: int = 1
    master: bool = True


def training(bill: Bill, rows: int, batch: int, way: Way = Way()) -> dict[str, Number]:  # noqa: B008
    """Bytes and products of one step of training on `batch` texts of `rows` tokens each, by name."""
    size, every = BYTES[bill.setting.activations], int(bill["parameters.total"])
    trained = every if way.rank is None else adapters(bill, way.rank)
    held = {"weights": Number(every * size, "N·b", f"{every:,}·{size:g}")}
    if way.rank is not None:
        held["adapters"] = Number(trained * 4, "L·(in + out)·4", f"{trained:,}·4")
    held["gradients"] = Number(trained * (size if way.rank is None else 4), "trained·b", f"{trained:,}·{size if way.rank is None else 4:g}")
    held["moments"] = product("2·trained·4", two=2, trained=trained, four=4)
    if way.master and size < 4 and way.rank is None:
        held["master"] = product("N·4", every=every, four=4)
    shared = {n: Number(x.value / way.shards, f"{x.symbols} / shards" if way.shards > 1 else x.symbols) for n, x in held.items()}
    kept = saved(bill, rows, batch)
    inputs = product("B·T·D·b", batch=batch, rows=rows, width=bill.config.width, each=int(size))
    layers = [(path, times, n) for path, times, n in kept if "layers" in path]
    outside = [(path, times, n) for path, times, n in kept if "layers" not in path]
    if way.recompute:
        largest = max((n.value for *_, n in layers), default=0)
        count = sum(times for _, times, _ in layers)
        activations = Number(count * inputs.value + largest + sum(n.value for *_, n in outside), "layers·B·T·D·b + largest layer + rest")
    else:
        activations = total(kept)
    out = {f"memory.{n}": x for n, x in shared.items()} | {"memory.activations": activations}
    out["memory.total"] = total([(n.removeprefix("memory."), 1, x) for n, x in out.items()])
    forward = float(bill["flops.prefill"]) * (rows / bill.setting.context) * (batch / bill.setting.batch)
    out["flops.forward"] = Number(forward, "prefill's products")
    out["flops.backward"] = Number(2 * forward, "2·forward: by inputs, and by weights")
    out["flops.recompute"] = Number(forward if way.recompute else 0, "forward once more")
    out["flops.total"] = total([(n.removeprefix("flops."), 1, x) for n, x in out.items() if n.startswith("flops.")])
    active, tokens = int(bill["parameters.active"]), rows * batch
    out["flops.textbook"] = Number(6 * active * tokens, "6·N·T", f"6·{active:,}·{tokens:,}")
    return out


def adapters(bill: Bill, rank: int) -> int:
    """Numbers of LoRA's two matrices beside every matrix of the layers."""
    matrices = [c for c in bill.weights if "layers" in c.path and len(c.weight.shape) == 2 and c.part != "router"]
    return sum(c.times * rank * sum(c.weight.shape) for c in matrices)


def saved(bill: Bill, rows: int, batch: int) -> list[tuple[str, int, Number]]:
    """(layer or what stands outside, how many, bytes that autograd keeps), of an ordinary forward with gradients."""
    model = ghost(bill.reduced.config, getattr(torch, bill.setting.activations))
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    tokens = torch.zeros(batch, rows, dtype=torch.long, device=META)
    seen: dict[int, tuple[str, int]] = {}
    where = [""]

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage._cdata not in own and storage._cdata not in seen:
            alive.append(t)  # a storage that is freed could come again under the same address
            seen[storage._cdata] = where[-1], t.numel() * t.element_size()
        return t

    alive: list[Tensor] = []
    with layers(model, where), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), torch.enable_grad():
        if isinstance(model, Decoder):
            sight = prefix(rows) if model.config.prefix and not isinstance(model, Encoder) else None
            model(tokens, Step.plain(tokens, sight=sight))
        else:
            model(tokens, tokens)
    sums: dict[str, int] = {}
    for path, n in seen.values():
        sums[path] = sums.get(path, 0) + n
    out = []
    for path, n in sums.items():
        if (place := bill.reduced.place(path)) is not None:
            out.append((place[0] or "outside", place[1], Number(n)))
    return out


@contextmanager
def layers(model: nn.Module, where: list[str]) -> Iterator[None]:
    """While a layer runs, `where` ends in its path."""
    handles: list[Any] = []
    for path, m in model.named_modules():
        if path.rpartition(".")[0].endswith("layers"):
            handles.append(m.register_forward_pre_hook(lambda *_, path=path: where.append(path)))
            handles.append(m.register_forward_hook(lambda *_: where.pop() and None))
    try:
        yield
    finally:
        for h in handles:
            h.remove()
