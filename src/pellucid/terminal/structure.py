"""The structure of a model: its configuration, its weights with their axes and shapes, and the parameters of each part.

Equal blocks are one entry with their count. Only shapes are needed, so a model on meta will do.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import asdict, dataclass, is_dataclass
from itertools import groupby
from typing import Any

from rich.text import Text

from pellucid import catalog
from pellucid.api.model import Model
from pellucid.checkpoint.default_dtype import name_of
from pellucid.counting.published import entry_of
from pellucid.counting.weights import Weight, weights
from pellucid.documents.formula import block
from pellucid.documents.number import count, number, shape
from pellucid.messages import say
from pellucid.terminal import placing
from pellucid.terminal.table import Cell, Column, clipped, line, prose, titled, widths

SCHEMA = 1


@dataclass(frozen=True)
class WeightGroup:
    """The weights of a block and of those equal to it, or weights outside of blocks. paths: of its blocks."""

    paths: list[str]
    weights: list[Weight]

    @property
    def count(self) -> int:
        """Count the parameters of one block."""
        return sum(w.count for w in self.weights if w.parameter)


def groups(model: Model, everything: bool = False) -> list[WeightGroup]:
    """Group all weights, in order; consecutive blocks of one make are one group unless everything is asked for."""
    out: list[WeightGroup] = []
    made: list[object] = []
    for path, members in groupby(sorted(weights(model.module), key=order(model)), key=lambda w: block(w.path)[0]):
        own = list(members)
        kind = (path.rpartition(".")[0], [(block(w.path)[1], w.shape, w.dtype) for w in own]) if path else None
        if kind is not None and made and made[-1] == kind and not everything:
            out[-1].paths.append(path)
        else:
            out.append(WeightGroup([path] if path else [], own))
            made.append(kind)
    return out


def order(model: Model) -> Any:
    """Return a sort key that orders weights by their use in a forward: tables, blocks, the last norm, the head."""
    stacks = ["embed", "positions", "encoder.layers", "encoder", "layers", "decoder.layers", "decoder", "norm", "head"]
    blocks = list(dict.fromkeys(block(w.path)[0] for w in weights(model.module)))

    def key(w: Weight) -> tuple[int, int]:
        own = block(w.path)[0]
        stack = own.rpartition(".")[0] if own else next(s for s in (w.path.rpartition(".")[0], w.path.split(".")[0]) if s)
        first = stack if stack in stacks else stack.split(".")[0]
        return (stacks.index(first) if first in stacks else len(stacks), blocks.index(own))

    return key


def tied(model: Model) -> dict[str, str]:
    """Return the paths that name a weight a second time, and the first path of each."""
    names: dict[int, str] = {}
    again: dict[str, str] = {}
    for path, p in model.module.named_parameters(remove_duplicate=False):
        if (first := names.setdefault(id(p), path)) != path and not block(path)[0]:
            again[path] = first
    return again


PUBLIC = (
    "id",
    "name",
    "organisation",
    "released",
    "source",
    "published",
    "notes",
)  # the catalogue's fields of a model, besides its shape


def document(model: Model) -> dict[str, Any]:
    """Return the structure as JSON."""
    entry = entry_of(model.name)
    return {
        "schema": SCHEMA,
        "model": model.name,
        "family": model.family.name,
        "parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "config": asdict(model.config),
        "stops": list(model.stops),
        "weights": [
            {"path": w.path, "dims": w.dims, "shape": list(w.shape), "dtype": w.dtype, "count": w.count, "parameter": w.parameter}
            for w in weights(model.module)
        ],
        "tied": tied(model),
        "catalogue": None
        if entry is None
        else {name: entry.get(name) for name in PUBLIC} | {"source": catalog.source(entry), "notes": catalog.notes(entry)},
    }


def drawn(model: Model, width: int, everything: bool = False) -> list[Text]:
    """Write the structure as lines of a terminal. everything: each block by itself, neutral fields too."""
    facts = [model.family.name, say("explain.layers", count=len(model.config.layers))]
    facts += [say("explain.parameters", count=count(model.num_parameters())), *stored(model)]
    out = [*titled(model.name, " · ".join(facts), width), Text()]
    for sentence in (*settings(model, everything), *endings(model), *placing.sentences(model), *sources(model)):
        out += prose(sentence, width)
    out.append(Text())
    columns = [Column(style="cyan"), Column(style="dim"), Column(">"), Column(">")]
    titles: list[Cell] = [Text(t, "dim") for t in (say("show.weight"), say("explain.axes"), say("show.shape"), say("show.parameters"))]
    entries: list[Text | list[Cell]] = [titles]
    for g in groups(model, everything):
        if g.paths:
            entries.append(heading(g))
        entries += [row(w, bool(g.paths)) for w in g.weights]
    for again, first in tied(model).items():
        entries.append([again, Text(say("show.tied", path=first), "dim"), "", ""])
    sizes = widths([e for e in entries if not isinstance(e, Text)], columns)
    out += [e if isinstance(e, Text) else line(e, columns, sizes, 2, 1) for e in entries]
    total = say("show.total", count=count(model.num_parameters()))
    out += [Text(), Text(" " + total, "bold")]
    for sentence in adapters(model):
        out += prose(sentence, width)
    return clipped(out, width)


def stored(model: Model) -> Iterator[str]:
    """Yield the dtype of the parameters, or what quantised matrices are on disk, and in memory if they stay so."""
    own = model.precision
    yield say("show.stored", formats=own.formats) if own.formats else name_of(model.dtype)
    if own.matrices is not None:
        yield say("show.matrices", format=own.matrices)


def adapters(model: Model) -> Iterator[str]:
    """Yield a sentence for each adapter: its own parameters, which alone train, beside the model's."""
    for name in model.adapters:
        own = [w for w in weights(model.module) if f".adapters.{name}." in w.path]
        numbers, matrices = sum(w.count for w in own), sum(len(w.shape) > 1 for w in own)
        rest = model.num_parameters() - sum(w.count for w in weights(model.module) if ".adapters." in w.path)
        share = number(100 * numbers / rest)
        yield say("show.adapter", name=name, count=count(numbers), tensors=matrices, share=share, model=count(rest))


def heading(g: WeightGroup) -> Text:
    """Write the line above a group of blocks: their paths, the parameters of one and of all."""
    alike = len(g.paths)
    name = g.paths[0] if alike == 1 else f"{g.paths[0]} … {g.paths[-1].rpartition('.')[2]}"
    together = say("show.alike", blocks=alike, each=count(g.count), count=count(alike * g.count))
    size = say("explain.parameters", count=count(g.count)) if alike == 1 else together
    return Text.assemble((f" {name}", "bold"), (f"  {size}", "dim"))


def row(w: Weight, inner: bool) -> list[Cell]:
    """Return a weight's cells. A buffer has no count."""
    name = f"  {block(w.path)[1]}" if inner else w.path
    axes = "" if w.dims is None else w.dims
    return [name, axes, shape(w.shape), count(w.count) if w.parameter else Text(say("show.buffer"), "dim")]


def sources(model: Model) -> Iterator[str]:
    """Yield the catalogue's sentences on a model of this name: its makers, the source of its configuration, their statements."""
    if (entry := entry_of(model.name)) is None:
        return
    yield say("show.published", source=catalog.source(entry), **{name: entry[name] for name in ("name", "organisation", "released")})
    if published := entry.get("published"):
        yield say("show.stated", figures=", ".join(f"{name} {figure}" for name, figure in published.items()))
    yield from catalog.notes(entry)


def settings(model: Model, everything: bool = False) -> Iterator[str]:
    """Yield the configuration: the model's own fields on a line, then each run of equal layers. everything: neutral fields too."""
    config = model.config
    yield fields(config, ("layers", "encoder", "ignored"), everything)
    own = "layers" if config.encoder is None else "decoder.layers"
    for name, layers in (("encoder.layers", config.encoder or ()), (own, config.layers)):
        at = 0
        for layer, same in groupby(layers):
            n = len(list(same))
            where = f"{name}.{at}" if n == 1 else f"{name}.{at} … {at + n - 1}"
            parts = *((one.part, one) for one in layer.mixers), ("cross", layer.cross), ("ffn", layer.ffn)
            specs = [
                f"{part} {type(spec).__name__}({fields(spec, everything=everything)})"
                for part, spec in parts
                if spec is not None and dataclasses.fields(spec)
            ]
            thin = [f"{path} rank {rank}" for path, rank in layer.ranks]
            factors = [f"{path} × {plain(factor)}" for path, factor in layer.factors]
            yield f"{where}: " + "; ".join([*specs, *([] if layer.order == "pre" else [f"order {layer.order}"]), *thin, *factors])
            at += n
    if config.ignored:
        yield say("show.ignored", fields=", ".join(config.ignored))


def endings(model: Model) -> Iterator[str]:
    """Yield the tokens that end a text, where generation_config.json names others than config.json."""
    if model.stops != model.config.stops:
        yield say("show.stops", ids=", ".join(map(str, model.stops)))


def fields(spec: Any, leave: tuple[str, ...] = (), everything: bool = False) -> str:
    """Write a dataclass's fields as "name value", nested ones in brackets. leave: fields to omit.  everything: neutral ones too."""
    shown = []
    for field in dataclasses.fields(spec):  # without class constants: they say what a kind is, not how this model sets it
        name = field.name
        if everything and name not in leave:
            value = getattr(spec, name)
            inner = f"{type(value).__name__}({fields(value, everything=True)})" if is_dataclass(value) else plain(value)
            shown.append(f"{name} {inner}")
            continue
        value, neutral = getattr(spec, name), field.default in (True, 0, 1.0) and getattr(spec, name) == field.default
        if name in leave or neutral or value is None or value == () or (value is False and field.default is not True):
            continue
        if value is False:
            shown.append(f"{name} false")
        elif is_dataclass(value):
            shown.append(f"{name} {type(value).__name__}({fields(value)})")
        else:
            shown.append(name if value is True else f"{name} {plain(value)}")
    return ", ".join(shown)


def plain(value: object) -> str:
    """Write a field's value."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if value is None or isinstance(value, bool) else str(value)
