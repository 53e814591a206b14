"""bert, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    },
    quirks={
        "plain": {},
        "relu, one kind": {"hidden_act": "relu", "type_vocab_size": 1, "intermediate_size": 128},
        "wide heads": {"num_attention_heads": 2, "num_hidden_layers": 3, "layer_norm_eps": 0.01},
        "tanh gelu": {"hidden_act": "gelu_new", "max_position_embeddings": 37, "type_vocab_size": 5},
    },
    dtypes=("plain", "tanh gelu"),
    changes=(
        ("plain", {"hidden_act": "gelu_new"}),
        ("plain", {"layer_norm_eps": 1.1e-06}),
        ("wide heads", {"num_attention_heads": 4}),
    ),
    refused=(
        ("plain", {"num_attention_heads": 5}, "hidden_size % num_attention_heads == 0"),
        ("plain", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("plain", {"is_decoder": True}, "is_decoder"),
        ("plain", {"tie_word_embeddings": False}, "tie_word_embeddings"),
    ),
    task="MaskedLM",
    islands=False,
    silent=r".*attn\.k\.bias",  # it adds the same to every score of a query
)
