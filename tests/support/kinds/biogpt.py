"""biogpt, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={
        "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "max_position_embeddings": 64,
    },
    quirks={
        "plain": {},
        "not scaled, relu": {"scale_embedding": False, "hidden_act": "relu"},
        "wide heads, tanh gelu": {"num_attention_heads": 2, "hidden_act": "gelu_new", "layer_norm_eps": 0.01},
        "deeper, own head": {"num_hidden_layers": 3, "tie_word_embeddings": False},
    },
    changes=(("plain", {"scale_embedding": False}), ("plain", {"hidden_act": "relu"}), ("plain", {"num_attention_heads": 8})),
    refused=(("plain", {"num_attention_heads": 5}, "hidden_size % num_attention_heads == 0"),),
    silent=r".*attn\.k\.bias",  # it adds the same to every score of a query
    islands=False,
)  # fmt: skip
