"""electra, tiny."""

from dataclasses import replace

from kinds import bert

KIND = replace(
    bert.KIND,
    tiny=bert.KIND.tiny | {"embedding_size": 20},
    quirks={
        "plain": {},
        "as wide": {"embedding_size": 32, "hidden_act": "relu", "type_vocab_size": 1},
        "wide heads": {"num_attention_heads": 2, "num_hidden_layers": 3, "layer_norm_eps": 0.01},
        "wider, tanh gelu": {"hidden_act": "gelu_new", "max_position_embeddings": 37, "embedding_size": 40},
    },
    dtypes=("plain", "wider, tanh gelu"),
)
