"""opt, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "ffn_dim": 48,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    },
    quirks={
        "plain": {},
        "norms after, narrow": {"do_layer_norm_before": False, "word_embed_proj_dim": 20},
        "no biases": {"enable_bias": False, "activation_function": "gelu", "num_hidden_layers": 3},
        "no last norm": {"_remove_final_layer_norm": True, "tie_word_embeddings": False, "word_embed_proj_dim": 48},
    },
    dtypes=("plain", "norms after, narrow"),
    changes=(
        ("plain", {"activation_function": "gelu"}),
        ("plain", {"num_attention_heads": 2}),
        ("norms after, narrow", {"activation_function": "silu"}),
    ),
    refused=(
        ("plain", {"num_attention_heads": 5}, "hidden_size % num_attention_heads == 0"),
        ("plain", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine"),
    ),
    sharp=3.0,
    silent=r".*attn\.k\.bias",  # it adds the same to every score of a query
)
