"""ministral, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA | {"sliding_window": 6, "head_dim": 12, "layer_types": ["full_attention", "sliding_attention"]},
    quirks={
        "plain": {},
        "all slide": {"layer_types": None, "rms_norm_eps": 0.01},
        "none slides, tied": {"layer_types": ["full_attention"] * 2, "tie_word_embeddings": True, "hidden_act": "gelu"},
        "yarn": {"head_dim": 16, "sliding_window": 20, "rope_parameters": YARN, "num_key_value_heads": 1},
    },
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"layer_types": ["sliding_attention", "full_attention"]}),
        ("plain", {"rms_norm_eps": 1.1e-6}),
    ),
    refused=(
        ("plain", {"layer_types": ["full_attention"]}, "layer_types"),
        ("plain", {"sliding_window": None}, "sliding_window"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
    ),
)
