"""Files whose layers are single parts, as Nemotron-H's: their pattern, and the names of the parts that make our blocks.

A layer of the files is one part. Here a feed-forward part belongs to the block of the part before it, as elsewhere:

    M-M-M*E    files: seven layers        here: [M -] [M -] [M] [* E], four blocks, of which one has no feed-forward part
"""

from collections.abc import Iterator

from pellucid import config as c
from pellucid.families import mamba_fields
from pellucid.families.fields import Fields
from pellucid.families.names import STACKED, Rule

MIXERS = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*"}
KINDS = {**MIXERS, "mlp": "-", "moe": "E"}
FFN = "-E"  # the letters of feed-forward parts


def pattern(hf: Fields) -> str:
    """Return the layers of the file as a text of M, *, - and E; a feed-forward part must stand behind one that mixes rows."""
    field = "hybrid_override_pattern" if "hybrid_override_pattern" in hf and "layers_block_type" not in hf else "layers_block_type"
    value = hf.get(field)
    letters = [KINDS.get(v, "") if isinstance(v, str) else "" for v in value] if isinstance(value, list) else value
    allowed = "M, *, -, E: mamba | linear_attention, attention | full_attention, mlp, moe"
    if not letters or not isinstance(letters, list | str) or any(n not in KINDS.values() for n in letters):
        raise hf.fault(field, value, allowed)
    text = "".join(letters)
    if any(b in FFN and a in FFN for a, b in zip("-" + text, text, strict=False)):
        raise hf.fault(field, value, f"{allowed}; - or E after M or *")
    hf.read |= {"layers_block_type", "hybrid_override_pattern"}
    hf.fixed("num_hidden_layers", len(text))
    return text


def blocks(text: str) -> list[tuple[str, str]]:
    """Return each block's letters: of what mixes its rows, and of its feed-forward part, "" without one."""
    follows = (after if after in FFN else "" for after in [*text[1:], ""])
    return [(letter, after) for letter, after in zip(text, follows, strict=True) if letter not in FFN]


def feed_forward(disk: str, ours: str, ffn: c.AnyFfn) -> Iterator[Rule]:
    """Yield the rules of a feed-forward part without a gate, or of experts without one, below these names."""
    ways = ("up", "down")
    if not ffn.experts:
        yield from (Rule(f"{disk}.{n}_proj.*", f"{ours}.{n}.*") for n in ways)
        return
    yield Rule(f"{disk}.gate.weight", f"{ours}.router.weight")
    yield Rule(f"{disk}.gate.e_score_correction_bias", f"{ours}.correction")
    yield from (Rule(f"{disk}.experts.{{e}}.{n}_proj.weight", f"{ours}.{n}", STACKED) for n in ways)
    yield from (Rule(f"{disk}.shared_experts.{n}_proj.*", f"{ours}.shared.{n}.*") for n in ways)


def rules(cfg: c.Config, prefix: str) -> Iterator[Rule]:
    """Yield the rules of each block: its part's layer in the file, `prefix`.N, and behind it the feed-forward part's."""
    disk = 0
    for i, layer in enumerate(cfg.layers):
        at, part = f"{prefix}.{disk}", layer.attn.part
        yield Rule(f"{at}.norm.*", f"layers.{i}.{part}_norm.*")
        yield from (
            mamba_fields.rules(f"{at}.mixer", f"layers.{i}.mamba")
            if part == "mamba"
            else (Rule(f"{at}.mixer.{n}_proj.*", f"layers.{i}.attn.{n}.*") for n in "qkvo")
        )
        disk += 1
        if layer.ffn.width:
            yield Rule(f"{prefix}.{disk}.norm.*", f"layers.{i}.ffn_norm.*")
            yield from feed_forward(f"{prefix}.{disk}.mixer", f"layers.{i}.ffn", layer.ffn)
            disk += 1
