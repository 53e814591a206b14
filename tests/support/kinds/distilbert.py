"""distilbert, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={"vocab_size": 97, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64},
    quirks={
        "plain": {},
        "relu": {"activation": "relu", "hidden_dim": 128},
        "wide heads": {"n_heads": 2, "n_layers": 3, "sinusoidal_pos_embds": True},
        "two heads, narrow": {"n_heads": 2, "hidden_dim": 40},
    },
    changes=(("plain", {"activation": "gelu_new"}), ("wide heads", {"n_heads": 4})),
    refused=(
        ("plain", {"n_heads": 5}, "dim % n_heads == 0"),
        ("plain", {"tie_word_embeddings": False}, "tie_word_embeddings"),
    ),
    task="MaskedLM",
    islands=False,
    silent=r".*attn\.k\.bias",  # it adds the same to every score of a query
)
