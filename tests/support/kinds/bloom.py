"""bloom, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={"vocab_size": 97, "hidden_size": 32, "n_head": 4, "n_layer": 2},
    quirks={
        "plain": {},
        "twelve heads": {"n_head": 12, "hidden_size": 48, "layer_norm_epsilon": 0.01},
        "own head": {"tie_word_embeddings": False, "n_layer": 3},
        "sixteen heads": {"n_head": 16, "pretraining_tp": 2},
    },
    dtypes=("plain", "twelve heads"),
    changes=(
        ("plain", {"layer_norm_epsilon": 1.1e-05}),
        ("twelve heads", {"n_head": 6}),
        ("sixteen heads", {"n_head": 8}),
    ),
    refused=(
        ("plain", {"n_head": 5}, "hidden_size % n_head == 0"),
        ("plain", {"num_attention_heads": 8}, "n_head == num_attention_heads"),
        ("plain", {"n_inner": 64}, "n_inner"),
        ("plain", {"slow_but_exact": True}, "slow_but_exact"),
        ("plain", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
    ),
    sharp=2.0,
    silent=r".*attn\.k\.bias",  # it adds the same to every score of a query
)
