"""Shards: the tokens of texts, made once into the folder of a run, and read again by each start of it.

    run/data/tokenizer.json  00000.safetensors  00001.safetensors ...  index.json

A shard has `tokens`, U16 up to 65,536 ids and else I32, and `starts`, I64: where each of its documents begins, and its end. One of chats
has also `learnt`, U8, 1 for each token that carries loss, and `lines`, I64, the line of each document in its file. The index is written
last; it has the SHA-256 of every source, of the tokenizer and of every shard. Each file is written under another name, synced and renamed,
so that a kill at any moment leaves shards that are made again, and never ones that are read half.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from pellucid.checkpoint.disk import inside, read_text, reason, regular, replacing
from pellucid.checkpoint.folder import TOKENIZER_FILES
from pellucid.checkpoint.json_file import TABLE_BYTES, read_object
from pellucid.checkpoint.safetensors_file import read_header, read_tensor, write
from pellucid.errors import PellucidError, TrainError
from pellucid.tokenizer.chat_template import DEFAULT, TEMPLATE_BYTES, Template
from pellucid.tokenizer.tokenizer import Tokenizer as ChatTokenizer
from pellucid.tokenizer.tokenizer import load_tokenizer as load_chat_tokenizer
from pellucid.training.chats import Chats, TaughtDocument, taught_documents
from pellucid.training.corpus import END_OF_TEXT, train_tokenizer
from pellucid.training.objectives import number
from pellucid.training.saves import digest
from pellucid.training.shard_cache import ShardCache, cache_folder
from pellucid.training.texts import Texts, grouped, read_documents, sources

SCHEMA = 1
SHARD_TOKENS = 1 << 26
SAMPLE_BYTES = 100_000_000
SAMPLE_PIECE = 1 << 20  # characters of a document that are sampled together
TOGETHER = 1000  # documents that are encoded at a time
INDEX, TOKENIZER, SETTINGS = "index.json", "tokenizer.json", "tokenizer_config.json"


@dataclass(frozen=True)
class Shards:
    """The tokens of all documents, end to end. starts: where each begins, and the end of the last.  index: the content of index.json.

    learnt: 1 for each token that carries loss, None where all do.  lines: of each document in its file, None where they are texts.
    """

    tokenizer: Tokenizer
    end: str
    tokens: Tensor
    starts: Tensor
    index: Mapping[str, Any]
    learnt: Tensor | None = None
    lines: Tensor | None = None


def open_shards(data: Texts, tokenizer: Mapping[str, Any], folder: Path, began: bool, remake: bool = False) -> Shards:
    """Return the shards in `folder`, made or taken from an earlier run's if they are not there or of other sources.

    tokenizer: the [tokenizer] table.  began: the run has trained on them, so that other sources are refused.  remake: make damaged ones
    again; without it a damaged file is refused by its name.
    """
    files = sources(data)
    before = [stamp_of(file) for file in files]
    hashes = {data.name(file): source_digest(file) for file in files}
    wanted = {"schema": SCHEMA, "sources": hashes, "field": field_of(data), "tokenizer": setting(data, tokenizer)}
    wanted |= {"groups": grouped(data)} if data.source else {}
    cache = ShardCache(key_of(wanted), cache_folder() if data.cache else None)
    try:
        index = read_index(folder) if (folder / INDEX).exists() else None
        if index is not None and began:
            require_same(data, folder, index, wanted)
        if index is not None and all(index.get(key) == wanted.get(key) for key in {"groups", *wanted}):
            return read_shards(folder, index)
    except TrainError as fault:
        if fault.key != "data.damaged" or not remake:
            raise
    if not remake and cache.take(folder):
        try:
            return read_shards(folder, require_wanted(folder, wanted))
        except TrainError:
            cache.drop()
    if remake:
        cache.drop()  # its files may be the damaged ones, by other names
    made = read_shards(folder, make_shards(data, tokenizer, folder, files, wanted))
    # else they may be of other texts, or of another tokenizer, than the hashes say
    if before == [stamp_of(file) for file in files] and setting(data, tokenizer) == wanted["tokenizer"]:
        cache.keep(folder)
    return made


def key_of(wanted: Mapping[str, Any]) -> str:
    """Return the hash of what shards depend on: sources in their order, settings, and the libraries that make ids of texts."""
    about = [wanted, SHARD_TOKENS, version("tokenizers"), version("pellucid")]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]


def stamp_of(file: Path) -> tuple[int, ...]:
    """Return numbers that differ for any other file, and for any later content of this one."""
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def require_wanted(folder: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the index of a folder of shards. A TrainError if it is damaged, or of other sources or settings."""
    index = read_index(folder)
    if any(index.get(key) != wanted.get(key) for key in {"groups", *wanted}):
        raise TrainError("data.damaged", path=folder / INDEX)
    return index


def source_digest(file: Path) -> str:
    """Return the SHA-256 of a source. A TrainError if it cannot be read, or is a pipe or a device, which is not waited for."""
    try:
        with regular(file, TrainError) as fd, os.fdopen(os.dup(fd), "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as fault:
        raise TrainError("file.closed", file=file, reason=reason(fault)) from None


def setting(data: Texts, tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the ids depend on: the size of a tokenizer to train and its sample, or the hashes of one that is taken."""
    if "from" in tokenizer:
        names = TOKENIZER_FILES if isinstance(data, Chats) else (TOKENIZER, SETTINGS)
        files = [taken(data, tokenizer) / name for name in names]
        files += [data.root / tokenizer["template"]] if "template" in tokenizer else []
        return {file.name: source_digest(file) for file in files if file.is_file()}
    return {"size": tokenizer["size"], "sample_bytes": tokenizer.get("sample_bytes", SAMPLE_BYTES)}


def field_of(data: Texts) -> str | list[str]:
    """Return the field of a JSON line, or the two of a pair, as the index has it."""
    return data.field if isinstance(data.field, str) else list(data.field)


def taken(data: Texts, tokenizer: Mapping[str, Any]) -> Path:
    """Return the folder that a tokenizer is taken from, relative to the recipe."""
    folder: Path = data.root / tokenizer["from"]
    if not (folder / TOKENIZER).is_file():
        raise TrainError("file.missing", file=folder / TOKENIZER)
    return folder


def require_same(data: Texts, folder: Path, index: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise TrainError for the first source, or the setting, that is another one than when the run began."""
    before, now = index["sources"], wanted["sources"]
    for name in [*before, *(name for name in now if name not in before)]:
        if before.get(name) != now.get(name):
            hashes = {key: (known.get(name) or "-")[:12] for key, known in (("before", before), ("now", now))}
            raise TrainError("data.changed", path=data.root / name, **hashes)
    for key in ("field", "tokenizer"):
        if index.get(key) != wanted[key]:
            raise TrainError("train.differs", path=folder / INDEX, what=f"data.{key}" if key == "field" else key)


def read_index(folder: Path) -> dict[str, Any]:
    """Return the index of a folder of shards. A TrainError if it is no index."""
    path = folder / INDEX
    try:
        index = read_object(path, TABLE_BYTES, TrainError)
    except TrainError:
        raise TrainError("data.damaged", path=path) from None
    kinds = {"sources": dict, "shards": dict, "documents": dict, "end": str}
    if not all(isinstance(index.get(key), kind) for key, kind in kinds.items()) or not index["shards"]:
        raise TrainError("data.damaged", path=path)
    return index


def make_shards(data: Texts, table: Mapping[str, Any], folder: Path, files: list[Path], wanted: dict[str, Any]) -> dict[str, Any]:
    """Write tokenizer, shards and index into `folder`, and return the index."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.glob(".*.part"):  # of a preparation that was killed
            part.unlink()
        with suppress(FileNotFoundError):
            (folder / INDEX).unlink()
        tokenizer, end = tokenizer_of(data, table, files)
        with replacing(folder / TOKENIZER, TrainError) as part:
            part.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        documents, shards = dict[str, int](), dict[str, list[Any]]()
        if isinstance(data, Chats):
            made_documents = taught_documents(data, files, chat_tokenizer(data, table), number(tokenizer, end), documents)
        else:
            made_documents = encoded(data, files, tokenizer, end, documents)
        for place, tensors in enumerate(filled(made_documents, size_of(tokenizer))):
            path = folder / f"{place:05d}.safetensors"
            write(path, tensors)
            shards[path.name] = [digest(path), path.stat().st_size]
        for path in folder.glob("*.safetensors"):
            if path.name not in shards:
                path.unlink()
        made = {"tokenizer_hash": digest(folder / TOKENIZER), "end": end, "documents": documents, "shards": shards}
        with replacing(folder / INDEX, TrainError) as part:
            part.write_text(json.dumps(wanted | made, indent=1) + "\n", encoding="utf-8")
    except OSError as fault:
        raise TrainError("train.folder", folder=folder, reason=reason(fault)) from None
    return wanted | made


def tokenizer_of(data: Texts, table: Mapping[str, Any], files: list[Path]) -> tuple[Tokenizer, str]:
    """Return the tokenizer, trained on a sample of the files or taken from a folder, and the token that ends a document."""
    if "from" not in table:
        return train_tokenizer(sample(data, files, table.get("sample_bytes", SAMPLE_BYTES)), table["size"]), END_OF_TEXT
    folder = taken(data, table)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    given = folder / SETTINGS
    end = read_object(given, error=TrainError).get("eos_token") if given.is_file() else END_OF_TEXT
    end = end.get("content") if isinstance(end, dict) else end
    if not isinstance(end, str) or tokenizer.token_to_id(end) is None:
        raise TrainError("data.end", path=folder)
    return tokenizer, end


def chat_tokenizer(data: Chats, table: Mapping[str, Any]) -> ChatTokenizer:
    """Return the folder's tokenizer with its chat template, or with the recipe's. A TrainError if it has none and chats need one."""
    folder = taken(data, table)
    tokenizer = load_chat_tokenizer(folder)
    assert tokenizer is not None
    if "template" in table:
        file = data.root / table["template"]
        tokenizer.templates = {DEFAULT: Template(read_text(file, TEMPLATE_BYTES, TrainError), str(file))}
    if isinstance(data.field, str) and not tokenizer.templates:
        raise TrainError("data.untemplated", folder=folder)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json. A TrainError with the library's reason if it is none."""
    text = read_text(path, TABLE_BYTES, TrainError)
    try:
        return Tokenizer.from_str(text)
    except Exception as fault:  # the library raises no narrower kind
        raise TrainError("data.tokenizer", path=path, reason=" ".join(str(fault).split())[:200]) from None


def size_of(tokenizer: Tokenizer) -> int:
    """Return the rows that a table of all ids needs: one more than the largest id, also where ids are left out."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def sample(data: Texts, files: list[Path], most: int) -> Iterator[str]:
    """Yield the texts that the tokenizer is trained on, `most` bytes at most: all, or pieces chosen by their own hash."""
    total, read = sum(file.stat().st_size for file in files), 0
    share = most / max(total, 1)
    for file in files:
        for text in read_documents(file, str(data.field)):
            for start in range(0, len(text), SAMPLE_PIECE):
                piece = text[start : start + SAMPLE_PIECE]
                raw = piece.encode()
                if share < 1 and int.from_bytes(hashlib.sha256(raw).digest()[:8], "big") >= share * 2**64:
                    continue
                read += len(raw)
                if read > most:
                    return
                yield piece


def encoded(data: Texts, files: list[Path], tokenizer: Tokenizer, end: str, counts: dict[str, int]) -> Iterator[TaughtDocument]:
    """Yield the ids of each document, with the token that ends it; count the documents of each file into `counts`."""
    last = number(tokenizer, end)
    tokenizer.encode_special_tokens = True  # a text that spells <|endoftext|> is text
    for file in files:
        texts, name = read_documents(file, str(data.field)), data.name(file)
        while group := list(islice(texts, TOGETHER)):
            counts[name] = counts.get(name, 0) + len(group)
            yield from (TaughtDocument([*e.ids, last], [], 0) for e in tokenizer.encode_batch(group, add_special_tokens=False))
    tokenizer.encode_special_tokens = False


def filled(documents: Iterator[TaughtDocument], vocabulary: int) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of each shard: documents until it has SHARD_TOKENS or more."""
    kind = np.uint16 if vocabulary <= 1 << 16 else np.int32
    parts, learnt, starts, lines = list[Any](), list[Any](), [0], list[int]()

    def shard() -> dict[str, Tensor]:
        out = {"tokens": torch.from_numpy(np.concatenate(parts)), "starts": torch.tensor(starts)}
        return out | ({"learnt": torch.from_numpy(np.concatenate(learnt)), "lines": torch.tensor(lines)} if learnt else {})

    for one in documents:
        parts.append(np.array(one.ids, dtype=kind))
        starts.append(starts[-1] + len(one.ids))
        if one.learnt:
            learnt.append(np.array(one.learnt, dtype=np.uint8))
            lines.append(one.line)
        if starts[-1] >= SHARD_TOKENS:
            yield shard()
            parts, learnt, starts, lines = [], [], [0], []
    if parts:
        yield shard()


def read_shards(folder: Path, index: Mapping[str, Any]) -> Shards:
    """Return the tokens of all shards. A TrainError that names the first file that its index does not fit."""
    tokens, starts, total, learnt, lines = [], [torch.zeros(1, dtype=torch.int64)], 0, list[Tensor](), list[Tensor]()
    require(folder / TOKENIZER, index.get("tokenizer_hash"))
    for name, known in index["shards"].items():
        path = inside(folder, name, TrainError)
        require(path, *(known if isinstance(known, list) and len(known) == 2 else ("", 0)))
        try:
            entries = read_header(path)
            tokens.append(read_tensor(entries["tokens"]))
            starts.append(read_tensor(entries["starts"])[1:] + total)
            if "learnt" in entries:
                learnt.append(read_tensor(entries["learnt"]))
                lines.append(read_tensor(entries["lines"]))
        except (PellucidError, KeyError):
            raise TrainError("data.damaged", path=path) from None
        total += len(tokens[-1])
    tokenizer = load_tokenizer(folder / TOKENIZER)
    which = [torch.cat(parts) if parts else None for parts in (learnt, lines)]
    shards = Shards(tokenizer, index["end"], torch.cat(tokens), torch.cat(starts), index, *which)
    check_ids(shards.tokens, shards.starts, size_of(tokenizer))
    return shards


def require(path: Path, sha: object, size: int | None = None) -> None:
    """Raise TrainError unless the file has this SHA-256, and this size."""
    try:
        right = (size is None or path.stat().st_size == size) and digest(path) == sha
    except OSError:
        right = False
    if not right:
        raise TrainError("data.damaged", path=path)


def check_ids(tokens: Tensor, starts: Tensor, vocabulary: int) -> None:
    """Raise TrainError for the first token that is no id of the vocabulary."""
    ids = tokens.numpy()
    outside = (ids < 0) | (ids >= vocabulary)
    if outside.any():
        at = int(outside.argmax())
        document = int(torch.searchsorted(starts, at, right=True)) - 1
        raise TrainError("train.id", number=document, id=int(ids[at]), last=vocabulary - 1)
