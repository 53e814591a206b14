"""vaultgemma, tiny."""

from kinds import GEMMA, LLAMA3, Kind

KIND = Kind(
    tiny=GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    quirks={
        "plain": {},
        "no limits": {"attn_logit_softcapping": None, "final_logit_softcapping": None, "num_key_value_heads": 1},
        "all full, own head": {"layer_types": ["full_attention"] * 3, "attention_bias": True, "tie_word_embeddings": False},
        "llama3": {"hidden_size": 24, "rope_parameters": LLAMA3, "hidden_activation": "gelu"},
    },
    changes=(
        ("plain", {"attn_logit_softcapping": 5.001}),
        ("plain", {"final_logit_softcapping": None}),
        ("plain", {"sliding_window": 9}),
        ("plain", {"query_pre_attn_scalar": 13}),
    ),
    refused=(
        ("plain", {"layer_types": ["full_attention"]}, "layer_types"),
        ("plain", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ),
)
