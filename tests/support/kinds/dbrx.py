"""dbrx, tiny."""

from typing import Any

from kinds import YARN, Kind

ATTN: dict[str, Any] = {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 1e4}
FFN: dict[str, Any] = {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2}
KIND = Kind(
    tiny={"vocab_size": 97, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128, "attn_config": ATTN, "ffn_config": FFN},
    quirks={
        "plain": {},
        "a wide clip, one group": {
            "attn_config": {"clip_qkv": 8, "rope_theta": 1e4},
            "ffn_config": FFN | {"moe_top_k": 1, "ffn_act_fn": {"name": "gelu"}},
        },
        "shares as they are": {"ffn_config": FFN | {"moe_normalize_expert_weights": None, "moe_top_k": 3}},
        "yarn": {"rope_parameters": YARN, "d_model": 48, "attn_config": ATTN | {"kv_n_heads": 4}},
    },
    changes=(
        ("plain", {"attn_config": ATTN | {"clip_qkv": 1.4}}),
        ("plain", {"ffn_config": FFN | {"moe_top_k": 3}}),
        ("plain", {"ffn_config": FFN | {"moe_normalize_expert_weights": None}}),
    ),
    refused=(
        ("plain", {"n_heads": 5}, "d_model % n_heads == 0"),
        ("plain", {"attn_config": ATTN | {"kv_n_heads": 3}, "num_key_value_heads": 3}, "n_heads % kv_n_heads == 0"),
        ("plain", {"num_key_value_heads": 4}, "num_key_value_heads"),
        ("plain", {"attn_config": ATTN | {"rope_theta": 5e5}}, "rope_parameters.rope_theta == attn_config.rope_theta"),
        ("plain", {"ffn_config": FFN | {"moe_top_k": 5}}, "moe_top_k <= moe_num_experts"),
        ("plain", {"ffn_config": FFN | {"moe_normalize_expert_weights": 2.0}}, "moe_normalize_expert_weights"),
        ("plain", {"tie_word_embeddings": True}, "tie_word_embeddings"),
    ),
)
