"""nanochat, tiny."""

from kinds import LLAMA, LONGROPE, YARN, Kind

KIND = Kind(
    tiny=LLAMA | {"num_key_value_heads": 4, "pad_token_id": 1},
    quirks={
        "plain": {},
        "no limit, tied, one group": {"final_logit_softcapping": None, "tie_word_embeddings": True, "num_key_value_heads": 1},
        "biases, another activation": {"attention_bias": True, "hidden_act": "gelu", "rms_norm_eps": 0.01, "head_dim": 32},
        "yarn": {"rope_parameters": YARN, "final_logit_softcapping": 3.0},
    },
    dtypes=("plain", "yarn"),
    changes=(
        ("plain", {"final_logit_softcapping": 14.0}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 11_000.0}}),
        ("plain", {"hidden_act": "relu"}),
    ),
    refused=(
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
        ("plain", {"rope_parameters": LONGROPE | {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}}, "rope_parameters"),
    ),
)
