"""gemma2, tiny."""

from kinds import GEMMA, LLAMA3, Kind

KIND = Kind(
    tiny=GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    quirks={
        "plain": {},
        "no limits": {"attn_logit_softcapping": None, "final_logit_softcapping": None, "num_key_value_heads": 1},
        "limit of the logits": {"attn_logit_softcapping": None, "attention_bias": True, "tie_word_embeddings": False},
        "kinds": {"layer_types": ["full_attention", "full_attention", "sliding_attention"], "hidden_activation": "gelu"},
        "llama3": {"hidden_size": 24, "rope_parameters": LLAMA3},
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
