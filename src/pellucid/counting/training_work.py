"""The products of a training step: of a forward, of the backward pass, and of what runs again, beside the textbook's 6·N·T."""

from typing import TYPE_CHECKING

from pellucid.counting.bill import Bill
from pellucid.counting.meta_run import ran
from pellucid.counting.number import Number, product, total
from pellucid.counting.textbook import attention_products, matrices
from pellucid.counting.training_adapters import adapters, dora_products
from pellucid.counting.training_modules import products

if TYPE_CHECKING:
    from pellucid.counting.training_memory import Way


def work(bill: Bill, way: "Way") -> dict[str, Number]:
    """Return the FLOPs of a step. A matrix multiplies three times: rows, gradients, and for its own; a frozen one has no third product.

    flops.textbook is 6·N·T. Its difference to the total is flops.attention, which it lacks, and flops.idle, which it has too much.
    """
    forward, crosses = forward_of(bill), bill.config.encoder is not None
    out = {"flops.forward": forward}
    rows, mixing, through = bill.setting.context * bill.setting.batch, attention_products(bill), matrices(bill)
    if way.rank is None or crosses:
        out["flops.backward"] = Number(2 * forward.value, "2·forward", f"2·{forward.value:,}")
    else:
        low = adapters(bill, way.rank, way.low)
        out["flops.adapters"] = product("6·A·T", six=6, low=low, rows=rows)
        value = 2 * rows * through + 2 * int(mixing)
        out["flops.backward"] = Number(value, "2·T·matrices + 2·attention", f"2·{rows:,}·{through:,} + 2·{mixing.value:,}")
        if way.dora is not None:
            out["flops.dora"] = dora_products(way.dora, way.rank, rows, way.dropout, way.recompute)
    if way.recompute:
        out["flops.recompute"] = blocks_of(bill)
    if way.extra.modules:
        out["flops.multi_token"] = products(bill, way.extra.modules, way.recompute)
    out |= {f"flops.{name}": n for name, n in way.extra.flops}
    out["flops.total"] = total([(n.removeprefix("flops."), 1, x) for n, x in out.items()])
    if crosses:
        return out
    active = int(bill["parameters.active"])
    out["flops.textbook"] = product("6·N·T", six=6, active=active, rows=rows)
    if way.rank is None and not way.recompute:
        out["flops.attention"] = product("3·attention", three=3, mixing=int(mixing))
        out["flops.idle"] = product("6·T·(matrices − N)", six=6, rows=rows, idle=through - active)
    return out


def forward_of(bill: Bill) -> Number:
    """Return the FLOPs of one forward over every row: a prefill, but of an encoder-decoder, whose prefill has one target row."""
    if bill.config.encoder is None:
        return Number(bill["flops.prefill"].value, "prefill")
    return Number(flops_of(bill))


def blocks_of(bill: Bill) -> Number:
    """Return the FLOPs of one forward of the blocks, which recomputation adds at most: torch leaves out what no gradient needs."""
    return Number(flops_of(bill, "layers."), "blocks")


def flops_of(bill: Bill, inside: str = "") -> int:
    """Return the FLOPs of one forward over every row, of parts with `inside` in their path."""
    s, reduced = bill.setting, bill.reduced
    counts = ran(reduced.config, s.context, 0, s.batch, None if bill.config.encoder is None else s.source or s.context)
    places = ((reduced.place(path), n) for path, n in counts.flops.items() if inside in path)
    return sum(place[1] * n for place, n in places if place is not None)
