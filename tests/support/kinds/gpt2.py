"""gpt2, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={"vocab_size": 97, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "bos_token_id": 96, "eos_token_id": 96},
    quirks={
        "plain": {},
        "narrow relu": {"n_inner": 40, "activation_function": "relu"},
        "own head": {"tie_word_embeddings": False},
        "scale falls": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 3},
        "no scale": {"scale_attn_weights": False, "activation_function": "gelu", "layer_norm_epsilon": 0.01},
    },
    dtypes=("plain", "scale falls"),
    changes=(
        ("plain", {"activation_function": "gelu"}),
        ("plain", {"scale_attn_weights": False}),
        ("plain", {"layer_norm_epsilon": 1.1e-05}),
        ("scale falls", {"scale_attn_by_inverse_layer_idx": False}),
    ),
    refused=(("plain", {"n_head": 5}, "n_embd % n_head == 0"), ("plain", {"n_layer": 1000000000}, "n_layer")),
    islands=False,
    silent=r".*attn\.k\.bias",  # it adds the same to every score of a query
)
