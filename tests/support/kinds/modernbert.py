"""modernbert, tiny."""

from kinds import Kind

THETAS = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in (("full_attention", 5e4), ("sliding_attention", 500.0))}

KIND = Kind(
    tiny={
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "local_attention": 12,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    quirks={
        "plain": {},
        "biases": {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True, "norm_eps": 0.01},
        "its own turns, all near": {"rope_parameters": THETAS, "layer_types": ["sliding_attention"] * 4, "local_attention": 7},
        "tanh gelu, wide heads": {"hidden_activation": "gelu_new", "classifier_activation": "relu", "num_attention_heads": 2},
    },
    changes=(
        ("plain", {"local_attention": 14}),
        ("plain", {"hidden_activation": "gelu_new"}),
        ("plain", {"classifier_activation": "relu"}),
        ("plain", {"norm_eps": 1.1e-5}),
        ("plain", {"layer_types": ["full_attention"] * 4}),
    ),
    refused=(
        ("plain", {"num_attention_heads": 5}, "hidden_size % num_attention_heads == 0"),
        ("plain", {"layer_types": ["full_attention"]}, "layer_types"),
        ("plain", {"decoder_bias": False}, "decoder_bias"),
        ("plain", {"tie_word_embeddings": False}, "tie_word_embeddings"),
    ),
    task="MaskedLM",
    silent=r".*attn\.k\.bias",
)
