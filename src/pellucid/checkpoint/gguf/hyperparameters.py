"""The settings of a GGUF file as the fields of a config.json, so that a family reads both alike; and the way back.

    llama.embedding_length  4096              hidden_size              4096
    llama.attention.head_count_kv  8          num_key_value_heads      8
    rope_freqs.weight [64]                    rope_scaling             Llama 3's, which that tensor holds multiplied out

Every key of an architecture is read, known to change nothing, or refused by name.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoint.gguf.gguf_source import GgufSource
from pellucid.checkpoint.gguf.hybrid_keys import granitehybrid, nemotron_h
from pellucid.checkpoint.gguf.selective_keys import jamba, mamba
from pellucid.config import Llama3
from pellucid.errors import ConfigError
from pellucid.families.rope import mscale
from pellucid.messages import All

# Of an architecture's keys: a name, a size that follows from tensors, or what only another program needs.
HARMLESS = {
    "vocab_size",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "attention.causal",
    "pooling_type",
    "rope.scaling.yarn_log_multiplier",
}
Parts = Mapping[str, Any]


def shared(s: GgufSource, model_type: str, architecture: str, eps: str = "attention.layer_norm_rms_epsilon") -> dict[str, Any]:
    """Return the fields that all of Llama's descendants share."""
    k = s.keys
    width, heads = k.integer("embedding_length"), k.integer("attention.head_count")
    head = k.integer("attention.key_length", width // heads if width % heads == 0 else None)
    value = k.integer("attention.value_length", head)
    k.relate(value == head, "attention.value_length == attention.key_length", key_length=head, value_length=value)
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": s.shapes.get("token_embd.weight", (0,))[0],
        "hidden_size": width,
        "num_hidden_layers": k.integer("block_count", high=100_000),
        "intermediate_size": k.integer("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": k.integer("attention.head_count_kv", heads),
        "head_dim": head,
        "max_position_embeddings": k.integer("context_length"),
        "rms_norm_eps": k.number(eps),
        "rope_theta": k.number("rope.freq_base", 10_000.0),
        "tie_word_embeddings": not s.has("output.weight"),
    }


def rotary(s: GgufSource, fields: dict[str, Any], part: float = 1.0) -> None:
    """Check how much of a head turns, and put the scaling of rotary positions into `fields`."""
    k, head = s.keys, fields["head_dim"]
    width = k.integer("rope.dimension_count", int(head * part))
    k.relate(width == int(head * part), f"rope.dimension_count == {int(head * part)}", found=width)
    if (scaling := rope_scaling(s, fields, width)) is not None:
        fields["rope_scaling"] = scaling


def rope_scaling(s: GgufSource, fields: dict[str, Any], width: int) -> dict[str, Any] | None:
    """Return the scaling of rotary positions in config.json's words, None if there is none."""
    k = s.keys
    kind = k.choice("rope.scaling.type", {n: n for n in ("none", "linear", "yarn", "longrope")}, "none")
    factor, original = k.optional("rope.scaling.factor"), k.maybe("rope.scaling.original_context_length")
    amount = k.optional("rope.scaling.attn_factor")
    if s.has("rope_freqs.weight"):
        k.relate(kind == "none", "rope.scaling.type none beside rope_freqs.weight", found=kind)
        return llama3(s.factors("rope_freqs.weight"), fields, width)
    if s.has("rope_factors_long.weight"):
        long, short = s.factors("rope_factors_long.weight"), s.factors("rope_factors_short.weight")
        fields["original_max_position_embeddings"] = original or fields["max_position_embeddings"]
        return {"type": "longrope", "short_factor": short, "long_factor": long} | ({} if amount is None else {"attention_factor": amount})
    if kind in ("none", "longrope"):
        return None
    k.get("rope.scaling.factor")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if amount is not None and factor is not None:
        amount *= mscale(factor, 1.0)  # llama.cpp multiplies both
    betas = {name: k.optional(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
    scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, "attention_factor": amount, **betas}
    return {name: value for name, value in scaling.items() if value is not None}


def llama3(factors: list[float], fields: dict[str, Any], width: int) -> dict[str, Any]:
    """Return Llama 3's scaling if these factors are its, to the bit; else the factors themselves, one a pair, at any length."""
    most = max(factors)
    for original in (8192, fields["max_position_embeddings"], *(2**n for n in range(6, 20))):
        scaling = Llama3(most, 1.0, 4.0, original)
        if most > 1 and [float(str(x)) for x in llama3_factors(scaling, fields["rope_theta"], width).numpy()] == factors:
            return {
                "rope_type": "llama3", "factor": most, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": original,
            }  # fmt: skip
    return {
        "rope_type": "longrope", "factor": 1.0, "short_factor": factors, "long_factor": factors, "attention_factor": 1.0,
        "original_max_position_embeddings": fields["max_position_embeddings"],
    }  # fmt: skip


def llama3_factors(scaling: Llama3, theta: float, width: int) -> Tensor:
    """Return what the frequency of each pair is divided by, float32 [width / 2]."""
    powers = torch.arange(0, width, 2, dtype=torch.float32) / width
    lengths = 2 * math.pi / (1.0 / theta**powers)
    smooth = (scaling.original / lengths - scaling.low) / (scaling.high - scaling.low)
    between = 1 / ((1 - smooth) / scaling.factor + smooth)
    slow, fast = lengths > scaling.original / scaling.low, lengths < scaling.original / scaling.high
    return torch.where(fast, torch.ones(()), torch.where(slow, torch.tensor(scaling.factor), between))


def llama(s: GgufSource) -> dict[str, Any]:
    experts = s.keys.integer("expert_count", 0, low=0)
    fields = shared(s, *(("mixtral", "MixtralForCausalLM") if experts else ("llama", "LlamaForCausalLM")))
    rotary(s, fields)
    if experts:
        return fields | {"num_local_experts": experts, "num_experts_per_tok": s.keys.integer("expert_used_count"), "sliding_window": None}
    return fields | {"attention_bias": s.has("blk.0.attn_q.bias"), "mlp_bias": s.has("blk.0.ffn_gate.bias")}


def qwen2(s: GgufSource) -> dict[str, Any]:
    fields = shared(s, "qwen2", "Qwen2ForCausalLM")
    rotary(s, fields)
    return fields


def qwen3(s: GgufSource) -> dict[str, Any]:
    fields = shared(s, "qwen3", "Qwen3ForCausalLM")
    rotary(s, fields)
    return fields


def qwen3moe(s: GgufSource) -> dict[str, Any]:
    k = s.keys
    fields = shared(s, "qwen3_moe", "Qwen3MoeForCausalLM")
    rotary(s, fields)
    return fields | {
        "num_experts": k.integer("expert_count"), "num_experts_per_tok": k.integer("expert_used_count"), "norm_topk_prob": True,
        "moe_intermediate_size": k.integer("expert_feed_forward_length"), "decoder_sparse_step": 1, "mlp_only_layers": [],
    }  # fmt: skip


def gemma(s: GgufSource) -> dict[str, Any]:
    fields = shared(s, "gemma", "GemmaForCausalLM")
    rotary(s, fields)
    return fields | {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}


LARGEST = {"gemma2": 46, "gemma3": 62}  # layers of the 27B models, whose scores llama.cpp divides by √(width / heads)


def of_two_windows(s: GgufSource, model_type: str, architecture: str, name: str) -> dict[str, Any]:
    """Return the fields of Gemma 2 and 3; how scores are scaled stands in no key, so that it follows from the number of layers."""
    k = s.keys
    fields = shared(s, model_type, architecture)
    rotary(s, fields)
    fields["query_pre_attn_scalar"] = scalar(name, fields)
    return fields | {"hidden_activation": "gelu_pytorch_tanh", "sliding_window": k.integer("attention.sliding_window", 4096)}


def scalar(name: str, fields: Mapping[str, Any]) -> int:
    """Return the number whose root divides scores, as llama.cpp has it."""
    largest = fields["num_hidden_layers"] == LARGEST[name]
    return int(fields["hidden_size"] // fields["num_attention_heads"] if largest else fields["head_dim"])


def gemma2(s: GgufSource) -> dict[str, Any]:
    k = s.keys
    fields = of_two_windows(s, "gemma2", "Gemma2ForCausalLM", "gemma2")
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    return fields | {name: k.number(name, default) for name, default in caps.items()}


def gemma3(s: GgufSource) -> dict[str, Any]:
    k = s.keys
    fields = of_two_windows(s, "gemma3_text", "Gemma3ForCausalLM", "gemma3")
    fields["rope_theta"] = k.number("rope.freq_base", 1_000_000.0)
    fields["rope_local_base_freq"] = k.number("rope.freq_base_swa", 10_000.0)
    k.fixed("attention.sliding_window_pattern", 6)
    return fields | {"final_logit_softcapping": k.optional("final_logit_softcapping"), "attn_logit_softcapping": None}


def phi3(s: GgufSource) -> dict[str, Any]:
    k = s.keys
    fields = shared(s, "phi3", "Phi3ForCausalLM")
    width = k.integer("rope.dimension_count", fields["head_dim"])
    part = width / fields["head_dim"]
    rotary(s, fields, part)
    del fields["head_dim"]
    window = k.integer("attention.sliding_window", 0, low=0)
    return fields | {"partial_rotary_factor": part, "sliding_window": window or None}


def glm4(s: GgufSource) -> dict[str, Any]:
    fields = shared(s, "glm4", "Glm4ForCausalLM")
    part = s.keys.integer("rope.dimension_count", fields["head_dim"] // 2) / fields["head_dim"]
    rotary(s, fields, part)
    return fields | {"partial_rotary_factor": part, "attention_bias": s.has("blk.0.attn_q.bias")}


def gpt_oss(s: GgufSource) -> dict[str, Any]:
    k = s.keys
    fields = shared(s, "gpt_oss", "GptOssForCausalLM")
    rotary(s, fields)
    fields.setdefault("rope_scaling", {"rope_type": "default"})
    if fields["rope_scaling"]["rope_type"] == "yarn":
        fields["rope_scaling"]["truncate"] = False  # as published; llama.cpp has no key for it
    fields["intermediate_size"] = k.integer("expert_feed_forward_length")
    return fields | {
        "num_local_experts": k.integer("expert_count"), "num_experts_per_tok": k.integer("expert_used_count"),
        "sliding_window": k.integer("attention.sliding_window"),
    }  # fmt: skip


def gpt2(s: GgufSource) -> dict[str, Any]:
    k = s.keys
    width, heads = k.integer("embedding_length"), k.integer("attention.head_count")
    k.integer("attention.head_count_kv", heads, low=heads, high=heads)
    context = k.integer("context_length")
    rows = s.shapes.get("position_embd.weight", (context,))[0]
    k.relate(rows == context, "context_length == rows of position_embd.weight", context_length=context, rows=rows)
    return {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": s.shapes.get("token_embd.weight", (0,))[0],
        "n_embd": width, "n_head": heads, "n_layer": k.integer("block_count", high=100_000), "n_positions": context,
        "n_inner": k.integer("feed_forward_length"), "layer_norm_epsilon": k.number("attention.layer_norm_epsilon"),
        "tie_word_embeddings": not s.has("output.weight"),
    }  # fmt: skip


def granite(s: GgufSource) -> dict[str, Any]:
    """Return Granite's fields, with or without experts: Llama's and four multipliers."""
    k = s.keys
    experts = k.integer("expert_count", 0, low=0)
    fields = shared(s, *(("granitemoe", "GraniteMoeForCausalLM") if experts else ("granite", "GraniteForCausalLM")))
    rotary(s, fields)
    scales = {"embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale"}
    fields |= {name: k.number(key, 1.0) for name, key in scales.items()}
    fields |= {
        "attention_multiplier": k.number("attention.scale", fields["head_dim"] ** -0.5),
        "attention_bias": s.has("blk.0.attn_q.bias"),
    }
    if experts:
        k.fixed("expert_shared_feed_forward_length", 0)
        return fields | {"num_local_experts": experts, "num_experts_per_tok": k.integer("expert_used_count")}
    return fields | {"mlp_bias": s.has("blk.0.ffn_gate.bias")}


def smollm3(s: GgufSource) -> dict[str, Any]:
    """Return SmolLM3's fields; that each fourth layer does not turn stands in no key."""
    fields = shared(s, "smollm3", "SmolLM3ForCausalLM")
    rotary(s, fields)
    return fields | {"no_rope_layer_interval": 4, "attention_bias": s.has("blk.0.attn_q.bias"), "mlp_bias": s.has("blk.0.ffn_gate.bias")}


def arcee(s: GgufSource) -> dict[str, Any]:
    fields = shared(s, "arcee", "ArceeForCausalLM")
    rotary(s, fields)
    return fields | {"attention_bias": s.has("blk.0.attn_q.bias"), "mlp_bias": s.has("blk.0.ffn_up.bias")}


def seed_oss(s: GgufSource) -> dict[str, Any]:
    fields = shared(s, "seed_oss", "SeedOssForCausalLM")
    rotary(s, fields)
    biases = {"attention_bias": "attn_q", "attention_out_bias": "attn_output", "mlp_bias": "ffn_gate"}
    return fields | {name: s.has(f"blk.0.{part}.bias") for name, part in biases.items()}


def olmo2(s: GgufSource) -> dict[str, Any]:
    fields = shared(s, "olmo2", "Olmo2ForCausalLM")
    rotary(s, fields)
    return fields


def hunyuan(s: GgufSource) -> dict[str, Any]:
    """Return Hunyuan's fields; the base of its turn is written grown already."""
    fields = shared(s, "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM")
    rotary(s, fields)
    return fields | {"attention_bias": s.has("blk.0.attn_q.bias")}


def starcoder2(s: GgufSource) -> dict[str, Any]:
    fields = shared(s, "starcoder2", "Starcoder2ForCausalLM", "attention.layer_norm_epsilon")
    rotary(s, fields)
    fields["norm_epsilon"] = fields.pop("rms_norm_eps")
    return fields | {"use_bias": s.has("blk.0.attn_q.bias")}


def mamba2(s: GgufSource) -> dict[str, Any]:
    k = s.keys
    width, inner, heads = k.integer("embedding_length"), k.integer("ssm.inner_size"), k.integer("ssm.time_step_rank")
    k.relate(inner % heads == 0 and inner % width == 0, "ssm.inner_size % ssm.time_step_rank == 0", inner=inner, heads=heads, width=width)
    for key in ("feed_forward_length", "attention.head_count"):
        k.fixed(key, 0)
    k.read.add("context_length")  # a state knows none
    return {
        "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "vocab_size": s.shapes.get("token_embd.weight", (0,))[0],
        "hidden_size": width, "num_hidden_layers": k.integer("block_count", high=100_000), "expand": inner // width, "num_heads": heads,
        "head_dim": inner // heads, "n_groups": k.integer("ssm.group_count"), "state_size": k.integer("ssm.state_size"),
        "conv_kernel": k.integer("ssm.conv_kernel"), "layer_norm_epsilon": k.number("attention.layer_norm_rms_epsilon"),
        "use_conv_bias": s.has("blk.0.ssm_conv1d.bias"), "use_bias": s.has("blk.0.ssm_in.bias"),
        "tie_word_embeddings": not s.has("output.weight"),
    }  # fmt: skip


def falcon_h1(s: GgufSource) -> dict[str, Any]:
    """Return Falcon-H1's fields; the multipliers are in the weights."""
    k = s.keys
    fields = shared(s, "falcon_h1", "FalconH1ForCausalLM")
    rotary(s, fields)
    return fields | {
        "mamba_d_ssm": k.integer("ssm.inner_size"), "mamba_n_heads": k.integer("ssm.time_step_rank"),
        "mamba_d_state": k.integer("ssm.state_size"), "mamba_n_groups": k.integer("ssm.group_count"),
        "mamba_d_conv": k.integer("ssm.conv_kernel"), "mamba_conv_bias": s.has("blk.0.ssm_conv1d.bias"),
        "mamba_rms_norm": s.has("blk.0.ssm_norm.weight"), "mamba_norm_before_gate": False, "mlp_bias": s.has("blk.0.ffn_gate.bias"),
    }  # fmt: skip


def qwen3next(s: GgufSource) -> dict[str, Any]:
    """Return Qwen3-Next's fields. Keys and values of a state are of one width, and so are all layers' experts."""
    k = s.keys
    fields = shared(s, "qwen3_next", "Qwen3NextForCausalLM")
    part, layers = k.integer("rope.dimension_count", fields["head_dim"] // 4) / fields["head_dim"], fields["num_hidden_layers"]
    rotary(s, fields, part)
    width, heads, inner = k.integer("ssm.state_size"), k.integer("ssm.time_step_rank"), k.integer("ssm.inner_size")
    k.relate(inner == heads * width, "ssm.inner_size == ssm.time_step_rank * ssm.state_size", inner=inner, heads=heads, state=width)
    k.fixed("nextn_predict_layers", 0)
    every = k.integer("full_attention_interval", 4)
    keeps = k.get("attention.recurrent_layers", [(i + 1) % every != 0 for i in range(layers)])
    if not isinstance(keeps, list) or len(keeps) != layers or any(n not in (0, 1) for n in keeps):
        raise k.fault("attention.recurrent_layers", keeps, f"{layers} × (true | false)")
    return fields | {
        "partial_rotary_factor": part, "layer_types": ["linear_attention" if n else "full_attention" for n in keeps],
        "linear_num_key_heads": k.integer("ssm.group_count"), "linear_key_head_dim": width, "linear_num_value_heads": heads,
        "linear_value_head_dim": width, "linear_conv_kernel_dim": k.integer("ssm.conv_kernel"), "num_experts": k.integer("expert_count"),
        "num_experts_per_tok": k.integer("expert_used_count"), "moe_intermediate_size": k.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": k.integer("expert_shared_feed_forward_length"), "norm_topk_prob": True,
    }  # fmt: skip


ARCHITECTURES: dict[str, Callable[[GgufSource], dict[str, Any]]] = {
    "llama": llama, "qwen2": qwen2, "qwen3": qwen3, "qwen3moe": qwen3moe, "gemma": gemma, "gemma2": gemma2, "gemma3": gemma3,
    "phi3": phi3, "gpt2": gpt2, "glm4": glm4, "gpt-oss": gpt_oss, "granite": granite, "granitemoe": granite, "smollm3": smollm3,
    "arcee": arcee, "seed_oss": seed_oss, "olmo2": olmo2, "hunyuan-dense": hunyuan, "starcoder2": starcoder2, "mamba2": mamba2,
    "granitehybrid": granitehybrid, "nemotron_h": nemotron_h, "falcon-h1": falcon_h1, "qwen3next": qwen3next, "mamba": mamba,
    "jamba": jamba,
}  # fmt: skip


def config_fields(name: str, s: GgufSource) -> dict[str, Any]:
    """Return the config.json that a file of the architecture `name` describes. A ConfigError for one that is not read, or a key."""
    if name not in ARCHITECTURES:
        raise ConfigError("gguf.architecture", file=s.keys.file, found=name, allowed=All(ARCHITECTURES))
    fields = ARCHITECTURES[name](s)
    unread = {f"{name}.{n}": value for n, value in s.keys.values.items() if n not in s.keys.read and n not in HARMLESS}
    if unread:
        fields_left = All(f"{n} = {value!r}" for n, value in unread.items())
        raise ConfigError("config.unknown", file=s.keys.file, found=fields_left, way=All((f"--ignore-field {n}" for n in unread), " "))
    return fields
