"""gemma4_unified_text, tiny."""

from kinds import Kind
from kinds.gemma4_text import KIND as OF_GEMMA4

KIND = Kind(
    tiny={name: value for name, value in OF_GEMMA4.tiny.items() if name != "hidden_size_per_layer_input"},
    quirks={name: OF_GEMMA4.quirks[name] for name in ("plain", "own head", "every sixth", "half turns, stretched")},
    changes=(("plain", {"sliding_window": 9}), ("plain", {"final_logit_softcapping": None})),
    refused=(
        ("plain", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ("plain", {"num_kv_shared_layers": 1}, "num_kv_shared_layers"),
    ),
)
