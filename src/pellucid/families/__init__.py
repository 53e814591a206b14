"""One file a family: how its config.json becomes a Config, and how its checkpoint's names become ours.

A family is a module of this package named after its model_type, with `config(hf)` and `RULES` (or `rules(cfg)`), and where needed
`IGNORED` (patterns of names on disk that carry nothing; or `ignored(cfg, names)`), `COPIES` (names on disk of tensors that are stored
again), `respell(name)` for old spellings, and `settled(cfg, names)` where config.json leaves open what the names on disk tell.
`written(hf)` is the config.json of what we save, where it is not the one that was read, and `WITHIN` the family of the text model that
alone is read of a model that also sees. `SUMMED` are the parts whose module in transformers adds the residual too. `ARCHITECTURE` is the
name of its language model in transformers, which a config.json that we write tells.
"""

import importlib
import re
import warnings
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pellucid.config import Config
from pellucid.errors import ConfigError
from pellucid.families.fields import Fields
from pellucid.families.names import Rule
from pellucid.families.quantised import quantised
from pellucid.messages import All, say

NOT_FAMILIES = {"__init__", "acts", "agreeing", "aliases", "fields", "modules", "names", "quantised", "rope", "routing", "within"}
DASHED = {"openai_gpt": "openai-gpt"}  # {file: model type}, where a file cannot be called as its model type
NO_PADDING = ("pad_token_id", -1)  # how the first conversions of LLaMA say that there is none
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def known() -> list[str]:
    """The model types that have a file here."""
    return sorted(DASHED.get(p.stem, p.stem) for folder in __path__ for p in Path(folder).glob("*.py") if p.stem not in NOT_FAMILIES)


@dataclass(frozen=True)
class Family:
    """One family's file, as data.

    ignored(cfg, names on disk): patterns of the names that carry nothing.  copies: {name on disk: the name whose tensor it repeats}.
    settled(cfg, names on disk): the config, once it is known what is stored.  written(hf): the config.json of what is saved.
    summed: parts to which transformers' module adds the residual.  within: the family of the text model that alone is read.
    """

    name: str
    read: Callable[[Fields], Config]
    rules: Callable[[Config], tuple[Rule, ...]]
    ignored: Callable[[Config, Container[str]], tuple[str, ...]]
    copies: Mapping[str, str]
    respell: Callable[[str], str]
    settled: Callable[[Config, Container[str]], Config]
    summed: tuple[str, ...]
    architecture: str | None
    written: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    within: str | None

    def unused(self, cfg: Config, names: Iterable[str]) -> set[str]:
        """Those of these names on disk that carry nothing for this model."""
        held = set(names)
        patterns = [re.compile(p) for p in self.ignored(cfg, held)]
        return {n for n in held if any(p.fullmatch(n) for p in patterns)}


def family(model_type: str) -> Family:
    """The family of a model_type."""
    module: Any = importlib.import_module(f"{__name__}.{model_type.replace('-', '_')}")
    rules = getattr(module, "rules", None) or (lambda _: module.RULES)
    ignored = getattr(module, "ignored", None) or (lambda *_: getattr(module, "IGNORED", ()))
    copies, respell = getattr(module, "COPIES", {}), getattr(module, "respell", str)
    settled, summed = getattr(module, "settled", lambda cfg, _: cfg), getattr(module, "SUMMED", ())
    named, written, within = getattr(module, "ARCHITECTURE", None), getattr(module, "written", dict), getattr(module, "WITHIN", None)
    return Family(
        model_type, module.config, rules, ignored, copies, lambda name: respell(modern(name)), settled, summed, named, written, within
    )


def unpublished(name: str, cfg: Config) -> Family:
    """The family of a model that was described in a paper alone: no folder has it, and nothing of it has a name on disk."""
    return Family(name, lambda _: cfg, lambda _: (), lambda *_: (), {}, str, lambda cfg, _: cfg, (), None, dict, None)


def modern(name: str) -> str:
    """A norm's gamma and beta, as TensorFlow had them, by the names that torch gives them."""
    return re.sub(r"\.(gamma|beta)$", lambda end: {"gamma": ".weight", "beta": ".bias"}[end[1]], name)


def understand(values: Mapping[str, Any], file: str = "config.json", ignore: Iterable[str] = ()) -> tuple[Family, Config]:
    """A config.json's family and Config; every field is read, known to be harmless, or refused by name.

    Special token ids outside the vocabulary are dropped, and one warning names them.
    """
    kind = values.get("model_type")
    if kind not in known():
        raise ConfigError("config.family", file=file, found=repr(kind), allowed=All(known()))
    found, hf = family(str(kind)), Fields(values, file, ignore)
    cfg = found.read(hf)
    named = [(name, i) for name in SPECIAL for i in hf.ids(name) if (name, i) != NO_PADDING]
    if beyond := [f"{name} = {i}" for name, i in named if not 0 <= i < cfg.vocab]:
        warnings.warn(say("config.ids", file=file, found=", ".join(beyond), last=cfg.vocab - 1), stacklevel=2)
    stops = tuple(i for i in hf.ids("eos_token_id") if 0 <= i < cfg.vocab)
    quantised(hf)
    return found, replace(cfg, ignored=hf.finish(cfg), stops=stops)
