"""gte, tiny."""

from dataclasses import replace

from kinds import YARN, bert

KIND = replace(
    bert.KIND,
    quirks={
        "plain": {},
        "no kinds, relu": {"type_vocab_size": 0, "hidden_act": "relu", "intermediate_size": 128},
        "wide heads, two kinds": {"num_attention_heads": 2, "num_hidden_layers": 3, "layer_norm_eps": 0.01, "type_vocab_size": 2},
        "yarn, own head width": {"rope_parameters": YARN, "head_dim": 16, "hidden_act": "gelu_new"},
    },
    dtypes=("plain", "yarn, own head width"),
    changes=(
        ("plain", {"hidden_act": "gelu_new"}),
        ("plain", {"layer_norm_eps": 1.1e-06}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 9000.0}}),
    ),
    refused=(
        ("plain", {"num_attention_heads": 5}, "hidden_size % num_attention_heads == 0"),
        ("plain", {"position_embedding_type": "absolute"}, "position_embedding_type"),
        ("plain", {"logn_attention_scale": True}, "logn_attention_scale"),
        ("plain", {"tie_word_embeddings": False}, "tie_word_embeddings"),
    ),
    silent=r"(?!)",  # rope makes a key's bias count
)
