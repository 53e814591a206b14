"""What config.json asks for is judged against what the weights hold, before anything is built; and no file costs more than its bytes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid import count
from pellucid.api import model
from pellucid.api.model import load, make
from pellucid.checkpoint import opening
from pellucid.checkpoint.folder import Folder
from pellucid.counting import sizes
from pellucid.errors import PellucidError
from pellucid.families import understand
from pellucid.nn import transformer
from pellucid.tokenizer import tokenizer_file
from tiny import FAMILIES, swapped, tiny

ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "a width of a billion": ({"n_embd": 10**9}, "config.huge"),
    "a width of 2^31 - 4": ({"n_embd": 2**31 - 4}, "config.huge"),
    "a width of 200,000": ({"n_embd": 200_000}, "weights.sizes"),
    "a vocabulary of two billion": ({"vocab_size": 2**31 - 1}, "weights.sizes"),
    "a hundred thousand layers": ({"n_layer": 100_000}, "weights.layers"),
    "as many layers as tensors": ({"n_layer": 28}, "weights.sizes"),
    "a network of two billion": ({"n_inner": 2**31 - 1}, "weights.sizes"),
    "two billion positions": ({"n_positions": 2**31 - 1}, "weights.sizes"),
    "one layer more": ({"n_layer": 3}, "weights.missing"),  # what is missing is named where it is little
}


@pytest.mark.parametrize("case", ASKED)
@pytest.mark.quick(4)
def test_more_than_the_weights_hold_is_refused(case: str, folder: Path, tmp_path: Path) -> None:
    """In one line, with the numbers, and by what is cheapest to tell: no more modules are built than the file has tensors."""
    changed, key = ASKED[case]
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    made: list[int] = []

    def counted(cfg: Any) -> Any:
        made.append(len(cfg.layers))
        return transformer.build(cfg)

    with pytest.raises(PellucidError) as caught, swapped(sizes, "build", counted), swapped(opening, "build", counted):
        load(tmp_path / "model")
    assert caught.value.key == key and "\n" not in str(caught.value)
    assert sum(made) <= 4, made


def test_without_the_judgement_all_layers_are_built(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a hundred thousand blocks would be made of a file of 26 tensors."""
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"n_layer": 100_000}))
    monkeypatch.setattr(model, "judge_sizes", lambda cfg, folder: None)
    monkeypatch.setattr(opening, "build", lambda cfg: pytest.fail(f"{len(cfg.layers)} layers"))
    with pytest.raises(pytest.fail.Exception, match="100000 layers"):
        load(tmp_path / "model")


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_are_those_of_the_whole_model(family: str) -> None:
    """One layer of each kind stands for all; T5's relative table, which the stack has once, is told with every layer."""
    total = sum(p.numel() for p in tiny(family).parameters())
    counted = sizes.numbers(FAMILIES[family])
    assert total <= counted <= 1.01 * total and (counted == total or family == "t5")


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_tensor_that_cannot_be_made_is_one_line(device: str, tmp_path: Path) -> None:
    hf = {"model_type": "gpt2", "vocab_size": 320, "n_embd": 2**31 - 4, "n_head": 4, "n_layer": 2, "n_positions": 64}
    assert understand(hf)[1].width == 2**31 - 4
    with pytest.raises(PellucidError, match=r"config\.json asks for a tensor that cannot be made: ") as caught:
        make(hf, device=device)
    assert "\n" not in str(caught.value)
    (tmp_path / "config.json").write_text(json.dumps(hf))
    with pytest.raises(PellucidError, match="cannot be made"):
        count(tmp_path)


def test_a_quantised_folder_holds_its_numbers(folder: Path, tmp_path: Path) -> None:
    """What is stored in four bits counts as what it is once it is multiplied out."""
    load(folder, dtype="float32", quant="int4").save(tmp_path / "small")
    small = Folder(tmp_path / "small")
    assert small.bytes < Folder(folder).bytes
    assert load(tmp_path / "small").quant == "int4"


def test_entries_of_a_tokenizer_are_bounded(folder: Path, tmp_path: Path) -> None:
    """Each entry costs a kilobyte and microseconds, whatever its few bytes."""
    shutil.copytree(folder, tmp_path / "model")
    with swapped(tokenizer_file, "MOST_ENTRIES", 319), pytest.raises(PellucidError, match=r"model\.vocab has 320 entries; at most 319"):
        load(tmp_path / "model")
    assert load(tmp_path / "model", dtype=torch.float32).tokenizer.size == 320
