"""falcon, tiny: its three generations."""

from kinds import Kind

KIND = Kind(
    tiny={
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
    },
    quirks={
        "plain": {},
        "40b": {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 48},
        "11b": {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "activation": "relu",
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500042.0},
        },
        "rw": {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True, "num_attention_heads": 8},
        "twelve heads": {"alibi": True, "hidden_size": 48, "num_attention_heads": 12, "layer_norm_epsilon": 0.01, "bias": True},
        "one after the other": {"parallel_attn": False, "multi_query": False},
    },
    dtypes=("plain", "40b", "rw"),
    changes=(
        ("plain", {"activation": "gelu_new"}),
        ("plain", {"layer_norm_epsilon": 1.1e-05}),
        ("plain", {"alibi": True}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 10100.0}}),
        ("rw", {"alibi": False}),
        ("rw", {"num_attention_heads": 4, "num_kv_heads": 4}),
    ),
    refused=(
        ("plain", {"num_attention_heads": 5, "num_kv_heads": 5}, "hidden_size % num_attention_heads == 0"),
        ("plain", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn <= 1 + new_decoder_architecture"),
        ("plain", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
        ("40b", {"parallel_attn": False}, "parallel_attn or not new_decoder_architecture"),
        ("40b", {"num_kv_heads": 3}, "num_attention_heads % num_kv_heads == 0"),
        ("rw", {"num_kv_heads": 2}, "num_kv_heads == num_attention_heads"),
    ),
    attention="sdpa",  # its plain attention adds the bias by distance twice
)
