"""Counting of every parameter, byte and FLOP of a model, from the definition that runs, on shapes alone.

bill = counted(cfg, "deepseek-v3", "deepseek_v3", Setting(context=131072, batch=8))
"""

import sys
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import prod

import torch

from pellucid.axes import parse, show
from pellucid.config import Attention, Config
from pellucid.counting.bill import BYTES, Bill, Counted, Setting, grouped, reads_others, share_seen
from pellucid.counting.closed import booked
from pellucid.counting.distinct import PLACE, alike, distinct
from pellucid.counting.formats import add_bytes
from pellucid.counting.gguf_mixes import mixed
from pellucid.counting.meta_run import Ran, meta_model, ran
from pellucid.counting.number import Number, figure, product, total
from pellucid.counting.weights import Weight, weights

__all__ = ["Bill", "Number", "Setting", "counted", "weighed"]


def counted(cfg: Config, name: str, family: str, setting: Setting = Setting()) -> Bill:  # noqa: B008
    """Return the bill of a config."""
    bill = weighed(cfg, name, family, setting)
    reduced, source = bill.reduced.config, setting.source if setting.source is not None else setting.context
    rows, read = (setting.context, None) if cfg.encoder is None else (1, source)
    add_flops(bill, "prefill", ran(reduced, rows, 0, setting.batch, read), rows, 0, read)
    if not cfg.bidirectional:
        decode = ran(reduced, 1, setting.context, setting.batch, read)
        add_flops(bill, "decode", decode, 1, setting.context, source)
        add_cache(bill, decode)
    return bill


def weighed(cfg: Config, name: str, family: str, setting: Setting) -> Bill:
    """Return a bill of parameters and their bytes only; nothing runs."""
    types = mixed(cfg, family, setting.weights)
    apart = alike if types is None else types.apart
    bill = Bill(name, family, cfg, setting, distinct(cfg, apart=apart), distinct(cfg, 2, apart))
    add_parameters(bill)
    bill.weights = bill.weights if types is None else [replace(c, form=types.form(c)) for c in bill.weights]
    add_bytes(bill)
    return bill


def add_parameters(bill: Bill) -> None:
    """Add every weight with its formula, the sums by layer, by part and in all, and the parameters active for one token."""
    reduced = bill.doubled
    by_path = {w.path: w for w in weights_of(reduced.config)}
    for w in by_path.values():
        if (place := reduced.place(w.path)) is None:
            continue
        path, count = place
        again = reduced.again(w.path)
        times = count if again is None or again in by_path else 1  # what the second copy has not, all layers share
        bill.weights.append(Counted(w, path, times, active(bill, path)))
    numbers, own = bill.numbers, [c for c in bill.weights if c.weight.parameter]
    for c in bill.weights:
        numbers[f"parameters.{c.path}" if c.weight.parameter else f"buffers.{c.path}"] = number(c.weight)
    parts = []
    for top, weights_in in grouped(own, outermost).items():
        if len(weights_in) > 1 or top not in (c.path for c in weights_in):
            numbers[f"parameters.{top}"] = total(((c.path, 1, numbers[f"parameters.{c.path}"]) for c in weights_in), "parameters")
        for times in sorted({c.times for c in weights_in}, reverse=True):
            some = [(c.path, 1, numbers[f"parameters.{c.path}"]) for c in weights_in if c.times == times]
            sum_of_top = numbers[f"parameters.{top}"] if len(some) == len(weights_in) else total(some, "parameters")
            parts.append((top if len(some) == len(weights_in) else some[0][0], times, sum_of_top))
    numbers["parameters.total"] = total(parts, "parameters")
    for part, weights_in in grouped(own, lambda c: c.part).items():
        numbers[f"parameters.by_part.{part}"] = total(
            ((c.path, c.times, numbers[f"parameters.{c.path}"]) for c in weights_in), "parameters"
        )
    every = numbers["parameters.total"].value
    idle = [(c, c.times * (c.weight.count - int(c.weight.count * c.active))) for c in own if c.active != 1]
    resting = sum(n for _, n in idle)
    numbers["parameters.active"] = (
        Number(every - resting, "total − idle_experts", f"{every:,} − {resting:,}") if idle else Number(every, "total")
    )
    table = next((c.weight.count for c in own if c.path == "embed.weight"), 0)
    working = every - resting - (0 if bill.config.tied else table)
    symbols = "active" if bill.config.tied else "active − embed"
    numbers["parameters.active_without_input"] = Number(working, symbols, "" if bill.config.tied else f"{every - resting:,} − {table:,}")
    numbers["buffers.total"] = Number(sum(c.times * c.weight.count for c in bill.weights if not c.weight.parameter))


@lru_cache(512)
def weights_of(cfg: Config) -> tuple[Weight, ...]:
    """Return every weight of a config's model."""
    return tuple(weights(meta_model(cfg, torch.bfloat16)))


def active(bill: Bill, path: str) -> Fraction:
    """Return the share of a weight that is active for one token: of stacked experts, the chosen ones."""
    if PLACE.fullmatch(path) is None:
        return Fraction(1)
    ffn, parts = bill.layer(path).ffn, path.split(".")
    return ffn.active if parts[-2] == "ffn" and parts[-1] not in ("correction", "expert_scale") else Fraction(1)


def outermost(c: Counted) -> str:
    """Return the layer that contains a weight, or the module for a weight outside of layers."""
    match = PLACE.fullmatch(c.path)
    return f"{match['stack']}layers.{match['number']}" if match else c.path.rpartition(".")[0] or c.path


def number(w: Weight) -> Number:
    """Return a weight's count with its formula: (H·K)·D = (12·64)·768."""
    axes = (show(axis) for axis in parse(w.dims or ""))
    symbols = "·".join(f"({a})" if "×" in a or "+" in a else a for a in axes).replace("×", "·")
    return Number(w.count, symbols, "·".join(f"{n:,}" for n in w.shape) if len(w.shape) > 1 else "")


def add_flops(bill: Bill, phase: str, ran: Ran, rows: int, before: int, source: int | None = None) -> None:
    """Add the FLOPs of a phase by part, attention as the full square and as the mask leaves it; elementwise work separately."""
    square, seen = [], []
    for path, flops in ran.flops.items():
        if (place := bill.reduced.place(path)) is None:
            continue
        full_path, times = place
        left = bill.numbers[f"flops.{phase}.{full_path}"] = booked(bill, full_path, flops, rows, before + rows, source or rows)
        square.append((full_path, times, left))
        if path in ran.stored or reads_others(bill, full_path):  # its own attention
            reads = full_path.startswith("encoder.")
            side, old = (source or rows, 0) if reads else (rows, before)
            share = share_seen(bill.viewer(full_path), side, old, reads or bill.config.bidirectional)
            left = Number(int(flops * share), f"{full_path} · {share}")
        seen.append((full_path, times, left))
    bill.numbers[f"flops.{phase}"] = total(square, f"flops.{phase}")
    bill.numbers[f"flops.{phase}_causal"] = Number(sum(t * n.value for _, t, n in seen))
    places = ((bill.reduced.place(path), n) for path, n in ran.elements.items())
    bill.numbers[f"elements.{phase}"] = Number(sum(place[1] * n for place, n in places if place is not None))


def add_cache(bill: Bill, ran: Ran) -> None:
    """Add the cache's bytes, layer by layer: of one token, of one text at any length, and of the batch at the context, with what
    decoders keep of a source.

    A convolution keeps the last few rows, and a state none: of a text longer than these no more is kept.
    """
    setting, size = bill.setting, BYTES[bill.setting.cache]
    a_token, parts, open_heads = [], [], []
    a_text: dict[str, tuple[int, list[Number]]] = {}
    for path, shapes in ran.stored.items():
        if (place := bill.reduced.place(path)) is None or path.startswith("encoder."):
            continue
        layer, times = place
        symbols = f"({' + '.join(bill.stored(layer))})·b"
        filled = "(" + " + ".join("·".join(map(str, shape)) for shape in shapes) + f")·{size:g}"
        each = sum(prod(shape) for shape in shapes) * size
        if setting.kv is not None and bill.stored(layer) == Attention.stored:  # the formats that it is compared with stay plain
            symbols = " + ".join(f"{letters} + {letters.split('·')[0]}·b" for letters in bill.stored(layer))
            filled = " + ".join(f"{'·'.join(map(str, shape))} + {prod(shape[:-1])}·{size:g}" for shape in shapes)
            each = sum(prod(shape) + prod(shape[:-1]) * size for shape in shapes)
        bill.numbers[f"cache.{layer}"] = Number(int(each), symbols, filled)
        attn = bill.mixer(layer)
        rows = attn.rows_kept(setting.context)
        if attn.heads:
            a_token.append((layer, times, bill.numbers[f"cache.{layer}"]))
        else:
            a_text[layer] = times, [product(f"rows·cache.{layer}", rows=attn.rows_kept(sys.maxsize), each=int(each))]
        if attn.uncompressed is not None and layer.endswith(".attn"):
            filled = f"{attn.heads}·({' + '.join(map(str, attn.uncompressed))})·{size:g}"
            own = int(attn.heads * sum(attn.uncompressed) * size)
            bill.numbers[f"cache.uncompressed.{layer}"] = Number(own, "H·(K + R + W)·b", filled)
            open_heads.append((f"uncompressed.{layer}", times, bill.numbers[f"cache.uncompressed.{layer}"]))
        parts.append((layer, times, product(f"B·rows·cache.{layer}", batch=setting.batch, rows=rows, each=int(each))))
    for path, state in ran.states.items():
        if (place := bill.reduced.place(path.rpartition(".")[0])) is not None:  # in float32, whatever the cache is in
            layer, times = place
            bill.numbers[f"states.{layer}"] = Number(prod(state) * 4, "H·K·W·4", f"{'·'.join(map(str, state))}·4")
            parts.append((f"{layer}.state", times, product(f"B·states.{layer}", batch=setting.batch, each=prod(state) * 4)))
            a_text[layer][1].append(Number(prod(state) * 4, f"states.{layer}", figure(prod(state) * 4)))
    bill.numbers["cache.bytes_per_token"] = total(a_token, "cache")
    if bounded := [one for one in a_token if bill.mixer(one[0]).window or bill.mixer(one[0]).chunk]:
        bill.numbers["cache.windowed_bytes_per_token"] = total(bounded, "cache")
    if a_text:
        add_bytes_of_a_text(bill, a_text)
    if open_heads:  # what MLA's keys and values would take if each head kept its own
        bill.numbers["cache.uncompressed_bytes_per_token"] = total(open_heads, "cache")
    if ran.remembered:
        places = ((bill.reduced.place(path), shapes) for path, shapes in ran.remembered.items())
        counts = [(p[1], sum(torch.Size(s).numel() for s in shapes)) for p, shapes in places if p is not None]
        each = int(sum(times * n for times, n in counts) * size)
        bill.numbers["cache.bytes_per_source_token"] = Number(each)
        rows = setting.context if setting.source is None else setting.source
        kept = product("B·rows·cache.bytes_per_source_token", batch=setting.batch, rows=rows, each=each)
        bill.numbers["cache.source_bytes"] = kept
        parts.append(("source_bytes", 1, kept))
    bill.numbers["cache.bytes"] = total(parts, "cache")


def add_bytes_of_a_text(bill: Bill, layers: dict[str, tuple[int, list[Number]]]) -> None:
    """Add the bytes that a text keeps at any length. layers: how many are alike, and of one its convolutions' rows and its state."""
    each = []
    for layer, (times, kept) in layers.items():
        of = tuple(path for path in (f"cache.{layer}", f"states.{layer}") if path in bill.numbers)
        symbols, filled = (" + ".join(texts) for texts in ([n.symbols for n in kept], [n.filled for n in kept]))
        bill.numbers[f"cache.text.{layer}"] = Number(sum(int(n) for n in kept), symbols, filled, of)
        each.append((f"text.{layer}", times, bill.numbers[f"cache.text.{layer}"]))
    bill.numbers["cache.bytes_per_text"] = total(each, "cache")
