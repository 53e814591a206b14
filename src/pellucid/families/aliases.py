"""Other names of a model's tensors and weights, accepted wherever a path is; records themselves carry our names only.

    layers.3.in                         layers.2.out        the stream into a block, as it leaves the one before
    blocks.3.attn.hook_pattern          layers.3.attn.pattern                                 TransformerLens
    model.layers.3.self_attn.q_proj     layers.3.attn.q                                       transformers

transformers' names follow from the family's table of weights; one of their modules that does the work of several of ours names all of
them. A model's own name is never an alias.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from pellucid.config import MIXERS, Config
from pellucid.errors import UseError, nearest
from pellucid.families.family import Family
from pellucid.families.names import TensorGroup, plan
from pellucid.nn.block import ParallelBlock
from pellucid.nn.transformer import Decoder, Stack

Aliases = dict[str, tuple[str, ...]]

# TransformerLens' names within a block, beside ours.
LENS = {
    "ln1.hook_normalized": "attn_norm", "ln2.hook_normalized": "ffn_norm", "attn.hook_q": "attn.q", "attn.hook_k": "attn.k",
    "attn.hook_v": "attn.v", "attn.hook_rot_q": "attn.q_rot", "attn.hook_rot_k": "attn.k_rot", "attn.hook_attn_scores": "attn.scores",
    "attn.hook_pattern": "attn.pattern", "attn.hook_z": "attn.z", "hook_attn_out": "attn", "hook_mlp_out": "ffn",
    "mlp.hook_pre": "ffn.up", "mlp.hook_post": "ffn.neurons", "hook_resid_mid": "mid",
}  # fmt: skip
# TransformerLens' weights: the part, its axes there, and how ours [out, in] becomes theirs, by heads of a width.
HEADS: dict[str, tuple[str, Callable[[Tensor, int], Tensor]]] = {
    **{f"W_{n.upper()}": (f"attn.{n}.weight", lambda w, k: w.unflatten(0, (-1, k)).transpose(1, 2)) for n in "qkv"},
    **{f"b_{n.upper()}": (f"attn.{n}.bias", lambda b, k: b.unflatten(0, (-1, k))) for n in "qkv"},
    "W_O": ("attn.o.weight", lambda w, k: w.T.unflatten(0, (-1, k))),
    "b_O": ("attn.o.bias", lambda b, k: b),
}
FLAT = {
    "W_in": "ffn.up.weight", "b_in": "ffn.up.bias", "W_gate": "ffn.gate.weight", "W_out": "ffn.down.weight", "b_out": "ffn.down.bias",
}  # fmt: skip


# Modules whose output is tapped as another's, and those whose output is not tapped.
GIVES = {
    ".attn.o": ".attn",
    ".conv.o": ".conv",
    ".cross.o": ".cross",
    ".delta.norm": ".delta.y_gated",
    ".delta.o": ".delta",
    ".down": "",
    ".kv_norm": ".latent",
    ".mamba.norm": ".mamba.y_gated",
    ".mamba.o": ".mamba",
    ".q_b": ".q",
    "transform.norm": "transform",
}
PLACE = re.compile(rf"(^|\.)layers\.\d+(\.({'|'.join(MIXERS)}|ffn|cross))?$")  # of a block, or of a part of one
UNSEEN = ".kv_b", ".relative"
KEPT: WeakKeyDictionary[nn.Module, tuple[object, Aliases]] = WeakKeyDictionary()  # with what the model was made of


def aliases(module: Any, family: Family | None = None) -> Aliases:
    """Return {every other name of a model's tensors: our paths}. Without its family, transformers' names are left out.

    They are kept with the model until a part of it is replaced, as every watch asks for them.
    """
    parts = tuple((path, type(part), *part._parameters, *part._buffers) for path, part in module.named_modules())
    made_of = (family, module.config, parts)
    if module not in KEPT or KEPT[module][0] != made_of:
        KEPT[module] = made_of, made_anew(module, family)
    return KEPT[module][1]


def made_anew(module: Any, family: Family | None) -> Aliases:
    """Return the names without what is kept."""
    own = {path for path, _ in module.named_modules()}
    names = {} if family is None else dict(of_transformers(module, family))
    for prefix, stack in stacks(module):
        leaves = [f"{prefix}layers.{i}.{block.leaves}" for i, block in enumerate(stack.layers)]
        names |= of_stack(prefix, entrance(stack, prefix), leaves, own.__contains__)
    lacking = {path for prefix, stack in stacks(module) for path in lacks(stack, prefix)}
    return {name: paths for name, paths in names.items() if name not in own and not lacking & {*paths}}


def lacks(stack: Stack, prefix: str) -> Iterator[str]:
    """Yield the paths of the table for which a stack has no tensor."""
    for i, block in enumerate(stack.layers):
        at, attn = f"{prefix}layers.{i}", getattr(block, "attn", None)
        yield from (f"{at}.{ours}" for ours in LENS.values() if attn is None and ours.startswith("attn"))
        yield from (f"{at}.attn.{n}" for n in ("q_rot", "k_rot") if getattr(attn, "rope", None) is None)
        yield from (f"{at}.attn.{n}" for n in ("k", "v", "k_rot") if not hasattr(attn, "k"))  # a latent stands for them
        yield from (f"{at}.{n}" for n in ("attn_norm", "ffn_norm") if not hasattr(block, n))
        yield from [f"{at}.mid"] * (isinstance(block, ParallelBlock) or block.ffn is None)  # which adds all at once
        yield from (f"{at}.{ours}" for ours in LENS.values() if block.ffn is None and ours.startswith("ffn"))
    yield from [f"{prefix}positions"] * (stack.positions is None and stack.sinusoids is None)
    yield from [f"{prefix}norm"] * (stack.norm is None)


def of_records(seen: Iterable[Any]) -> Aliases:
    """Return the same for a trace without its model: the stream's names and TransformerLens', from what was made from what."""
    records = {s.path: s for s in seen}
    names: Aliases = {}
    for prefix in ("", "encoder.", "decoder."):
        of_layers = [s for path, s in records.items() if path.startswith(f"{prefix}layers.")]
        count = 1 + max((int(s.path.removeprefix(f"{prefix}layers.").split(".")[0]) for s in of_layers), default=-1)
        first = next((s.inputs for s in of_layers if s.path.startswith(f"{prefix}layers.0.")), ())[:1]
        enters = next((p for p in first if not p.startswith(f"{prefix}layers.")), "")
        posts = (records.get(f"{prefix}layers.{i}.ffn_norm") for i in range(count))
        ends = ["ffn_norm" if s is not None and s.inputs == (s.path.removesuffix("ffn_norm") + "out",) else "out" for s in posts]
        leaves = [f"{prefix}layers.{i}.{end}" for i, end in enumerate(ends)]
        names |= of_stack(prefix, enters, leaves, lambda path: path in records and records[path].dims != "N F")
    return {name: paths for name, paths in names.items() if name not in records and "" not in paths}


def stacks(module: Any) -> list[tuple[str, Stack]]:
    """Return the stacks of blocks, each with the prefix of its paths."""
    return [("", module)] if isinstance(module, Decoder) else [("encoder.", module.encoder), ("decoder.", module.decoder)]


def of_stack(prefix: str, enters: str, leaves: list[str], has: Callable[[str], bool]) -> Aliases:
    """Return the names of a stack's stream, and TransformerLens' if it is the model's only stack.

    enters: the path of what enters the first block.  leaves: of what leaves each.  has: whether the model has a part of this path.
    """
    names: dict[str, str] = {}
    for i, (into, out) in enumerate(zip([enters, *leaves], leaves, strict=False)):
        at = f"{prefix}layers.{i}"
        names[f"{at}.in"] = into
        theirs = LENS | {"mlp.hook_pre": "ffn.gate", "mlp.hook_pre_linear": "ffn.up"} if has(f"{at}.ffn.gate") else LENS
        theirs = theirs | {"hook_attn_out": "attn_post_norm", "hook_mlp_out": "ffn_post_norm"} if has(f"{at}.attn_post_norm") else theirs
        names |= {f"blocks.{i}.{name}": f"{at}.{ours}" for name, ours in ({} if prefix else theirs).items()}
        names |= {} if prefix else {f"blocks.{i}.hook_resid_pre": into, f"blocks.{i}.hook_resid_post": out}
    if leaves and not prefix:
        names |= {"hook_embed": "embed", "hook_pos_embed": "positions", "ln_final.hook_normalized": "norm"}
    return {name: (path,) for name, path in names.items()}


def entrance(stack: Stack, prefix: str) -> str:
    """Return the path of the first block's input: the embedding's rows, or the last change to them."""
    if (name := stack.entrance()) is not None:
        return prefix + name
    return "source" if prefix == "encoder." else "embed"


def groups(module: Any, family: Family) -> list[TensorGroup]:
    """Return which tensors on disk are which of ours."""
    own = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    shapes = {n: tuple(p.shape) for n, p in own.items()}
    return plan(family.rules_for(module.config), shapes)[0]


def product(cfg: Config) -> str:
    """Return the path of what the head's product makes."""
    return "unscaled" if cfg.logit_factor != 1.0 else "logits" if cfg.logit_cap is None else "uncapped"


def of_transformers(module: Any, family: Family) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names of transformers' modules whose output is one of our tensors."""
    parts = dict(module.named_modules(remove_duplicate=False))
    named: dict[str, str] = {}  # our module: theirs
    taken: dict[str, list[str]] = {}
    of_disk = groups(module, family)
    for g in (g for g in of_disk if len(g.disk) == 1 and g.disk[0].endswith(".weight")):
        theirs = g.disk[0].removesuffix(".weight")
        for path in (name.removesuffix(".weight") for name in g.ours if name.endswith(".weight")):
            named[path] = theirs
            path = next((path.removesuffix(end) + gives for end, gives in GIVES.items() if path.endswith(end)), path)
            if path.endswith(UNSEEN):
                continue
            if path != "head" and not (path == "embed" and module.config.embed_scale != 1.0):
                taken.setdefault(theirs, []).append(path)
    biased = any("head.bias" in g.ours and not g.disk[0].endswith(".bias") for g in of_disk)  # Marian adds it after
    if module.config.head and not biased:
        apart = named.get("head", "") not in ("", named.get("embed"))
        yield named["head"] if apart else "lm_head", (product(module.config),)
    yield from ((theirs, tuple(paths)) for theirs, paths in taken.items())
    for at, part in parts.items():
        if not PLACE.search(at):
            continue
        inside = [theirs for path, theirs in named.items() if path.startswith(f"{at}.")]
        common = ".".join(first for first, *rest in takewhile(alike, zip(*(name.split(".") for name in inside), strict=False)))
        outside = (theirs for path, theirs in named.items() if not path.startswith(f"{at}."))
        name = at.rpartition(".")[2]
        if name in family.does_more or len(inside) < 2 or common in taken or any(f"{o}.".startswith(f"{common}.") for o in outside):
            continue
        yield common, (f"{at}.{part.leaves}" if name.isdigit() else at,)


def alike(parts: tuple[str, ...]) -> bool:
    """True if all are the same."""
    return len({*parts}) == 1


def put(patterns: Iterable[str], known: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return `patterns` of paths with other names replaced by ours. Such a pattern has no wildcard in its first and last part."""
    out: list[str] = []
    for pattern in patterns:
        parts = pattern.split(".")
        plain = not any(c in part for part in (parts[0], parts[-1]) for c in "*?[")
        hits = [paths for name, paths in known.items() if fnmatch.fnmatchcase(name, pattern)] if plain else []
        out += [path for paths in hits for path in paths] or [pattern]
    return list(dict.fromkeys(out))


def weight(module: Any, family: Family, name: str) -> Tensor:
    """Return a weight by our path, by its name in Hugging Face's files, or by TransformerLens' name; without its gradient's graph.

    "blocks.3.attn.W_Q" is [heads, width, head width] and W_O [heads, head width, width], as there; W_K and W_V have one entry for each
    key/value head. A UseError with the nearest names if there is no such weight.
    """
    own: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    if name in own:
        return own[name].detach()
    for g in groups(module, family):
        if ((spelled := family.canonical(name)) in g.disk or name in g.disk) and own.keys() >= {*g.ours}:  # a variant may lack some
            return g.layout.write([own[n].detach() for n in g.ours])[g.disk.index(name if name in g.disk else spelled)]
    by_lens = dict(of_lens(module))
    if name not in by_lens:
        raise UseError("model.weight", name=name, near=nearest(name, [*own, *by_lens]))
    return by_lens[name]()


def of_lens(module: Any) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield TransformerLens' names of the weights of a model with one stack, each with a function that returns the tensor."""
    if not isinstance(module, Decoder):
        return
    own = dict(module.named_parameters(remove_duplicate=False))
    for i, block in enumerate(module.layers):
        at = f"layers.{i}"
        width = getattr(getattr(block, "attn", None), "width", 0)
        for name, (path, turn) in HEADS.items():
            if width and (w := own.get(f"{at}.{path}")) is not None:
                yield f"blocks.{i}.attn.{name}", lambda w=w, turn=turn, width=width: turn(w.detach(), width)  # type: ignore[misc]
        for name, path in FLAT.items():
            if (w := own.get(f"{at}.{path}")) is not None and isinstance(getattr(block.ffn, "up", None), nn.Module):
                yield f"blocks.{i}.mlp.{name}", lambda w=w: w.detach().T if w.ndim == 2 else w.detach()  # type: ignore[misc]
    for name, path in (("W_E", "embed.weight"), ("W_pos", "positions.weight")):
        if (w := own.get(path)) is not None:
            yield name, lambda w=w: w.detach()  # type: ignore[misc]
    if (w := own.get("head.weight")) is not None:
        yield "W_U", lambda w=w: w.detach().T  # type: ignore[misc]
