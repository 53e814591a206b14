"""The keys of hybrids, whose layers differ: which of them attend stands in a list of key heads, 0 where a state is kept instead."""

from typing import Any

from pellucid.checkpoint.gguf.gguf_source import GgufSource
from pellucid.config import Attention, Config, GatedDelta, Mamba2
from pellucid.errors import UseError

SCALES = {"embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale"}


def scan_fields(s: GgufSource, width: int, first: int) -> dict[str, Any]:
    """Return Granite's fields of Mamba-2's part. first: the first layer that has one."""
    k = s.keys
    inner, heads = k.integer("ssm.inner_size"), k.integer("ssm.time_step_rank")
    k.relate(inner % heads == 0 and inner % width == 0, "ssm.inner_size % ssm.time_step_rank == 0", inner=inner, heads=heads, width=width)
    return {
        "mamba_n_heads": heads, "mamba_expand": inner // width, "mamba_d_state": k.integer("ssm.state_size"),
        "mamba_n_groups": k.integer("ssm.group_count"), "mamba_d_conv": k.integer("ssm.conv_kernel"),
        "mamba_conv_bias": s.has(f"blk.{first}.ssm_conv1d.bias"), "mamba_proj_bias": s.has(f"blk.{first}.ssm_in.bias"),
    }  # fmt: skip


def granitehybrid(s: GgufSource) -> dict[str, Any]:
    """Return Granite 4's fields. Whether heads turn stands in `rope.scaling.finetuned`, as llama.cpp has it."""
    k = s.keys
    width, heads, layers = k.integer("embedding_length"), k.integer("attention.head_count"), k.integer("block_count", high=100_000)
    groups, experts = k.indices("attention.head_count_kv", heads + 1), k.integer("expert_count", 0, low=0)
    k.relate(len(groups) == layers, "len(attention.head_count_kv) == block_count", found=len(groups), blocks=layers)
    k.relate(len(set(groups) - {0}) == 1 and 0 in groups, "set(attention.head_count_kv) == {0, n}", found=sorted(set(groups)))
    attends, keeps = next(i for i, n in enumerate(groups) if n), groups.index(0)
    turns = k.flag("rope.scaling.finetuned", False)
    k.read.add("rope.dimension_count")
    fields = {
        "model_type": "granitemoehybrid", "architectures": ["GraniteMoeHybridForCausalLM"], "hidden_size": width,
        "vocab_size": s.shapes.get("token_embd.weight", (0,))[0], "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": max(groups), "max_position_embeddings": k.integer("context_length"),
        "intermediate_size": k.integer("feed_forward_length"), "rms_norm_eps": k.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": k.number("rope.freq_base", 10_000.0), "position_embedding_type": "rope" if turns else "nope",
        "layer_types": ["attention" if n else "mamba" for n in groups], "num_local_experts": experts,
        "attention_multiplier": k.number("attention.scale", (width // heads) ** -0.5),
        "attention_bias": s.has(f"blk.{attends}.attn_q.bias"),
        "tie_word_embeddings": not s.has("output.weight"), **{name: k.number(key, 1.0) for name, key in SCALES.items()},
    }  # fmt: skip
    dense = s.shapes.get("blk.0.ffn_gate.weight", (0,))[0]
    shared = k.integer("expert_shared_feed_forward_length", dense, low=0)
    fields["shared_intermediate_size"] = shared if experts else dense
    fields |= {"num_experts_per_tok": k.integer("expert_used_count")} if experts else {}
    return fields | scan_fields(s, width, keeps)


def granitehybrid_keys(cfg: Config) -> dict[str, Any]:
    """Return the keys of Granite 4 for a config. A UseError for one whose layers are of one kind."""
    attn = next((one.attn for one in cfg.layers if isinstance(one.attn, Attention)), None)
    scan = next((one.attn for one in cfg.layers if isinstance(one.attn, Mamba2)), None)
    if attn is None or scan is None:
        raise UseError("convert.lost", architecture="granitehybrid", found="layers.attn")
    ffn, kv = cfg.layers[0].ffn, [one.attn.kv_heads if isinstance(one.attn, Attention) else 0 for one in cfg.layers]
    keys: dict[str, Any] = {"attention.head_count": attn.heads, "attention.head_count_kv": kv, "attention.scale": attn.scale}
    keys |= {"embedding_scale": cfg.embed_scale, "residual_scale": cfg.layers[0].gain, "logit_scale": 1 / cfg.logit_factor}
    keys |= {"feed_forward_length": ffn.width, "rope.scaling.finetuned": attn.rope is not None, "context_length": cfg.context}
    keys |= {} if attn.rope is None else {"rope.freq_base": attn.rope.theta, "rope.dimension_count": attn.rope.width}
    experts = {"expert_count": ffn.experts, "expert_used_count": ffn.chosen, "expert_shared_feed_forward_length": ffn.shared}
    return keys | (experts if ffn.experts else {"expert_shared_feed_forward_length": ffn.width})


def nemotron_h(s: GgufSource) -> dict[str, Any]:
    """Return Nemotron-H's fields. A block is one part: one with key heads attends, one with a feed-forward length is such a part.

    The lower limit of dt stands in no key, and llama.cpp has none; the fields have the published one.
    """
    k = s.keys
    heads, layers = k.integer("attention.head_count"), k.integer("block_count", high=100_000)
    groups, inside = k.indices("attention.head_count_kv", heads + 1), k.indices("feed_forward_length", 2**31)
    per_block = "len(attention.head_count_kv) == len(feed_forward_length) == block_count"
    k.relate(len(groups) == len(inside) == layers, per_block, kv=len(groups), feed_forward=len(inside), blocks=layers)
    k.relate(
        all(len(set(of) - {0}) == 1 for of in (groups, inside)),
        "set(attention.head_count_kv) == {0, n}, set(feed_forward_length) == {0, m}",
        kv=sorted(set(groups)),
        feed=sorted(set(inside)),
    )
    inner, states, head = k.integer("ssm.inner_size"), k.integer("ssm.time_step_rank"), k.integer("attention.key_length")
    k.relate(inner % states == 0, "ssm.inner_size % ssm.time_step_rank == 0", inner=inner, heads=states)
    k.fixed("attention.value_length", head)
    k.fixed("rope.scaling.finetuned", False)
    k.read |= {"rope.freq_base", "rope.dimension_count"}  # no head turns
    kinds = ["attention" if kv else "mlp" if width else "mamba" for kv, width in zip(groups, inside, strict=True)]
    keeps, feeds = (next((i for i, kind in enumerate(kinds) if kind == name), 0) for name in ("mamba", "mlp"))
    return {
        "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "hidden_size": k.integer("embedding_length"),
        "vocab_size": s.shapes.get("token_embd.weight", (0,))[0], "layers_block_type": kinds, "intermediate_size": max(inside),
        "num_attention_heads": heads, "num_key_value_heads": max(groups), "head_dim": head, "tie_word_embeddings": False,
        "max_position_embeddings": k.integer("context_length"), "layer_norm_epsilon": k.number("attention.layer_norm_rms_epsilon"),
        "mamba_num_heads": states, "mamba_head_dim": inner // states, "n_groups": k.integer("ssm.group_count"),
        "ssm_state_size": k.integer("ssm.state_size"), "conv_kernel": k.integer("ssm.conv_kernel"),
        "use_conv_bias": s.has(f"blk.{keeps}.ssm_conv1d.bias"), "use_bias": s.has(f"blk.{keeps}.ssm_in.bias"),
        "mlp_bias": s.has(f"blk.{feeds}.ffn_up.bias"),
    }  # fmt: skip


def nemotron_h_keys(cfg: Config) -> dict[str, Any]:
    """Return the keys of Nemotron-H for a config: of each part a block."""
    attn = next((one.attn for one in cfg.layers if isinstance(one.attn, Attention)), None)
    width = next((one.ffn.width for one in cfg.layers if one.ffn.width), None)
    if attn is None or width is None or any(one.ffn.experts for one in cfg.layers):
        raise UseError("convert.lost", architecture="nemotron_h", found="layers.ffn")
    groups, inside = list[int](), list[int]()
    for one in cfg.layers:
        groups += [one.attn.kv_heads if isinstance(one.attn, Attention) else 0, *([0] if one.ffn.width else [])]
        inside += [0, *([one.ffn.width] if one.ffn.width else [])]
    return {
        "block_count": len(groups), "attention.head_count": attn.heads, "attention.head_count_kv": groups, "feed_forward_length": inside,
        "attention.key_length": attn.width, "attention.value_length": attn.width, "context_length": cfg.context,
        "rope.scaling.finetuned": False,
    }  # fmt: skip


def falcon_h1_keys(cfg: Config) -> dict[str, Any]:
    """Return the keys of Falcon-H1 for a config; its multipliers stand in none, since they are in the weights."""
    attn, ffn = cfg.layers[0].attn, cfg.layers[0].ffn
    assert isinstance(attn, Attention) and attn.rope is not None
    return {
        "attention.head_count": attn.heads, "attention.head_count_kv": attn.kv_heads, "attention.key_length": attn.width,
        "attention.value_length": attn.width, "rope.dimension_count": attn.rope.width, "rope.freq_base": attn.rope.theta,
        "feed_forward_length": ffn.width, "context_length": cfg.context,
    }  # fmt: skip


def qwen3next_keys(cfg: Config) -> dict[str, Any]:
    """Return the keys of Qwen3-Next for a config. A UseError for one whose layers are of one kind, or have no experts."""
    attn = next((one.attn for one in cfg.layers if isinstance(one.attn, Attention)), None)
    delta = next((one.attn for one in cfg.layers if isinstance(one.attn, GatedDelta)), None)
    if attn is None or delta is None or attn.rope is None or not all(one.ffn.experts for one in cfg.layers):
        raise UseError("convert.lost", architecture="qwen3next", found="layers.attn, layers.ffn")
    ffn, keeps = cfg.layers[0].ffn, [isinstance(one.attn, GatedDelta) for one in cfg.layers]
    return {
        "vocab_size": cfg.vocab, "context_length": cfg.context, "embedding_length": cfg.width, "block_count": len(cfg.layers),
        "feed_forward_length": ffn.width, "expert_feed_forward_length": ffn.width, "expert_shared_feed_forward_length": ffn.shared,
        "expert_count": ffn.experts, "expert_used_count": ffn.chosen, "attention.head_count": attn.heads,
        "attention.head_count_kv": attn.kv_heads, "attention.key_length": attn.width, "attention.value_length": attn.width,
        "attention.layer_norm_rms_epsilon": cfg.eps, "rope.dimension_count": attn.rope.width, "rope.freq_base": attn.rope.theta,
        "attention.recurrent_layers": keeps, "ssm.conv_kernel": delta.rows, "ssm.inner_size": delta.value_heads * delta.value,
        "ssm.state_size": delta.key, "ssm.time_step_rank": delta.value_heads, "ssm.group_count": delta.key_heads,
    }  # fmt: skip


KEYS = {
    "granitehybrid": granitehybrid_keys,
    "nemotron_h": nemotron_h_keys,
    "falcon-h1": falcon_h1_keys,
    "qwen3next": qwen3next_keys,
}  # beside those of the states
