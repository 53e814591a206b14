"""The text models of Qwen3.5, dense and with experts: read out of a model that sees, counted, and saved as text models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from judge import prompts
from pellucid.api.count import count
from pellucid.api.model import load
from seeing import logits_of_text, seeing
from tiny import far

Raw = dict[str, Any]
EYES: Raw = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 14, "out_hidden_size": 32,
    "num_position_embeddings": 16,
}  # fmt: skip
WITHIN = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
# Qwen3.5-0.8B's sizes, as its config.json has them: by an interval, with three shares of each angle
SMALL: Raw = {
    "architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 248056, "model_type": "qwen3_5", "text_config": {
        "attention_bias": False, "attention_dropout": 0.0, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
        "hidden_size": 1024, "intermediate_size": 3584, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
        "model_type": "qwen3_5_text", "num_attention_heads": 8, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                            "rope_theta": 10000000, "rope_type": "default"}, "tie_word_embeddings": True, "vocab_size": 248320,
    }, "tie_word_embeddings": True, "video_token_id": 248057, "vision_config": {"model_type": "qwen3_5"},
    "vision_end_token_id": 248054, "vision_start_token_id": 248053,
}  # fmt: skip


@pytest.mark.parametrize("kind", WITHIN)
def test_the_text_model_is_read_and_saved(kind: str, tmp_path: Path) -> None:
    hf = seeing(kind, WITHIN[kind], EYES)
    hf.save_pretrained(tmp_path / "all")
    model = load(tmp_path / "all")
    with torch.no_grad():
        assert far(model(*prompts(WITHIN[kind])), logits_of_text(hf, WITHIN[kind])) < 1e-9
    assert model.left and all(n.startswith("model.visual.") for n in model.left)
    model.save(tmp_path / "text")
    saved = json.loads((tmp_path / "text" / "config.json").read_text())
    assert saved["model_type"] == WITHIN[kind] and "image_token_id" not in saved
    again = load(tmp_path / "text")
    assert again.config == model.config and not again.left
    hf, info = AutoModelForCausalLM.from_pretrained(tmp_path / "text", output_loading_info=True)
    assert type(hf).__name__.endswith("ForCausalLM") and not any(info.values())


def test_a_hybrid_is_counted(tmp_path: Path) -> None:
    """A text of any length has the same states; keys and values grow in six layers of 24. By hand, in bytes of float32."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    short, long = (count(tmp_path, context=n, cache="float32") for n in (1_000, 100_000))
    delta = 1024 * (2 * 2048 + 2 * 2048 + 2 * 16) + 4 * (2 * 2048 + 2048) + 16 + 16 + 128 + 2048 * 1024
    attention = 1024 * (2 * 2048 + 2 * 512) + 2048 * 1024 + 2 * 256
    block = 3 * 1024 * 3584 + 2 * 1024
    assert int(short["parameters.total"]) == 248320 * 1024 + 1024 + 18 * (delta + block) + 6 * (attention + block)
    states, rows = 18 * 16 * 128 * 128 * 4, 18 * 4 * (3 * 2048) * 4
    for n, bill in ((1_000, short), (100_000, long)):
        assert int(bill["cache.bytes"]) == states + rows + 6 * n * 2 * 512 * 4
    assert bill["flops.decode.layers.0.delta"].formula.startswith("2·B·T·(3·H·K·W + J·(2·G·K + H·W))")
