"""A tied head on disk: one tensor under one name, under both names, or two different tensors although config.json says tied.

model.embed_tokens.weight               as transformers writes it
lm_head.weight                          as safetensors.torch.save_model does, which keeps the first name by the alphabet
both, of equal values                   as old files have it;  of different values: an error that names the way out
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pellucid.checkpoint.folder import Folder
from pellucid.checkpoint.gguf.gguf_folder import GgufFolder
from pellucid.config import Config
from pellucid.families.family import Family

FIELD = "tie_word_embeddings"


def copies(cfg: Config, family: Family) -> dict[str, str]:
    """Return {name on disk: the name whose tensor it repeats}; a tied head repeats the embedding."""
    named = {n.replace("*", "weight"): r.disk.replace("*", "weight") for r in family.rules_for(cfg) for n in r.names}
    return {**family.copies, **({named["head.weight"]: named["embed.weight"]} if cfg.tied else {})}


def borrowed(cfg: Config, family: Family, names: Iterable[str]) -> dict[str, str]:
    """Return {a name that is not stored: a copy of it that is}, among `names` on disk."""
    stored = set(names)
    return {first: copy for copy, first in copies(cfg, family).items() if first not in stored and copy in stored}


def resolve(family: Family, cfg: Config, folder: Folder | GgufFolder) -> Config:
    """Return `cfg`, completed from the names of the folder's tensors where config.json leaves open whether there is a head, or a tied one.

    A tied head that is stored beside the embedding is untied if the folder ignores `tie_word_embeddings`.
    """
    names = {family.canonical(name) for name in folder.names()}
    cfg = family.resolve(cfg, names)
    both = cfg.tied and {*copies(cfg, family)} - {*family.copies} <= names and not borrowed(cfg, family, names)
    return replace(cfg, tied=False, ignored=tuple(dict.fromkeys((*cfg.ignored, FIELD)))) if both and FIELD in folder.ignore else cfg


def saved_config(hf: Mapping[str, Any], cfg: Config, family: Family) -> Mapping[str, Any]:
    """Return the config.json that describes the model as it was read: untied if its head was untied on reading.

    A text model within another says whether its head is tied: where the whole leaves it out, the two types mean different things.
    """
    untied = FIELD in cfg.ignored and not cfg.tied
    return {**hf, FIELD: cfg.tied} if untied or family.text_model else hf
