"""gemma4_text, tiny."""

from kinds import GEMMA, Kind

TURN = {"rope_type": "default", "rope_theta": 500.0}

EXPERTS = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12, "attention_k_eq_v": True}

AS_E2B = {
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 120,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "num_key_value_heads": 1,
}

KIND = Kind(
    tiny={name: value for name, value in GEMMA.items() if name != "query_pre_attn_scalar"}
    | {
        "head_dim": 8,
        "global_head_dim": 16,
        "hidden_size_per_layer_input": 0,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
    quirks={
        "plain": {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 3.0},
        "values of their own": {"attention_bias": True, "use_bidirectional_attention": "vision"},
        "own head": {"tie_word_embeddings": False, "hidden_activation": "silu", "hidden_size": 24, "attention_k_eq_v": True},
        "every sixth": {"layer_types": None, "num_hidden_layers": 11, "sliding_window": 3},
        "linear": {
            "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 3.0}, "sliding_attention": TURN}
        },
        "half turns, stretched": {
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "rope_theta": 1e3, "partial_rotary_factor": 0.5, "factor": 2.0},
                "sliding_attention": TURN,
            },
            "attention_k_eq_v": True,
        },
        "experts": EXPERTS,
        "inputs of each layer": {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 97, "final_logit_softcapping": 3.0},
        "as E2B": AS_E2B,
        "one shared layer, an own head": {
            "hidden_size_per_layer_input": 6,
            "vocab_size_per_layer_input": 97,
            "num_kv_shared_layers": 1,
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
        "experts, own head": EXPERTS | {"tie_word_embeddings": False, "num_experts": 6, "top_k_experts": 3, "hidden_activation": "silu"},
    },
    dtypes=("plain", "values of their own", "experts", "as E2B"),
    changes=(
        ("plain", {"sliding_window": 9}),
        ("plain", {"final_logit_softcapping": None}),
        ("experts", {"top_k_experts": 3}),
        ("as E2B", {"sliding_window": 9}),
        ("experts", {"rms_norm_eps": 1.1e-6}),
        (
            "half turns, stretched",
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "proportional", "rope_theta": 1e3, "partial_rotary_factor": 0.25, "factor": 2.0},
                    "sliding_attention": TURN,
                }
            },
        ),
        (
            "half turns, stretched",
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "proportional", "rope_theta": 1e3, "partial_rotary_factor": 0.5},
                    "sliding_attention": TURN,
                }
            },
        ),
    ),
    refused=(
        ("plain", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ("plain", {"num_kv_shared_layers": 1}, "num_kv_shared_layers"),
        ("as E2B", {"num_kv_shared_layers": 6}, "num_kv_shared_layers"),
        ("as E2B", {"vocab_size_per_layer_input": 96}, "vocab_size_per_layer_input >= vocab_size"),
        ("experts", {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 97}, "hidden_size_per_layer_input: 0"),
        ("experts", {"use_double_wide_mlp": True}, "use_double_wide_mlp: false"),
        ("plain", {"enable_moe_block": True, "top_k_experts": 2, "moe_intermediate_size": 12}, "num_experts"),
        ("experts", {"top_k_experts": 5}, "top_k_experts <= num_experts"),
        ("experts", {"expert_intermediate_size": 16}, "expert_intermediate_size"),
        ("plain", {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}, "layer_types"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
    ),
)
