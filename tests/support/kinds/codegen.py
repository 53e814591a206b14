"""codegen, tiny."""

from dataclasses import replace

from kinds import gptj

KIND = replace(
    gptj.KIND,
    quirks={
        "plain": {},
        "whole heads turn, narrow": {"rotary_dim": 8, "n_inner": 40},
        "two heads a core": {"n_head": 8, "activation_function": "relu", "layer_norm_epsilon": 0.01},
        "deeper": {"n_layer": 3, "activation_function": "gelu"},
    },
    refused=(
        ("plain", {"n_head": 2}, "n_head % 4 == 0"),
        ("plain", {"n_head": 5}, "n_embd % n_head == 0"),
        ("plain", {"rotary_dim": 64}, "rotary_dim <= n_embd / n_head"),
    ),
)
