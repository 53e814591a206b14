"""qwen3_next, tiny."""

from kinds import LLAMA, Kind
from kinds.qwen3_5_moe_text import EXPERTS
from kinds.qwen3_5_text import DELTA, KINDS

KIND = Kind(
    tiny=LLAMA | DELTA | EXPERTS | {"num_hidden_layers": 3, "layer_types": KINDS},
    quirks={
        "plain": {},
        "by an interval": {"layer_types": None, "full_attention_interval": 2, "norm_topk_prob": False, "linear_value_head_dim": 8},
        "some dense": {"mlp_only_layers": [1], "linear_num_key_heads": 4, "partial_rotary_factor": 1.0, "num_key_value_heads": 4},
        "every second layer, tied": {"decoder_sparse_step": 2, "tie_word_embeddings": True, "linear_conv_kernel_dim": 3},
    },
    sharp=8.0,
    dtypes=("plain", "some dense"),
    changes=(("plain", {"norm_topk_prob": False}), ("plain", {"num_experts_per_tok": 2})),
    refused=(
        ("plain", {"layer_types": ["conv"] * 3}, "layer_types"),
        ("plain", {"mlp_only_layers": [3]}, "mlp_only_layers"),
    ),
)
