"""Checkpoint folders: shards and their index, links, pickles that stay closed, and saving."""

import errno
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pellucid.checkpoint.disk import inside
from pellucid.checkpoint.folder import INDEX, WEIGHTS, Folder, save_folder
from pellucid.checkpoint.safetensors_file import write
from pellucid.errors import CheckpointError, ConfigError, PellucidError

CONFIG = {"model_type": "gpt2", "n_embd": 4}
TENSORS = {f"h.{i}.weight": torch.full((2, 4), float(i)) for i in range(5)}
A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """The names of all files that are opened from now on."""
    seen: list[str] = []
    watching = True

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if watching and event == "open":
            seen.append(os.path.basename(str(args[0])))

    sys.addaudithook(hook)
    yield seen
    watching = False


def sharded(path: Path, weight_map: dict[str, Any] | None = None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file({"x": torch.zeros(2), "y": torch.ones(2)}, path / A)
    save_file({"z": torch.ones(3)}, path / B)
    table = {"x": A, "y": A, "z": B} if weight_map is None else weight_map
    (path / INDEX).write_text(json.dumps({"metadata": {"total_size": 28.0}, "weight_map": table}))
    return path


def refused(path: Path) -> PellucidError:
    with pytest.raises(CheckpointError) as caught:
        _ = Folder(path).entries
    assert "\n" not in str(caught.value)
    return caught.value


def test_reads_one_file_and_shards(tmp_path: Path) -> None:
    folder = Folder(sharded(tmp_path / "shards"))
    assert folder.config == CONFIG and folder.generation_config == {}
    assert {n: e.file.name for n, e in folder.entries.items()} == {"x": A, "y": A, "z": B}
    assert folder.read("z").tolist() == [1, 1, 1]
    assert folder.names() == ["x", "y", "z"] and folder.shape("z") == (3,) and folder.dtype("z") == torch.float32
    assert folder.bytes == 28
    with pytest.raises(CheckpointError, match="no tensor w"):
        folder.read("w")
    save_file({"w": torch.ones(1)}, tmp_path / "shards" / WEIGHTS)
    assert Folder(tmp_path / "shards").names() == ["w"]


@pytest.mark.parametrize(
    ("table", "key", "named"),
    [
        ({"x": A, "y": A, "z": B, "w": B}, "index.absent", "w"),
        ({"x": A, "y": A, "z": A}, "index.unlisted", B),
        ({"x": A, "z": B}, "index.extra", "y"),
        ({"x": A, "y": B, "z": B}, "index.extra", "y"),
        ({"x": A, "y": A, "z": B, "w": "model-00003-of-00003.safetensors"}, "index.gone", "model-00003"),
        ({"x": A, "y": A, "z": "../../z.safetensors"}, "file.name", "../../z"),
        ({"x": A, "y": A, "z": "/etc/z.safetensors"}, "file.name", "/etc/z"),
        ({"x": A, "y": A, "z": "..\\z.safetensors"}, "file.name", "z.safetensors"),
        ({"x": A, "y": A, "z": "z\0.safetensors"}, "file.name", "z"),
        ({"x": A, "y": A, "z": "pytorch_model.bin"}, "index.shard", "pytorch_model.bin"),
        ({"x": A, "y": A, "z": 3}, "index.shard", "3"),
        ({"x": A, "y": A, "z": None}, "index.shard", "z"),
    ],
)
def test_index(table: dict[str, Any], key: str, named: str, tmp_path: Path) -> None:
    error = refused(sharded(tmp_path / "f", table))
    assert error.key == key and named in str(error)


def test_index_that_is_no_table(tmp_path: Path) -> None:
    path = sharded(tmp_path / "f")
    for text, key in (
        ("{}", "index.map"),
        ('{"weight_map": []}', "index.map"),
        ("[]", "json.object"),
        ('{"weight_map": {"x": 1, "x": 2}}', "json.twice"),
    ):
        (path / INDEX).write_text(text)
        assert refused(path).key == key


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    path = sharded(tmp_path / "f")
    save_file({"z": torch.ones(3), "x": torch.ones(2)}, path / B)
    error = refused(path)
    assert error.key == "index.twice" and "tensor x" in str(error)


def test_names_listed_are_few(tmp_path: Path) -> None:
    error = refused(sharded(tmp_path / "f", {"x": A, "y": A, "z": B} | {f"missing.{i:03}": B for i in range(500)}))
    assert "500 tensors" in str(error) and "missing.009" in str(error) and "missing.010" not in str(error)


def test_links_and_kinds(tmp_path: Path) -> None:
    """A shard may be a link only into its folder or the hub cache's blobs; a pipe or device never blocks or is read."""
    for place in ("file.outside", "file.kind"):
        path = sharded(tmp_path / place)
        (path / B).unlink()
        if place == "file.outside":
            save_file({"z": torch.ones(3)}, tmp_path / "away.safetensors")
            (path / B).symlink_to(tmp_path / "away.safetensors")
        else:
            os.mkfifo(path / B)
        assert refused(path).key == place
    (path / B).unlink()
    (path / B).mkdir()
    assert refused(path).key == "file.kind"
    (path / B).rmdir()
    for target, key in (
        ("/dev/zero", "file.outside"),
        (path / B, "file.closed"),
        (path / A, "index.twice"),
        (path / "none", "file.missing"),
    ):
        (path / B).symlink_to(target)
        assert refused(path).key in (key, "index.gone")
        (path / B).unlink()

    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file({"x": torch.ones(2)}, blobs / "abc")
    (blobs / "def").write_text(json.dumps(CONFIG))
    (snapshot / WEIGHTS).symlink_to("../../blobs/abc")
    (snapshot / "config.json").symlink_to("../../blobs/def")
    assert Folder(snapshot).read("x").tolist() == [1, 1] and Folder(snapshot).config == CONFIG
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "file.kind" / "config.json")
    with pytest.raises(ConfigError, match="outside"):
        _ = Folder(snapshot).config


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/a", "a\\b", "a\0", "C:a"])
def test_only_plain_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        inside(tmp_path, name)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl", "tf_model.h5", "flax_model.msgpack"])
def test_pickles_stay_closed(name: str, tmp_path: Path, opened: list[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / name)
    error = refused(tmp_path)
    assert error.key == "folder.pickled" and name in str(error) and "only safetensors are read" in str(error)
    assert name not in opened
    (tmp_path / name).unlink()
    assert refused(tmp_path).key == "folder.weightless"


def test_a_folder_that_is_no_model_is_told_what_it_is(tmp_path: Path) -> None:
    """Weights of another name, an adapter, and a folder around a model's, as the hub's cache has them."""
    model = tmp_path / "cached" / "snapshots" / "0123"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(CONFIG))
    save_file({"x": torch.ones(2)}, model / "consolidated.safetensors")
    with pytest.raises(CheckpointError, match=r"but consolidated\.safetensors"):
        Folder(model).names()
    with pytest.raises(ConfigError, match=r"folders within it have: .*/cached/snapshots/0123$"):
        _ = Folder(tmp_path / "cached").config
    (tmp_path / "cached" / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"it is an adapter.*--adapter"):
        _ = Folder(tmp_path / "cached").config
    (tmp_path / "bare").mkdir()
    with pytest.raises(ConfigError, match=r"bare/config\.json does not exist"):
        _ = Folder(tmp_path / "bare").config


WRITTEN = {"index.jsonl": "`pellucid open` shows", "adapter/adapter_config.json": "adapter within it is an adapter", "a.txt": "config.json"}


@pytest.mark.parametrize("file", WRITTEN)
def test_what_another_command_wrote_is_named(tmp_path: Path, file: str) -> None:
    """A trace, and a run that trained an adapter, are no model's folder; the line says what they are."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("{}")
    with pytest.raises(ConfigError, match=re.escape(WRITTEN[file])):
        _ = Folder(tmp_path).config


def test_the_watch_on_opened_files_sees(tmp_path: Path, opened: list[str]) -> None:
    """Mutant: a reader that looks into the file is seen."""
    (tmp_path / "model.pt").write_bytes(b"x")
    (tmp_path / "model.pt").read_bytes()
    assert "model.pt" in opened


def test_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a folder"):
        Folder(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"config\.json does not exist"):
        _ = Folder(tmp_path).config
    (tmp_path / "config.json").write_text('{"a": 1, "a": 2}')
    with pytest.raises(ConfigError, match="the key a"):
        _ = Folder(tmp_path).config
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert Folder(tmp_path).generation_config == {"eos_token_id": [1, 2]}


@pytest.mark.parametrize(("limit", "files"), [(10**9, 1), (64, 3), (1, 5), (32, 5)])
def test_saves(limit: int, files: int, tmp_path: Path) -> None:
    save_folder(tmp_path / "a" / "b", CONFIG, TENSORS, {"eos_token_id": 3}, {"tokenizer.json": b"{}"}, shard_bytes=limit)
    folder = Folder(tmp_path / "a" / "b")
    assert folder.config == CONFIG and folder.generation_config == {"eos_token_id": 3}
    assert folder.tokenizer_files() == [tmp_path / "a" / "b" / "tokenizer.json"]
    assert {n: folder.read(n).tolist() for n in folder.names()} == {n: t.tolist() for n, t in TENSORS.items()}
    weights = sorted(folder.path.glob("*.safetensors"))
    assert len(weights) == files and folder.has(INDEX) == (files > 1)
    judged = {n: t for file in weights for n, t in load_file(file).items()}
    assert judged.keys() == TENSORS.keys() and all(torch.equal(judged[n], t) for n, t in TENSORS.items())
    if files > 1:
        index = json.loads((folder.path / INDEX).read_text())
        assert index["metadata"]["total_size"] == 160 and all(
            n in load_file(folder.path / shard) for n, shard in index["weight_map"].items()
        )
    assert not [f for f in os.listdir(folder.path) if f.startswith(".")]


def test_saves_over_a_checkpoint_only_when_told(tmp_path: Path) -> None:
    save_folder(tmp_path, CONFIG, TENSORS, shard_bytes=64)
    (tmp_path / "README.md").write_text("mine")
    before = {f: (tmp_path / f).read_bytes() for f in os.listdir(tmp_path)}
    with pytest.raises(CheckpointError, match="already holds weights"):
        save_folder(tmp_path, CONFIG, {"x": torch.ones(1)})
    assert before == {f: (tmp_path / f).read_bytes() for f in os.listdir(tmp_path)}
    save_folder(tmp_path, CONFIG, {"x": torch.ones(1)}, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["README.md", "config.json", WEIGHTS]
    save_folder(tmp_path, CONFIG, TENSORS, shard_bytes=32, overwrite=True)
    assert len(Folder(tmp_path).names()) == 5 and not (tmp_path / WEIGHTS).exists()


@pytest.mark.parametrize(
    ("files", "key"),
    [
        (("adapter_config.json", "adapter_model.safetensors"), "folder.adapter.alone"),
        (("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"), "folder.unindexed"),
        (("tf_model.safetensors", "pytorch_model.bin"), "folder.renamed"),
        (("pytorch_model.bin",), "folder.pickled"),
        ((), "folder.weightless"),
    ],
)
def test_a_folder_without_weights_is_told_apart(files: tuple[str, ...], key: str, tmp_path: Path) -> None:
    for name in ("config.json", *files):
        (tmp_path / name).write_text("{}")
    assert refused(tmp_path).key == key


@pytest.mark.parametrize("stop", range(1, 6))
def test_a_save_that_stops_leaves_no_mixture(stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fault at any file the folder is the old checkpoint, the new one, or refused; never some shards of each."""
    save_folder(tmp_path, CONFIG, TENSORS, shard_bytes=64)
    new = {name: value + 100 for name, value in TENSORS.items()}
    replace, count = os.replace, 0

    def fail(old: Path, to: Path) -> None:
        nonlocal count
        count += 1
        if count == stop:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(old, to)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(CheckpointError, match="No space left"):
        save_folder(tmp_path, CONFIG, new, shard_bytes=64, overwrite=True)
    monkeypatch.undo()
    folder = Folder(tmp_path)
    if not folder.has(INDEX):
        assert refused(tmp_path).key == "folder.unindexed"
    else:
        assert [float(folder.read(name)[0, 0]) for name in TENSORS] == [100, 101, 102, 103, 104]


def test_a_save_that_keeps_the_old_index_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: with the old index left in place a stopped save passes for a checkpoint of two halves."""
    save_folder(tmp_path, CONFIG, TENSORS, shard_bytes=64)
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
    shards = iter(range(10))

    def fail(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        if next(shards) == 1:
            raise CheckpointError("file.write", file=path, reason="full")
        write(path, tensors)

    monkeypatch.setattr("pellucid.checkpoint.folder.write", fail)
    with pytest.raises(CheckpointError, match="full"):
        save_folder(tmp_path, CONFIG, {n: t + 100 for n, t in TENSORS.items()}, shard_bytes=64, overwrite=True)
    folder = Folder(tmp_path)
    assert [float(folder.read(name)[0, 0]) for name in TENSORS] == [100, 101, 2, 3, 4]


def test_config_that_is_no_json(tmp_path: Path) -> None:
    for value in (float("nan"), object()):
        with pytest.raises(ConfigError, match="cannot be written as JSON"):
            save_folder(tmp_path / "f", {"eps": value}, TENSORS)
        assert not (tmp_path / "f").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_folder(tmp_path / "file", CONFIG, TENSORS)
