"""mt5, tiny."""

from kinds import Kind
from kinds.t5 import KIND as T5

KIND = Kind(
    tiny=T5.tiny,
    quirks={
        "plain": {},
        "own head": {"num_decoder_layers": 1},
        "relu without a gate": {"feed_forward_proj": "relu", "num_decoder_layers": None, "layer_norm_epsilon": 0.01},
        "two heads, a wide epsilon": {"num_heads": 2, "d_kv": 12, "layer_norm_epsilon": 0.02},
    },
    changes=(("plain", {"relative_attention_max_distance": 24}), ("plain", {"feed_forward_proj": "gated-silu"})),
    refused=(
        ("plain", {"relative_attention_max_distance": 4}, "relative_attention_max_distance > relative_attention_num_buckets / 2"),
        ("plain", {"feed_forward_proj": "gated-nonsense"}, "feed_forward_proj"),
    ),
    task="Seq2SeqLM",
    sharp=T5.sharp,
    own_head=("own head",),
)
