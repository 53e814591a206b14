"""The families: one file each, named after its model_type and ended by its literal `FAMILY` (families/family.py)."""

import importlib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pellucid.config import Config
from pellucid.errors import ConfigError, nearest
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.quantisation import quantised
from pellucid.messages import All, say

NOT_FAMILIES = {
    *(
        "__init__",
        "acts",
        "agreeing",
        "aliases",
        "encoder_fields",
        "family",
        "fields",
        "gemma4_fields",
        "modules",
        "multimodal",
        "names",
        "quantisation",
        "rope",
        "mamba_fields",
        "moe_fields",
        "part_layers",
    ),
}
DASHED = {
    "blenderbot_small": "blenderbot-small",
    "data2vec_text": "data2vec-text",
    "gpt_sw3": "gpt-sw3",
    "megatron_bert": "megatron-bert",
    "modernbert_decoder": "modernbert-decoder",
    "openai_gpt": "openai-gpt",
    "roberta_prelayernorm": "roberta-prelayernorm",
    "xlm_roberta": "xlm-roberta",
    "xlm_roberta_xl": "xlm-roberta-xl",
}  # {file: model type}, where a Python file cannot be named after its model type
NO_PADDING = ("pad_token_id", -1)  # how the first conversions of LLaMA say that there is none
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def known() -> list[str]:
    """Return the model types that have a file here."""
    return list(types_in(tuple(__path__)))


@cache
def types_in(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return the model types that have a file in one of these folders, sorted."""
    names = (DASHED.get(p.stem, p.stem) for folder in folders for p in Path(folder).glob("*.py") if p.stem not in NOT_FAMILIES)
    return tuple(sorted(names))


def family(model_type: str) -> Family:
    """Return the family of a model_type. AttributeError or TypeError, naming the file, if it has no literal `FAMILY`."""
    module: Any = importlib.import_module(f"{__name__}.{model_type.replace('-', '_')}")
    literal = module.FAMILY
    if not isinstance(literal, Family):
        raise TypeError(f"{module.__file__}: FAMILY: {type(literal).__name__}")
    return replace(literal, name=model_type)


def unpublished(name: str, cfg: Config) -> Family:
    """Return the family of a model known from a paper alone: it has no config.json, and its tensors have no names on disk."""
    return Family(config=lambda _: cfg, rules=(), name=name)


def understand(values: Mapping[str, Any], file: str = "config.json", ignore: Iterable[str] = ()) -> tuple[Family, Config]:
    """Return a config.json's family and Config; every field is read, known to be harmless, or refused by name.

    Special token ids outside the vocabulary are dropped, and one warning names them.
    """
    kind = values.get("model_type")
    if kind not in known():
        raise ConfigError("config.family", file=file, found=repr(kind), near=nearest(str(kind), known()), allowed=All(known()))
    of_type, hf = family(str(kind)), Fields(values, file, ignore)
    cfg = of_type.config(hf)
    named = [(name, i) for name in SPECIAL for i in hf.ids(name) if (name, i) != NO_PADDING]
    if beyond := [f"{name} = {i}" for name, i in named if not 0 <= i < cfg.vocab]:
        warnings.warn(say("config.ids", file=file, found=", ".join(beyond), last=cfg.vocab - 1), stacklevel=2)
    stops = tuple(i for i in hf.ids("eos_token_id") if 0 <= i < cfg.vocab)
    quantised(hf)
    return of_type, replace(cfg, ignored=hf.finish(cfg), stops=stops)
