"""xglm, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={
        "vocab_size": 97, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48, "max_position_embeddings": 64,
    },
    quirks={
        "plain": {},
        "not scaled, relu": {"scale_embedding": False, "activation_function": "relu"},
        "wide heads, own head": {"attention_heads": 2, "tie_word_embeddings": False},
        "deeper, tanh gelu": {"num_layers": 3, "activation_function": "gelu_new", "d_model": 48},
    },
    changes=(("plain", {"scale_embedding": False}), ("plain", {"activation_function": "relu"}), ("plain", {"attention_heads": 8})),
    refused=(("plain", {"attention_heads": 5}, "d_model % attention_heads == 0"),),
    reads=("pad_token_id",),
    silent=r".*attn\.k\.bias",  # it adds the same to every score of a query
)  # fmt: skip
