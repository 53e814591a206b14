"""roberta, tiny. Its padding token is one that no prompt has: transformers numbers positions by it."""

from kinds import Kind

KIND = Kind(
    tiny={
        "vocab_size": 99,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 162,
        "pad_token_id": 97,
    },
    quirks={
        "plain": {},
        "relu, one kind": {"hidden_act": "relu", "type_vocab_size": 1, "layer_norm_eps": 0.01},
        "further on": {"pad_token_id": 98, "num_hidden_layers": 3, "num_attention_heads": 2},
        "two heads, a wide epsilon": {"num_attention_heads": 2, "layer_norm_eps": 0.02},
    },
    dtypes=("plain",),
    changes=(("plain", {"hidden_act": "gelu_new"}), ("plain", {"pad_token_id": 96}), ("plain", {"layer_norm_eps": 1.1e-06})),
    refused=(
        ("plain", {"num_attention_heads": 5}, "hidden_size % num_attention_heads == 0"),
        ("plain", {"max_position_embeddings": 98}, "pad_token_id + 1 < max_position_embeddings"),
        ("plain", {"is_decoder": True}, "is_decoder"),
    ),
    task="MaskedLM",
    islands=False,
    silent=r".*attn\.k\.bias",
    reads=("pad_token_id",),
    first_row=98,
)
