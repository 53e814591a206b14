"""A model whose mathematics differs from another's in named fields of its Config, over the same weights.

    plain = pellucid.load("pellucid/capitals")
    bare = pellucid.variant(plain, {"norm": "none", "layers.*.attn.scale": 1.0})

Its module is built on meta and given the model's own Parameters by path, so nothing is copied, and what changes a weight in place (`to`,
`merge`, training) changes it in both. Fewer key/value heads alone need new weights: the means of the model's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.api.model import Model
from pellucid.api.switching import general, switched, written
from pellucid.arguments import checked
from pellucid.axes import parse
from pellucid.batch.inference_mode import lasting
from pellucid.config import Config
from pellucid.counting.distinct import PLACE
from pellucid.counting.weights import axes_of
from pellucid.errors import UseError, nearest
from pellucid.nn.linear import Linear
from pellucid.nn.low_rank import thinnable
from pellucid.nn.transformer import Decoder, EncoderDecoder, build
from pellucid.ops.blocks import Blocks
from pellucid.watching.meta import META

Module = Decoder | EncoderDecoder
RANK = ".rank"  # ends a switch that names a matrix in place of a field


@checked
@lasting
def variant(model: Model, switches: Mapping[str, Any]) -> Model:
    """Return a model whose Config differs in the fields that `switches` names, and whose Parameters are the model's own.

    switches: {path of a field: its value}, such as {"layers.*.attn.scale": 1.0, "layers.0.order": "bare", "norm": "none"}; `*` stands for
    any part of a path, and ".rank" after the path of a matrix makes it two thin ones (see `low_rank`).  A weight that the variant lacks is
    left out. A UseError names a field that does not exist, a value that it cannot have, and a weight that the variant needs and the model
    lacks or has in another shape.
    """
    if model.adapters:
        raise UseError("variant.adapters", model=model.name, names=", ".join(model.adapters))
    ranks = {name: value for name, value in switches.items() if name.endswith(RANK)}
    cfg, values = switched(model.config, {name: value for name, value in switches.items() if name not in ranks})
    with META:
        module = build(cfg)
    cut, given = thinned(model, thinnable(module), ranks)
    if cut:
        with META:
            module = build(with_ranks(cfg, cut))
    values = {name: int(value) if name in ranks else values[name] for name, value in switches.items()}
    own = share(module, model, given)
    out = Model(renamed(model, values), module.eval(), model.family, model.hf, model._tokenizer)
    out.files, out.generation = dict(model.files), dict(model.generation)
    out.left, out.precision = model.left, model.precision
    out.switches, out.own = {**model.switches, **values}, own
    return out


@checked
@lasting
def low_rank(model: Model, ranks: Mapping[str, int]) -> Model:
    """Return a variant in which matrices of the blocks are products of two thin ones, the best of their rank.

    ranks: {path of a matrix: rank}, such as {"layers.*.ffn.up": 32}; `*` stands for any part of a path.  The squared error of a matrix is
    the sum of the squares of the singular values that are dropped. A UseError for a path without a matrix and a rank that it cannot have.
    """
    return variant(model, {name + RANK: rank for name, rank in ranks.items()})


def thinned(model: Model, wanted: Mapping[str, Linear], ranks: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Return the rank of every matrix that the switches `ranks` name, by its path, and the weights that take its place.

    wanted: the matrices of the variant.
    """
    full, cut = {path: m for path, m in thinnable(model.module).items() if path in wanted}, dict[str, int]()
    for switch, given in ranks.items():
        name = switch.removesuffix(RANK)
        matched = [path for path in full if fnmatchcase(path, name)]
        if not matched:
            raise UseError("variant.matrix", name=name, near=nearest(name, dict.fromkeys([*general(full), *full])))
        rank = int(given) if isinstance(given, str) and given.isdecimal() else given
        for path in matched:
            most = min(full[path].weight.shape)
            if type(rank) is not int or not 1 <= rank <= most:
                raise UseError("variant.value", name=path + RANK, found=given, allowed=f"1 … {most}")
            cut[path] = rank
    return cut, {name: value for path, rank in cut.items() for name, value in nearest_pair(path, full[path], rank).items()}


def with_ranks(cfg: Config, ranks: Mapping[str, int]) -> Config:
    """Return a Config whose layers say which of their matrices have which rank; ranks: by path in the module."""
    stacks = {"encoder": list(cfg.encoder or ()), "layers": list(cfg.layers)}
    for path, rank in ranks.items():
        match = PLACE.fullmatch(path)
        assert match is not None
        stack, at = stacks["encoder" if match["stack"] == "encoder." else "layers"], int(match["number"])
        stack[at] = replace(stack[at], ranks=(*stack[at].ranks, (match["rest"][1:], rank)))
    return replace(cfg, layers=tuple(stacks["layers"]), encoder=None if cfg.encoder is None else tuple(stacks["encoder"]))


def nearest_pair(path: str, full: Linear, rank: int) -> dict[str, Tensor]:
    """Return the two thin matrices nearest to a full one, by its singular values in float64, and its own bias, by their paths."""
    if isinstance(full.weight, Blocks):
        raise UseError("variant.quantised", name=f"{path}.weight", held=full.weight.format)
    u, sizes, v = torch.linalg.svd(full.weight.detach().double(), full_matrices=False)
    root = sizes[:rank].sqrt()  # shared out evenly, so that both round alike
    pair = {"narrow": root[:, None] * v[:rank], "widen": u[:, :rank] * root}
    out: dict[str, Tensor] = {f"{path}.{n}.weight": nn.Parameter(w.to(full.weight.dtype), requires_grad=False) for n, w in pair.items()}
    return out if full.bias is None else out | {f"{path}.widen.bias": full.bias}


def switches(texts: Iterable[str]) -> dict[str, str]:
    """Return the switches that texts of the form NAME=VALUE ask for; a value stays a text, which `variant` reads by the field's type."""
    out: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise UseError("variant.text", found=text)
        out[name] = value
    return out


def varied(model: Model, texts: Iterable[str]) -> Model:
    """Return the variant that texts of the form NAME=VALUE ask for."""
    return variant(model, switches(texts))


def renamed(model: Model, values: Mapping[str, Any]) -> str:
    """Return the name of a variant: the model's, and all that differs from the model that was loaded."""
    before, after = named(model.switches), named({**model.switches, **values})
    return model.name.removesuffix(before) + after


def named(switches: Mapping[str, Any]) -> str:
    """Write switches as the end of a name; "" if there are none."""
    return f" with {', '.join(f'{name}={written(value)}' for name, value in switches.items())}" if switches else ""


def share(module: Module, model: Model, given: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Give every part of `module` the Parameters and buffers of the model by path. Returns the paths of those that were made for it.

    given: takes the place of the model's.
    """
    source = model.module
    theirs = dict(source.named_parameters(remove_duplicate=False)) | dict(source.named_buffers(remove_duplicate=False))
    shared = {id(t) for name, t in theirs.items() if name not in model.own}
    made = []
    for path, part in module.named_modules():
        for store in (part._parameters, part._buffers):
            for leaf, wanted in store.items():
                name = f"{path}.{leaf}".lstrip(".")
                if wanted is None or (name == "head.weight" and module.config.tied):
                    continue
                if (value := given.get(name, theirs.get(name))) is None:
                    raise UseError("variant.weight", name=name, model=model.name)
                if value.shape != wanted.shape:
                    value = pooled(module, model, name, value, wanted.shape)
                made += [] if id(value) in shared else [name]
                store[leaf] = value
    if module.config.tied and module.config.head:
        module.head._parameters["weight"] = module.embed._parameters["weight"]
    return tuple(made)


def pooled(module: Module, model: Model, name: str, value: Tensor, shape: torch.Size) -> nn.Parameter:
    """Return a weight of keys or values for fewer heads: each is the mean of the neighbours that it stands for (arXiv 2305.13245).

    A UseError if the shapes differ in more than G, the first letter of the weight's axes "(G K) D", or the heads cannot be shared out.
    """
    first = parse(axes_of(module, name, value.ndim) or "1")[0]
    width, other = (getattr(m.get_submodule(name.rsplit(".", 2)[0]), "width", 0) for m in (module, model.module))
    if first[0] != ("G",) or not width or width != other or value.shape[1:] != shape[1:] or value.shape[0] % shape[0]:
        raise UseError("variant.shape", name=name, model=model.name, found=tuple(value.shape), needed=tuple(shape))
    if isinstance(value, Blocks):
        raise UseError("variant.quantised", name=name, held=value.format)
    heads = value.detach().double().unflatten(0, (shape[0] // width, -1, width))
    return nn.Parameter(heads.mean(1).flatten(0, 1).to(value.dtype), requires_grad=False)
