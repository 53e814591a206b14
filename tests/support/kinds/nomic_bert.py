"""nomic_bert, tiny."""

from kinds import Kind
from kinds.bert import KIND as BERT

KIND = Kind(
    tiny=BERT.tiny,
    quirks={
        "plain": {},
        "wide heads, one kind": {"num_attention_heads": 2, "head_dim": 12, "type_vocab_size": 1, "layer_norm_eps": 0.01},
        "gelu, quick turns": {"hidden_act": "gelu", "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    },
    changes=(
        ("plain", {"hidden_act": "gelu"}),
        ("plain", {"layer_norm_eps": 1.1e-06}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 900.0}}),
    ),
    refused=(
        ("plain", {"prenorm": True}, "prenorm"),
        ("plain", {"rotary_scaling_factor": 2}, "rotary_scaling_factor"),
        ("plain", {"num_experts": 8}, "num_experts"),
        ("plain", {"n_embd": 64}, "hidden_size == n_embd"),
        ("plain", {"activation_function": "gelu"}, "swiglu"),
    ),
    task="MaskedLM",
    reads=("eos_token_id",),  # one id alone
)
