"""modernbert-decoder, tiny."""

from kinds import Kind
from kinds.modernbert import KIND as ENCODER
from kinds.modernbert import THETAS

KIND = Kind(
    tiny=ENCODER.tiny,
    quirks={
        "plain": {},
        "biases": {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True, "norm_eps": 0.01},
        "its own turns, all near": {"rope_parameters": THETAS, "layer_types": ["sliding_attention"] * 4, "local_attention": 7},
        "tanh gelu, wide heads": {"hidden_activation": "gelu_new", "classifier_activation": "relu", "num_attention_heads": 2},
    },
    changes=(("plain", {"sliding_window": 5}), *(change for change in ENCODER.changes if "local_attention" not in change[1])),
    refused=(*ENCODER.refused, ("plain", {"is_causal": False}, "is_causal")),
)
