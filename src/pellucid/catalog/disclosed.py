"""A model whose makers published no file but disclosed its shape, as a Config: what a paper says, in the words of config.py.

LayerNorms without a bias become norms that have a weight alone, which is the same count.
"""

from collections.abc import Mapping
from typing import Any

from pellucid.config import Attention, Buckets, Config, Layer, Mlp, Rope
from pellucid.errors import ConfigError

ACTS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "swish": "silu", "geglu": "gelu"}
ORDERS = ("pre", "post", "parallel")


def disclosed(told: Mapping[str, Any], file: str) -> Config:
    """The config of a model of the catalogue that has none of its own."""
    width, heads, at = told["hidden_size"], told["num_attention_heads"], told["position_embedding"]
    if told.get("relative_position_projection") or told["moe"] or told["mla"]:
        raise ConfigError("catalog.part", file=file, part=at["type"])
    positions = at["table_rows"] if at["type"] == "learned" else None
    own = Attention(
        heads,
        told["num_key_value_heads"],
        told["head_dim"],
        rope=Rope(told["head_dim"], at["rope_theta"]) if at["type"] == "rope" else None,
        bias=told["attention_bias"],
        out_bias=told["attention_out_bias"],
        buckets=Buckets(at["num_buckets"], at["max_distance"], False) if at["type"] == "relative_bias" else None,
    )
    mlp = Mlp(told["intermediate_size"], ACTS[told["hidden_act"]], told["mlp_gated"], told["mlp_bias"])
    order = next(o for o in ORDERS if told["norm_placement"].startswith(o))
    listens = told["kind"] == "encoder-decoder"
    heard = Attention(heads, heads, told["head_dim"], bias=own.bias, out_bias=own.out_bias, causal=False)
    return Config(
        vocab=told["vocab_size"],
        width=width,
        layers=(Layer(own, mlp, heard if listens else None, order),) * told["num_hidden_layers"],
        tied=told["tie_word_embeddings"],
        eps=told["norm_eps"] or 1e-5,
        norm="layer" if told["norm_type"] == "layernorm" and told["norm_bias"] else "rms",
        positions=positions,
        encoder=(Layer(heard, mlp, order=order),) * told["num_encoder_layers"] if listens else None,
        embed_scale=width**0.5 if listens else 1.0,
        sinusoids=at["type"] == "sinusoidal",
        final_norm=told["final_norm"],
        prefix=told["kind"] == "prefix-decoder",
        context=told["max_position_embeddings"],
    )
