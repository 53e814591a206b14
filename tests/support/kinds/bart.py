"""bart, tiny: as marian's, in its own class."""

from dataclasses import replace

from kinds import marian

ODD = (
    ("plain", {"encoder_attention_heads": 5}, "d_model % encoder_attention_heads == 0"),
    ("plain", {"tie_word_embeddings": False}, "tie_word_embeddings"),
)

KIND = replace(marian.KIND, refused=(*ODD, ("plain", {"normalize_before": True}, "normalize_before")))
