"""eurobert, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA | {"rope_theta": 250000.0, "pad_token_id": 0, "mask_token_id": 3},
    quirks={
        "plain": {},
        "biases": {"attention_bias": True, "mlp_bias": True},
        "tied, one kv head": {"tie_word_embeddings": True, "num_key_value_heads": 1, "hidden_act": "gelu_pytorch_tanh"},
        "own head width": {"head_dim": 12, "num_key_value_heads": 4, "rms_norm_eps": 0.01},
    },
    changes=(
        ("plain", {"hidden_act": "gelu"}),
        ("plain", {"rms_norm_eps": 1.1e-5}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 3000.0}}),
    ),
    refused=(("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),),
    task="MaskedLM",
    silent=r".*attn\.k\.bias",
)
