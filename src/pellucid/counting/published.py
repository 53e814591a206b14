"""Models of the catalogue by name: their configuration is known and their weights are not here, so they run on meta only."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from pellucid import catalog, families
from pellucid.catalog.literal import literal
from pellucid.counting.meta_run import meta_model
from pellucid.errors import UseError
from pellucid.families.family import Family
from pellucid.nn.transformer import Decoder, EncoderDecoder


def entry_of(name: str | Path) -> catalog.Entry | None:
    """Return the catalogue's entry of a name, None if it is a file or folder or unknown."""
    return None if Path(name).exists() else catalog.find(catalog.models(), str(name))


def published(
    name: str | Path, dtype: torch.dtype, device: str, ignore: Iterable[str] = ()
) -> tuple[Decoder | EncoderDecoder, Family, Mapping[str, Any]] | None:
    """Return the module on meta, the family and the config.json of a catalogue's name; None if it is not in the catalogue.

    An error where its makers disclosed nothing, and on any device that holds numbers.
    """
    if (entry := entry_of(name)) is None:
        return None
    if "statements" in entry:
        raise UseError("count.undisclosed", name=entry["name"])
    if device != "meta":
        raise UseError("published.weights", name=name)
    file = f"catalogue: {entry['id']}"
    if "literal" in entry:
        cfg = literal(entry["literal"], file)
        return meta_model(cfg, dtype), families.unpublished(entry["family"], cfg), {}
    kind, cfg = families.understand(entry["config"], file, ignore)
    return meta_model(cfg, dtype), kind, entry["config"]
