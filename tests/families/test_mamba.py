"""Mamba-1's families: counted by hand, sizes that files repeat or contradict, and which layers of Jamba attend and have experts."""

import json
from pathlib import Path
from typing import Any

from judge import judge, ours
from pellucid import config as c
from pellucid.api.count import count
from pellucid.families import understand

Raw = dict[str, Any]
# Sizes of mamba-130m-hf, whose file repeats some under its authors' names
SMALL: Raw = {
    "architectures": ["MambaForCausalLM"], "bos_token_id": 0, "conv_kernel": 4, "d_inner": 1536, "d_model": 768, "eos_token_id": 0,
    "expand": 2, "fused_add_norm": True, "hidden_act": "silu", "hidden_size": 768, "initializer_range": 0.1, "intermediate_size": 1536,
    "layer_norm_epsilon": 1e-05, "model_type": "mamba", "n_layer": 24, "num_hidden_layers": 24, "pad_token_id": 0,
    "pad_vocab_size_multiple": 8, "rescale_prenorm_residual": False, "residual_in_fp32": True, "rms_norm": True, "ssm_cfg": {},
    "state_size": 16, "time_step_floor": 0.0001, "time_step_init_scheme": "random", "time_step_max": 0.1, "time_step_min": 0.001,
    "time_step_rank": 48, "time_step_scale": 1.0, "use_bias": False, "use_cache": True, "use_conv_bias": True, "vocab_size": 50280,
}  # fmt: skip
# Sizes of Falcon Mamba 7B, whose `expand` is not its width over the model's
FALCON: Raw = {
    "architectures": ["FalconMambaForCausalLM"], "conv_kernel": 4, "expand": 16, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 8192, "layer_norm_epsilon": 1e-05, "model_type": "falcon_mamba", "num_hidden_layers": 64,
    "rescale_prenorm_residual": False, "residual_in_fp32": True, "state_size": 16, "tie_word_embeddings": False,
    "time_step_floor": 0.0001, "time_step_init_scheme": "random", "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 256,
    "time_step_scale": 1.0, "use_bias": False, "use_cache": True, "use_conv_bias": True, "vocab_size": 65024,
}  # fmt: skip
# Sizes of Jamba 1.5 Mini: 52 billion parameters, 12 of them for a token
MINI: Raw = {
    "architectures": ["JambaForCausalLM"], "attention_dropout": 0.0, "attn_layer_offset": 4, "attn_layer_period": 8, "bos_token_id": 1,
    "eos_token_id": [2, 518], "expert_layer_offset": 1, "expert_layer_period": 2, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 16,
    "mamba_dt_rank": 256, "mamba_expand": 2, "mamba_proj_bias": False, "max_position_embeddings": 262144, "model_type": "jamba",
    "num_attention_heads": 32, "num_experts": 16, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "num_logits_to_keep": 1, "output_router_logits": False, "pad_token_id": 0, "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001,
    "sliding_window": None, "tie_word_embeddings": False, "use_cache": True, "use_mamba_kernels": False, "vocab_size": 65536,
}  # fmt: skip


def mixer(width: int, inner: int, rank: int, norms: bool = False) -> int:
    """Return the parameters of a part whose channels keep 16 numbers each, over a convolution of 4 rows with a bias."""
    thin = inner * (rank + 2 * 16) + rank * inner + inner
    return 3 * width * inner + (4 + 1) * inner + thin + 16 * inner + inner + norms * (rank + 2 * 16)


def test_a_state_of_channels_is_counted(tmp_path: Path) -> None:
    """A text of any length costs the same once it is longer than the convolution. By hand, in bytes of float32."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    short, long = (count(tmp_path, context=n, cache="float32") for n in (1_000, 100_000))
    assert int(short["parameters.total"]) == 50280 * 768 + 768 + 24 * (mixer(768, 1536, 48) + 768) == 129_135_360
    assert int(short["cache.bytes"]) == int(long["cache.bytes"]) == 24 * 4 * (16 * 1536 + 4 * 1536)
    assert int(short["cache.bytes_per_token"]) == 0 and int(short["cache.bytes_per_text"]) == int(short["cache.bytes"])
    products = short["flops.decode.layers.0.mamba"]
    assert int(products) == 2 * (2 * 16 * 1536 + 4 * 1536) and products.formula.startswith("2·B·T·(2·H·K·W + J·H·W)")


def test_falcon_mambas_width_is_the_one_it_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FALCON))
    outside = 2 * 65024 * 4096 + 4096
    assert int(count(tmp_path)["parameters.total"]) == outside + 64 * (mixer(4096, 8192, 256) + 4096) == 7_272_665_088


def test_jambas_layers(tmp_path: Path) -> None:
    """Every eighth layer attends, from the fifth on, without positions; every second one has experts, from the second on."""
    (tmp_path / "config.json").write_text(json.dumps(MINI))
    layers = understand(MINI)[1].layers
    assert [i for i, one in enumerate(layers) if isinstance(one.attn, c.Attention)] == [4, 12, 20, 28]
    assert [i for i, one in enumerate(layers) if one.ffn.experts] == list(range(1, 32, 2))
    assert all(one.attn.rope is None for one in layers)
    bill, inner = count(tmp_path, context=1_000, cache="float32"), 8192
    attention, network, router = 4096 * (4096 + 2 * 1024) + 4096 * 4096, 3 * 4096 * 14336, 16 * 4096
    mixers = 28 * mixer(4096, inner, 256, norms=True) + 4 * attention + 32 * 2 * 4096
    ends = 2 * 65536 * 4096 + 4096
    assert int(bill["parameters.total"]) == ends + mixers + 16 * network + 16 * (16 * network + router)
    assert int(bill["parameters.active"]) == ends + mixers + 16 * network + 16 * (2 * network + router)
    assert int(bill["cache.bytes"]) == 4 * (28 * (16 * inner + 4 * inner) + 4 * 1_000 * 2 * 1024)
    assert int(bill["cache.bytes_per_token"]) == 4 * 4 * 2 * 1024
    assert int(bill["cache.bytes_per_text"]) == 4 * 28 * (16 * inner + 4 * inner)


def test_norms_have_weights_or_none() -> None:
    names = {family: {n for n in ours(judge(family).folder)[1].state_dict() if "_norm." in n and ".mamba." in n} for family in
             ("mamba", "falcon_mamba", "jamba")}  # fmt: skip
    assert not names["mamba"] and not names["falcon_mamba"]
    assert {n.rpartition("mamba.")[2] for n in names["jamba"]} == {f"{n}_norm.weight" for n in ("dt", "b", "c")}
