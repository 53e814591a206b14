"""mpt, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={"vocab_size": 97, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 160},
    quirks={
        "plain": {},
        "own scale": {"attn_config": {"softmax_scale": 0.5}, "layer_norm_epsilon": 0.01},
        "eight heads, own head": {"n_heads": 8, "tie_word_embeddings": False, "attn_config": {"clip_qkv": 2.5}},
        "two heads, deeper": {"n_heads": 2, "n_layers": 3},
    },
    changes=(("plain", {"layer_norm_epsilon": 1.1e-5}), ("plain", {"n_heads": 8})),
    refused=(
        ("plain", {"n_heads": 5}, "d_model % n_heads == 0"),
        ("plain", {"n_heads": 6, "d_model": 48}, "n_heads is a power of 2"),
        ("plain", {"expansion_ratio": 3}, "expansion_ratio"),
        ("plain", {"no_bias": False}, "no_bias"),
        ("plain", {"attn_config": {"alibi": False}}, "alibi"),
        ("plain", {"attn_config": {"qk_ln": True}}, "qk_ln"),
    ),
)
