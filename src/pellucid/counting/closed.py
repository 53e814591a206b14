"""The closed form of a part's products, shown only if it gives the counted number.

B requests, T new rows, S rows that are seen, or are a source's; the letters of weights are those of their axes.
"""

from collections.abc import Iterator

from pellucid.config import Products
from pellucid.counting.bill import Bill
from pellucid.counting.distinct import PLACE
from pellucid.counting.number import Number, figure


def booked(bill: Bill, path: str, flops: int, rows: int, seen: int, source: int) -> Number:
    """Return the FLOPs of a part, with a formula that gives them if there is one."""
    for symbols, factors in forms(bill, path, rows, seen, source):
        summands = [f if isinstance(f, tuple) else (f,) for f in factors]
        value = 2 * bill.setting.batch
        for s in summands:
            value *= sum(s)
        if value == flops:
            filled = "·".join(f"({' + '.join(map(figure, s))})" if len(s) > 1 else figure(s[0]) for s in summands)
            return Number(flops, f"2·B·{symbols}", f"2·{bill.setting.batch}·{filled}")
    return Number(flops)


def forms(bill: Bill, path: str, rows: int, seen: int, source: int) -> Iterator[Products]:
    """Yield (symbols, factors) of formulas that may fit a part, without 2·B; a factor that is a tuple is a sum."""
    weight = bill.numbers.get(f"parameters.{path}.weight") or (bill.numbers.get("parameters.embed.weight") if path == "head" else None)
    if weight is not None:
        sizes = [int(n.replace(",", "")) for n in (weight.filled or figure(weight.value)).split("·")]
        yield f"T·{weight.symbols}", (rows, *sizes)
        yield f"S·{weight.symbols}", (source, *sizes)
        yield weight.symbols, (*sizes,)  # one row alone, as a pooler has it
    if PLACE.fullmatch(path) is None:
        return
    layer = bill.layer(path)
    if path.endswith(".conv"):
        yield "T·J·D", (rows, layer.attn.window or 0, bill.config.width)
    if layer.ffn.experts and path.endswith(".ffn"):
        d, e = bill.config.width, layer.ffn.experts  # three matrices an expert, and the router's
        yield "T·(A·3·D·F + D·E)", (rows, (layer.ffn.chosen * 3 * d * layer.ffn.width, d * e))
    attn = layer.cross if path.endswith(".cross") else bill.mixer(path)
    if attn is not None:
        yield from attn.products(rows, seen, source)
