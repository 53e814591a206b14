"""Old and new: three architectures side by side, each drawn from its Config."""

from collections.abc import Iterator

from pellucid.analysis.architecture import DrawnPart, blocks, built, longer, parts
from pellucid.api.count import described
from pellucid.config import Config
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Box, DiagramPanel, Panel, TablePanel
from pellucid.messages import say

ORIGINAL = "transformer-base"
OTHERS = "llama-3-8b", "gpt2-small", "qwen3-8b", "gemma-2-9b", "gpt-oss-120b", "deepseek-v3", "t5-base", "bert-base"


def show(e: Experiment) -> Iterator[Panel | Claim]:
    (_, original), (_, other) = described(ORIGINAL), described(e.text("model"))
    configs = {ORIGINAL: original, e.model.name: e.model.config, e.text("model"): other}
    drawings = {name: parts(cfg) for name, cfg in configs.items()}
    yield DiagramPanel(say("exhibit.architectures.drawing"), {name: boxes(drawing) for name, drawing in drawings.items()})
    heads = "exhibit.architectures.model", "exhibit.architectures.encoders", "exhibit.architectures.decoders", "exhibit.architectures.norms"
    rows = [(name, blocks(d, "encoder"), blocks(d, "decoder"), norms(configs[name])) for name, d in drawings.items()]
    yield TablePanel(say("exhibit.architectures.table"), list(map(say, heads)), rows)
    encoders, decoders = (blocks(drawings[ORIGINAL], kind) for kind in ("encoder", "decoder"))
    yield e.claim("original", encoders == decoders, encoders=encoders, decoders=decoders)
    counts = {name: sum(blocks(d, kind) for kind in ("encoder", "decoder")) for name, d in drawings.items()}
    yield e.claim("built", all(counts[name] == built(cfg) for name, cfg in configs.items()), blocks=", ".join(map(str, counts.values())))
    more = blocks(parts(e.on(longer(other), other)), "decoder")
    yield e.claim("longer", more > blocks(drawings[e.text("model")], "decoder"), model=e.text("model"), more=more)
    both = {"first": norms(original), "second": norms(other), "model": e.text("model")}
    yield e.claim("norms", original.layers[0].order == "post", **both)


def boxes(drawing: list[DrawnPart]) -> list[Box]:
    """Return the boxes of a drawing, their names in the reader's language."""
    names = {
        "embed": say("exhibit.architectures.embed"),
        "positions": say("exhibit.architectures.positions"),
        "encoder": say("exhibit.architectures.encoder"),
        "decoder": say("exhibit.architectures.decoder"),
        "norm": say("exhibit.architectures.norm"),
        "attn": say("exhibit.architectures.attn"),
        "conv": say("exhibit.architectures.conv"),
        "delta": say("exhibit.architectures.delta"),
        "mamba": say("exhibit.architectures.delta"),
        "cross": say("exhibit.architectures.cross"),
        "sum": say("exhibit.architectures.sum"),
        "ffn": say("exhibit.architectures.ffn"),
        "input": say("exhibit.architectures.input"),
        "experts": say("exhibit.architectures.experts"),
        "head": say("exhibit.architectures.head"),
    }
    block = "encoder", "decoder"
    return [Box(names[p.kind], f"× {p.times}" if p.kind in block else p.note, p.depth, p.kind in block) for p in drawing]


def norms(cfg: Config) -> str:
    """Say where the norms of a model's blocks stand."""
    order = cfg.layers[0].order
    if order.startswith("sandwich"):
        return say("exhibit.architectures.both")
    places = {"post": say("exhibit.architectures.after"), "after": say("exhibit.architectures.made")}
    return places.get(order, say("exhibit.architectures.before"))


EXHIBIT = Exhibit("architectures", show, controls=(Control("model", OTHERS[0], OTHERS),), needs=())
