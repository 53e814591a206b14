"""kolibri1, tiny."""

from kinds import LLAMA, YARN, Kind

TINY = {k: v for k, v in LLAMA.items() if k != "intermediate_size"}  # no layer is dense

KIND = Kind(
    tiny=TINY
    | {
        "num_hidden_layers": 5,
        "head_dim": 16,
        "sliding_window": 6,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 24,
        "num_experts": 6,
        "num_experts_per_tok": 2,
    },
    quirks={
        "plain": {},
        "listed, normalised, gelu": {
            "layer_types": ["full_attention", "sliding_attention"],
            "num_hidden_layers": 2,
            "norm_topk_prob": True,
            "hidden_act": "gelu",
        },
        "all full": {"layer_types": ["full_attention"] * 2, "num_hidden_layers": 2, "rms_norm_eps": 0.01},
        "yarn, tied": {
            "layer_types": ["sliding_attention", "full_attention"],
            "num_hidden_layers": 2,
            "rope_parameters": YARN,
            "tie_word_embeddings": True,
            "num_key_value_heads": 1,
        },
    },
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"norm_topk_prob": True}),
        ("plain", {"layer_types": ["full_attention"] * 5}),
    ),
    refused=(
        ("plain", {"num_experts_per_tok": 7}, "num_experts_per_tok <= experts"),
        ("plain", {"layer_types": ["full_attention"]}, "layer_types"),
        ("plain", {"sliding_window": None}, "sliding_window"),
    ),
)
