"""hunyuan_v1_moe, tiny."""

from kinds import LLAMA, Kind

GROWN = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0}
KIND = Kind(
    tiny=LLAMA | {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    quirks={
        "plain": {},
        "each layer": {"moe_topk": [1, 1], "attention_bias": True},
        "alpha": {"rope_parameters": GROWN, "num_key_value_heads": 1, "head_dim": 16},
        "tied": {"tie_word_embeddings": True, "rms_norm_eps": 0.01, "hidden_act": "gelu", "moe_topk": 3},
    },
    changes=(("plain", {"moe_topk": 3}), ("alpha", {"rope_parameters": GROWN | {"alpha": 900.0}})),
    refused=(
        ("plain", {"moe_topk": 5}, "moe_topk <= num_experts"),
        ("plain", {"moe_topk": [1, 2]}, "moe_topk"),
        ("plain", {"use_cla": True}, "use_cla"),
        ("plain", {"moe_intermediate_size": [32, 32]}, "moe_intermediate_size"),
    ),
)
