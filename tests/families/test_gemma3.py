"""The text model of a multimodal Gemma 3 is read in both spellings and saved as a text model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from judge import KINDS, promoted, prompts
from pellucid.api.model import load
from pellucid.errors import CheckpointError, ConfigError
from pellucid.families import understand
from pellucid.nn.transformer import build
from tiny import far

Raw = dict[str, Any]
EYES: Raw = {
    "model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
# gemma-3-4b-it's config.json: what its text_config leaves out is the class's default
GEMMA_3_4B: Raw = {
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000, "eos_token_id": [1, 106],
    "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256, "model_type": "gemma3", "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "vision_config": {
        "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model", "num_attention_heads": 16,
        "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def multimodal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor]:
    """Return a folder of transformers and its logits of a prompt in float64."""
    text = KINDS["gemma3_text"].tiny | {"model_type": "gemma3_text", "final_logit_softcapping": 3.0}
    cfg = AutoConfig.for_model("gemma3", text_config=text, vision_config=EYES, mm_tokens_per_image=4, eos_token_id=[2, 5])
    cfg._attn_implementation = "eager"
    torch.manual_seed(0)
    with promoted(), torch.no_grad():
        hf = AutoModelForImageTextToText.from_config(cfg).double().eval()
        table = hf.model.language_model.embed_tokens
        table.embed_scale.fill_(table.scalar_embed_scale)
        for p in hf.parameters():
            p += 0.15 * torch.randn_like(p)
        logits = hf.model.language_model(input_ids=prompts("gemma3_text")[0], use_cache=False).last_hidden_state
        logits = 3.0 * torch.tanh(hf.lm_head(logits) / 3.0)
    folder = tmp_path_factory.mktemp("whole")
    hf.save_pretrained(folder)
    return folder, logits


def test_the_text_model_is_read_out_of_the_whole(multimodal: tuple[Path, Tensor], tmp_path: Path) -> None:
    folder, logits = multimodal
    model = load(folder)
    with torch.no_grad():
        assert far(model(*prompts("gemma3_text")), logits) < 1e-9
    assert model.stops == (2, 5) and model.config.tied
    assert model.left and all(n.startswith(("vision_tower.", "multi_modal_projector.")) for n in model.left)
    stored = load_file(folder / "model.safetensors")
    for new in ("model.", "model.language_model."):  # newer spellings of the same
        spelled = {n.replace("language_model.model.", new): t for n, t in stored.items()}
        if new != "model.":
            spelled = {n if n.startswith(new) else f"model.{n}": t for n, t in spelled.items()}
        save_file(spelled, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text((folder / "config.json").read_text())
        assert torch.equal(load(tmp_path)(*prompts("gemma3_text")), model(*prompts("gemma3_text")))
    save_file({**stored, "another.thing": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"another\.thing"):
        load(tmp_path)


def test_what_is_saved_is_a_text_model(multimodal: tuple[Path, Tensor], tmp_path: Path) -> None:
    """transformers reads the saved folder as its Gemma3ForCausalLM and finds every weight."""
    model = load(multimodal[0])
    model.save(tmp_path / "text")
    saved_config = json.loads((tmp_path / "text" / "config.json").read_text())
    assert saved_config["model_type"] == "gemma3_text" and saved_config["eos_token_id"] == [2, 5] and "vision_config" not in saved_config
    again = load(tmp_path / "text")
    assert again.config == model.config and not again.left
    hf, info = AutoModelForCausalLM.from_pretrained(tmp_path / "text", dtype=torch.float64, output_loading_info=True)
    assert type(hf).__name__ == "Gemma3ForCausalLM" and not any(info.values())
    with torch.no_grad():
        assert far(hf(*prompts("gemma3_text")).logits, multimodal[1]) < 1e-4  # with its islands of float32


def test_a_published_file() -> None:
    """The published config is read without the vision tower and its projection; every sixth layer is full, its positions divided by 8."""
    cfg = understand(GEMMA_3_4B)[1]
    with torch.device("meta"):
        model = build(cfg)
    assert sum(p.numel() for p in model.parameters()) == 4_300_079_472 - 416_866_032 - 2_950_272
    full = AutoConfig.for_model(**GEMMA_3_4B).to_dict()
    assert understand(full)[1] == cfg
    assert cfg.stops == (1, 106) and cfg.context == 131_072
    ropes = [getattr(layer.attn, "rope") for layer in cfg.layers[4:6]]  # noqa: B009
    assert [(r.theta, r.scaling and r.scaling.factor) for r in ropes] == [(1e4, None), (1e6, 8.0)]


REFUSED: list[tuple[Raw, str]] = [
    ({"text_config": None}, "text_config"),
    ({"text_config": []}, "text_config"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings"),
    ({"text_config": GEMMA_3_4B["text_config"] | {"model_type": "gemma2"}}, "text_config.model_type"),
    ({"text_config": GEMMA_3_4B["text_config"] | {"use_bidirectional_attention": True}}, "text_config.use_bidirectional_attention"),
    ({"text_config": GEMMA_3_4B["text_config"] | {"another": 1}}, "text_config.another"),
    ({"text_config": GEMMA_3_4B["text_config"] | {"hidden_size": 0}}, "text_config.hidden_size"),
    ({"another": 1}, "another"),
]


@pytest.mark.parametrize(("change", "named"), REFUSED)
def test_faults_are_named_where_they_stand(change: Raw, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        understand(GEMMA_3_4B | change)
    assert named in str(refused.value) and "\n" not in str(refused.value)
