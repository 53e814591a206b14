"""gemma3_text, tiny."""

from kinds import GEMMA, LONGROPE, Kind

KIND = Kind(
    tiny=GEMMA | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    quirks={
        "plain": {},
        "limit of the logits": {"final_logit_softcapping": 3.0, "num_key_value_heads": 1, "attention_bias": True},
        "own head": {"tie_word_embeddings": False, "hidden_activation": "silu", "hidden_size": 24},
        "linear": {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 3.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            }
        },
        "by length": {
            "rope_parameters": {
                "full_attention": LONGROPE,
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            }
        },
        "every sixth": {"layer_types": None, "num_hidden_layers": 7, "sliding_window": 3},
    },
    dtypes=("plain", "linear"),
    changes=(
        ("plain", {"sliding_window": 9}),
        ("plain", {"query_pre_attn_scalar": 13}),
        ("plain", {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}),
        ("limit of the logits", {"final_logit_softcapping": None}),
        (
            "linear",
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 3.0},
                    "sliding_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
                }
            },
        ),
        (
            "linear",
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 100000.0},
                }
            },
        ),
    ),
    refused=(
        ("plain", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("plain", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("plain", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_parameters.rope_t"),
        ("plain", {"rope_parameters": {"full_attention": {"rope_type": "none"}}}, "rope_parameters.full_attention.rope_type"),
    ),
)
