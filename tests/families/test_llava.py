"""The text model of a LLaVA: a Llama, a Mistral or a Qwen2 by its own fields, or by transformers' defaults where a file leaves them out."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig

from judge import prompts
from pellucid.analysis.verify import verify
from pellucid.api.count import count
from pellucid.api.model import load
from pellucid.errors import ConfigError
from pellucid.families import llava, understand
from pellucid.nn.transformer import build
from seeing import logits_of_text, seeing
from tiny import far

Raw = dict[str, Any]
EYES: Raw = {
    "model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14, "projection_dim": 8,
}  # fmt: skip
# llava-1.5-7b-hf's config.json, whose text model says little of itself
PUBLISHED: Raw = {
    "architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_token_index": 32000, "model_type": "llava",
    "pad_token_id": 32001, "projector_hidden_act": "gelu", "text_config": {
        "_name_or_path": "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096,
        "model_type": "llama", "rms_norm_eps": 1e-05, "torch_dtype": "float16", "vocab_size": 32064,
    }, "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.36.0.dev0", "vision_config": {
        "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model", "num_attention_heads": 16,
        "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768, "vocab_size": 32000,
    }, "vision_feature_layer": -2, "vision_feature_select_strategy": "default", "vocab_size": 32064,
}  # fmt: skip
# pixtral-12b's, with the form that it had in 2024
PIXTRAL: Raw = PUBLISHED | {
    "text_config": {
        "head_dim": 128, "hidden_size": 5120, "intermediate_size": 14336, "is_composition": True, "max_position_embeddings": 1024000,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000000.0, "sliding_window": None, "vocab_size": 131072,
    }, "vision_config": {"model_type": "pixtral", "is_composition": True}, "vocab_size": 131072,
}  # fmt: skip
QUIRKS: dict[str, tuple[str, Raw, bool]] = {
    "llama": ("llama", {}, False),
    "llama, biases, tied": ("llama", {"attention_bias": True, "mlp_bias": True}, True),
    "mistral, window": ("mistral", {"sliding_window": 5, "head_dim": 24}, False),
    "mistral without one": ("mistral", {"sliding_window": None, "num_key_value_heads": 1}, False),
    "qwen2, windows, tied": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}, True),
}


@pytest.mark.parametrize("quirk", QUIRKS)
@pytest.mark.quick(4)
def test_the_text_model_is_read_verified_and_saved(quirk: str, tmp_path: Path) -> None:
    """What is saved is a model of the text model's own type, in which transformers finds every weight."""
    text, inner, tied = QUIRKS[quirk]
    hf = seeing("llava", text, EYES, inner, tie_word_embeddings=tied)
    hf.save_pretrained(tmp_path / "all")
    model = load(tmp_path / "all")
    with torch.no_grad():
        assert far(model(*prompts(text)), logits_of_text(hf, text)) < 1e-9
    assert model.config.tied is tied and model.left and all("vision" in n or "projector" in n for n in model.left)
    assert verify(tmp_path / "all").agrees
    kind = "llama" if text == "mistral" and inner["sliding_window"] is None else text
    assert [n for n in count(tmp_path / "all").notes if f"({kind})" in n]
    model.save(tmp_path / "text")
    again = load(tmp_path / "text")
    assert again.config == model.config and not again.left
    how = {"dtype": torch.float64, "output_loading_info": True}
    alone, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "text", **how)
    assert alone.config.model_type == text and not any(info.values())
    assert far(alone(*prompts(text)).logits.detach(), model(*prompts(text)).detach()) < 1e-4  # with its islands of float32


def test_published_files() -> None:
    """Their parameters are Llama 2 7B's, with 64 more tokens, and Mistral Nemo's."""
    for file, parameters, context in ((PUBLISHED, 6_738_415_616 + 2 * 64 * 4096, 4096), (PIXTRAL, 12_247_782_400, 1_024_000)):
        cfg = understand(file)[1]
        with torch.device("meta"):
            model = build(cfg)
        assert sum(p.numel() for p in model.parameters()) == parameters
        assert not cfg.tied and cfg.context == context and cfg.ignored == ()
    for fields, word in (
        ({"text_config": {"model_type": "gpt2"}}, "text_config.model_type"), ({"text_config": 3}, "text_config"), ({"hyper": 1}, "hyper"),
        ({"text_config": None}, "text_config"), ({"vocab_size": 7}, "vocab_size"), ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"text_config": {"model_type": "llama", "hidden_size": 0}}, "hidden_size"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=word) as refused:
            understand(PUBLISHED | fields)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", llava.TEXT_MODELS)
def test_what_a_file_leaves_out_is_transformers_default(kind: str) -> None:
    """Of a file with nothing but its type; a changed default is another model."""
    defaults = AutoConfig.for_model(kind).to_dict()
    theirs = understand({k: v for k, v in defaults.items() if v is not None or k == "sliding_window"})[1]
    silent = {"model_type": "llava", "text_config": {"model_type": kind}, "vision_config": EYES}
    ours = understand(silent)[1]
    assert (ours.layers, ours.vocab, ours.width, ours.eps, ours.tied, ours.context) == (
        theirs.layers, theirs.vocab, theirs.width, theirs.eps, theirs.tied, theirs.context,
    )  # fmt: skip
    for name, value in llava.SILENT[kind].items():
        other = value // 2 if name == "num_key_value_heads" else 2 * value
        changed = understand(silent | {"text_config": {"model_type": kind, name: other}})[1]
        assert changed != ours, name
