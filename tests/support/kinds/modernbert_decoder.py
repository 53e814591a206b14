"""modernbert-decoder, tiny."""

from kinds import Kind
from kinds.modernbert import KIND as ENCODER

KIND = Kind(
    tiny=ENCODER.tiny,
    quirks=ENCODER.quirks,
    changes=(("plain", {"sliding_window": 5}), *(change for change in ENCODER.changes if "local_attention" not in change[1])),
    refused=(*ENCODER.refused, ("plain", {"is_causal": False}, "is_causal")),
)
