"""Nomic's own files, whose fields are GPT-2's and whose tensors lie under other prefixes, mean what transformers' mean."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from judge import judge, promoted, prompts
from pellucid.api.model import load
from pellucid.checkpoint.folder import WEIGHTS
from pellucid.errors import ConfigError
from pellucid.families import understand
from tiny import far

SPELT = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
}
# of nomic-embed-text-v1.5, beside the sizes
OWN: dict[str, Any] = {
    "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0, "causal": False, "dense_seq_output": True,
    "embd_pdrop": 0.0, "fused_bias_fc": True, "fused_dropout_add_ln": True, "initializer_range": 0.02, "max_trained_positions": 2048,
    "mlp_fc1_bias": False, "mlp_fc2_bias": False, "model_type": "nomic_bert", "pad_vocab_size_multiple": 64, "parallel_block": False,
    "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False, "reorder_and_upcast_attn": False, "resid_pdrop": 0.0,
    "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True, "summary_type": "cls_index",
    "torch_dtype": "float32", "type_vocab_size": 2, "use_cache": True, "use_flash_attn": True, "use_rms_norm": False, "use_xentropy": True,
}  # fmt: skip


def own(family_config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json as Nomic writes it."""
    return OWN | {SPELT.get(name, name): value for name, value in family_config.items() if name in SPELT or name == "vocab_size"}


@pytest.mark.parametrize("head", [True, False])
@torch.no_grad()
def test_their_folder_is_the_same_model(tmp_path: Path, head: bool) -> None:
    j, ids = judge("nomic_bert"), prompts("nomic_bert")
    tensors = load_file(j.folder / WEIGHTS)
    if head:
        tensors = {n.replace("nomic_bert.", "bert."): t for n, t in tensors.items()}
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
        right = j.logits(*ids)
    else:
        tensors = {n.removeprefix("nomic_bert."): t for n, t in tensors.items() if n.startswith("nomic_bert.")}
        with promoted():
            right = j.hf.base_model(*ids).last_hidden_state
    save_file(tensors, tmp_path / WEIGHTS)
    (tmp_path / "config.json").write_text(json.dumps(own(j.config)))
    assert far(load(tmp_path)(*ids), right) < 1e-9


@pytest.mark.parametrize(("field", "value"), [("n_head", 2), ("rotary_emb_base", 900), ("layer_norm_epsilon", 1e-6), ("n_positions", 32)])
def test_each_field_is_read(field: str, value: float) -> None:
    raw = own(judge("nomic_bert").config)
    assert understand(raw)[1] != understand(raw | {field: value})[1]


@pytest.mark.parametrize(
    ("field", "value"), [("activation_function", "gelu"), ("rotary_emb_fraction", 0.5), ("num_experts", 8), ("prenorm", True)]
)
def test_what_would_be_another_model_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        understand(own(judge("nomic_bert").config) | {field: value})
