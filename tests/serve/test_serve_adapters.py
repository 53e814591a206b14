"""An adapter is a model of its own name over the base's weights: the base answers as before, and the adapter as if it were put on alone."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from openai_served import openai_served
from pellucid.api.model import Model, load
from pellucid.server.openai import adapters
from tiny import swapped

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a random LoRA adapter of the Llama specimen, in PEFT's format."""
    path, draw = tmp_path_factory.mktemp("adapter"), torch.Generator().manual_seed(1)
    place = "base_model.model.model.layers.{}.mlp.up_proj.lora_{}.weight"
    shapes = {"A": (4, 128), "B": (192, 4)}
    tensors = {place.format(i, ab): torch.randn(shape, generator=draw) for i in range(4) for ab, shape in shapes.items()}
    save_file(tensors, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["up_proj"], "lora_dropout": 0.0, "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def adapter_faults(folder: Path) -> list[str]:
    """Return the models whose answers, asked in turn, are not those of a model loaded for each alone."""
    plain, with_adapter = load("pellucid/capitals-llama"), load("pellucid/capitals-llama", adapter=folder)
    wanted = {"base": plain.generate(PROMPT, 12), "tuned": with_adapter.generate(PROMPT, 12)}
    assert wanted["base"] != wanted["tuned"]
    base = load("pellucid/capitals-llama")
    base.name = "base"
    tuned = adapters.adapted(base, str(folder), "tuned")
    with openai_served(base, tuned) as server:
        assert [m["id"] for m in server.client.get("/v1/models").json()["data"]] == ["base", "tuned"]
        got = [(name, server.complete(PROMPT, model=name, max_tokens=12)["choices"][0]["text"]) for name in ("base", "tuned", "base")]
    return [name for name, text in got if text != wanted[name]]


def test_base_and_adapter(folder: Path) -> None:
    assert adapter_faults(folder) == []


def test_weights_are_shared(folder: Path) -> None:
    base = load("pellucid/capitals-llama")
    tuned: Model = adapters.adapted(base, str(folder), "tuned")
    own = {p.data_ptr() for p in base.module.parameters()}
    assert own <= {p.data_ptr() for p in tuned.module.parameters()} and not base.adapters


def test_mutant(folder: Path) -> None:
    """An adapter that is put on the base's own module is seen."""
    with swapped(copy, "deepcopy", lambda module, shared: module):
        assert adapter_faults(folder)
