"""Kept shards: taken by the next run with the same files, tokenizer and settings alone, and whole at every moment of a kill.

PELLUCID_FULL=1 kills at every border of the disk, and not at each fifth.
"""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from killed import killed
from pellucid.errors import TrainError
from pellucid.training import shard_cache
from pellucid.training import shards as made
from pellucid.training.recipe import read_recipe
from pellucid.training.shard_cache import FOLDER, cache_folder
from pellucid.training.shards import Shards, open_shards
from pellucid.training.texts import Texts
from test_resume import FULL, flip
from test_shards import content
from text_runs import recipe_of
from tiny import swapped

BORDERS = [(os, name) for name in ("fsync", "replace", "unlink", "link")] + [(Path, name) for name in ("rename", "mkdir", "unlink")]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(made, "SHARD_TOKENS", 200)
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache" / "shards"


def opened(folder: Path, run: str, remake: bool = False) -> Shards:
    """The shards of the recipe in `folder`, for a run of this name."""
    recipe = read_recipe(folder / "r.toml")
    assert isinstance(recipe.data, Texts)
    return open_shards(recipe.data, recipe.tokenizer, folder / run, False, remake)


def entries(cache: Path) -> list[Path]:
    """The kept folders, and what a killed run has left."""
    return sorted(cache.iterdir()) if cache.is_dir() else []


def test_the_next_run_takes_them(tmp_path: Path, cache: Path) -> None:
    """The same bytes, on the disk once; and each run has its own when the cache is gone."""
    recipe_of(tmp_path)
    opened(tmp_path, "one")
    with swapped(made, "make_shards", None):
        opened(tmp_path, "two")
    one, two = content(tmp_path / "one"), content(tmp_path / "two")
    assert one == two and len(one) > 4 and len(entries(cache)) == 1 and entries(cache)[0].stat().st_mode & 0o077 == 0
    assert (tmp_path / "one" / "00000.safetensors").samefile(tmp_path / "two" / "00000.safetensors")
    shutil.rmtree(cache)
    with swapped(made, "make_shards", None):
        opened(tmp_path, "two")


CHANGED: dict[str, dict[str, Any]] = {"size": {"size": "300"}, "sample": {"tokenizer__sample_bytes": "900"}, "file": {}, "order": {}}


@pytest.mark.parametrize("what", CHANGED)
def test_others_are_made_anew(what: str, tmp_path: Path, cache: Path) -> None:
    """Of another tokenizer, another text, or files in another order; also over what a run has taken, which stays as it was."""
    recipe_of(tmp_path)
    opened(tmp_path, "one")
    before = content(tmp_path / "one")
    opened(tmp_path, "two")
    recipe_of(tmp_path, **CHANGED[what] | ({"data__files": '["b.jsonl", "text/*.txt"]'} if what == "order" else {}))
    if what == "file":
        (tmp_path / "b.jsonl").write_text('{"text": "Another story."}\n')
    if what == "order":  # a run that has them in one order keeps them
        shutil.rmtree(tmp_path / "two")
    opened(tmp_path, "two")
    opened(tmp_path, "three")
    assert content(tmp_path / "two") == content(tmp_path / "three") != before == content(tmp_path / "one")
    assert len(entries(cache)) == 2


def test_it_can_be_off(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a field of the recipe, or by an empty place; which is otherwise where the system has such folders."""
    recipe_of(tmp_path, data__cache="false")
    opened(tmp_path, "one")
    recipe_of(tmp_path)
    monkeypatch.setenv(FOLDER, "")
    opened(tmp_path, "two")
    assert not entries(cache) and cache_folder() is None
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/pellucid/shards")
    recipe_of(tmp_path, data__cache="1")
    with pytest.raises(TrainError, match=r"data\.cache is 1; allowed: true, false"):
        read_recipe(tmp_path / "r.toml")


@pytest.mark.parametrize("name", ["00001.safetensors", "index.json", "tokenizer.json"])
def test_damage_is_no_run_s_fault(name: str, tmp_path: Path, cache: Path) -> None:
    """Damaged shards are made again, and replaced in the cache; a file too few is damage too."""
    recipe_of(tmp_path)
    opened(tmp_path, "one")
    wanted = content(tmp_path / "one")
    (entry,) = entries(cache)
    for damage in (flip, Path.unlink):
        (entry / name).write_bytes((entry / name).read_bytes())  # writes through the link
        shutil.copy(entry / name, tmp_path / "apart")
        (entry / name).unlink()
        shutil.copy(tmp_path / "apart", entry / name)
        damage(entry / name)
        shutil.rmtree(tmp_path / "two", ignore_errors=True)
        opened(tmp_path, "two")
        assert content(tmp_path / "two") == wanted == content(tmp_path / "one")
    if name != "index.json":  # without an index there is nothing to replace, until the folder is removed
        with swapped(made, "make_shards", None):
            opened(tmp_path, "three")
    assert [entry.name for entry in entries(cache)] == [entry.name]


def test_a_file_that_changes_meanwhile(tmp_path: Path, cache: Path) -> None:
    """Its shards are not kept under the hash of what it was; a cache that compares nothing keeps them (a mutant)."""
    recipe_of(tmp_path)
    honest, changed = made.make_shards, (tmp_path / "b.jsonl")

    def changing(*given: Any) -> Any:
        changed.write_text('{"text": "Another story."}\n')
        return honest(*given)

    with swapped(made, "make_shards", changing):
        opened(tmp_path, "one")
        assert not entries(cache)
        recipe_of(tmp_path)
        with swapped(made, "stamp_of", lambda file: ()):
            opened(tmp_path, "two")
        assert entries(cache)


def test_without_links_or_without_a_place(tmp_path: Path, cache: Path) -> None:
    """Another disk gets a copy; a cache that cannot be written stops no run."""

    def refused(*given: Any, **how: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    recipe_of(tmp_path)
    with swapped(os, "link", refused):
        opened(tmp_path, "one")
        with swapped(made, "make_shards", None):
            opened(tmp_path, "two")
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert not (tmp_path / "one" / "index.json").samefile(tmp_path / "two" / "index.json")
    shutil.rmtree(cache)
    cache.write_text("a file")
    opened(tmp_path, "three")
    assert content(tmp_path / "three") == content(tmp_path / "one") and cache.read_text() == "a file"


def test_a_place_that_cannot_be_read(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user's home is: no run ends for it."""

    def closed(*given: Any, **how: Any) -> None:
        raise PermissionError(13, "Permission denied")

    recipe_of(tmp_path)
    with swapped(Path, "mkdir", closed), swapped(Path, "glob", closed):
        shard_cache.ShardCache("key", cache).keep(tmp_path)
    assert not entries(cache)


def test_a_tokenizer_that_changes_meanwhile(tmp_path: Path, cache: Path) -> None:
    recipe_of(tmp_path)
    honest = made.make_shards

    def changing(*given: Any) -> Any:
        out, setting = honest(*given), made.setting
        made.setting = lambda *given: {**setting(*given), "size": 7}  # type: ignore[assignment, dict-item]
        return out

    with swapped(made, "make_shards", changing), swapped(made, "setting", made.setting):
        opened(tmp_path, "one")
    assert not entries(cache)


def test_two_at_once(tmp_path: Path, cache: Path) -> None:
    """Both make them, one is kept, and nothing else is left; also when old shards are made again by --prepare."""
    recipe_of(tmp_path)
    honest = made.make_shards

    def both(*given: Any) -> Any:
        with swapped(made, "make_shards", honest):
            opened(tmp_path, "other")
        return honest(*given)

    with swapped(made, "make_shards", both):
        opened(tmp_path, "one")
    (entry,) = entries(cache)
    opened(tmp_path, "one", remake=True)
    assert content(tmp_path / "one") == content(tmp_path / "other") == content(entry) and entries(cache) == [entry]
    left = cache / f".{entry.name}.0.part"
    left.mkdir()
    os.utime(left, (0, 0))
    opened(tmp_path, "two")
    opened(tmp_path, "three", remake=True)
    assert entries(cache) == [entry]


def test_killed_at_any_moment(tmp_path: Path, cache: Path) -> None:
    """While shards are kept and while they are taken: what is there is whole, and the next run has the same bytes."""
    recipe_of(tmp_path)
    opened(tmp_path, "one")
    wanted = content(tmp_path / "one")
    for kept in (False, True):
        moment, died = 0, 0
        while True:
            moment += 1 if FULL else 9
            shutil.rmtree(tmp_path / "two", ignore_errors=True)
            if not kept:
                shutil.rmtree(cache, ignore_errors=True)
            status = killed(moment, BORDERS, lambda: opened(tmp_path, "two"))
            assert status in (0, signal.SIGKILL), status
            assert all(content(entry) == wanted for entry in entries(cache) if not entry.name.startswith("."))
            opened(tmp_path, "two")
            assert content(tmp_path / "two") == wanted, moment
            died += status != 0
            if status == 0:
                break
        assert died > (40 if FULL else 4) / (1 + kept)


def test_the_key_has_what_ids_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    first = made.key_of({"sources": {"a": "1", "b": "2"}})
    assert made.key_of({"sources": {"b": "2", "a": "1"}}) != first
    monkeypatch.setattr(made, "version", lambda name: "0")
    assert made.key_of({"sources": {"a": "1", "b": "2"}}) != first
    assert shard_cache.KEPT.fullmatch("00000.safetensors") and not shard_cache.KEPT.fullmatch("reference.json")
