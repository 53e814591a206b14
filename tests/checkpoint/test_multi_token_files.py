"""Modules for multi-token prediction in a folder: as layers where a family's checkpoints have them, else in a file; read as written."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import judge
from pellucid.checkpoint.fill import targets, unfill
from pellucid.checkpoint.folder import Folder, save_folder
from pellucid.checkpoint.multi_token_files import COUNT, FILE, as_layers, count_of, read_modules, write_file
from pellucid.checkpoint.safetensors_file import read_header, read_tensor, write
from pellucid.errors import CheckpointError
from pellucid.families import understand
from pellucid.nn.multi_token import MultiTokenPrediction
from pellucid.nn.transformer import Decoder

LAYERS = ("deepseek_v3", "deepseek_v32", "dots1", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "hy_v3", "solar_open")
ALONE = ("llama", "qwen3_next", "gpt2", "gemma2", "mamba", "exaone_moe", "ernie4_5_moe", "qwen3_moe")
DEPTH = 2


def folder_of(kind: str, path: Path) -> tuple[Folder, list[MultiTokenPrediction]]:
    """Write a folder of this family with modules of random numbers; return it with them."""
    family, model = judge.ours(judge.judge(kind).folder, torch.float32)
    assert isinstance(model, Decoder)
    modules = [MultiTokenPrediction(model.config).requires_grad_(False) for _ in range(DEPTH)]
    draw = torch.Generator().manual_seed(1)
    for t in (t for one in modules for t in targets(one).values()):
        t.copy_(torch.randn(t.shape, generator=draw))
    hf = json.loads((judge.judge(kind).folder / "config.json").read_text())
    layers = as_layers(model, modules, family)
    assert (layers is not None) is (kind in LAYERS)
    save_folder(path, hf | ({} if layers is None else {COUNT: DEPTH}), dict(unfill(model, family.rules_for(model.config))) | (layers or {}))
    write_file(path, nn.ModuleList(modules) if layers is None else None)
    return Folder(path), modules


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(t, targets(b)[name]) for name, t in targets(a).items())


@pytest.mark.parametrize("kind", [*LAYERS, *ALONE])
@pytest.mark.quick(4)
def test_what_is_written_is_read(kind: str, tmp_path: Path) -> None:
    """And the model alone is read as without them, whose config.json has their number where they are layers."""
    folder, modules = folder_of(kind, tmp_path / "own")
    family, cfg = understand(folder.config, folder.file)
    assert count_of(folder, family, cfg) == DEPTH and (tmp_path / "own" / FILE).exists() is (kind in ALONE)
    read = read_modules(folder, family, cfg, DEPTH, torch.float32)
    assert all(same(a, b) for a, b in zip(modules, read, strict=True)) and not same(modules[1], read[0])
    _, model = judge.ours(tmp_path / "own", torch.float32)
    assert same(judge.ours(judge.judge(kind).folder, torch.float32)[1], model)


def test_the_projection_reads_the_token_first(tmp_path: Path) -> None:
    """As DeepSeek-V3's: eh_proj over [enorm(embedding); hnorm(row)]."""
    folder, (first, _) = folder_of("deepseek_v3", tmp_path / "own")
    cfg = understand(folder.config, folder.file)[1]
    at = f"model.layers.{len(cfg.layers)}"
    both = folder.read(f"{at}.eh_proj.weight")
    assert torch.equal(both[:, : cfg.width], first.from_token.weight)
    assert torch.equal(folder.read(f"{at}.enorm.weight"), first.token_norm.weight)
    assert torch.equal(folder.read(f"{at}.shared_head.norm.weight"), first.norm.weight)
    assert torch.equal(folder.read(f"{at}.embed_tokens.weight"), folder.read("model.embed_tokens.weight"))
    assert not torch.equal(both[:, : cfg.width], first.from_rows.weight)  # the mutant: the row first


@pytest.mark.parametrize("kind", ["deepseek_v3", "llama"])
def test_a_missing_tensor_or_another_shape_is_named(kind: str, tmp_path: Path) -> None:
    folder, _ = folder_of(kind, tmp_path / "own")
    family, cfg = understand(folder.config, folder.file)
    file = folder.path / (FILE if kind == "llama" else "model.safetensors")
    every = {name: read_tensor(entry) for name, entry in read_header(file).items()}
    name = "1.hidden_norm.weight" if kind == "llama" else f"model.layers.{len(cfg.layers) + 1}.hnorm.weight"
    for number, (tensors, words) in enumerate(
        (({n: t for n, t in every.items() if n != name}, name), (every | {name: torch.ones(3)}, r"\(3,\)"))
    ):
        copy = Path(shutil.copytree(folder.path, tmp_path / str(number)))
        write(copy / file.name, tensors)
        with pytest.raises(CheckpointError, match=words):
            read_modules(Folder(copy), family, cfg, DEPTH, torch.float32)


def test_a_folder_without_modules_has_none() -> None:
    folder = Folder(judge.judge("deepseek_v3").folder)
    family, cfg = understand(folder.config, folder.file)
    assert count_of(folder, family, cfg) == 0
