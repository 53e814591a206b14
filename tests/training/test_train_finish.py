"""What a finished run writes: each file whole, and what cannot be written is one line about a run that can go on."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pellucid.errors import TrainError
from pellucid.training import run_recipe
from test_recipe import written
from training import corpus_of, silent

STALE = "model-00001-of-00002.safetensors"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    corpus_of(tmp_path / "corpus", "France", "Spain")
    return written(tmp_path / "mini.toml", batch="2", steps="1")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "README.md", STALE])
@pytest.mark.quick(4)
def test_what_is_in_the_way_of_a_model(name: str, recipe: Path) -> None:
    """A folder of a file's name is a TrainError that names it; without it the run goes on from its last state."""
    out = recipe.parent / "out"

    def block(entry: dict[str, Any]) -> None:
        if "scores" in entry:
            (out / "model" / name).mkdir(parents=True)

    with pytest.raises(TrainError) as caught:
        run_recipe(recipe, out, False, 1, block)
    assert name in str(caught.value) and "\n" not in str(caught.value)
    (out / "model" / name).rmdir()
    assert (run_recipe(recipe, out, True, 1, silent) / "config.json").is_file()


def contents(folder: Path) -> dict[Path, bytes]:
    """Return every file below a folder."""
    return {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize("place", [".", "model"])
def test_a_full_disk_leaves_files_as_they_were(place: str, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file of a run and of its model is written beside the old one, which stays whole when the disk is full."""
    out = recipe.parent / "out"
    run_recipe(recipe, out, False, 1, silent)
    before = contents(out)

    def full(name: str) -> None:
        own = getattr(Path, name)

        def write(self: Path, *given: Any, **how: Any) -> int:
            if not self.is_relative_to(out / place):
                return int(own(self, *given, **how))
            with open(self, "w"):  # as the system does: the file is emptied before the first byte has no room
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

        monkeypatch.setattr(Path, name, write)

    full("write_text")
    full("write_bytes")
    with pytest.raises(TrainError) as caught:
        run_recipe(recipe, out, True, 1, silent)
    assert os.strerror(errno.ENOSPC) in str(caught.value) and str(out / place) in str(caught.value)
    assert contents(out) == before
