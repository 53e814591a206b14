"""mixtral, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA | {"intermediate_size": 24, "num_local_experts": 5, "num_experts_per_tok": 2},
    quirks={
        "plain": {},
        "window": {"sliding_window": 5, "head_dim": 12},
        "all experts": {"num_experts_per_tok": 5, "hidden_act": "gelu_pytorch_tanh", "num_key_value_heads": 4},
        "one expert": {"num_experts_per_tok": 1, "tie_word_embeddings": True, "rms_norm_eps": 0.01, "router_jitter_noise": 0.3},
    },
    dtypes=("plain", "window"),
    changes=(
        ("plain", {"num_experts_per_tok": 3}),
        ("plain", {"sliding_window": 36}),
        ("window", {"sliding_window": 6}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    ),
    refused=(
        ("plain", {"num_experts_per_tok": 6}, "num_experts_per_tok <= experts"),
        ("plain", {"num_experts": 4}, "num_experts == num_local_experts"),
        ("plain", {"num_local_experts": 0}, "num_local_experts"),
        ("plain", {"sliding_window": 0}, "sliding_window"),
    ),
)
