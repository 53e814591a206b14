"""gpt_bigcode, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={"vocab_size": 97, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "bos_token_id": 96, "eos_token_id": 96},
    quirks={
        "plain": {},
        "each head its own": {"multi_query": False, "layer_norm_epsilon": 0.01},
        "narrow, own head": {"n_inner": 40, "tie_word_embeddings": False, "activation_function": "gelu"},
        "no scale": {"scale_attn_weights": False, "n_layer": 3, "activation_function": "relu"},
    },
    changes=(
        ("plain", {"activation_function": "gelu"}),
        ("plain", {"scale_attn_weights": False}),
        ("plain", {"layer_norm_epsilon": 1.1e-05}),
    ),
    refused=(("plain", {"n_head": 5}, "n_embd % n_head == 0"), ("plain", {"num_key_value_heads": 2}, "num_key_value_heads")),
    silent=r".*attn\.k\.bias",  # it adds the same to every score of a query
)
