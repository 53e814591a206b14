"""Tables of many models and of one: published configurations, a model block by block, GPT-2's four sizes, kinds of layers compared."""

import warnings
from collections.abc import Callable
from typing import Any

from pellucid import catalog
from pellucid.analysis.catalogue import parameters_of
from pellucid.config import Config
from pellucid.counting import Bill
from pellucid.counting.complexity import compared
from pellucid.counting.distinct import PLACE
from pellucid.counting.variants import kinds
from pellucid.errors import PellucidError, UseError
from pellucid.messages import say
from pellucid.terminal.columns import several
from pellucid.terminal.device_table import devices
from pellucid.terminal.grid import Cell, Grid

KINDS = {
    "attention": "count.table.attention", "recurrent": "count.table.recurrent", "convolution": "count.table.convolution",
    "dilated": "count.table.dilated", "restricted": "count.table.restricted",
}  # fmt: skip


def table(name: str, n: int | None, bill: Callable[[], Bill]) -> Grid:
    """Make a table by its name: "configurations", "devices", "gpt2", "complexity" for n tokens, or a model's from `bill()`.

    Raises UseError with near names for an unknown one.
    """
    own = {"configurations": configurations, "devices": devices, "gpt2": gpt2, "complexity": lambda: complexity(n or 512, 512)}
    if name in own:
        return own[name]()
    try:
        return blocks(bill())
    except UseError as wrong:
        if wrong.key != "count.unknown":
            raise
        near = catalog.nearest([*own, *catalog.models()], name)
        raise UseError("count.table.unknown", found=name, allowed=", ".join(own), near=", ".join(near) or "-") from None


def parameters(name: str) -> Bill:
    """Return the bill of a model's parameters alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return parameters_of(name)


def configurations() -> Grid:
    """Make the table of every model of the catalogue. Undisclosed ones have their makers' statements and reports as notes."""
    header = [
        say("count.table.model"), say("count.table.released"), say("count.row.attention"), say("count.row.layers"), say("count.row.width"),
        say("count.row.heads"), say("count.row.kv_heads"), say("count.row.head_width"), say("count.row.ffn"), say("count.row.experts"),
        say("count.row.vocabulary"), say("count.table.published"), say("count.table.computed"), say("count.active"),
    ]  # fmt: skip
    rows, notes = [], [say("count.table.disclosed")]
    for entry in catalog.models().values():
        rows.append([entry["name"], entry["released"], *configuration(entry)])
        for statement in catalog.statements(entry):
            notes.append(f"{entry['name']}: {statement['claim']} [{statement['status']}]")
    return Grid(say("count.table.configurations"), header, rows, notes)


def configuration(entry: dict[str, Any]) -> list[Cell]:
    """Return an entry's cells. A model of an unsupported family has its published count alone."""
    nothing: list[Cell] = [None] * 9
    if "statements" in entry:
        return [*nothing, say("count.table.undisclosed"), None, None]
    published = str(entry["published"]["total"]).partition(" (")[0].partition(";")[0] + ("" if "config" in entry else "*")
    try:
        bill = parameters(entry["id"])
    except PellucidError:
        return [*nothing, published, None, None]
    cfg, active = bill.config, int(bill["parameters.active"])
    every = int(bill["parameters.total"])
    return [*row(cfg), published, every, None if active == every else active]


def row(cfg: Config) -> list[Cell]:
    """Return the cells of a model's shape."""
    sparse = [one.ffn for one in cfg.layers if one.ffn.experts]
    return [
        kinds(cfg),
        len(cfg.layers) if cfg.encoder is None else f"{len(cfg.encoder)}+{len(cfg.layers)}",
        cfg.width,
        several(one.attn.heads for one in cfg.layers if one.attn.heads),
        several(one.attn.kv_heads for one in cfg.layers if one.attn.kv_heads is not None),
        several(one.attn.head_width for one in cfg.layers if one.attn.heads),
        several(one.ffn.width for one in cfg.layers if one.ffn.width),
        several(f"{f.chosen}/{f.experts}" for f in sparse),
        cfg.vocab,
    ]


def blocks(bill: Bill) -> Grid:
    """Make the table of a model block by block: every part of every kind of layer, in one layer and in all of them."""
    parts: dict[tuple[str, str, int], int] = {}
    for c in bill.weights:
        if c.weight.parameter:
            key = where(bill, c.path), c.part, c.times  # a table that all layers share is counted once
            parts[key] = parts.get(key, 0) + c.weight.count
    rows: list[list[Cell]] = [[place, part, times, n, times * n] for (place, part, times), n in parts.items()]
    rows.append([say("count.total"), "", None, None, int(bill["parameters.total"])])
    if int(bill["parameters.active"]) != int(bill["parameters.total"]):
        rows.append([say("count.active"), "", None, None, int(bill["parameters.active"])])
    header = [say("count.table.block"), say("count.table.part"), say("count.table.times"), say("count.table.one"), say("count.table.all")]
    sparse = next((one.ffn for one in bill.config.layers if one.ffn.experts), None)
    notes = []
    if sparse is not None:
        matrices = 3 * bill.config.width * sparse.width
        notes.append(say("count.table.expert", experts=sparse.experts, chosen=sparse.chosen, width=f"{matrices:,}"))
    return Grid(bill.model, header, rows, notes)


def where(bill: Bill, path: str) -> str:
    """Write the layers of a path, "layers.3-60"; "" outside of layers."""
    place = PLACE.fullmatch(path)
    if place is None:
        return ""
    kind = bill.reduced.kind(place)
    first, last = kind.numbers[0], kind.numbers[-1]
    if first == last:
        run = str(first)
    elif last - first + 1 == len(kind.numbers):
        run = f"{first}-{last}"
    else:
        run = f"{first}, {kind.numbers[1]} ... {last}"
    return f"{kind.stack}layers.{run}"


def gpt2() -> Grid:
    """Build the table of GPT-2's four sizes: their counts beside the textbook formula V·d + 12·L·d², and the parameters it leaves out."""
    bills = [parameters(f"gpt2-{size}") for size in ("small", "medium", "large", "xl")]
    shapes = [(len(b.config.layers), b.config.width, b.config.vocab, b.config.positions or 0) for b in bills]
    parts = ("embed", "positions", "attn", "ffn", "norms")
    by_part: list[list[Cell]] = [[part, *(int(b[f"parameters.by_part.{part}"]) for b in bills)] for part in parts]
    rows: list[list[Cell]] = [
        [say("count.row.layers"), *(n for n, *_ in shapes)],
        [say("count.row.width"), *(d for _, d, *_ in shapes)],
        [say("count.row.heads"), *(b.config.heads for b in bills)],
        *by_part,
        [say("count.total"), *(int(b["parameters.total"]) for b in bills)],
        ["V·d + 12·L·d²", *(v * d + 12 * n * d * d for n, d, v, _ in shapes)],
        [
            say("count.table.missing"),
            *(int(b["parameters.total"]) - v * d - 12 * n * d * d for b, (n, d, v, _) in zip(bills, shapes, strict=True)),
        ],
        ["P·d", *(p * d for _, d, _, p in shapes)],
        ["9·L·d", *(9 * n * d for n, d, *_ in shapes)],
        ["4·L·d + 2·d", *(4 * n * d + 2 * d for n, d, *_ in shapes)],
    ]
    return Grid("GPT-2", ["", *(b.model.removeprefix("gpt2-") for b in bills)], rows, [say("count.table.gpt2")])


def complexity(n: int, d: int) -> Grid:
    """Make the table that compares kinds of layers for n tokens of width d."""
    counted = [say("count.table.work"), say("count.table.steps"), say("count.table.path")]
    header = [say("count.table.layer"), *(name for of in counted for name in (of, say("count.table.here", of=of, n=n)))]
    rows: list[list[Cell]] = [
        [say(KINDS[k.name]), *(x for order, value in (k.work, k.steps, k.path) for x in (f"O({order})", value))] for k in compared(n, d)
    ]
    return Grid(say("count.table.complexity", n=n, d=d), header, rows, [say("count.table.source")])
