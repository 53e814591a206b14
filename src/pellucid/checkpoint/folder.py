"""A Hugging Face folder: config.json, its weights as safetensors in one file or in shards, and the files that travel with them.

Only safetensors are read; a folder with nothing but pickled weights is refused and the pickles are never opened.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoint.dequantise import dequantised
from pellucid.checkpoint.disk import Stamp, inside, read_marked, reason, regular, replacing, stamp
from pellucid.checkpoint.json_file import TABLE_BYTES, name_of, read_config, read_object
from pellucid.checkpoint.packing import Packing, Stored, check_quant
from pellucid.checkpoint.quantised_tensor import Quantised
from pellucid.checkpoint.safetensors_file import Entry, read_header, write
from pellucid.config import Config
from pellucid.errors import CheckpointError, ConfigError, UseError
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.quantisation import FIELD, InBlocks, Method, quantised
from pellucid.tokenizer.chat_template import LEGACY_FILE, TEMPLATE_FILE, named_files
from pellucid.tokenizer.tokenizer import Tokenizer, load_tokenizer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"
TRACE = "index.jsonl"  # of a folder with a recorded run, which is no model's
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
SHARD_BYTES = 50_000_000_000
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    TEMPLATE_FILE,
    LEGACY_FILE,
)
GGUF = ".gguf"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt", "*.h5", "*.gguf", "*.msgpack", "*.npy", "*.npz")
_SHOWN = 10  # names listed in an error
Contents = dict[str, bytes]  # of files, by their names within a folder
NONE: Mapping[str, bytes] = MappingProxyType({})


class Folder:
    """A checkpoint folder; each part is read at its first use.

    entries: the tensors by name, a quantised one as the plain tensor that it stands for. model.safetensors wins over an index, as in
    transformers.  ignore: fields of config.json to ignore.
    """

    def __init__(self, path: str | Path, ignore: Iterable[str] = ()) -> None:
        self.path, self.ignore = Path(path), tuple(ignore)
        if not self.path.is_dir():
            raise CheckpointError("folder.missing", folder=path)

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json."""
        if not self.has("config.json"):
            raise unconfigured(self.path)
        return read_config(inside(self.path, "config.json", ConfigError))

    @property
    def file(self) -> str:
        """The name of config.json in errors."""
        return str(self.path / "config.json")

    def family(self, kind: Family) -> Family:
        """Return the family whose table has the names of this folder's tensors: its own."""
        return kind

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """generation_config.json, {} if there is none."""
        return read_object(inside(self.path, "generation_config.json", ConfigError)) if self.has("generation_config.json") else {}

    @cached_property
    def method(self) -> Method | None:
        """The quantisation method of the weights, None if they are plain."""
        config = self.config if self.has("config.json") else {}
        return quantised(Fields(config, str(self.path / "config.json"), self.ignore))

    @cached_property
    def entries(self) -> Mapping[str, Entry | Quantised | Stored]:
        """Every tensor by name: its dtype, shape and shard."""
        return dequantised(self._stored(), self.method)

    @property
    def stored(self) -> torch.dtype:
        """The dtype of the weights; of several the narrowest floating-point one. If all lie in blocks, that which config.json says."""
        dtypes, floats = {e.dtype for e in self.entries.values()}, (torch.bfloat16, torch.float16, torch.float32, torch.float64)
        named = {str(d).removeprefix("torch."): d for d in floats}.get(str(self.config.get("dtype")), torch.float32)
        return next((d for d in floats if d in dtypes), named)

    @property
    def formats(self) -> str:
        """The format of quantised weights: ours, or the method by its name in config.json; "" if they are plain."""
        if isinstance(self.method, InBlocks):
            return self.method.form
        return "" if self.method is None else str(self.config[FIELD].get("quant_method"))

    def packing(self, form: str | None, dtype: torch.dtype, cfg: Config) -> Packing | None:
        """Return how to store the matrices of a `cfg` in memory: in the folder's own blocks, or in `form`; None for plain.

        dtype: what they compute in.
        """
        check_quant(form)
        if isinstance(self.method, InBlocks):
            if form not in (None, self.method.form):
                raise UseError("model.quantised", folder=self.path, held=self.method.form, found=form)
            return Packing(self.method.form, dtype, {n: e for n, e in self.entries.items() if isinstance(e, Stored)})
        return None if form is None else Packing(form, dtype)

    def _stored(self) -> dict[str, Entry]:
        """Return every tensor as it is on disk."""
        if self.has(WEIGHTS):
            return read_header(inside(self.path, WEIGHTS))
        if self.has(INDEX):
            return self._shards()
        raise weightless(self.path, (file.name for file in self.path.iterdir()))

    @property
    def bytes(self) -> int:
        """Bytes of all tensors on disk."""
        return sum(entry.bytes for entry in self.entries.values())

    def names(self) -> list[str]:
        """Return the tensors' names on disk."""
        return list(self.entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return one tensor's shape by its name on disk."""
        return self._entry(name).shape

    def dtype(self, name: str) -> torch.dtype:
        """Return one tensor's dtype by its name on disk."""
        return self._entry(name).dtype

    def has(self, name: str) -> bool:
        """True if the folder has an entry of this name, even a broken link."""
        return os.path.lexists(self.path / name)

    def read(self, name: str, into: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return one tensor by its name on disk; see `read_tensor`. dtype: of a quantised tensor, where `into` is None."""
        entry = self._entry(name)
        return entry.read(into) if isinstance(entry, Entry) else entry.read(into, dtype)

    def tokenizer(self, rows: int | None = None) -> Tokenizer | None:
        """Return the tokenizer, None if the folder has none; ids must be below `rows`."""
        return load_tokenizer(self.path, rows)

    def tokenizer_files(self) -> list[Path]:
        """Return the files of the tokenizer and its chat templates, each checked by `inside`."""
        return [inside(self.path, name) for name in TOKENIZER_FILES if self.has(name)] + named_files(self.path)

    @contextmanager
    def carried(self) -> Iterator[Contents]:
        """Yield the contents of those files by name, while the tokenizer is made of them.

        A CheckpointError if a file changes meanwhile, so that what is saved later is what was loaded.
        """
        contents, stamps = Contents(), dict[Path, Stamp]()
        for path in self.tokenizer_files():
            contents[path.relative_to(self.path).as_posix()], stamps[path] = read_marked(path, TABLE_BYTES)
        yield contents
        for path, mark in stamps.items():
            with regular(path) as fd:
                if stamp(fd) != mark:
                    raise CheckpointError("file.changed", file=path)

    def _entry(self, name: str) -> Entry | Quantised | Stored:
        entry = self.entries.get(name)
        if entry is None:
            raise CheckpointError("folder.tensor", folder=self.path, name=name)
        return entry

    def _shards(self) -> dict[str, Entry]:
        index = inside(self.path, INDEX)
        table = read_object(index, TABLE_BYTES, CheckpointError).get("weight_map")
        if not isinstance(table, dict):
            raise CheckpointError("index.map", file=index, found=name_of(table))
        for name, shard in table.items():
            if not isinstance(shard, str) or not shard.endswith(".safetensors"):
                raise CheckpointError("index.shard", file=index, name=name, found=shard)
        shards = sorted(set(table.values()))
        gone = [shard for shard in shards if inside(self.path, shard) and not self.has(shard)]
        if gone:
            raise CheckpointError("index.gone", file=index, count=len(gone), names=_some(gone))
        extra_files = sorted({file.name for file in self.path.glob(SHARDS)} - set(shards))
        if extra_files:
            raise CheckpointError("index.unlisted", file=index, count=len(extra_files), names=_some(extra_files))
        entries: dict[str, Entry] = {}
        for shard in shards:
            header = read_header(inside(self.path, shard))
            if twice := sorted(header.keys() & entries.keys()):
                raise CheckpointError("index.twice", name=twice[0], left=entries[twice[0]].file.name, right=shard, folder=self.path)
            if extra := sorted(name for name in header if table.get(name) != shard):
                raise CheckpointError("index.extra", file=index, shard=shard, count=len(extra), names=_some(extra))
            entries |= header
        if missing := sorted(table.keys() - entries.keys()):
            raise CheckpointError("index.absent", file=index, count=len(missing), names=_some(missing))
        return entries


def bare(path: Path) -> bool:
    """True if a folder has a config.json and no weights of any kind."""
    names = [file.name for file in path.iterdir()] if path.is_dir() else []
    return "config.json" in names and not any(fnmatch(n, p) for n in names for p in ("*.safetensors", INDEX, *_PICKLED))


def weightless(folder: object, names: Iterable[str]) -> CheckpointError:
    """Return the error for a folder without readable weights; it lists pickles, GGUF files or safetensors of other names, if there are."""
    names = [*names]
    if {*ADAPTER} <= {*names}:
        return CheckpointError("folder.adapter.alone", folder=folder, found=ADAPTER[1])
    if shards := sorted(n for n in names if fnmatch(n, SHARDS)):
        return CheckpointError("folder.unindexed", folder=folder, found=_some(shards), index=INDEX)
    if renamed := sorted(n for n in names if n.endswith(".safetensors")):
        return CheckpointError("folder.renamed", folder=folder, found=_some(renamed))
    if others := sorted(n for n in names if any(fnmatch(n, pattern) for pattern in _PICKLED)):
        if all(n.endswith(GGUF) for n in others):
            return CheckpointError("folder.gguf", folder=folder, found=_some(others))
        return CheckpointError("folder.pickled", folder=folder, found=_some(others))
    return CheckpointError("folder.weightless", folder=folder)


def unconfigured(folder: Path) -> ConfigError:
    """Return the error for a folder without config.json: it may be an adapter's or a trace, or have folders of models within."""
    if (folder / ADAPTER[0]).is_file():
        return ConfigError("folder.adapter", folder=folder, found=ADAPTER[0])
    if models := sorted(str(file.parent) for pattern in ("*", "snapshots/*") for file in folder.glob(f"{pattern}/config.json")):
        return ConfigError("folder.within", folder=folder, found=_some(models))
    if adapters := sorted(str(file.parent) for file in folder.glob(f"*/{ADAPTER[0]}")):  # of a run that trained one
        return ConfigError("folder.adapter.within", folder=folder, found=_some(adapters))
    if (folder / TRACE).is_file():
        return ConfigError("folder.trace", folder=folder)
    return ConfigError("file.missing", file=folder / "config.json")


def refuse_file(name: str) -> None:
    """Raise a UseError that says what is read instead, if a model's name is that of a file."""
    if name.endswith(GGUF):
        raise UseError("file.missing", file=name)
    if Path(name).is_file():
        raise UseError("model.file", name=name)


def save_folder(
    path: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    generation_config: Mapping[str, Any] | None = None,
    copies: Mapping[str, bytes] = NONE,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> None:
    """Write a folder that `Folder` and transformers read: config.json, model.safetensors or shards and their index, and `copies`.

    copies: contents of further files by name.

    Weights come first and config.json last, each file completely or not at all. A folder with weights is refused unless `overwrite`; then
    its old index is removed first and its other weights last, so that a crash cannot leave old and new shards that look like one model.
    """
    if any(t.is_meta for t in tensors.values()):
        raise UseError("model.meta")
    path = Path(path)
    old = {file.name for pattern in (WEIGHTS, INDEX, SHARDS) for file in path.glob(pattern)}
    if old and not overwrite:
        raise CheckpointError("folder.holds", folder=path, found=_some(sorted(old)))
    texts = {"config.json": _text(config, path / "config.json")}
    if generation_config:
        texts = {"generation_config.json": _text(generation_config, path / "generation_config.json")} | texts
    groups = _groups(tensors, shard_bytes)
    names = [WEIGHTS] if len(groups) == 1 else [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / INDEX).unlink(missing_ok=True)
        for name, group in zip(names, groups, strict=True):
            write(path / name, group)
        if len(groups) > 1:
            shards = {tensor: name for name, group in zip(names, groups, strict=True) for tensor in group}
            total = {"total_size": sum(tensor.nbytes for tensor in tensors.values())}
            texts = {INDEX: _text({"metadata": total, "weight_map": dict(sorted(shards.items()))}, path / INDEX)} | texts
        for stale in old - {*names, INDEX}:
            (path / stale).unlink(missing_ok=True)
        for place, content in {**copies, **{name: text.encode() for name, text in texts.items()}}.items():
            (path / place).parent.mkdir(exist_ok=True)
            with replacing(path / place) as part:
                part.write_bytes(content)
    except OSError as broken:
        raise CheckpointError("file.write", file=broken.filename or path, reason=reason(broken)) from None


def _groups(tensors: Mapping[str, Tensor], limit: int) -> list[dict[str, Tensor]]:
    """Return the tensors in their order as shards of at most `limit` bytes; a larger tensor has its own."""
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if groups[-1] and size + tensor.nbytes > limit:
            groups.append({})
            size = 0
        groups[-1][name] = tensor
        size += tensor.nbytes
    return groups


def _text(table: Mapping[str, Any], file: Path) -> str:
    try:
        return json.dumps(table, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as broken:
        raise ConfigError("folder.json", file=file, found=broken) from None


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
