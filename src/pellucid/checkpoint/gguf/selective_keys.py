"""The keys of models with Mamba-1's state: Mamba and Falcon Mamba, which are that part alone, and Jamba, in which some layers attend.

mamba.ssm.time_step_rank   160            time_step_rank        160
mamba.ssm.dt_b_c_rms       true           model_type            falcon_mamba, which norms dt, B and C
jamba.attention.head_count_kv [0 0 8 0]   attn_layer_period 4, attn_layer_offset 2
"""

from typing import Any

from pellucid.checkpoint.gguf.gguf_source import GgufSource
from pellucid.config import Attention, Config, Mamba1
from pellucid.errors import UseError

ENDLESS = 2**20  # llama.cpp's context of a model whose text may have any length
TYPES = {False: ("mamba", "MambaForCausalLM"), True: ("falcon_mamba", "FalconMambaForCausalLM")}  # by whether dt, B and C are normed


def mamba(s: GgufSource) -> dict[str, Any]:
    """Return Mamba's fields, or Falcon Mamba's. The epsilon of the norms inside stands in no key; the fields have the published one."""
    k = s.keys
    for key in ("feed_forward_length", "attention.head_count"):
        k.fixed(key, 0)
    k.read.add("context_length")
    model_type, architecture = TYPES[k.flag("ssm.dt_b_c_rms", False)]
    return {
        "model_type": model_type, "architectures": [architecture], "vocab_size": s.shapes.get("token_embd.weight", (0,))[0],
        "hidden_size": k.integer("embedding_length"), "num_hidden_layers": k.integer("block_count", high=100_000),
        "intermediate_size": k.integer("ssm.inner_size"), "state_size": k.integer("ssm.state_size"),
        "conv_kernel": k.integer("ssm.conv_kernel"), "time_step_rank": k.integer("ssm.time_step_rank"),
        "layer_norm_epsilon": k.number("attention.layer_norm_rms_epsilon"), "use_conv_bias": s.has("blk.0.ssm_conv1d.bias"),
        "tie_word_embeddings": not s.has("output.weight"),
    }  # fmt: skip


def mamba_keys(cfg: Config) -> dict[str, Any]:
    """Return the keys of Mamba and of Falcon Mamba for a config."""
    scan = cfg.layers[0].attn
    assert isinstance(scan, Mamba1)
    return {
        "vocab_size": cfg.vocab, "context_length": ENDLESS, "embedding_length": cfg.width, "block_count": len(cfg.layers),
        "feed_forward_length": 0, "attention.head_count": 0, "attention.layer_norm_rms_epsilon": cfg.eps, **scan_keys(scan),
        "ssm.dt_b_c_rms": scan.norms != "none",
    }  # fmt: skip


def scan_keys(scan: Mamba1) -> dict[str, Any]:
    """Return the keys of a state."""
    return {
        "ssm.conv_kernel": scan.rows, "ssm.inner_size": scan.row_width, "ssm.state_size": scan.state_width, "ssm.time_step_rank": scan.rank,
    }  # fmt: skip


def every(chosen: list[bool]) -> tuple[int, int] | None:
    """Return the period and the offset of the chosen layers. None if no two numbers say which they are.

    Of 6 layers 1 and 4 have period 3 and offset 1; layer 2 alone period 6; none at all period 7 and offset 6.
    """
    layers = [i for i, one in enumerate(chosen) if one] or [len(chosen)]
    period = layers[1] - layers[0] if len(layers) > 1 else max(len(chosen), layers[0] + 1)
    same = [i % period == layers[0] for i in range(len(chosen))] == chosen
    return (period, layers[0]) if same and layers[0] < period else None


def jamba(s: GgufSource) -> dict[str, Any]:
    """Return Jamba's fields. Which layers attend stands in the list of key heads; those that have a router have experts."""
    k = s.keys
    width, heads, layers = k.integer("embedding_length"), k.integer("attention.head_count"), k.integer("block_count", high=100_000)
    groups, inner = k.indices("attention.head_count_kv", heads + 1), k.integer("ssm.inner_size")
    k.relate(len(groups) == layers, "len(attention.head_count_kv) == block_count", found=len(groups), blocks=layers)
    k.relate(len(set(groups) - {0}) <= 1 and 0 in groups, "set(attention.head_count_kv) == {0, n}", found=sorted(set(groups)))
    k.relate(inner % width == 0, "ssm.inner_size % embedding_length == 0", inner=inner, width=width)
    attends = every([n > 0 for n in groups])
    sparse = every([s.has(f"blk.{i}.ffn_gate_inp.weight") for i in range(layers)])
    if attends is None or sparse is None:
        raise k.fault("attention.head_count_kv", list(groups), "i % period == offset, i = 0, 1, 2 ...")
    keeps, experts = groups.index(0), k.integer("expert_count", 1, low=0)
    routed = any(s.has(f"blk.{i}.ffn_gate_inp.weight") for i in range(layers))
    fields = {
        "model_type": "jamba", "architectures": ["JambaForCausalLM"], "vocab_size": s.shapes.get("token_embd.weight", (0,))[0],
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": max(groups) or heads,
        "attn_layer_period": attends[0], "attn_layer_offset": attends[1], "intermediate_size": k.integer("feed_forward_length"),
        "expert_layer_period": sparse[0], "expert_layer_offset": sparse[1], "num_experts": experts if routed else 1,
        "num_experts_per_tok": k.integer("expert_used_count", 1, low=0) if routed else 1, "mamba_expand": inner // width,
        "mamba_d_state": k.integer("ssm.state_size"), "mamba_d_conv": k.integer("ssm.conv_kernel"),
        "mamba_dt_rank": k.integer("ssm.time_step_rank"), "mamba_conv_bias": s.has(f"blk.{keeps}.ssm_conv1d.bias"),
        "rms_norm_eps": k.number("attention.layer_norm_rms_epsilon"), "max_position_embeddings": k.integer("context_length"),
        "tie_word_embeddings": not s.has("output.weight"),
    }  # fmt: skip
    k.read.add("expert_used_count")
    return fields


def jamba_keys(cfg: Config) -> dict[str, Any]:
    """Return the keys of Jamba for a config. A UseError for one in which no layer keeps a state, or none attends."""
    attn = next((one.attn for one in cfg.layers if isinstance(one.attn, Attention)), None)
    scan = next((one.attn for one in cfg.layers if isinstance(one.attn, Mamba1)), None)
    if attn is None or scan is None:
        raise UseError("convert.lost", architecture="jamba", found="layers.attn")
    ffn = max((one.ffn for one in cfg.layers), key=lambda ffn: ffn.experts)
    return {
        "vocab_size": cfg.vocab, "context_length": cfg.context, "embedding_length": cfg.width, "block_count": len(cfg.layers),
        "feed_forward_length": ffn.width, "attention.head_count": attn.heads,
        "attention.head_count_kv": [one.attn.kv_heads if isinstance(one.attn, Attention) else 0 for one in cfg.layers],
        "attention.layer_norm_rms_epsilon": cfg.eps, "expert_count": max(ffn.experts, 1), "expert_used_count": max(ffn.chosen, 1),
        **scan_keys(scan),
    }  # fmt: skip
