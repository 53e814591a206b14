"""Nemotron-H: its layers of one part each become blocks, and a published one is counted by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from pellucid.api.count import count
from pellucid.errors import ConfigError
from pellucid.families import understand
from pellucid.families.fields import Fields
from pellucid.families.part_layers import pattern

LAYERS = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
BASE: dict[str, Any] = {  # sizes of Nemotron-H-8B-Base-8K
    "architectures": ["NemotronHForCausalLM"], "attention_bias": False, "attention_head_dim": 128, "chunk_size": 128, "conv_kernel": 4,
    "expand": 2, "hidden_size": 4096, "hybrid_override_pattern": LAYERS, "intermediate_size": 21504, "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 128, "mamba_proj_bias": False, "max_position_embeddings": 8192,
    "mlp_bias": False, "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "n_groups": 8, "num_attention_heads": 32,
    "num_hidden_layers": 52, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "ssm_state_size": 128, "tie_word_embeddings": False,
    "use_bias": False, "use_conv_bias": True, "vocab_size": 131072,
}  # fmt: skip


def test_parts_become_blocks() -> None:
    cfg = understand(BASE)[1]
    drawn = "".join(("M" if one.attn.part == "mamba" else "*") + "-" * bool(one.ffn.width) for one in cfg.layers)
    assert drawn == LAYERS and len(cfg.layers) == 28 and cfg.layers[3].ffn.width == 0 and cfg.layers[4].attn.part == "attn"
    spelt = {"layers_block_type": [{"M": "mamba", "*": "attention", "-": "mlp"}[x] for x in LAYERS]}
    assert understand({k: v for k, v in BASE.items() if k != "hybrid_override_pattern"} | spelt)[1] == cfg


@pytest.mark.parametrize("value", ["M-E", "-M", "EM", "M--", "ME-", "", "M|*", ["mamba", "experts"], ["M", 3], 7, {"M": 1}])
def test_other_patterns_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="hybrid_override_pattern"):
        pattern(Fields({"hybrid_override_pattern": value}))


def test_the_number_of_layers_must_agree() -> None:
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        understand(BASE | {"num_hidden_layers": 51})


def test_it_is_counted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    bill = count(tmp_path, context=8192)
    inner, channels = 128 * 64, 128 * 64 + 2 * 8 * 128
    mamba = 4096 * (inner + channels + 128) + (4 + 1) * channels + 3 * 128 + inner + inner * 4096
    attention, mlp = 4096 * 128 * (32 + 2 * 8 + 32), 2 * 4096 * 21504
    assert int(bill["parameters.total"]) == 2 * 131072 * 4096 + 4096 * (52 + 1) + 24 * mamba + 4 * attention + 24 * mlp
    assert int(bill["cache.bytes"]) == 24 * (128 * 128 * 64 * 4 + 4 * channels * 2) + 4 * 8192 * 2 * 8 * 128 * 2


def test_a_field_that_must_be_absent_says_what_is_allowed() -> None:
    """A narrower row for the experts is not read; the line ended after its colon."""
    fields = Fields({"moe_latent_size": 16}, "config.json")
    with pytest.raises(ConfigError, match=r"moe_latent_size is 16; allowed: null$"):
        fields.fixed("moe_latent_size")
