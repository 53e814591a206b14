"""`count`: the bill of a model by name, folder, hub id or config.json; it reads no weights.

bill = count("deepseek-v3", context=131072, batch=8, device="h200")
bill["cache.bytes_per_token"].formula
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pellucid import catalog, families
from pellucid.arguments import checked
from pellucid.bench import last_measured
from pellucid.catalog.literal import literal
from pellucid.checkpoint.default_dtype import SHORT, name_of
from pellucid.checkpoint.disk import inside
from pellucid.checkpoint.folder import Folder, refuse_file, unconfigured
from pellucid.checkpoint.gguf.gguf_folder import GgufFolder, folder_of, gguf_of
from pellucid.checkpoint.hub import fetch_config, is_hub_id
from pellucid.checkpoint.json_file import read_config
from pellucid.checkpoint.tied import resolve
from pellucid.config import Config
from pellucid.counting import Bill, Setting, counted
from pellucid.counting.bill import BYTES
from pellucid.counting.formats import DTYPES
from pellucid.counting.published import entry_of
from pellucid.counting.variants import with_attention, with_experts
from pellucid.errors import CheckpointError, ConfigError, UseError
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.quantisation import FIELD as QUANTISED
from pellucid.families.quantisation import InBlocks, quantised
from pellucid.messages import say
from pellucid.nn.multi_token import MultiTokenPrediction
from pellucid.ops import format_for

if TYPE_CHECKING:
    from pellucid.api.model import Model

PLAIN = ("float32", "float64", "float16")
MOST = 2**40  # tokens, requests
EMPTY: Mapping[str, Any] = {}
# Our words for what config.json calls by one of these names.
OURS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"), "width": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads"), "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "vocab": ("vocab_size",), "window": ("sliding_window",), "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
}  # fmt: skip


@checked
def count(
    name: "str | Path | Model",
    context: int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    cache: str | None = None,
    device: str | None = None,
    source: int | None = None,
    fields: Mapping[str, Any] | None = None,
    attn: str | None = None,
    experts: str | None = None,
    ignore_fields: Iterable[str] = (),
    known: tuple[str, Config] | None = None,
    assume: str | None = None,
    kv: str | None = None,
) -> Bill:
    """Count every parameter, byte and FLOP of a model, each with its formula.

    name: of the catalogue, a folder, a hub id, or a config.json; or a loaded model, with the dtype that it has.
    context: tokens read before a decode step, by default 4096 or the model's most.  dtype: of the weights, by default the one that a
    folder is stored in, else bfloat16.  cache: the dtype of the KV cache, by default the weights'.  source: tokens that an encoder
    reads.  device: a name of the catalogue.  fields: replace those of config.json.  attn: another kind of attention, "mha", "mqa",
    "gqa:G" or "mla:C".  experts: "N:A", N experts of which A are chosen.
    known: the family and the config of the name, if the caller has them.  assume: a model type whose mathematics is taken for that of a
    config.json of another or an unknown one; what it does not read is left aside, and a note names it.
    kv: "int8" counts keys and values as an engine with kv="int8" holds them, the scales in the dtype `cache`.
    """
    own = None
    if not isinstance(name, str | Path):
        if not hasattr(name, "module"):
            raise UseError("count.unknown", name=name, near="-")
        if fields or assume is not None:
            raise UseError("count.loaded", name=name.name)
        plain = name_of(name.dtype)
        own, known, name = (name.quant or plain, plain), (name.family.name, name.config), name.name
    stored = None if dtype is not None else own or in_folder(name, ignore_fields)
    dtype = (dtype or (stored[0] if stored else "bfloat16")).lower()  # files are named Q4_K_M
    dtype, cache = SHORT.get(dtype, dtype), SHORT.get(cache or "", cache)
    for what, given, allowed in (("dtype", dtype, DTYPES), ("cache", cache or "bfloat16", BYTES)):
        if given not in allowed:
            raise UseError("count.dtype", name=what, found=given, allowed=", ".join(allowed))
    notes: list[str] = []
    if assume is not None:
        family, cfg, left = assumed(name, fields or EMPTY, assume)
        notes.append(say("count.note.assumed", kind=assume, fields=", ".join(left) or "-"))
    else:
        family, cfg = described(name, fields or EMPTY, ignore_fields) if known is None else known
        notes += of_another_form(name, ignore_fields, dtype)
        notes += ahead(name, cfg) if known is None else ()
    if attn is not None:
        cfg = with_attention(cfg, attn)
        mla = any(one.attn.kind == "MLA" for one in cfg.layers)
        notes.append(say("count.note.mla", asked=attn) if mla else say("count.note.attn", asked=attn))
    if experts is not None:
        cfg = with_experts(cfg, experts)
        notes.append(say("count.note.experts", asked=experts))
    plain = stored[1] if stored else dtype if dtype in PLAIN else "bfloat16"
    format_for(cfg, kv)
    return billed(cfg, family, str(name), context, batch, dtype, cache or plain, device, source, plain, notes, kv)


def billed(
    cfg: Config,
    family: str,
    name: str,
    context: int | None = None,
    batch: int = 1,
    dtype: str = "bfloat16",
    cache: str = "bfloat16",
    device: str | None = None,
    source: int | None = None,
    plain: str = "bfloat16",
    notes: Iterable[str] = (),
    kv: str | None = None,
) -> Bill:
    """Return the bill of a config; see `count`. plain: the dtype of what a block format leaves plain.  notes: what was replaced."""
    inner = families.family(family).inner_type(cfg) if family in families.known() else None  # a model of the catalogue may have no family
    most = cfg.positions or MOST
    context = min(4096, most, cfg.context or most) if context is None else context
    for what, given, limit in (("context", context, most), ("batch", batch, MOST), ("source", 1 if source is None else source, most)):
        if type(given) is not int or not 1 <= given <= limit:
            raise UseError("count.number", name=what, found=given, most=limit)
    if device is not None:
        last_measured.known_device(device)
    setting = Setting(context, batch, source, dtype, cache, plain, device, kv)
    try:
        bill = counted(cfg, name, family, setting)
    except RuntimeError as wrong:  # a tensor of more numbers than 64 bits count
        raise UseError("count.large", context=context, batch=batch) from wrong
    if cfg.context is not None and context > cfg.context:
        bill.notes.append(say("count.note.beyond", most=f"{cfg.context:,}"))
    bill.notes += [say("count.note.within", kind=inner)] if inner else []
    bill.notes += [*notes, *([say("count.note.ignored", fields=", ".join(cfg.ignored))] if cfg.ignored else [])]
    return bill


def in_folder(name: str | Path, ignore: Iterable[str]) -> tuple[str, str] | None:
    """Return (format, plain dtype) of a folder in our own blocks, or (dtype, dtype) as a folder of plain weights names it; else None."""
    if not Path(name).exists():
        return None
    if (gguf := gguf_of(Path(name))) is not None:
        form = GgufFolder(gguf, ignore).form
        return None if form is None else (form, "bfloat16")
    values, file = config_of(name)
    method = quantised(Fields(values, file, ignore))
    dtype = values.get("dtype", values.get("torch_dtype"))
    if isinstance(method, InBlocks):
        return method.form, dtype if dtype in PLAIN else "bfloat16"
    return (dtype, dtype) if method is None and dtype in PLAIN and Path(name).is_dir() else None


def of_another_form(name: str | Path, ignore: Iterable[str], dtype: str) -> Iterator[str]:
    """Yield the note of a folder whose weights lie in a form that is read as plain numbers: its name, and its bytes on disk."""
    if not Path(name).is_dir() or gguf_of(Path(name)) is not None:
        return
    folder = Folder(name, ignore)
    if folder.method is None or isinstance(folder.method, InBlocks):
        return
    method = folder.config[QUANTISED]["quant_method"]
    try:
        yield say("count.note.form", form=method, bytes=f"{folder.bytes:,}", dtype=dtype)
    except CheckpointError:  # weights that are not here, or not all of them, are counted as well
        yield say("count.note.form.alone", form=method, dtype=dtype)


def described(name: str | Path, fields: Mapping[str, Any] = EMPTY, ignore: Iterable[str] = ()) -> tuple[str, Config]:
    """Return the family's name and the config of a model's name."""
    entry = entry_of(name)
    if entry is not None and "statements" in entry:
        raise UseError("count.undisclosed", name=entry["name"])
    if entry is not None and "literal" in entry:
        return entry["family"], literal({**entry["literal"], **fields}, f"catalogue: {entry['id']}")
    values, file = values_of(name, ignore)
    kind, cfg = families.understand(put(values, fields), file, ignore)
    return kind.name, cfg if fields else completed(kind, cfg, Path(name), ignore)


def completed(kind: Family, cfg: Config, path: Path, ignore: Iterable[str]) -> Config:
    """Return a config, completed as `load` does from the names of the tensors in a folder or file, if these are here."""
    if not path.exists() or path.suffix == ".json":
        return cfg
    try:
        folder = folder_of(path, ignore)
        return resolve(folder.family(kind), cfg, folder)
    except CheckpointError:  # config.json alone is counted as well
        return cfg


def assumed(name: str | Path, fields: Mapping[str, Any], kind: str) -> tuple[str, Config, list[str]]:
    """Return the family and the config that `kind` makes of a config.json, and the names of the fields that it does not read."""
    if kind not in families.known():
        raise UseError("count.assume", found=kind, near=", ".join(catalog.nearest(families.known(), kind)) or "llama")
    values, file = values_of(name)
    hf = Fields({**put(values, fields), "model_type": kind}, file)
    cfg = families.family(kind).config(hf)
    left = [part.prefix + name for part in (hf, *hf.inner()) for name, _ in part.unread(cfg)]
    return kind, cfg, left


def ahead(name: str | Path, cfg: Config) -> Iterator[str]:
    """Yield the note of modules that predict a token further ahead, behind the last layer: they are another model, and are not counted."""
    entry = entry_of(name)
    modules = None if entry is not None and "config" not in entry else values_of(name)[0].get("num_nextn_predict_layers")
    if isinstance(modules, int) and 0 < modules < 100 and cfg.encoder is None:
        with torch.device("meta"):
            each = sum(p.numel() for p in MultiTokenPrediction(cfg).parameters())
        yield say("count.note.ahead", modules=modules, parameters=f"{modules * each:,}")


def values_of(name: str | Path, ignore: Iterable[str] = ()) -> tuple[Mapping[str, Any], str]:
    """Return the config.json of a name, the catalogue's where it has one, and the file that errors name."""
    entry = entry_of(name)
    return (entry["config"], f"catalogue: {entry['id']}") if entry is not None and "config" in entry else config_of(name, ignore)


def put(values: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json with `fields` in place of its own; "text_config.hidden_size" is a nested one."""
    out = dict(values)
    for name, value in fields.items():
        *parts, last = name.split(".")
        part = out
        for p in parts:
            inner = part.get(p)
            part[p] = part = dict(inner) if isinstance(inner, Mapping) else {}
        last = next((spelled for spelled in OURS.get(last, ()) if spelled in part), last)
        if last not in part:
            near = catalog.nearest(named(values), name) or values
            raise UseError("count.field", found=name, near=", ".join(near) or "-")
        part[last] = value
    return out


def named(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of a config.json's fields, nested ones after their object."""
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, Mapping):
            yield from named(value, f"{prefix}{name}.")


def config_of(name: str | Path, ignore: Iterable[str] = ()) -> tuple[dict[str, Any], str]:
    """Return the config.json of a name, and the file's name for errors."""
    text = str(name)
    path = Path(text)
    if path.exists() and (file := gguf_of(path)) is not None:
        gguf = GgufFolder(file, ignore)
        return gguf.config, gguf.file
    if path.is_dir():
        if not (path / "config.json").exists():
            raise unconfigured(path)
        path = inside(path, "config.json", ConfigError)
    elif not path.is_file():
        refuse_file(text)
        if text.startswith("pellucid/"):
            from pellucid.api.model import place

            path = place(text) / "config.json"
        elif is_hub_id(text):
            path = fetch_config(text)
        else:
            raise UseError("count.unknown", name=text, near=", ".join(catalog.nearest(catalog.models(), text)) or "-")
    return read_config(path), str(path)
