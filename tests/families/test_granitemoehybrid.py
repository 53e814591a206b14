"""Granite 4: its hybrid counted by hand, its layers of attention alone, and the limits of a step in time."""

import json
from pathlib import Path
from typing import Any

import pytest

from pellucid import config as c
from pellucid.api.count import count
from pellucid.errors import ConfigError
from pellucid.families import understand
from pellucid.families.fields import Fields
from pellucid.families.mamba_fields import limits

Raw = dict[str, Any]
# Sizes of Granite 4.0 H Tiny: 7 billion parameters, one of them for a token
TINY: Raw = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": False, "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12, "hidden_act": "silu", "hidden_size": 1536, "init_method": "mup", "intermediate_size": 512,
    "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4, "logits_scaling": 6, "mamba_chunk_size": 256,
    "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1,
    "mamba_n_heads": 48, "mamba_proj_bias": False, "max_position_embeddings": 131072, "model_type": "granitemoehybrid",
    "normalization_function": "rmsnorm", "num_attention_heads": 12, "num_experts_per_tok": 6, "num_hidden_layers": 40,
    "num_key_value_heads": 4, "num_local_experts": 64, "position_embedding_type": "nope", "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000, "shared_intermediate_size": 1024, "tie_word_embeddings": True,
    "vocab_size": 100352,
}  # fmt: skip


def test_a_hybrid_is_counted(tmp_path: Path) -> None:
    """A text of any length has the same states; keys and values grow in four layers of 40. By hand, in bytes of float32."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    short, long = (count(tmp_path, context=n, cache="float32") for n in (1_000, 100_000))
    channels = 48 * 64 + 2 * 128
    mamba = 1536 * (48 * 64 + channels + 48) + (4 + 1) * channels + 3 * 48 + 48 * 64 + 48 * 64 * 1536
    attention = 1536 * (1536 + 2 * 512) + 1536 * 1536
    router, expert, shared = 64 * 1536, 3 * 1536 * 512, 3 * 1536 * 1024
    outside, block = 100352 * 1536 + 1536, router + shared + 2 * 1536
    assert int(short["parameters.total"]) == outside + 36 * mamba + 4 * attention + 40 * (block + 64 * expert)
    assert int(short["parameters.active"]) == outside + 36 * mamba + 4 * attention + 40 * (block + 6 * expert)
    states, rows = 36 * 48 * 128 * 64 * 4, 36 * 4 * channels * 4
    for n, bill in ((1_000, short), (100_000, long)):
        assert int(bill["cache.bytes"]) == states + rows + 4 * n * 2 * 512 * 4
    products = bill["flops.decode.layers.0.mamba"]
    assert int(products) == 2 * (2 * 48 * 128 * 64 + 4 * channels) and products.formula.startswith("2·B·T·(2·H·K·W + J·(2·G·K + H·W))")


def test_attention_alone_has_no_state() -> None:
    """Granite 4.0 Micro is of this model_type too: attention in every layer, with rotary positions, and no experts."""
    micro = TINY | {"layer_types": ["attention"] * 40, "position_embedding_type": "rope", "num_local_experts": 0}
    cfg = understand(micro)[1]
    assert all(isinstance(one.attn, c.Attention) and one.attn.rope is not None and isinstance(one.ffn, c.Mlp) for one in cfg.layers)


@pytest.mark.parametrize(
    ("value", "right"),
    [([0.0, {"__float__": "Infinity"}], (0.0, None)), ([0.001, 0.1], (0.001, 0.1)), ([0, 1], (0.0, 1.0)), (None, (0.0, None))],
)
def test_limits_of_a_step_in_time(value: Any, right: tuple[float, float | None]) -> None:
    assert limits(Fields({} if value is None else {"time_step_limit": value})) == right


@pytest.mark.parametrize("value", [[0.1], [0.2, 0.1], [-1.0, 1.0], ["0", 1], [0, True], {"low": 0}, [{"__float__": "Infinity"}, 1.0]])
def test_other_limits_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="time_step_limit"):
        limits(Fields({"time_step_limit": value}))
