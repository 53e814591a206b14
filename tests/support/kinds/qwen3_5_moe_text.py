"""qwen3_5_moe_text, tiny."""

from kinds import LLAMA, Kind
from kinds.qwen3_5_text import DELTA, KINDS

EXPERTS = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 20, "num_experts": 6, "num_experts_per_tok": 3}

KIND = Kind(
    tiny={k: v for k, v in LLAMA.items() if k != "intermediate_size"} | DELTA | EXPERTS | {"num_hidden_layers": 3, "layer_types": KINDS},
    quirks={
        "plain": {},
        "one expert, tied": {"num_experts_per_tok": 1, "tie_word_embeddings": True, "linear_num_key_heads": 1},
        "all attend once": {"layer_types": ["full_attention", "linear_attention", "linear_attention"], "rms_norm_eps": 0.01},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "rms_norm_eps": 0.02},
    },
    dtypes=("plain",),
    changes=(("plain", {"num_experts_per_tok": 2}),),
    refused=(
        ("plain", {"num_experts_per_tok": 7}, "num_experts_per_tok <= experts"),
        ("plain", {"norm_topk_prob": False}, "norm_topk_prob"),
    ),
)
