"""umt5, tiny."""

from dataclasses import replace

from kinds import mt5

KIND = replace(mt5.KIND, changes=(*mt5.KIND.changes, ("plain", {"tie_word_embeddings": False, "scale_decoder_outputs": False})))
