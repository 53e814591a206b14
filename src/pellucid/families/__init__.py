"""One file a family: how its config.json becomes a Config, and how its checkpoint's names become ours.

A family is a module of this package named after its model_type, with `config(hf)` and `RULES` (or `rules(cfg)`), and where needed
`IGNORED` (patterns of names on disk that carry nothing), `respell(name)` for old spellings, and `TIED_BY_PRESENCE`.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pellucid.config import Config
from pellucid.errors import ConfigError
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

NOT_FAMILIES = {"__init__", "acts", "fields", "names", "rope"}


def known() -> list[str]:
    """The model types that have a file here."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in NOT_FAMILIES)


@dataclass(frozen=True)
class Family:
    """One family's file, as data."""

    name: str
    read: Callable[[Fields], Config]
    rules: Callable[[Config], tuple[Rule, ...]]
    ignored: tuple[re.Pattern[str], ...]
    respell: Callable[[str], str]
    tied_by_presence: bool

    def ignores(self, name: str) -> bool:
        return any(p.fullmatch(name) for p in self.ignored)


def family(model_type: str) -> Family:
    """The family of a model_type."""
    module: Any = importlib.import_module(f"{__name__}.{model_type}")
    rules = getattr(module, "rules", None) or (lambda _: module.RULES)
    ignored = tuple(re.compile(p) for p in getattr(module, "IGNORED", ()))
    tied_by_presence = getattr(module, "TIED_BY_PRESENCE", False)
    return Family(model_type, module.config, rules, ignored, getattr(module, "respell", str), tied_by_presence)


def understand(values: Mapping[str, Any], file: str = "config.json", ignore: Iterable[str] = ()) -> tuple[Family, Config]:
    """A config.json's family and Config; every field is read, known to be harmless, or refused by name."""
    kind = values.get("model_type")
    if kind not in known():
        raise ConfigError("config.family", file=file, found=repr(kind), allowed=", ".join(known()))
    found, hf = family(str(kind)), Fields(values, file, ignore)
    cfg = found.read(hf)
    stops = tuple(i for i in hf.ids("eos_token_id") if i < cfg.vocab)
    return found, replace(cfg, ignored=hf.finish(), stops=stops)
