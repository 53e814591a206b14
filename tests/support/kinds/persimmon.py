"""persimmon, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny={name: value for name, value in LLAMA.items() if name != "num_key_value_heads"},
    quirks={
        "plain": {},
        "no norms of queries, tied": {"qk_layernorm": False, "tie_word_embeddings": True},
        "all turns, gelu": {"partial_rotary_factor": 1.0, "hidden_act": "gelu"},
        "linear": {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    },
    changes=(("plain", {"layer_norm_eps": 1.1e-5}), ("plain", {"hidden_act": "relu"})),
    refused=(("plain", {"num_key_value_heads": 2}, "num_key_value_heads"),),
)
