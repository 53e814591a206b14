"""A GGUF file, or the files that one was split into, read as if it were a Hugging Face folder.

    general.architecture, llama.*     config.json                   hyperparameters.py
    tokenizer.*                       tokenizer.json and its kin    tokenizer_keys.py
    blk.0.attn_q.weight ...           the family's tensors          tensor_names.py

Matrices in Q8_0 or Q4_0 stay so, in our own blocks; other types with blocks are dequantised as they are read.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoint.default_dtype import name_of
from pellucid.checkpoint.disk import inside, regular, stamp
from pellucid.checkpoint.folder import GGUF, INDEX, Contents, Folder
from pellucid.checkpoint.gguf import tensor_names, tokenizer_keys
from pellucid.checkpoint.gguf.gguf_header import GgufHeader, Tensors, read_gguf
from pellucid.checkpoint.gguf.gguf_source import GgufSource
from pellucid.checkpoint.gguf.hyperparameters import config_fields
from pellucid.checkpoint.gguf.packed_tensor import PackedTensor
from pellucid.checkpoint.packing import Packing, check_quant
from pellucid.checkpoint.safetensors_file import Entry
from pellucid.config import Config
from pellucid.errors import CheckpointError
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import pattern, put
from pellucid.families.quantisation import in_blocks
from pellucid.tokenizer.tokenizer import Tokenizer

MOST_SETTINGS = 1 << 12  # numbers of a tensor that is read as a setting
SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def gguf_of(path: Path) -> Path | None:
    """Return the GGUF file that a path means: a file of that ending, or the only model of a folder without safetensors; else None.

    A CheckpointError for a folder with several, of which the caller must name one.
    """
    if path.name.endswith(GGUF) and not path.is_dir():
        return path
    names = sorted(f.name for f in path.iterdir()) if path.is_dir() else []
    firsts = [n for n in names if n.endswith(GGUF) and ((m := SPLIT.fullmatch(n)) is None or int(m[2]) == 1)]
    if not firsts or any(n.endswith(".safetensors") or n == INDEX for n in names):
        return None
    if len(firsts) > 1:
        raise CheckpointError("gguf.several", folder=path, found=", ".join(firsts[:10]))
    return inside(path, firsts[0])


class GgufFolder:
    """A model in GGUF with the interface of `Folder`. path: its first file.  ignore: keys to ignore, by their names in the file."""

    method = None  # the types of tensors say how each is quantised

    def __init__(self, path: str | Path, ignore: Iterable[str] = ()) -> None:
        self.path, self.ignore = Path(path), tuple(ignore)

    @cached_property
    def headers(self) -> list[GgufHeader]:
        """The headers of all its files, in order."""
        match = SPLIT.fullmatch(self.path.name)
        first = read_gguf(self.path)
        count = first.keys.get("split.count", 1)
        if match is None:
            if count != 1:
                raise CheckpointError("gguf.split", file=self.path, found=count, expected=1, name="split.count")
            return [first]
        total, headers = int(match[3]), []
        for number in range(1, total + 1):
            name = f"{match[1]}-{number:05d}-of-{match[3]}{GGUF}"
            header = first if name == self.path.name else read_gguf(inside(self.path.parent, name))
            for key, expected in (("split.no", number - 1), ("split.count", total)):
                if (value := header.keys.get(key)) != expected:
                    raise CheckpointError("gguf.split", file=header.file, found=value, expected=expected, name=key)
            headers.append(header)
        return headers

    @property
    def keys(self) -> Mapping[str, Any]:
        """The keys of the first file."""
        return self.headers[0].keys

    @cached_property
    def entries(self) -> Tensors:
        """Every tensor by name, of all files."""
        entries: Tensors = {}
        for header in self.headers:
            if twice := sorted(header.tensors.keys() & entries.keys()):
                left = entries[twice[0]].file.name
                raise CheckpointError("index.twice", name=twice[0], left=left, right=header.file.name, folder=self.path.parent)
            entries |= {name: one_row(entry) for name, entry in header.tensors.items()}
        if (total := self.keys.get("split.tensors.count", len(entries))) != len(entries):
            raise CheckpointError("gguf.split", file=self.path, found=len(entries), expected=total, name="split.tensors.count")
        return entries

    @cached_property
    def architecture(self) -> str:
        """The name of the architecture."""
        name = self.keys.get("general.architecture")
        if not isinstance(name, str):
            raise CheckpointError("gguf.key", file=self.path, name="general.architecture", found=repr(name))
        return name

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config.json of the same model."""
        start = f"{self.architecture}."
        own = {name.removeprefix(start): plain(value) for name, value in self.keys.items() if name.startswith(start)}
        shapes = {name: entry.shape for name, entry in self.entries.items()}
        fields = config_fields(self.architecture, GgufSource(Fields(own, str(self.path), self.ignore, start), shapes, self.small))
        named = {"bos": "bos_token_id", "pad": "pad_token_id"}
        fields |= {field: self.special[n] for n, field in named.items() if n in self.special}
        stops = tokenizer_keys.stops(self.keys, self.rows or 0)
        return fields | {"dtype": str(self.stored).removeprefix("torch.")} | ({"eos_token_id": stops} if stops else {})

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """What generation_config.json would say: the ids that end a text."""
        stops = tokenizer_keys.stops(self.keys, self.rows or 0)
        return {"eos_token_id": stops} if stops else {}

    @cached_property
    def special(self) -> dict[str, int]:
        """The ids of the named special tokens."""
        return tokenizer_keys.special_ids(self.keys, self.rows or 0)

    @property
    def file(self) -> str:
        """The name of the settings' file in errors."""
        return str(self.path)

    @property
    def stored(self) -> torch.dtype:
        """The dtype of the matrices: that of most numbers; bfloat16 stands for types with blocks."""
        sizes: Counter[torch.dtype] = Counter()
        for entry in self.entries.values():
            if len(entry.shape) > 1:
                sizes[torch.bfloat16 if isinstance(entry, PackedTensor) else entry.dtype] += prod(entry.shape)
        return sizes.most_common(1)[0][0] if sizes else torch.float32

    @property
    def formats(self) -> str:
        """The types of the matrices, that of most numbers first, as "Q4_K, Q6_K"; "" if none has blocks."""
        sizes: Counter[str] = Counter()
        for entry in self.entries.values():
            if len(entry.shape) > 1:
                sizes[entry.kind.name if isinstance(entry, PackedTensor) else name_of(entry.dtype)] += prod(entry.shape)
        packed = any(isinstance(entry, PackedTensor) for entry in self.entries.values())
        return ", ".join(name for name, _ in sizes.most_common()) if packed else ""

    def family(self, kind: Family) -> Family:
        """Return the family with the names of this file's architecture in place of its own."""
        return replace(kind, rules=tensor_names.TABLES[self.architecture], ignored=(), copies={}, respell=str)

    def packing(self, form: str | None, dtype: torch.dtype, cfg: Config) -> Packing | None:
        """Return how to store matrices in memory: in the blocks that most of them have in the file, or in `form`; None for plain."""
        check_quant(form)
        kept = self.in_our_blocks(cfg)
        forms = Counter(form_of(entry) for entry, _ in kept.values())
        own = forms.most_common(1)[0][0] if forms else None
        if own is None or form not in (None, own):
            return None if form is None else Packing(form, dtype)
        chosen = {name: (entry, ours) for name, (entry, ours) in kept.items() if form_of(entry) == own}
        only = frozenset(n for _, ours in chosen.values() for n in ours)
        return Packing(own, dtype, {name: entry for name, (entry, _) in chosen.items()}, only=only)

    @property
    def form(self) -> str | None:
        """The format of ours that holds most of its numbers; None if they are plain in memory."""
        sizes: Counter[str | None] = Counter()
        for entry in self.entries.values():
            sizes[entry.form if isinstance(entry, PackedTensor) else None] += prod(entry.shape)
        return sizes.most_common(1)[0][0] if sizes else None

    @property
    def rows(self) -> int | None:
        """The rows of the embedding, None without one."""
        return self.entries["token_embd.weight"].shape[0] if "token_embd.weight" in self.entries else None

    def in_our_blocks(self, cfg: Config) -> dict[str, tuple[PackedTensor, list[str]]]:
        """Return the tensors whose type is one of our blocks, and whose places in the model may have them, with these places."""
        kept = {}
        rules = [(pattern(rule.disk), rule.names) for rule in tensor_names.TABLES[self.architecture](cfg)]
        for name, entry in self.entries.items():
            hits = ((match, names) for disk, names in rules if (match := disk.fullmatch(name)))
            ours = next(([put(n, match.groupdict()) for n in names] for match, names in hits), [])
            if isinstance(entry, PackedTensor) and entry.form is not None and ours and all(in_blocks(n, entry.shape) for n in ours):
                kept[name] = entry, ours
        return kept

    @property
    def bytes(self) -> int:
        """Bytes of all tensors on disk."""
        return sum(entry.bytes for entry in self.entries.values())

    def names(self) -> list[str]:
        """Return the names of the tensors that are weights; those that are settings went into `config`."""
        return [name for name in self.entries if not tensor_names.SETTING.fullmatch(name)]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return one tensor's shape."""
        return self.entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of the numbers that one tensor gives."""
        return self.entries[name].dtype

    def read(self, name: str, into: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return one tensor's numbers. dtype: of a tensor in blocks, where `into` is None."""
        entry = self.entries[name]
        return entry.read(into) if isinstance(entry, Entry) else entry.read(into, dtype)

    def small(self, name: str) -> Tensor:
        """Return a tensor that is a setting, of at most as many numbers as a head has channels."""
        if len(self.shape(name)) != 1 or self.shape(name)[0] > MOST_SETTINGS:
            raise CheckpointError("gguf.setting", file=self.path, name=name, shape=self.shape(name), most=MOST_SETTINGS)
        return self.read(name)

    @contextmanager
    def carried(self) -> Iterator[Contents]:
        """Yield the files that a folder of the same model has beside its weights. A CheckpointError if the file changes meanwhile."""
        yield dict(self.tokenizer_files)
        for entry in list(self.entries.values())[:1]:
            raw = entry.raw if isinstance(entry, PackedTensor) else entry
            with regular(raw.file) as fd:
                if stamp(fd) != raw.stamp:
                    raise CheckpointError("file.changed", file=raw.file)

    @cached_property
    def tokenizer_files(self) -> Contents:
        """tokenizer.json and tokenizer_config.json; {} if the file has no tokenizer."""
        spec = tokenizer_keys.spec(self.keys, str(self.path), self.architecture)
        if spec is None:
            return {}
        settings = tokenizer_keys.settings(self.keys, str(self.path))
        texts = {"tokenizer.json": spec, "tokenizer_config.json": settings}
        return {name: json.dumps(text, ensure_ascii=False, indent=2).encode(errors="replace") for name, text in texts.items()}

    def tokenizer(self, rows: int | None = None) -> Tokenizer | None:
        """Return the tokenizer, None if the file has none; ids must be below `rows`."""
        made = tokenizer_keys.tokenizer(self.keys, str(self.path), self.architecture)
        return made if made is None or rows is None else made.fit(rows)


def one_row(entry: Entry | PackedTensor) -> Entry | PackedTensor:
    """Return a tensor that may be a matrix of one row as the vector that it is: converters write [1, n], and llama-quantize [n]."""
    single = isinstance(entry, Entry) and len(entry.shape) == 2 and entry.shape[0] == 1 and tensor_names.ROW.fullmatch(entry.name)
    return replace(entry, shape=entry.shape[1:]) if single else entry


def form_of(entry: PackedTensor) -> str:
    """Return the format of ours that a tensor has."""
    assert entry.form is not None
    return entry.form


def plain(value: Any) -> Any:
    """Return a key's value as JSON has it."""
    return value if isinstance(value, str | int | float | list) else value.tolist()


def folder_of(path: Path, ignore: Iterable[str] = ()) -> Folder | GgufFolder:
    """Return the checkpoint at a path: a Hugging Face folder, or a model in GGUF."""
    return Folder(path, ignore) if (file := gguf_of(path)) is None else GgufFolder(file, ignore)
