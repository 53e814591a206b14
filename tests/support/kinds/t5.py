"""t5, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={
        "vocab_size": 97,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_decoder_layers": 3,
        "num_heads": 4,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 16,
    },
    quirks={
        "plain": {},
        "v1.1, own head": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "not scaled": {"tie_word_embeddings": False, "num_decoder_layers": 1},
        "gelu, as deep": {"feed_forward_proj": "gelu", "num_decoder_layers": None, "layer_norm_epsilon": 0.01},
        "gated silu": {"feed_forward_proj": "gated-silu", "d_kv": 12},
        "far": {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
    },
    dtypes=("plain", "v1.1, own head"),
    changes=(
        ("plain", {"relative_attention_max_distance": 24}),
        ("plain", {"layer_norm_epsilon": 1.1e-06}),
        ("v1.1, own head", {"feed_forward_proj": "gated-silu"}),
        ("not scaled", {"scale_decoder_outputs": True}),
    ),
    refused=(
        ("plain", {"relative_attention_max_distance": 4}, "relative_attention_max_distance > relative_attention_num_buckets / 2"),
        ("plain", {"num_decoder_layers": 1000000000}, "num_decoder_layers"),
        ("plain", {"feed_forward_proj": "gated-nonsense"}, "feed_forward_proj"),
    ),
    task="Seq2SeqLM",
    sharp=1.2,  # it divides no scores by the root of their width
    own_head=("v1.1, own head",),  # transformers ties it when it builds one, and unties it when a file has both
)
