"""A model as the keys and tensors of a GGUF file: the way back of hyperparameters.py and tensor_names.py.

What is written is read again on the spot, and a model whose config does not come back is refused: no key holds what is special to it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.checkpoint.fill import targets
from pellucid.checkpoint.gguf.block_types import BY_NAME
from pellucid.checkpoint.gguf.gguf_source import GgufSource
from pellucid.checkpoint.gguf.gguf_writer import WrittenTensor
from pellucid.checkpoint.gguf.hybrid_keys import KEYS as HYBRIDS
from pellucid.checkpoint.gguf.hyperparameters import config_fields, llama3_factors
from pellucid.checkpoint.gguf.packed_tensor import FORMS
from pellucid.checkpoint.gguf.selective_keys import jamba_keys, mamba_keys
from pellucid.checkpoint.gguf.tensor_names import TABLES, folded
from pellucid.config import Attention, Config, GatedDelta, LinearScaling, Llama3, LongRope, Mamba1, Mamba2, Moe, Rope, Yarn
from pellucid.errors import UseError
from pellucid.families import understand
from pellucid.families.fields import Fields
from pellucid.families.names import TensorGroup, plan
from pellucid.families.quantisation import in_blocks
from pellucid.families.rope import mscale
from pellucid.messages import All
from pellucid.ops.blocks import Blocks

OF_FAMILY = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
    "gemma": "gemma", "gemma2": "gemma2", "gemma3_text": "gemma3", "gemma3": "gemma3", "phi3": "phi3", "gpt2": "gpt2", "glm4": "glm4",
    "gpt_oss": "gpt-oss", "granite": "granite", "granitemoe": "granitemoe", "smollm3": "smollm3", "arcee": "arcee",
    "seed_oss": "seed_oss", "olmo2": "olmo2", "hunyuan_v1_dense": "hunyuan-dense", "starcoder2": "starcoder2", "mamba2": "mamba2",
    "granitemoehybrid": "granitehybrid", "nemotron_h": "nemotron_h", "falcon_h1": "falcon-h1", "qwen3_next": "qwen3next", "mamba": "mamba",
    "falcon_mamba": "mamba", "jamba": "jamba",
}  # fmt: skip
SELECTIVE = {"mamba": mamba_keys, "jamba": jamba_keys}
WINDOWED = {"gemma2", "gemma3", "phi3", "gpt-oss"}
KINDS = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
FILE_TYPE = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7, "q4_0": 2}  # llama.cpp's numbers for what most tensors are
Keys = dict[str, Any]


def architecture(family: str) -> str:
    """Return llama.cpp's name of a family. A UseError for one that it, or this table, does not have."""
    if family not in OF_FAMILY:
        raise UseError("convert.family", found=family, allowed=All(OF_FAMILY))
    return OF_FAMILY[family]


def model_keys(name: str, cfg: Config) -> Keys:
    """Return the keys of an architecture for a config."""
    attn, ffn = cfg.layers[0].attn, cfg.layers[0].ffn
    keys: Keys
    if name in SELECTIVE:
        return {f"{name}.{key}": value for key, value in SELECTIVE[name](cfg).items() if value is not None}
    if name in HYBRIDS:
        scan = next((mixer for one in cfg.layers for mixer in one.mixers if isinstance(mixer, Mamba2)), None)
        keys = ({} if scan is None else state_keys(cfg, scan)) | HYBRIDS[name](cfg)
        return {f"{name}.{key}": value for key, value in keys.items() if value is not None}
    if isinstance(attn, Mamba2):
        return {f"{name}.{key}": value for key, value in state_keys(cfg, attn).items()}
    assert isinstance(attn, Attention)
    eps = "attention.layer_norm_epsilon" if name in ("gpt2", "starcoder2") else "attention.layer_norm_rms_epsilon"
    keys = {
        "vocab_size": cfg.vocab, "context_length": cfg.context, "embedding_length": cfg.width, "block_count": len(cfg.layers),
        "feed_forward_length": ffn.width, "attention.head_count": attn.heads, "attention.head_count_kv": attn.kv_heads, eps: cfg.eps,
    }  # fmt: skip
    if attn.rope is not None:
        keys |= {"attention.key_length": attn.width, "attention.value_length": attn.width}
        keys |= {"rope.dimension_count": attn.rope.width, "rope.freq_base": attn.rope.theta, **scaling_keys(attn.rope)}
    if isinstance(ffn, Moe):
        keys |= {"expert_count": ffn.experts, "expert_used_count": ffn.chosen}
        keys |= {} if name in ("llama", "granitemoe") else {"expert_feed_forward_length": ffn.width}
    if name in ("granite", "granitemoe"):
        keys |= {"attention.scale": attn.scale, "embedding_scale": cfg.embed_scale, "residual_scale": cfg.layers[0].gain}
        keys["logit_scale"] = 1 / cfg.logit_factor
    if name in WINDOWED and (window := next((layer.attn.window for layer in cfg.layers if layer.attn.window), None)):
        keys["attention.sliding_window"] = window
    if name in ("gemma2", "gemma3"):
        caps = {"attn_logit_softcapping": attn.cap, "final_logit_softcapping": cfg.logit_cap}
        keys |= {key: cap for key, cap in caps.items() if cap is not None}
    if name == "gemma3":
        far = next((layer.attn.rope for layer in cfg.layers if layer.attn.window is None), attn.rope)
        keys |= {"rope.freq_base": far.theta, "rope.freq_base_swa": attn.rope.theta, **scaling_keys(far)} if far and attn.rope else {}
    return {f"{name}.{key}": value for key, value in keys.items() if value is not None}


def state_keys(cfg: Config, scan: Mamba2) -> Keys:
    """Return the keys of a model whose layers keep a state, and nothing else."""
    return {
        "vocab_size": cfg.vocab, "context_length": 2**20, "embedding_length": cfg.width, "block_count": len(cfg.layers),
        "feed_forward_length": 0, "attention.head_count": 0, "attention.layer_norm_rms_epsilon": cfg.eps,
        "ssm.conv_kernel": scan.rows, "ssm.inner_size": scan.state_heads * scan.row_width, "ssm.state_size": scan.state_width,
        "ssm.time_step_rank": scan.state_heads, "ssm.group_count": scan.groups,
    }  # fmt: skip


def scaling_keys(rope: Rope) -> Keys:
    """Return the keys of a scaling of rotary positions; Llama 3's is a tensor, and so are the factors of longrope."""
    match rope.scaling:
        case LinearScaling(factor):
            return {"rope.scaling.type": "linear", "rope.scaling.factor": factor}
        case Yarn() as yarn:
            keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": yarn.factor, "rope.scaling.original_context_length": yarn.original}
            keys |= {"rope.scaling.yarn_beta_fast": yarn.fast, "rope.scaling.yarn_beta_slow": yarn.slow}
            own = mscale(yarn.factor, 1.0)
            return keys if yarn.amount == own else keys | {"rope.scaling.attn_factor": yarn.amount / own}
        case LongRope() as long if long.short != long.long:
            return {"rope.scaling.original_context_length": long.original, "rope.scaling.attn_factor": long.amount}
    return {}


def factor_tensors(cfg: Config) -> dict[str, Tensor]:
    """Return the tensors that hold a scaling of rotary positions."""
    rope = cfg.layers[0].attn.rope
    match rope.scaling if rope is not None else None:
        case Llama3() as scaling if rope is not None:
            return {"rope_freqs.weight": llama3_factors(scaling, rope.theta, rope.width)}
        case LongRope() as long if long.short == long.long:
            return {"rope_freqs.weight": torch.tensor(long.short)}
        case LongRope() as long:
            return {"rope_factors_long.weight": torch.tensor(long.long), "rope_factors_short.weight": torch.tensor(long.short)}
    return {}


def written_model(module: nn.Module, family: str, cfg: Config, quant: str) -> tuple[Keys, list[WrittenTensor]]:
    """Return the keys and the tensors of a model. quant: the type of its matrices; "" leaves each dtype as it is."""
    name = architecture(family)
    if not isinstance(cfg.layers[0].attn, Attention | Mamba1 | Mamba2 | GatedDelta):
        raise UseError("convert.family", found=family, allowed=All(OF_FAMILY))
    keys = model_keys(name, cfg)
    factors = factor_tensors(cfg)
    tensors = [WrittenTensor(n, "F32", tuple(t.shape), lambda t=t: t) for n, t in factors.items()]  # type: ignore[misc]
    tensors += named(module, name, cfg, quant)
    compare(name, folded(cfg), keys, factors, {t.name: tuple(t.shape) for t in tensors})
    return keys, tensors


def named(module: nn.Module, name: str, cfg: Config, quant: str) -> Iterator[WrittenTensor]:
    """Yield the tensors of a model under llama.cpp's names."""
    ours = targets(module)
    groups, orphans = plan(TABLES[name](cfg), {n: tuple(t.shape) for n, t in ours.items()})
    if orphans:
        raise UseError("convert.tensor", architecture=name, name=orphans[0])
    for g in groups:
        shapes = [t.shape for t in g.layout.write([torch.empty(ours[n].shape, device="meta") for n in g.ours])]
        for index, (disk, shape) in enumerate(zip(g.disk, shapes, strict=True)):
            first = ours[g.ours[0]]
            yield WrittenTensor(disk, kind_of(g, first, quant), shape, lambda g=g, i=index: written(g, ours, i))  # type: ignore[misc]


def kind_of(g: TensorGroup, first: Tensor, quant: str) -> str:
    """Return the type of a group's tensors: that which was asked for of matrices, F32 of all that is small."""
    if first.ndim < 2 or not in_blocks(g.ours[0], tuple(first.shape)):
        return "F32"
    if isinstance(first, Blocks) and not quant:
        return next(name for name, form in FORMS.items() if form == first.format)
    kind = KINDS[quant] if quant else {torch.bfloat16: "BF16", torch.float16: "F16"}.get(first.dtype, "F32")
    return kind if first.shape[-1] % BY_NAME[kind].block == 0 else "F16"


def written(g: TensorGroup, ours: Mapping[str, Tensor], index: int) -> Tensor:
    """Return one of a group's tensors as it is on disk; blocks stay blocks."""
    values = [ours[n].detach() for n in g.ours]
    blocks = [v for v in values if isinstance(v, Blocks)]
    if g.layout.moves and len(blocks) == len(values) and len({v.format for v in blocks}) == 1:
        codes, scales = (g.layout.write([getattr(v, part) for v in blocks])[index] for part in ("codes", "scales"))
        return blocks[0].like(codes.contiguous(), scales.contiguous())
    plain = [v.plain(torch.float32) if isinstance(v, Blocks) else v for v in values]
    small = all(v.ndim < 2 for v in plain)
    return g.layout.write([v.float() if small else v for v in plain])[index].contiguous()


def compare(name: str, cfg: Config, keys: Keys, factors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise a UseError unless the config comes back from what is written."""
    own = {key.removeprefix(f"{name}."): rounded(value) for key, value in keys.items()}
    source = GgufSource(Fields(own, "GGUF", (), f"{name}."), shapes, factors.__getitem__)
    _, back = understand(config_fields(name, source))
    back = replace(back, ignored=cfg.ignored, stops=cfg.stops)
    if lost := [*differing(cfg, back)]:
        raise UseError("convert.lost", architecture=name, found=All(lost))


def rounded(value: Any) -> Any:
    """Return a key's value as it is read: a number in float32."""
    return float(str(torch.tensor(value, dtype=torch.float32).numpy())) if isinstance(value, float) else value


def differing(a: Any, b: Any, path: str = "") -> Iterator[str]:
    """Yield the fields in which two configs differ, with both values; a number may be rounded to float32."""
    if is_dataclass(a) and type(a) is type(b):
        for f in fields(a):
            yield from differing(getattr(a, f.name), getattr(b, f.name), f"{path}.{f.name}".lstrip("."))
    elif isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differing(x, y, f"{path}.{i}")
    elif isinstance(a, float) and isinstance(b, float):
        if abs(a - b) > 1e-6 * abs(a):
            yield f"{path} = {a} -> {b}"
    elif a != b:
        yield f"{path} = {a} -> {b}"


def described(folder: Path, quant: str) -> Keys:
    """Return the keys that say what a file is."""
    return {"general.name": folder.name, "general.quantization_version": 2} | ({"general.file_type": FILE_TYPE[quant]} if quant else {})
