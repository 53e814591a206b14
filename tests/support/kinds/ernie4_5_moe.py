"""ernie4_5_moe, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "head_dim": 8, "pad_token_id": 0, "num_hidden_layers": 3, "moe_intermediate_size": 16, "moe_num_experts": 8, "moe_k": 3,
        "moe_num_shared_experts": 2,
    },
    quirks={
        "plain": {},
        "no shared, own head": {"moe_num_shared_experts": 0, "tie_word_embeddings": False, "hidden_act": "gelu"},
        "every second": {"moe_layer_interval": 2, "moe_layer_start_index": 0, "num_hidden_layers": 4, "rms_norm_eps": 0.01},
        "the first two": {"moe_layer_start_index": 0, "moe_layer_end_index": 1, "moe_k": 8, "num_key_value_heads": 1},
    },
    changes=(("plain", {"moe_k": 2}), ("plain", {"hidden_act": "gelu"}), ("plain", {"rms_norm_eps": 1.1e-5})),
    refused=(
        ("plain", {"moe_k": 9}, "moe_k <= moe_num_experts"),
        ("plain", {"moe_norm_min": 0.5}, "moe_norm_min"),
        ("plain", {"use_bias": True}, "use_bias"),
    ),
)  # fmt: skip
