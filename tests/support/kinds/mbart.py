"""mbart, tiny."""

from kinds import Kind
from kinds.marian import TINY

KIND = Kind(
    tiny=TINY,
    quirks={
        "plain": {},
        "relu, not scaled": {"activation_function": "relu", "scale_embedding": False},
        "two sides": {"encoder_attention_heads": 2, "decoder_attention_heads": 8, "encoder_ffn_dim": 40, "decoder_layers": 1},
    },
    changes=(("plain", {"scale_embedding": False}), ("two sides", {"decoder_attention_heads": 4})),
    refused=(
        ("plain", {"encoder_attention_heads": 5}, "d_model % encoder_attention_heads == 0"),
        ("plain", {"normalize_before": False}, "normalize_before"),
        ("plain", {"tie_word_embeddings": False}, "tie_word_embeddings"),
    ),
    task="Seq2SeqLM",
    sharp=3.0,
    islands=False,
    silent=r".*\.k\.bias",  # it adds the same to every score of a query
)
