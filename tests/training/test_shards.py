"""Shards: made once, the same bytes after a kill at any moment, and refused by name where they or their sources are others.

PELLUCID_FULL=1 kills the preparation at every moment, and not at each fourth.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from killed import killed
from pellucid.checkpoint.safetensors_file import read_header
from pellucid.errors import TrainError
from pellucid.training import shards as made
from pellucid.training.chats import TaughtDocument
from pellucid.training.recipe import read_recipe
from pellucid.training.shards import Shards, filled, open_shards, sample, size_of
from pellucid.training.texts import Texts, sources
from test_resume import FULL, flip
from text_runs import recipe_of, shards_of, stories
from tiny import swapped

SMALL = 200  # tokens of a shard, so that there are several


@pytest.fixture(autouse=True)
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "SHARD_TOKENS", SMALL)


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def again(folder: Path, began: bool = False, remake: bool = False) -> Shards:
    """The shards of the recipe in `folder`, as another start of it opens them."""
    recipe = read_recipe(folder / "r.toml")
    assert isinstance(recipe.data, Texts)
    return open_shards(recipe.data, recipe.tokenizer, folder / "data", began, remake)


def test_shards_hold_the_texts(tmp_path: Path) -> None:
    """Every document with its end, in the order of the files; U16 and I64; and a second start makes nothing."""
    shards, _ = shards_of(tmp_path)
    ids = [shards.tokens[b:e].tolist() for b, e in zip(shards.starts[:-1], shards.starts[1:], strict=True)]
    assert [shards.tokenizer.decode(row) for row in ids] == stories()
    assert {row[-1] for row in ids} == {shards.tokenizer.token_to_id(shards.end)}
    assert len(shards.index["shards"]) > 3 and shards.index["documents"] == {"text/a.txt": 20, "b.jsonl": 20}
    entries = read_header(tmp_path / "data" / "00000.safetensors")
    assert {name: entry.dtype for name, entry in entries.items()} == {"tokens": torch.uint16, "starts": torch.int64}
    with swapped(made, "make_shards", None):
        assert torch.equal(again(tmp_path).tokens, shards.tokens)


def test_more_than_65536_ids_are_wider() -> None:
    for size, kind in ((1 << 16, torch.uint16), ((1 << 16) + 1, torch.int32)):
        ((tokens, starts),) = (t.values() for t in filled(iter(TaughtDocument(ids, [], 0) for ids in ([size - 1, 0], [3])), size))
        assert tokens.dtype == kind and tokens.tolist() == [size - 1, 0, 3] and starts.tolist() == [0, 2, 3]


def test_a_text_that_spells_the_end_is_text(tmp_path: Path) -> None:
    recipe_of(tmp_path)
    (tmp_path / "b.jsonl").write_text('{"text": "a <|endoftext|> b"}')
    shards = again(tmp_path)
    last = shards.tokens[shards.starts[-2] :].tolist()
    assert last.count(shards.tokenizer.token_to_id(shards.end)) == 1 and shards.tokenizer.decode(last) == "a <|endoftext|> b"


def test_the_same_bytes_make_the_same_tokenizer(tmp_path: Path) -> None:
    """In another process, whose hashes are seeded otherwise."""
    recipe_of(tmp_path)
    code = f"import sys; sys.path[:] = {sys.path!r}; import text_runs, pathlib; text_runs.shards_of(pathlib.Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True)
    there = (tmp_path / "data" / "tokenizer.json").read_bytes()
    shards_of(tmp_path / "here")
    assert (tmp_path / "here" / "data" / "tokenizer.json").read_bytes() == there


def test_a_sample_is_bounded(tmp_path: Path) -> None:
    """All where it fits, else pieces of every file; and never more bytes than asked for."""
    recipe = read_recipe(recipe_of(tmp_path))
    data = recipe.data
    assert isinstance(data, Texts) and list(sample(data, sources(data), 10**6)) == stories()
    some = list(sample(data, sources(data), 1500))
    assert 500 < sum(len(text.encode()) for text in some) <= 1500 and {stories().index(text) < 20 for text in some} == {True, False}


def test_a_tokenizer_that_is_taken(tmp_path: Path) -> None:
    """Its ids and its end; a folder without one, without an end or with damage is refused in one line."""
    shards, _ = shards_of(tmp_path / "first")
    folder = tmp_path / "second" / "taken"
    folder.mkdir(parents=True)
    own = Tokenizer.from_str(shards.tokenizer.to_str())
    own.add_special_tokens(["<end>"])
    own.save(str(folder / "tokenizer.json"))
    settings = folder / "tokenizer_config.json"
    recipe_of(tmp_path / "second", size=None, tokenizer__from='"taken"')
    for given, wanted in ((None, "<|endoftext|>"), ({"eos_token": "<end>"}, "<end>"), ({"eos_token": {"content": "<end>"}}, "<end>")):
        if given is not None:
            settings.write_text(json.dumps(given))
        taken = again(tmp_path / "second")
        assert taken.end == wanted and taken.tokens[-1] == own.token_to_id(wanted) and size_of(taken.tokenizer) == size_of(own)
    settings.write_text('{"eos_token": "<none>"}')
    with pytest.raises(TrainError, match="eos_token"):
        again(tmp_path / "second")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(TrainError) as caught:
        again(tmp_path / "second")
    assert caught.value.key == "data.tokenizer" and "\n" not in str(caught.value)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TrainError, match=r"tokenizer\.json"):
        again(tmp_path / "second")


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "00001.safetensors": flip,
    "00000.safetensors": lambda file: os.truncate(file, 40),
    "00002.safetensors": lambda file: file.unlink(),
    "tokenizer.json": lambda file: file.write_text("{}"),
    "index.json": lambda file: os.truncate(file, 20),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """And made again, to the same bytes, where --prepare asks for it."""
    shards_of(tmp_path)
    before = content(tmp_path / "data")
    DAMAGE[name](tmp_path / "data" / name)
    for began in (False, True):
        with pytest.raises(TrainError) as caught:
            again(tmp_path, began)
        assert caught.value.key == "data.damaged" and name in str(caught.value) and "--prepare" in str(caught.value)
    again(tmp_path, remake=True)
    assert content(tmp_path / "data") == before


def test_sources_that_change(tmp_path: Path) -> None:
    """Before a run has begun, the shards are made again; afterwards the first that changed is named with both hashes."""
    first, _ = shards_of(tmp_path)
    (tmp_path / "b.jsonl").write_text('{"text": "Another story."}\n')
    with pytest.raises(TrainError) as caught:
        again(tmp_path, began=True)
    assert (
        caught.value.key == "data.changed"
        and "b.jsonl" in str(caught.value)
        and first.index["sources"]["b.jsonl"][:12] in str(caught.value)
    )
    second = again(tmp_path)
    assert len(second.starts) == 22 and content(tmp_path / "data").keys() == {"index.json", "tokenizer.json", *second.index["shards"]}
    (tmp_path / "text" / "more.txt").write_text("One more.")
    with pytest.raises(TrainError, match=r"more\.txt.*sha256 -"):
        again(tmp_path, began=True)
    (tmp_path / "text" / "more.txt").unlink()
    recipe_of(tmp_path, size="300")
    (tmp_path / "b.jsonl").write_text('{"text": "Another story."}\n')
    with pytest.raises(TrainError, match="tokenizer"):
        again(tmp_path, began=True)


def test_an_id_outside_is_seen(tmp_path: Path) -> None:
    shards, _ = shards_of(tmp_path)
    tokens = shards.tokens.clone().numpy()
    tokens[int(shards.starts[7])] = 60_000
    with pytest.raises(TrainError, match="document 7 holds the token id 60000"):
        made.check_ids(torch.from_numpy(tokens), shards.starts, size_of(shards.tokenizer))


BORDERS = [(os, "fsync"), (os, "replace"), (os, "unlink"), (made, "write"), (Path, "write_text"), (Path, "unlink")]


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """The next start makes the same bytes, and leaves no file of the one that died; also over shards of other sources."""
    shards_of(tmp_path)
    wanted, moment, died = content(tmp_path / "data"), 0, 0
    recipe_of(tmp_path)
    while True:
        moment += 1 if FULL else 7
        shutil.rmtree(tmp_path / "data")
        if moment % 8:
            (tmp_path / "text" / "more.txt").write_text("One more. " * 300)
            again(tmp_path)
            (tmp_path / "text" / "more.txt").unlink()
        status = killed(moment, BORDERS, lambda: again(tmp_path))
        assert status in (0, signal.SIGKILL), status
        again(tmp_path)
        assert content(tmp_path / "data") == wanted, moment
        died += status != 0
        if status == 0:
            break
    assert died > (40 if FULL else 4)
