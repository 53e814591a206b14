"""A bill as lines of a terminal: parameters by part, the cache, products, and the bounds on a device."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from pellucid.counting import Bill
from pellucid.counting.bounds import parts
from pellucid.counting.formats import IN_BLOCKS
from pellucid.counting.speculation import Drafted
from pellucid.counting.textbook import closed_forms
from pellucid.counting.variants import other_kinds
from pellucid.documents.amount import Amount, figures, scaled
from pellucid.documents.count import Scenario, bounds, device_of, drafted, over, training_bounds
from pellucid.documents.number import count, percent
from pellucid.engine.proposals import MOST
from pellucid.messages import say
from pellucid.terminal import bounds as drawing
from pellucid.terminal.bounds import headed, priced
from pellucid.terminal.columns import bytes_in, window
from pellucid.terminal.draft_lines import draft_lines
from pellucid.terminal.table import Column, clipped, prose, table, titled
from pellucid.terminal.training_and_ranks import PHASES, largest, over_ranks, phase_of, trained
from pellucid.terminal.verdict import training_verdict, verdict

BOOKS = {"attention": "count.book.attention", "model": "count.book.model", "token": "count.book.token"}
BECAUSE = {"scores": "count.because.scores", "states": "count.because.states", "idle": "count.because.idle"}


def drawn(bill: Bill, width: int, view: Scenario = Scenario()) -> list[Text]:  # noqa: B008
    """Write the lines of `count` for one model."""
    on_one = bounds(bill, view.hour) if view.alone else {}
    on_ranks = {} if view.split is None else over(bill, view.split, view.hour).get("bounds", {})
    of_step = training_bounds(bill, view)
    blocks = [parameters(bill), kv_cache(bill, width), work(bill), textbook(bill, width), limits(bill, view, on_one, width)]
    if view.way is not None:
        blocks.append(trained(bill, view.way, view, of_step, width))
    if view.split is not None:
        blocks.append(over_ranks(bill, view, view.split, on_ranks, width))
    if view.draft is not None:
        blocks.append(draft_lines(drafted(Drafted(bill, view.draft, MOST), view.accepted), width))
    out = [*head(bill, width), *training_verdict(bill, view, of_step, width), *verdict(bill, view, on_one or on_ranks, width)]
    for block in blocks:
        out += [Text(), *block] if block else []
    return clipped(out, width)


def head(bill: Bill, width: int) -> Iterator[Text]:
    """Yield the model and the setting in a line, then the bill's notes."""
    s = bill.setting
    setting = say("count.setting", context=count(s.context), batch=count(s.batch), dtype=s.weights)
    reads = f"{len(bill.config.encoder)}+" if bill.config.encoder else ""
    layers = say("explain.layers", count=f"{reads}{len(bill.config.layers)}")
    yield from titled(bill.model, f"{bill.family} · {layers} · {setting}", width)
    for note in bill.notes:
        yield from prose(note, width)


def parameters(bill: Bill) -> list[Text]:
    """Write the parameters by part with their shares, their sum, and its bytes."""
    every = int(bill["parameters.total"])
    rows = headed(say("count.head.part"), say("count.head.number"), say("count.head.share"), say("count.head.formula"))
    rows += [[name, count(int(n)), percent(n.value / every), Text(short(n.symbols), "dim")] for name, n in bill.below("parameters.by_part")]
    rows.append([Text(say("count.total"), "bold"), count(every), "", Text(bill["parameters.total"].symbols, "dim")])
    if bill["parameters.active"].value != every:
        rows.append([say("count.active"), count(int(bill["parameters.active"])), "", Text(bill["parameters.active"].symbols, "dim")])
        without = bill["parameters.active_without_input"]
        rows.append([say("count.active_without"), count(int(without)), "", Text(without.symbols, "dim")])
    if int(bill["buffers.total"]):
        rows.append([say("count.buffers"), count(int(bill["buffers.total"])), "", ""])
    rows.append([bytes_in(bill.setting.weights), scaled(int(bill["bytes.total"]), "B"), "", ""])
    if "bytes.dequantised" in bill:
        wide = bill["bytes.dequantised"]
        rows.append([dequantised(bill), scaled(int(wide), "B"), "", ""])
    return [Text(say("count.parameters"), "bold"), *table(rows, [Column(), Column(">"), Column(">", style="dim"), Column()])]


def dequantised(bill: Bill) -> str:
    """Name the row of dequantised bytes: real ones for a format without kernels, hypothetical ones otherwise."""
    stays = not IN_BLOCKS.isdisjoint({bill.setting.weights, *(c.form for c in bill.weights)})
    return say("count.dequantised.were" if stays else "count.dequantised", dtype=bill.setting.activations)


def short(symbols: str, most: int = 60) -> str:
    """Cut a sum after its first summands, to about `most` characters."""
    if len(symbols) <= most:
        return symbols
    cut = symbols.rfind(" + ", 0, most)
    return f"{symbols[: cut if cut > 0 else most]} + …"


def kv_cache(bill: Bill, width: int) -> list[Text]:
    """Write the bytes of the cache, a token's and a batch's, and the same for each other kind of attention."""
    if "cache.bytes" not in bill:
        return []
    a_token, s = bill["cache.bytes_per_token"], bill.setting
    (own, _), *others = other_kinds(bill)
    title = say("count.cache", context=count(s.context), batch=count(s.batch))
    rows = headed(say("count.row.attention"), say("count.token"), title, say("count.head.formula"))
    formula = f"{short(a_token.symbols)} = {a_token.filled}" if int(a_token) else ""
    rows.append([own, f"{count(int(a_token))} B", scaled(int(bill["cache.bytes"]), "B"), Text(formula)])
    for name, b in others:
        rows.append(
            [Text(say("count.as_kind", kind=name)), f"{count(int(b['cache.bytes_per_token']))} B", scaled(int(b["cache.bytes"]), "B"), ""]
        )
    if "cache.uncompressed_bytes_per_token" in bill:
        each = int(bill["cache.uncompressed_bytes_per_token"])
        uncompressed = scaled(each * s.context * s.batch, "B")
        rows.append([Text(say("count.uncompressed")), f"{count(each)} B", uncompressed, "H·(K + R + W)·b"])
    out = [Text(cache_title(bill), "bold"), *table(rows, [Column(), Column(">"), Column(">"), Column(style="dim")])]
    if "cache.bytes_per_source_token" in bill:
        row, source = bill["cache.bytes_per_source_token"], s.context if s.source is None else s.source
        total = scaled(int(bill["cache.source_bytes"]), "B")
        out += prose(say("count.source", each=count(int(row)), rows=count(source), whole=total), width)
    windows = [w for one in bill.config.layers if (w := window(one)) is not None]
    if windows:
        sizes = {"window": ", ".join(map(count, sorted(set(windows)))), "each": count(int(bill["cache.windowed_bytes_per_token"]))}
        out += prose(say("count.windows", layers=len(windows), **sizes), width, "dim")
    if "cache.bytes_per_text" in bill:
        layers = sum(any(not mixer.heads for mixer in one.mixers) for one in bill.config.layers)
        sizes = {"kept": " + ".join(fixed(bill)), "each": count(int(bill["cache.bytes_per_text"]))}
        out += prose(say("count.text", layers=layers, **sizes), width, "dim")
    return out


def fixed(bill: Bill) -> list[str]:
    """Name what a text keeps at any length."""
    mixers = [mixer for one in bill.config.layers for mixer in one.mixers if not mixer.heads]
    states = max((mixer.state for mixer in mixers), default=0)
    return [say("count.kept.states")] * bool(states) + [say("count.kept.rows")] * bool(mixers)


def cache_title(bill: Bill) -> str:
    """Name the cache by what is kept in it."""
    kept = fixed(bill)
    if not kept:
        return say("count.past")
    attends = any(mixer.heads for one in bill.config.layers for mixer in one.mixers)
    return say("count.past.kept", kept=", ".join([say("count.kept.keys")] * attends + kept))


def work(bill: Bill) -> list[Text]:
    """Write the products of both phases."""
    rows = headed(say("count.head.phase"), say("count.head.amount"), say("count.head.what"))
    for phase in PHASES:
        if f"flops.{phase}" in bill:
            rows.append([phase_of(phase), scaled(float(bill[f"flops.{phase}"]), "FLOP"), Text(say("count.square"), "dim")])
            rows.append([phase_of(phase), scaled(float(bill[f"flops.{phase}_causal"]), "FLOP"), Text(say("count.causal"), "dim")])
            rows.append([phase_of(phase), scaled(float(bill[f"elements.{phase}"])), Text(say("count.elements"), "dim")])
    return [Text(say("count.work"), "bold"), *table(rows, [Column(), Column(">"), Column()])]


def textbook(bill: Bill, width: int) -> list[Text]:
    """Write the formulas of textbooks beside the counted numbers, with every summand of the difference."""
    out = []
    for b in closed_forms(bill):
        closed = f"{b.closed.symbols} = {count(int(b.closed))}"
        out += prose(say("count.counted", name=say(BOOKS[b.name]), closed=closed, counted=count(b.counted)), width)
        because = " · ".join(f"{say(BECAUSE[name]) if name in BECAUSE else name} {n:+,}" for name, n in b.because if n)
        out += prose(because, width, "dim", 3) if because else []
    return [Text(say("count.textbook"), "bold"), *out] if out else []


def limits(bill: Bill, view: Scenario, report: Mapping[str, Any], width: int) -> list[Text]:
    """Write the bounds on one device, part by part, the batch that fits, and the price. report: `bounds`; empty without a device."""
    device = device_of(bill)
    if device is None or not report:
        return []
    sizes = {"weights": scaled(report["weights"], "B"), "cache": scaled(report["cache"], "B"), "memory": scaled(report["memory"], "B")}
    fit = say("count.fits", **sizes) if report["fits"] else say("count.too_large", **sizes, devices=report["devices"])
    out = [Text(say("count.bounds", device=device.name), "bold"), *prose(fit, width)]
    if report.get("largest_batch") != 0 and "largest_batch" in report:
        out += largest(bill, report, width)
    for phase in PHASES:
        if phase in report:
            rate = figures(report[phase]["tokens_per_second"])
            title = say("count.phase", phase=phase_of(phase), seconds=Amount(report[phase]["seconds"], "s"), rate=rate)
            title = priced(title, report[phase].get("price_of_a_million_tokens"), view.hour)
            out += drawing.phase(title, parts(bill, phase, device), width)
    return out + drawing.sources(device, width)
