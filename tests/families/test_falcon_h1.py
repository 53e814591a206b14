"""Falcon-H1: two mixers in every block, counted by hand; a width of its own, or of the model's; one norm for both."""

import json
from pathlib import Path
from typing import Any

import torch

from judge import judge, ours
from pellucid import config as c
from pellucid.api.count import count
from pellucid.families import understand
from pellucid.watching.watch import watch

Raw = dict[str, Any]
# Sizes of Falcon-H1 0.5B
HALF: Raw = {
    "attention_bias": False, "attention_in_multiplier": 1.0, "attention_out_multiplier": 0.9375, "attn_layer_indices": None,
    "embedding_multiplier": 5.656854249492381, "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 2048,
    "key_multiplier": 0.390625, "lm_head_multiplier": 0.0390625, "mamba_chunk_size": 128, "mamba_conv_bias": True, "mamba_d_conv": 4,
    "mamba_d_head": 64, "mamba_d_ssm": 1536, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 24,
    "mamba_norm_before_gate": False, "mamba_proj_bias": False, "mamba_rms_norm": False, "mamba_use_mlp": True,
    "max_position_embeddings": 16384, "mlp_bias": False, "mlp_expansion_factor": 8, "mlp_multipliers": [0.8838, 0.5859375],
    "model_type": "falcon_h1", "num_attention_heads": 8, "num_hidden_layers": 36, "num_key_value_heads": 2, "num_logits_to_keep": 1,
    "projectors_bias": False, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 100000000000.0, "ssm_in_multiplier": 1.25,
    "ssm_multipliers": [0.35355, 0.25, 0.1767, 0.5, 0.3535], "ssm_out_multiplier": 0.23570226, "tie_word_embeddings": False,
    "vocab_size": 32784,
}  # fmt: skip


def test_both_mixers_are_counted(tmp_path: Path) -> None:
    """A block has keys and values, and a state, of one text: 36 of each. By hand, in bytes of float32."""
    (tmp_path / "config.json").write_text(json.dumps(HALF))
    short, long = (count(tmp_path, context=n, cache="float32") for n in (1_000, 100_000))
    channels = 1536 + 2 * 128
    mamba = 1024 * (1536 + channels + 24) + (4 + 1) * channels + 3 * 24 + 1536 * 1024
    attention = 1024 * (512 + 2 * 128) + 512 * 1024
    assert int(short["parameters.total"]) == 2 * 32784 * 1024 + 1024 + 36 * (mamba + attention + 3 * 1024 * 2048 + 2 * 1024)
    for n, bill in ((1_000, short), (100_000, long)):
        assert int(bill["cache.bytes"]) == 36 * 4 * (24 * 128 * 64 + 4 * channels + n * 2 * 128)
    assert int(short["parameters.by_part.mamba"]) == 36 * mamba


def test_the_width_of_the_states_is_its_own_or_follows_the_models() -> None:
    own, follows = (understand(HALF | {"mamba_d_head": "auto", "mamba_n_heads": 32} | more)[1] for more in ({}, {"mamba_d_ssm": None}))
    assert [one.layers[0].second.row_width for one in (own, follows) if isinstance(one.layers[0].second, c.Mamba2)] == [48, 64]


def test_both_mixers_read_the_same_norm_and_are_added() -> None:
    model, ids = ours(judge("falcon_h1").folder)[1], torch.arange(11)[None]
    with torch.no_grad(), watch(model, only="layers.0.*") as seen:
        model(ids)
    both = seen["layers.0.both"]
    assert both.inputs == ("layers.0.attn_scaled", "layers.0.mamba_scaled") and seen["layers.0.mid"].inputs[1] == "layers.0.both"
    assert {seen[f"layers.0.{n}_reads"].inputs for n in ("attn", "mamba")} == {("layers.0.attn_norm",)}
    assert torch.equal(both.value, seen["layers.0.attn_scaled"].value + seen["layers.0.mamba_scaled"].value)
