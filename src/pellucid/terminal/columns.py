"""Several models side by side: a column each, with their shape, sizes and bounds by row."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pellucid.config import Config, Layer
from pellucid.counting import Bill
from pellucid.counting.formats import QUANTISED
from pellucid.counting.variants import kinds
from pellucid.documents.amount import Amount
from pellucid.documents.count import bounds
from pellucid.messages import say
from pellucid.ops.blocks import BITS
from pellucid.terminal.grid import Cell, Grid


def compare(bills: Sequence[Bill], hour: float | None = None) -> Grid:
    """Make a grid with a column for each bill. hour: the price of a device's hour."""
    limits = [bounds(b, hour) for b in bills]
    rows = [[name, *cells] for name, cells in [*shape(bills), *sizes(bills), *times(limits, hour)] if any(c is not None for c in cells)]
    return Grid("", ["", *(b.model for b in bills)], rows, list(dict.fromkeys(f"{b.model}: {note}" for b in bills for note in b.notes)))


Rows = Iterable[tuple[str, list[Cell]]]


def shape(bills: Sequence[Bill]) -> Rows:
    """Yield the rows of the models' shapes."""

    def each(name: str, f: Callable[[Config], Cell]) -> tuple[str, list[Cell]]:
        return name, [f(b.config) for b in bills]

    yield say("count.row.family"), [b.family for b in bills]
    yield each(say("count.row.layers"), lambda c: len(c.layers) if c.encoder is None else f"{len(c.encoder)} + {len(c.layers)}")
    yield each(say("count.row.width"), lambda c: c.width)
    yield each(say("count.row.attention"), kinds)
    yield each(say("count.row.heads"), lambda c: several(one.attn.heads for one in c.layers if one.attn.heads))
    yield each(say("count.row.kv_heads"), lambda c: several(one.attn.kv_heads for one in c.layers if one.attn.kv_heads is not None))
    yield each(say("count.row.head_width"), lambda c: several(one.attn.head_width for one in c.layers if one.attn.heads))
    yield each(say("count.row.window"), lambda c: several(w for one in c.layers if (w := window(one))))
    yield each(say("count.row.ffn"), lambda c: several(one.ffn.width for one in c.layers if one.ffn.width))
    yield each(say("count.row.experts"), lambda c: several(experts(one) for one in c.layers if one.ffn.experts))
    yield each(say("count.row.vocabulary"), lambda c: c.vocab)


def several(values: Iterable[Any]) -> Cell:
    """Return the one distinct value, or the list of them as text; None if there are none."""
    distinct = list(dict.fromkeys(values))
    return distinct[0] if len(distinct) == 1 else ", ".join(map(str, distinct)) or None


def window(layer: Layer) -> int | None:
    """Return the number of tokens that a layer sees, None for all."""
    return layer.attn.window or layer.attn.chunk


def experts(layer: Layer) -> str:
    """Write a layer's experts: "256, 8 chosen"."""
    return say("count.row.chosen", experts=layer.ffn.experts, chosen=layer.ffn.chosen)


def bytes_in(dtype: str) -> str:
    """Name the row of a format's bytes: as stored, for a format that is dequantised on loading, or as in memory."""
    stored = dtype in QUANTISED and dtype not in BITS
    return say("count.bytes.stored", dtype=dtype) if stored else say("count.bytes", dtype=dtype)


def sizes(bills: Sequence[Bill]) -> Rows:
    """Yield the rows of the models' parameters, bytes and FLOPs."""

    def each(name: str, path: str, unit: str = "") -> tuple[str, list[Cell]]:
        return name, [Amount(int(b[path]), unit) if path in b else None for b in bills]

    yield each(say("count.row.total"), "parameters.total")
    yield each(say("count.active"), "parameters.active")
    for dtype in dict.fromkeys(b.setting.weights for b in bills):
        yield bytes_in(dtype), [Amount(int(b["bytes.total"]), "B") if b.setting.weights == dtype else None for b in bills]
    yield each(say("count.row.token"), "cache.bytes_per_token", "B")
    if any("cache.bytes_per_text" in b for b in bills):
        yield each(say("count.row.text"), "cache.bytes_per_text", "B")
    yield say("count.row.context"), [b.setting.context for b in bills]
    yield each(say("count.row.cache"), "cache.bytes", "B")
    yield each(say("count.prefill"), "flops.prefill", "FLOP")
    yield each(say("count.decode"), "flops.decode", "FLOP")


def times(limits: Sequence[dict[str, Any]], hour: float | None) -> Rows:
    """Yield the rows of the models' bounds on their devices."""
    if not any(limits):
        return
    yield say("count.row.device"), [report["device"] for report in limits]
    yield say("count.row.devices"), [report["devices"] for report in limits]
    yield say("count.row.batch"), [report.get("largest_batch") for report in limits]
    for phase, name, rate in (
        ("prefill", say("count.row.first"), say("count.row.read")),
        ("decode", say("count.row.next"), say("count.row.written")),
    ):
        yield name, [Amount(report[phase]["seconds"], "s") if phase in report else None for report in limits]
        yield rate, [Amount(report[phase]["tokens_per_second"]) if phase in report else None for report in limits]
    if hour is not None:
        for phase, name in (("prefill", say("count.row.in")), ("decode", say("count.row.out"))):
            yield name, [Amount(report[phase]["price_of_a_million_tokens"]) if phase in report else None for report in limits]
