"""marian, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={
        "vocab_size": 97,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 64,
        "activation_function": "swish",
        "scale_embedding": True,
        "decoder_start_token_id": 96,
        "pad_token_id": 96,
    },
    quirks={
        "plain": {},
        "relu, not scaled": {"activation_function": "relu", "scale_embedding": False},
        "two sides": {"encoder_attention_heads": 2, "decoder_attention_heads": 8, "encoder_ffn_dim": 40, "decoder_layers": 1},
        "gelu, starts elsewhere": {"activation_function": "gelu", "decoder_start_token_id": 3, "d_model": 48},
    },
    dtypes=("plain", "relu, not scaled"),
    changes=(
        ("plain", {"scale_embedding": False}),
        ("plain", {"activation_function": "gelu"}),
        ("two sides", {"decoder_attention_heads": 4}),
        ("two sides", {"encoder_attention_heads": 4}),
    ),
    refused=(
        ("plain", {"encoder_attention_heads": 5}, "d_model % encoder_attention_heads == 0"),
        ("plain", {"decoder_attention_heads": 5}, "d_model % decoder_attention_heads == 0"),
        ("plain", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings"),
        ("plain", {"decoder_vocab_size": 98}, "decoder_vocab_size"),
        ("plain", {"normalize_before": True}, "normalize_before"),
        ("plain", {"tie_word_embeddings": False}, "tie_word_embeddings"),
    ),
    task="Seq2SeqLM",
    sharp=3.0,
    islands=False,
    silent=r".*\.k\.bias",  # it adds the same to every score of a query
)
