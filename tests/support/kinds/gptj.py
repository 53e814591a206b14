"""gptj, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={
        "vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "rotary_dim": 4, "bos_token_id": 96,
        "eos_token_id": 96,
    },
    quirks={
        "plain": {},
        "whole heads turn, narrow": {"rotary_dim": 8, "n_inner": 40},
        "relu": {"activation_function": "relu", "layer_norm_epsilon": 0.01},
        "tied": {"tie_word_embeddings": True},
    },
    dtypes=("plain",),
    changes=(("plain", {"rotary_dim": 6}), ("plain", {"activation_function": "gelu"}), ("plain", {"layer_norm_epsilon": 1.1e-05})),
    refused=(
        ("plain", {"n_head": 5}, "n_embd % n_head == 0"),
        ("plain", {"rotary_dim": 64}, "rotary_dim <= n_embd / n_head"),
        ("plain", {"rotary": False}, "rotary"),
    ),
)  # fmt: skip
