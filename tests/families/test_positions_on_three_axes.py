"""Text models whose positions have three axes, read out of models that see: in text alone they are a Qwen2 and a Qwen3."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from judge import prompts
from pellucid.analysis.verify import verify
from pellucid.api.model import load
from pellucid.errors import ConfigError
from pellucid.families import understand
from pellucid.nn.transformer import build
from seeing import logits_of_text, seeing
from tiny import far

Raw = dict[str, Any]
EYES: Raw = {"depth": 1, "hidden_size": 32, "intermediate_size": 16, "num_heads": 2, "patch_size": 14, "out_hidden_size": 32}
TURN: Raw = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
OF: dict[str, tuple[str, Raw]] = {  # the text model of each, and how its eyes differ
    "qwen2_vl": ("qwen2", {"embed_dim": 16}),
    "qwen2_5_vl": ("qwen2", {"fullatt_block_indexes": [0]}),
    "qwen3_vl": ("qwen3", {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}),
}
QUIRKS: dict[str, Raw] = {
    "plain": {},
    "tied, window": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "tie_word_embeddings": True},
    "one group, another base": {"num_key_value_heads": 1, "rope_parameters": TURN | {"rope_theta": 3e5}},
    "silu's kin": {"hidden_act": "gelu", "rms_norm_eps": 0.01},
}
# Qwen2.5-VL-3B-Instruct's config.json, flat
PUBLISHED: Raw = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
    "vision_start_token_id": 151652, "vision_end_token_id": 151653, "vision_token_id": 151654, "image_token_id": 151655,
    "video_token_id": 151656, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 11008,
    "max_position_embeddings": 128000, "max_window_layers": 70, "model_type": "qwen2_5_vl", "num_attention_heads": 16,
    "num_hidden_layers": 36, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.41.2", "use_cache": True,
    "use_sliding_window": False, "vision_config": {"depth": 32}, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vocab_size": 151936,
}  # fmt: skip


def made(kind: str, quirk: str = "plain") -> Any:
    """Return a random model of transformers in float64."""
    text, eyes = OF[kind]
    more = {"rope_parameters": TURN, "model_type": f"{kind}_text"} | QUIRKS[quirk]
    tied = bool(more.pop("tie_word_embeddings", False))
    return seeing(kind, text, EYES | eyes, more, tie_word_embeddings=tied)


CASES = [(kind, quirk) for kind in OF for quirk in QUIRKS if (kind, quirk) != ("qwen3_vl", "tied, window")]  # that has no windows


@pytest.mark.parametrize(("kind", "quirk"), CASES)
@pytest.mark.quick(5)
def test_the_text_model_is_read_verified_and_saved(kind: str, quirk: str, tmp_path: Path) -> None:
    text, hf = OF[kind][0], made(kind, quirk)
    hf.save_pretrained(tmp_path / "all")
    model = load(tmp_path / "all")
    with torch.no_grad():
        assert far(model(*prompts(text)), logits_of_text(hf, text)) < 1e-9
    assert model.config.tied is ("tied" in quirk) and model.left and all("visual" in n for n in model.left)
    assert verify(tmp_path / "all").agrees
    model.save(tmp_path / "text")
    assert json.loads((tmp_path / "text" / "config.json").read_text())["model_type"] == text
    again = load(tmp_path / "text")
    assert again.config == model.config and not again.left
    alone, info = AutoModelForCausalLM.from_pretrained(tmp_path / "text", dtype=torch.float64, output_loading_info=True)
    ours = model.module.state_dict()
    assert not any(info.values()) and all(torch.equal(p, ours[n]) for n, p in again.module.state_dict().items())
    assert far(alone(*prompts(text)).logits.detach(), model(*prompts(text)).detach()) < 1e-4  # with its islands of float32


def test_a_published_flat_file() -> None:
    with torch.device("meta"):
        model = build(understand(PUBLISHED)[1])
    assert sum(p.numel() for p in model.parameters()) == 3_085_938_688  # Qwen2.5-3B's
    for fields, word in (
        ({"rope_scaling": {"type": "mrope", "factor": 2.0}}, "rope_scaling.type"), ({"hyper": 1}, "hyper"),
        ({"rope_theta": "x"}, "rope_theta"), ({"text_config": 3}, "text_config"),
        ({"text_config": {"model_type": "llama"}}, "text_config.model_type"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=word):
            understand(PUBLISHED | fields)
