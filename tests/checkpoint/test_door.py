"""Every entry of a folder that is opened was let in by `inside`: no link in a downloaded folder leads elsewhere, at load or at save.

Python tells every open to its audit hooks, and `inside` tells what it let in; whatever was opened and not let in is a fault.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pellucid import count
from pellucid.api.model import load
from pellucid.checkpoint.folder import TOKENIZER_FILES, Folder
from pellucid.checkpoint.json_file import read_object
from pellucid.errors import PellucidError
from pellucid.tokenizer.chat_template import TEMPLATE_FOLDER
from tiny import Mutant, swapped

SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----"
EXTRA = f"{TEMPLATE_FOLDER}/short.jinja"
EVERY = ("config.json", "generation_config.json", "model.safetensors", *TOKENIZER_FILES, EXTRA)
TEXTS = {
    "generation_config.json": '{"eos_token_id": 0}',
    "special_tokens_map.json": '{"eos_token": "<|endoftext|>"}',
    "added_tokens.json": '{"<|endoftext|>": 0}',
    "vocab.json": "{}",
    "merges.txt": "",
    "vocab.txt": "",
    "chat_template.jinja": "{{ messages[0].content }}",
    "chat_template.json": '{"chat_template": "{{ messages[0].content }}"}',
    EXTRA: "{{ messages[0].content }}",
}
_watched: list[tuple[str, str]] | None = None


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _watched is not None and event in ("open", "pellucid.inside") and isinstance(args[0], str | os.PathLike):
        _watched.append((event, os.path.abspath(os.fspath(args[0]))))


sys.addaudithook(_hook)  # there is no way to take one off; it does nothing outside `audited`


@contextmanager
def audited() -> Iterator[list[tuple[str, str]]]:
    """Every file that is opened in here, and every entry of a folder that was let in."""
    global _watched
    _watched = []
    try:
        yield _watched
    finally:
        _watched = None


def unadmitted(events: list[tuple[str, str]], folder: Path) -> set[str]:
    """The entries of a folder that were opened and that `inside` had not let in before."""
    admitted, opened = set[str](), set[str]()
    for event, path in events:
        if event == "pellucid.inside":
            admitted.add(path)
        elif Path(path).is_relative_to(folder) and path not in admitted:
            opened.add(str(Path(path).relative_to(folder)))
    return opened


@pytest.fixture
def complete(folder: Path, tmp_path: Path) -> Path:
    """A folder that has every file that a checkpoint can have."""
    path = tmp_path / "whole"
    shutil.copytree(folder, path)
    (path / TEMPLATE_FOLDER).mkdir()
    for name, text in TEXTS.items():
        (path / name).write_text(text)
    assert all((path / name).exists() for name in EVERY)
    return path


@pytest.mark.parametrize("name", [*EVERY, TEMPLATE_FOLDER])
def test_a_link_out_of_the_folder_is_refused_at_load(name: str, complete: Path, tmp_path: Path) -> None:
    """Whatever the file is for, and whether or not the tokenizer needs it."""
    away = tmp_path / "away"
    shutil.move(complete / name, away)
    (complete / name).symlink_to(away)
    with pytest.raises(PellucidError) as caught:
        load(complete)
    assert caught.value.key == "file.outside" and Path(name).name in str(caught.value)


def test_what_is_saved_is_what_was_loaded(complete: Path, tmp_path: Path) -> None:
    """A file that becomes a link to a key after the load is saved as it was, and so is one that is gone."""
    (tmp_path / "key").write_bytes(SECRET)
    model = load(complete)
    for name in ("added_tokens.json", "chat_template.json", EXTRA):
        (complete / name).unlink()
        (complete / name).symlink_to(tmp_path / "key")
    (complete / "vocab.txt").unlink()
    model.save(tmp_path / "saved")
    for name in (*TOKENIZER_FILES, EXTRA):
        content = (tmp_path / "saved" / name).read_bytes()
        assert SECRET not in content
        if name in TEXTS:
            assert content == TEXTS[name].encode()
    assert load(tmp_path / "saved").tokenizer.encode("The cat") == model.tokenizer.encode("The cat")


def test_a_file_that_changes_while_it_is_read_is_refused(complete: Path) -> None:
    """What is kept to be saved and what the tokenizer was made of are one content."""
    with pytest.raises(PellucidError) as caught, Folder(complete).carried():
        (complete / "tokenizer.json").write_text("{ }")
    assert caught.value.key == "file.changed" and "tokenizer.json" in str(caught.value)


def test_templates_beyond_a_number_are_refused(complete: Path) -> None:
    for i in range(20):
        (complete / TEMPLATE_FOLDER / f"t{i}.jinja").write_text("x")
    with pytest.raises(PellucidError, match="21 chat templates; at most 16"):
        load(complete)


def undoored(self: Folder) -> list[Path]:
    """The files of the tokenizer, as they were found before they passed the door."""
    return [self.path / name for name in TOKENIZER_FILES if self.has(name)] + sorted((self.path / TEMPLATE_FOLDER).glob("*.jinja"))


MUTANTS: dict[str, Mutant] = {
    "the tokenizer's files are opened as they lie": (Folder, "tokenizer_files", undoored),
    "config.json is opened as it lies": (Folder, "config", property(lambda self: read_object(self.path / "config.json"))),
}


@pytest.mark.parametrize("mutant", ["", *MUTANTS])
def test_every_open_passes_the_door(mutant: str, complete: Path, tmp_path: Path) -> None:
    """Loaded, counted, used, adapted, saved: every entry of the folder that is opened was let in."""
    load(complete)  # what is imported at first use is no entry of the folder
    with audited() as events, swapped(*(MUTANTS[mutant] if mutant else (Folder, "__doc__", ""))):
        model = load(complete)
        model.generate([model.tokenizer.encode("The cat")], 2)
        count(complete)
        model.save(tmp_path / f"saved{len(mutant)}")
    opened = {path for event, path in events if event == "open"}
    assert all(str(complete / name) in opened for name in (*TOKENIZER_FILES, EXTRA, "config.json", "model.safetensors"))
    assert bool(unadmitted(events, complete)) == bool(mutant), unadmitted(events, complete)


def test_shards_pass_the_door(complete: Path, tmp_path: Path) -> None:
    load(complete).save(tmp_path / "shards", shard_bytes=20_000)
    with audited() as events:
        load(tmp_path / "shards")
    assert sum(path.endswith(".safetensors") for event, path in events if event == "open") > 4
    assert unadmitted(events, tmp_path / "shards") == set()


def test_a_config_alone_passes_the_door(complete: Path, tmp_path: Path) -> None:
    """`count FOLDER` reads config.json alone, and follows no link either."""
    shutil.move(complete / "config.json", tmp_path / "config.json")
    (complete / "config.json").symlink_to(tmp_path / "config.json")
    assert json.loads((complete / "config.json").read_text())["model_type"] == "gpt2"
    with pytest.raises(PellucidError, match="outside of its folder"):
        count(complete)
