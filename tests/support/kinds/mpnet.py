"""mpnet, tiny. Its padding token is 1, which no prompt has: transformers numbers positions by it."""

from kinds import Kind

KIND = Kind(
    tiny={
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 66,
        "pad_token_id": 1,
    },
    quirks={
        "plain": {},
        "relu, wide heads": {"hidden_act": "relu", "num_attention_heads": 2, "layer_norm_eps": 0.01},
        "deeper, tanh gelu": {"num_hidden_layers": 3, "hidden_act": "gelu_new", "intermediate_size": 128},
        "two heads, a wide epsilon": {"num_attention_heads": 2, "layer_norm_eps": 0.02},
    },
    dtypes=("plain",),
    changes=(("plain", {"hidden_act": "gelu_new"}), ("plain", {"layer_norm_eps": 1.1e-06})),
    refused=(
        ("plain", {"num_attention_heads": 5}, "hidden_size % num_attention_heads == 0"),
        ("plain", {"max_position_embeddings": 2}, "max_position_embeddings"),
        ("plain", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets"),
    ),
    task="MaskedLM",
    islands=False,
    silent=r".*attn\.k\.bias",
    first_row=2,
    absent=1,
)
