"""`count`: the bill of a model by its name, its folder, its hub id, or a bare config.json; weights are never read.

bill = count("deepseek-v3", context=131072, batch=8, device="h200")
bill["cache.bytes_per_token"].formula
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pellucid import catalog
from pellucid.checkpoint.hub import fetch_config, is_hub_id
from pellucid.checkpoint.json_file import read_object
from pellucid.config import Config
from pellucid.counting import Bill, Setting, counted
from pellucid.counting.bill import BYTES
from pellucid.errors import ConfigError, UseError
from pellucid.families import understand

MOST = 2**40  # tokens, requests


def count(
    name: str | Path,
    context: int | None = None,
    batch: int = 1,
    dtype: str = "bfloat16",
    cache: str | None = None,
    device: str | None = None,
    source: int | None = None,
    fields: Mapping[str, Any] | None = None,
    ignore_fields: Iterable[str] = (),
) -> Bill:
    """Every parameter, byte and FLOP of a model.

    name: of the catalogue, a folder, a hub id, or a config.json.  context: tokens read before a decode step, by default 4096 or what the
    model reaches.  cache: dtype of the past, as the weights' where None.  source: tokens that an encoder reads.  device: a name of the
    catalogue.  fields: config.json's, put in place of its own.
    """
    for what, held in (("dtype", dtype), ("cache", cache or "bfloat16")):
        if held not in BYTES:
            raise UseError("count.dtype", name=what, found=held, allowed=", ".join(BYTES))
    family, cfg = described(name, fields or {}, ignore_fields)
    most = cfg.positions or MOST
    context = min(4096, most, cfg.context or most) if context is None else context
    if type(context) is not int or not 1 <= context <= most:
        raise UseError("count.number", name="context", found=context, most=most)
    if type(batch) is not int or not 1 <= batch <= MOST:
        raise UseError("count.number", name="batch", found=batch, most=MOST)
    if device is not None and catalog.find(catalog.devices(), device) is None:
        near = catalog.nearest(catalog.devices(), device) or list(catalog.devices())
        raise UseError("count.device", found=device, known=", ".join(near))
    held = dtype if dtype in ("float32", "float64", "float16") else "bfloat16"
    setting = Setting(context, batch, source, dtype, cache or held, held, device)
    return counted(cfg, str(name), family, setting)


def described(name: str | Path, fields: Mapping[str, Any], ignore: Iterable[str] = ()) -> tuple[str, Config]:
    """The family and the config of a name."""
    values, file = config_of(name)
    if unknown := [f for f in fields if f.split(".")[0] not in values]:
        raise UseError(
            "count.field", found=unknown[0], known=", ".join(catalog.nearest({f: {} for f in values}, unknown[0])) or ", ".join(values)
        )
    kind, cfg = understand({**values, **fields}, file, ignore)
    return kind.name, cfg


def config_of(name: str | Path) -> tuple[dict[str, Any], str]:
    """A name's config.json, and what errors call it."""
    text = str(name)
    path = Path(text)
    entry = None if path.exists() else catalog.find(catalog.models(), text)
    if entry is not None:
        if "config" not in entry:
            raise UseError("count.undisclosed", name=entry["name"])
        return entry["config"], f"catalogue: {entry['id']}"
    if path.is_dir():
        path = path / "config.json"
    elif not path.is_file():
        if text.startswith("pellucid/"):
            from pellucid.model import place

            path = place(text) / "config.json"
        elif is_hub_id(text):
            path = fetch_config(text)
        else:
            raise UseError("count.unknown", name=text, near=", ".join(catalog.nearest(catalog.models(), text)) or "-")
    return read_object(path, error=ConfigError), str(path)
