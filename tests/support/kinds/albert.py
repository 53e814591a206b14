"""albert, tiny."""

from dataclasses import replace

from kinds import bert

KIND = replace(
    bert.KIND,
    tiny=bert.KIND.tiny | {"embedding_size": 20, "num_hidden_layers": 3},
    quirks={
        "plain": {},
        "as wide": {"embedding_size": 32, "hidden_act": "relu", "type_vocab_size": 1},
        "two groups": {"num_attention_heads": 2, "num_hidden_layers": 5, "num_hidden_groups": 2, "layer_norm_eps": 0.01},
        "each its own, wider": {"num_hidden_groups": 3, "hidden_act": "gelu_new", "max_position_embeddings": 37, "embedding_size": 40},
    },
    dtypes=("plain", "two groups"),
    changes=(("plain", {"num_hidden_layers": 4}), ("two groups", {"num_hidden_layers": 4})),
    refused=(
        ("plain", {"num_hidden_groups": 4}, "num_hidden_groups <= num_hidden_layers"),
        ("plain", {"inner_group_num": 2}, "inner_group_num"),
    ),
)
