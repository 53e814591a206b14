"""The text model of a published Llama 4 is read, counted with a note, and saved as a text model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from judge import KINDS, promoted, prompts
from pellucid.api.count import count
from pellucid.api.model import load
from pellucid.errors import ConfigError, UseError
from pellucid.families import understand
from published_late import LATE, SCOUT
from tiny import far

Raw = dict[str, Any]
EYES: Raw = {
    "hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16,
}  # fmt: skip
WHOLE: Raw = {
    "architectures": ["Llama4ForConditionalGeneration"], "boi_token_index": 200080, "eoi_token_index": 200081, "image_token_index": 200092,
    "model_type": "llama4", "text_config": {"_attn_implementation_autoset": True} | SCOUT, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0.dev0", "vision_config": {"hidden_size": 1408, "model_type": "llama4_vision_model"},
}  # fmt: skip


def test_the_text_model_is_read_out_of_the_whole(tmp_path: Path) -> None:
    text = KINDS["llama4_text"].tiny | {"model_type": "llama4_text", "eos_token_id": [2, 5]}
    cfg = AutoConfig.for_model("llama4", text_config=text, vision_config=EYES)
    cfg._attn_implementation = cfg.text_config._experts_implementation = "eager"
    torch.manual_seed(0)
    with promoted(), torch.no_grad():
        hf = AutoModelForImageTextToText.from_config(cfg).double().eval()
        for p in hf.parameters():
            p.copy_(0.3 * torch.randn_like(p))
        logits = hf.language_model(input_ids=prompts("llama4_text")[0], use_cache=False).logits
    hf.save_pretrained(tmp_path / "whole")
    model = load(tmp_path / "whole")
    with torch.no_grad():
        assert far(model(*prompts("llama4_text")), logits) < 1e-9
    assert model.stops == (2, 5)
    assert model.left and all(n.startswith(("vision_model.", "multi_modal_projector.")) for n in model.left)
    model.save(tmp_path / "text")
    saved_config = json.loads((tmp_path / "text" / "config.json").read_text())
    assert saved_config["model_type"] == "llama4_text" and "vision_config" not in saved_config
    again = load(tmp_path / "text")
    assert again.config == model.config and not again.left
    hf, info = AutoModelForCausalLM.from_pretrained(tmp_path / "text", output_loading_info=True)
    assert type(hf).__name__ == "Llama4ForCausalLM" and not any(info.values())


def test_the_whole_is_counted_by_its_text_model(tmp_path: Path) -> None:
    """The count has a note that no other model has; a field of the text model can be changed by its own name."""
    (tmp_path / "config.json").write_text(json.dumps(WHOLE))
    bill = count(tmp_path, context=8)
    assert int(bill["parameters.total"]) == LATE["llama-4-scout"][1]
    assert [n for n in bill.notes if "llama4_text" in n] == bill.notes != [] == count("llama-4-scout", context=8).notes
    assert understand(WHOLE)[1] == understand(SCOUT)[1]
    fewer = count(tmp_path, context=8, fields={"text_config.num_key_value_heads": 1})
    assert int(fewer["cache.bytes_per_token"]) * 8 == int(bill["cache.bytes_per_token"])
    with pytest.raises(UseError, match=r"num_key_value_heads; near it: text_config\.num_key_value_heads,"):
        count(tmp_path, fields={"num_key_value_heads": 1})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"text_config": None}, "text_config"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"text_config": SCOUT | {"model_type": "llama"}}, "text_config.model_type"),
        ({"text_config": SCOUT | {"another": 1}}, "text_config.another"),
        ({"mm_tokens_per_image": 4}, "mm_tokens_per_image"),
    ],
)
def test_faults_are_named_where_they_stand(change: Raw, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        understand(WHOLE | change)
    assert named in str(refused.value) and "\n" not in str(refused.value)
