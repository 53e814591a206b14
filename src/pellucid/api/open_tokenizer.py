"""The tokenizer that a name means: of a specimen, a folder, a GGUF file, a hub id, or a tokenizer.json. No weight is read."""

from pathlib import Path
from typing import Any

from pellucid.api.model import place
from pellucid.checkpoint.disk import inside
from pellucid.checkpoint.folder import TRACE
from pellucid.checkpoint.gguf.gguf_folder import GgufFolder, gguf_of
from pellucid.checkpoint.hub import fetch_tokenizer, is_hub_id
from pellucid.checkpoint.json_file import read_object
from pellucid.counting.published import entry_of
from pellucid.errors import CheckpointError, TokenizerError, UseError
from pellucid.tokenizer.tokenizer import Tokenizer, has_tokenizer, load_tokenizer
from pellucid.training.run_folder import RUN


def tokenizer_alone(path: Path) -> bool:
    """True for a folder with a tokenizer and no model, trace or run of training, and for a tokenizer.json."""
    if path.is_file():
        return path.name == "tokenizer.json"
    others = ("config.json", TRACE, RUN)
    return has_tokenizer(path) and gguf_of(path) is None and not any((path / name).exists() for name in others)


def open_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer of a name. An error of the project if there is none."""
    path = Path(name)
    if path.exists() and (file := gguf_of(path)) is not None:
        folder_in_file = GgufFolder(file)
        tokenizer = folder_in_file.tokenizer(folder_in_file.rows)
        if tokenizer is None:
            raise CheckpointError("tokenize.none", folder=name)
        return tokenizer
    if path.is_file():
        return Tokenizer.from_file(inside(path.parent, path.name, TokenizerError))
    if not path.is_dir() and entry_of(name) is not None:
        raise UseError("tokenize.catalogue", name=name)
    fetched = is_hub_id(name) and not path.is_dir() and not name.startswith("pellucid/")
    folder = fetch_tokenizer(name) if fetched else place(name)
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        raise CheckpointError("tokenize.none", folder=name)
    config: dict[str, Any] = read_object(inside(folder, "config.json")) if (folder / "config.json").exists() else {}
    rows = config.get("vocab_size")
    return tokenizer.fit(rows) if isinstance(rows, int) and rows > tokenizer.size else tokenizer  # a table is often padded
