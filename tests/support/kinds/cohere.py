"""cohere, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA | {"pad_token_id": 0},
    quirks={
        "plain": {},
        "biases, own head": {"attention_bias": True, "tie_word_embeddings": False, "num_key_value_heads": 4},
        "as Command R+": {"use_qk_norm": True, "layer_norm_eps": 0.01},
        "as Command R+, one group": {"use_qk_norm": True, "num_key_value_heads": 1, "attention_bias": True},
        "another factor": {"logit_scale": 0.3, "hidden_act": "gelu", "layer_norm_eps": 0.01},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "layer_norm_eps": 0.02},
    },
    dtypes=("plain", "as Command R+"),
    changes=(
        ("plain", {"logit_scale": 0.07}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 510_000.0}}),
        ("as Command R+", {"layer_norm_eps": 0.011}),
    ),
    refused=(("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),),
)
