"""The formulas of textbooks compared with the counted numbers, with every summand of the difference.

attention   4·L·d²            q, k, v and o of d × d
layers      12·L·d²           and an MLP of 4·d
model       V·d + 12·L·d²     and one table
a token     2·N FLOP          each weight multiplies once
"""

from dataclasses import dataclass

from pellucid.counting.bill import Bill, Counted, grouped
from pellucid.counting.bounds import uses
from pellucid.counting.number import Number


@dataclass(frozen=True)
class ClosedForm:
    """A closed form, the counted number, and the summands of counted − closed by name."""

    name: str
    closed: Number
    counted: int
    because: tuple[tuple[str, int], ...]


def multiplied(bill: Bill, c: Counted) -> bool:
    """True if a weight is a matrix that rows are multiplied with; others are looked up, added, or scale."""
    parts = ["", *c.path.split(".")]
    table = parts[-2] in {"positions", "types", "tasks", "relative", "table"} or (
        c.path == "embed.weight" and not (bill.config.tied and bill.config.head)
    )
    return c.weight.parameter and len(c.weight.shape) > 1 and not c.path.endswith("bias") and not table


def matrices(bill: Bill) -> int:
    """Return the numbers in the matrices that one token is multiplied with, one that several blocks share as often as they do."""
    return sum(uses(bill, c) * int(c.weight.count * c.active) for c in bill.weights if multiplied(bill, c))


def closed_forms(bill: Bill) -> list[ClosedForm]:
    """Return the closed forms of a decoder or encoder, [] for an encoder-decoder."""
    cfg = bill.config
    if cfg.encoder is not None:
        return []
    layers, d = len(cfg.layers), cfg.width
    own = [c for c in bill.weights if c.weight.parameter]
    attn = {name: sum(c.times * c.weight.count for c in matrices_of) for name, matrices_of in grouped(inside(own, "attn"), leaf).items()}
    ideal = dict.fromkeys("qkvo", layers * d * d)
    names = list(dict.fromkeys([*ideal, *attn]))
    out = [
        ClosedForm(
            "attention",
            Number(4 * layers * d * d, "4·L·d²", f"4·{layers}·{d}·{d}"),
            sum(attn.values()),
            tuple((n, attn.get(n, 0) - ideal.get(n, 0)) for n in names),
        )
    ]
    parts = {name.rpartition(".")[2]: int(n) for name, n in bill.below("parameters.by_part")}
    usual = {"attn": 4 * layers * d * d, "ffn": 8 * layers * d * d, "embed": cfg.vocab * d}
    closed = Number(sum(usual.values()), "V·d + 12·L·d²", f"{cfg.vocab}·{d} + 12·{layers}·{d}·{d}")
    because = tuple((n, parts.get(n, 0) - usual.get(n, 0)) for n in dict.fromkeys([*usual, *parts]))
    out.append(ClosedForm("model", closed, int(bill["parameters.total"]), because))
    if "flops.decode" in bill:
        active, batch = int(bill["parameters.active"]), bill.setting.batch
        counted = int(bill["flops.decode"]) // batch
        rest = matrices(bill)
        states = 2 * sum(mixer.state_products * mixer.state for one in cfg.layers for mixer in one.mixers)
        because = (
            ("scores", counted - 2 * rest - states),
            *((("states", states),) if states else ()),
            ("idle", 2 * (rest - active)),
        )
        out.append(ClosedForm("token", Number(2 * active, "2·N", f"2·{active:,}"), counted, because))
    return out


def inside(counted: list[Counted], part: str) -> list[Counted]:
    """Return the weights of one part of layers."""
    return [c for c in counted if c.part == part]


def leaf(c: Counted) -> str:
    """Return a matrix's name within its part: q, kv_b, q.bias."""
    parts = c.path.split(".")
    return parts[-2] if parts[-1] == "weight" else ".".join(parts[-2:])


def attention_products(bill: Bill) -> Number:
    """Return the FLOPs of a prefill without weights: scores, and weighted sums of values."""
    rows = bill.setting.context * bill.setting.batch
    return Number(int(bill["flops.prefill"]) - 2 * rows * matrices(bill), "flops.prefill − 2·B·T·matrices")
