"""openai-gpt, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={"vocab_size": 97, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64},
    quirks={
        "plain": {},
        "relu": {"afn": "relu", "n_head": 2},
        "own head": {"tie_word_embeddings": False, "n_layer": 3},
        "silu": {"afn": "silu", "layer_norm_epsilon": 0.01},
    },
    dtypes=("plain", "silu"),
    changes=(
        ("plain", {"afn": "silu"}),
        ("plain", {"layer_norm_epsilon": 1.1e-05}),
        ("relu", {"n_head": 4}),
        ("silu", {"afn": "gelu"}),
    ),
    refused=(
        ("plain", {"n_head": 5}, "n_embd % n_head == 0"),
        ("plain", {"n_layer": 1000000000}, "n_layer"),
        ("plain", {"afn": "gelu_new"}, "afn"),
    ),
    sharp=3.0,
    islands=False,
    silent=r".*attn\.k\.bias",  # it adds the same to every score of a query
)
