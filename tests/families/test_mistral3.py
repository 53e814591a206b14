"""The text model of a Mistral that sees: read out of the whole, tied or not as the tensors say, and saved as a model of its own type."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from judge import prompts
from pellucid.api.count import count
from pellucid.api.model import load
from pellucid.errors import ConfigError
from pellucid.families import understand
from pellucid.nn.transformer import build
from seeing import logits_of_text, seeing
from tiny import far

Raw = dict[str, Any]
EYES: Raw = {
    "model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14, "head_dim": 8,
}  # fmt: skip
# Mistral-Small-3.1-24B-Instruct-2503's config.json, which does not say whether the head is tied
SMALL: Raw = {
    "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3",
    "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2, "text_config": {
        "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
        "intermediate_size": 32768, "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": None,
        "use_cache": True, "vocab_size": 131072,
    }, "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "vision_config": {"model_type": "pixtral"},
    "vision_feature_layer": -1,
}  # fmt: skip
# Ministral-3-8B-Instruct-2512's config.json, without its quantisation
MINISTRAL: Raw = {
    "architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16", "image_token_index": 10, "model_type": "mistral3",
    "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2, "text_config": {
        "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32,
        "num_hidden_layers": 34, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_parameters": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn", "type": "yarn",
        }, "sliding_window": None, "use_cache": True, "vocab_size": 131072,
    }, "transformers_version": "5.0.0.dev0", "vision_config": {"model_type": "pixtral"}, "vision_feature_layer": -1,
}  # fmt: skip
TEXTS = {"mistral": "MistralForCausalLM", "ministral3": "Ministral3ForCausalLM", "mistral4": "Mistral4ForCausalLM"}


@pytest.fixture(scope="module", params=TEXTS)
def multimodal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor, str]:
    """Return a folder of transformers, its logits of a prompt in float64, and the model_type of its text model."""
    hf = seeing("mistral3", request.param, EYES, tie_word_embeddings=False)
    folder = tmp_path_factory.mktemp("whole")
    hf.save_pretrained(folder)
    return folder, logits_of_text(hf, request.param), request.param


def silent(folder: Path, to: Path, drop: tuple[str, ...] = ()) -> Path:
    """Write the folder to `to` without `tie_word_embeddings`, as published files are, and without the tensors `drop`."""
    raw = json.loads((folder / "config.json").read_text())
    raw.pop("tie_word_embeddings", None), raw["text_config"].pop("tie_word_embeddings", None)
    (to / "config.json").write_text(json.dumps(raw))
    save_file({n: t for n, t in load_file(folder / "model.safetensors").items() if n not in drop}, to / "model.safetensors")
    return to


def test_the_text_model_is_read_out_of_the_whole(multimodal: tuple[Path, Tensor, str], tmp_path: Path) -> None:
    for folder in (multimodal[0], silent(multimodal[0], tmp_path)):
        model = load(folder)
        with torch.no_grad():
            assert far(model(*prompts(multimodal[2])), multimodal[1]) < 1e-9
        assert not model.config.tied and model.left
        assert [n for n in count(folder).notes if f"({multimodal[2]})" in n]


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.quick(4)
def test_what_is_saved_is_the_text_model(head: bool, multimodal: tuple[Path, Tensor, str], tmp_path: Path) -> None:
    """With a head of its own and with a tied one: transformers reads the saved folder and finds every weight."""
    model = load(silent(multimodal[0], tmp_path, () if head else ("lm_head.weight", "language_model.lm_head.weight")))
    assert model.config.tied is not head
    model.save(tmp_path / "text")
    again = load(tmp_path / "text")
    assert again.config == model.config and not again.left
    how = {"dtype": torch.float64, "output_loading_info": True, "experts_implementation": "eager"}
    hf, info = getattr(transformers, TEXTS[multimodal[2]]).from_pretrained(tmp_path / "text", **how)
    assert not any(info.values())
    with torch.no_grad():
        assert far(hf(*prompts("mistral")).logits, model(*prompts("mistral"))) < 1e-4  # with its islands of float32


@pytest.mark.parametrize(("file", "parameters"), [(SMALL, 23_572_403_200), (MINISTRAL, 8_489_553_920)], ids=["small", "ministral"])
def test_a_published_file(file: Raw, parameters: int) -> None:
    with torch.device("meta"):
        model = build(understand(file)[1])
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_another_text_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"text_config\.model_type"):
        understand(SMALL | {"text_config": SMALL["text_config"] | {"model_type": "llama"}})
