"""blenderbot, tiny: as marian's, in its own class."""

from dataclasses import replace

from kinds import bart

KIND = replace(
    bart.KIND,
    refused=(*bart.ODD, ("plain", {"normalize_before": False}, "normalize_before"), ("plain", {"normalize_embedding": True}, "embedding")),
)
