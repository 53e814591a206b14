"""cohere2, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA | {"pad_token_id": 0, "num_hidden_layers": 4, "sliding_window": 6},
    quirks={
        "plain": {},
        "listed, biases": {
            "layer_types": ["full_attention", "sliding_attention"],
            "num_hidden_layers": 2,
            "attention_bias": True,
        },
        "another factor, own head": {"logit_scale": 0.3, "tie_word_embeddings": False, "layer_norm_eps": 0.01, "sliding_window": 9},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "layer_norm_eps": 0.02},
    },
    changes=(("plain", {"sliding_window": 7}), ("plain", {"logit_scale": 0.07})),
    refused=(
        ("plain", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
        ("plain", {"head_dim": 12}, "head_dim == hidden_size / num_attention_heads"),
    ),
)
