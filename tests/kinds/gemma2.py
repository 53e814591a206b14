"""gemma2, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "head_dim": 16,
        "num_hidden_layers": 3,
        "sliding_window": 8,
        "query_pre_attn_scalar": 12,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    quirks={
        "plain": {},
        "no limits": {"attn_logit_softcapping": None, "final_logit_softcapping": None, "num_key_value_heads": 1},
        "limit of the logits": {"attn_logit_softcapping": None, "attention_bias": True, "tie_word_embeddings": False},
        "kinds": {"layer_types": ["full_attention", "full_attention", "sliding_attention"], "hidden_activation": "gelu"},
        "llama3": {
            "hidden_size": 24,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    },
    dtypes=("plain", "no limits", "llama3"),
    changes=(
        ("plain", {"attn_logit_softcapping": 5.001}),
        ("plain", {"final_logit_softcapping": 3.001}),
        ("plain", {"attn_logit_softcapping": None}),
        ("plain", {"final_logit_softcapping": None}),
        ("plain", {"query_pre_attn_scalar": 13}),
        ("plain", {"sliding_window": 9}),
        ("plain", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
        ("kinds", {"hidden_activation": "gelu_pytorch_tanh"}),
    ),
    refused=(
        ("plain", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("plain", {"hidden_act": "silu"}, "hidden_act"),
        ("plain", {"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "layer_types"),
        ("plain", {"attn_logit_softcapping": 0.0}, "attn_logit_softcapping"),
        ("plain", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ),
)
