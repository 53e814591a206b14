"""blenderbot-small, tiny: as marian's, in its own class."""

from dataclasses import replace

from kinds import bart

KIND = replace(
    bart.KIND,
    refused=(
        *bart.ODD,
        ("plain", {"normalize_embedding": False}, "normalize_embedding"),
        ("plain", {"layernorm_variant": "prelayernorm"}, "layernorm_variant"),
        ("plain", {"do_blenderbot_90_layernorm": False}, "do_blenderbot_90_layernorm"),
    ),
)
