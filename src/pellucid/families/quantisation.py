"""The quantisation of weights on disk, as config.json's `quantization_config` describes it.

The names on disk say which tensors are quantised; `checkpoint/dequantise.py` reads them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pellucid.families.fields import Fields

FIELD = "quantization_config"
LARGEST_BLOCK = 1 << 20
# How weights were quantised, and which kernel multiplies them elsewhere; the tensors themselves say in which form they lie.
SILENT = """
    act_group_aware actorder autoround_version backend batch_size block_name_to_quantize bnb_4bit_compute_dtype bnb_4bit_quant_storage
    bnb_4bit_quant_type bnb_4bit_use_double_quant cache_block_outputs damp_auto_increment damp_percent dataset desc_act disable_exllama
    do_fuse exllama_config format fuse_max_seq_len global_compression_ratio group_size kv_cache_scheme llm_int8_enable_fp32_cpu_offload
    llm_int8_has_fp16_weight llm_int8_skip_modules llm_int8_threshold lm_head load_in_4bit load_in_8bit max_input_length meta
    model_file_base_name model_name_or_path model_seqlen module_name_preceding_first_block modules_in_block_to_quantize modules_to_fuse
    pack_dtype pad_token_id provider q_group_size quant_type quantization_status quantizer static_groups sym tokenizer true_sequential
    use_cuda_fp16 use_exllama version
"""


@dataclass(frozen=True)
class Fp8:
    """DeepSeek's FP8 (arXiv 2412.19437, 3.3): float8 values, and a scale for each block of `block` = (rows, columns)."""

    block: tuple[int, int]


@dataclass(frozen=True)
class Mxfp4:
    """OCP's microscaling format, gpt-oss's experts: float4 values, and a power of two for each 32 in a row (arXiv 2310.10537)."""


@dataclass(frozen=True)
class Gptq:
    """GPTQ's integers (arXiv 2210.17323): `bits` each along a column, a scale and a zero point for each group of rows.

    shift: what is added to a zero point on disk.
    """

    bits: int
    shift: int


@dataclass(frozen=True)
class Awq:
    """AWQ's four bits (arXiv 2306.00978) in the order of its matrix kernel, a scale and a zero point for each group of rows."""


@dataclass(frozen=True)
class CompressedTensors:
    """The formats of vLLM's compressed-tensors; its tensors' names say which one each weight has.

    bits: of packed integers, those that occur.  block: (rows, columns) of a scale of float8, None for one a row or a tensor.
    """

    bits: tuple[int, ...]
    block: tuple[int, int] | None


@dataclass(frozen=True)
class BitsAndBytes:
    """bitsandbytes' four bits (NF4 of arXiv 2305.14314, or FP4) and its int8 (arXiv 2208.07339), as each tensor's own state says."""


@dataclass(frozen=True)
class InBlocks:
    """Our own format: int8 or int4 codes, and a scale for each 32 in a row (ops/blocks.py). Weights stay so in memory."""

    form: str


Method = Fp8 | Mxfp4 | Gptq | Awq | CompressedTensors | BitsAndBytes | InBlocks
# A choice that rounding would change; small tables of which a row is read; a matrix that attention reads from both of its sides at every
# step, though it never calls it; how fast each number of a state fades, of which the error grows with every token
PLAIN = {"router", "positions", "types", "relative", "kv_b", "log_rate"}


def is_matrix(path: str, shape: tuple[int, ...]) -> bool:
    """True if the weight at `path` is a matrix or a table: no vector, no bias, no kernel of a convolution."""
    return len(shape) > 1 and not path.endswith(("bias", "kernel"))


def in_blocks(path: str, shape: tuple[int, ...]) -> bool:
    """True if int8 and int4 apply to the weight at `path`: matrices and experts, but not the parts in PLAIN, norms or biases.

    Nor to the few rows of a convolution's kernel, which is no product of matrices.
    """
    return is_matrix(path, shape) and PLAIN.isdisjoint(path.split("."))


def fields(form: str) -> dict[str, object]:
    """Return the `quantization_config` of a folder in our own blocks."""
    return {"quant_method": "pellucid", "format": form, "block": 32}


def quantised(hf: Fields) -> Method | None:
    """Return the quantisation method, None for plain weights. An unknown method is refused by name."""
    part = None if FIELD in hf.ignore else hf.part(FIELD)
    if part is None:
        return None
    methods: dict[str, Callable[[Fields], Method]] = {
        "fp8": fp8, "mxfp4": mxfp4, "gptq": gptq, "awq": awq, "compressed-tensors": compressed, "bitsandbytes": bits_and_bytes,
        "pellucid": own,
    }  # fmt: skip
    method: Callable[[Fields], Method] = part.choice("quant_method", methods)
    for name in ("modules_to_not_convert", "modules_to_convert", "ignored_layers", "ignore"):
        modules = part.get(name, [])
        if not isinstance(modules, list) or not all(isinstance(module, str) for module in modules):
            raise part.fault(name, modules, "[module, ...]")
    part.flag("dequantize", False)
    return method(part)


def fp8(hf: Fields) -> Fp8:
    """Return DeepSeek's float8: scales of blocks in plain floating point, no scales of activations on disk."""
    hf.fixed("fmt", "e4m3")
    hf.fixed("activation_scheme", "dynamic")
    hf.fixed("scale_fmt", "float", "ue8m0")  # ue8m0: powers of two, still stored as floats (DeepSeek-V3.1)
    hf.fixed("expert_dtype", "fp8")
    block = hf.get("weight_block_size", [128, 128])
    if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and 0 < n <= LARGEST_BLOCK for n in block):
        raise hf.fault("weight_block_size", block, f"[1 ... {LARGEST_BLOCK}, 1 ... {LARGEST_BLOCK}]")
    return Fp8((block[0], block[1]))


def own(hf: Fields) -> InBlocks:
    """Return our own blocks, all of whose settings are stated."""
    hf.fixed("block", 32)
    return InBlocks(hf.choice("format", {"int8": "int8", "int4": "int4"}))


def mxfp4(_: Fields) -> Mxfp4:
    """Return gpt-oss's float4, which has no settings."""
    return Mxfp4()


def bits_and_bytes(hf: Fields) -> BitsAndBytes:
    """Return bitsandbytes' forms; each tensor has its own."""
    hf.read |= set(SILENT.split())
    return BitsAndBytes()


def gptq(hf: Fields) -> Gptq:
    """Return GPTQ's integers. Zero points lie one lower on disk, but in the second version of the format."""
    hf.read |= set(SILENT.split())
    hf.fixed("dynamic", {})  # other settings for some modules
    hf.fixed("is_marlin_format", False)
    bits = hf.integer("bits")
    if bits not in (2, 4, 8):
        raise hf.fault("bits", bits, "2, 4, 8")
    return Gptq(bits, hf.choice("checkpoint_format", {"gptq": 1, "gptq_v2": 0}, "gptq"))


def awq(hf: Fields) -> Awq:
    """Return AWQ's four bits, of the layout that its checkpoints have by default."""
    hf.read |= set(SILENT.split())
    hf.fixed("bits", 4)
    hf.fixed("w_bit", 4)
    hf.fixed("version", "gemm", "GEMM")
    hf.fixed("zero_point", True)
    return Awq()


def compressed(hf: Fields) -> CompressedTensors:
    """Return the formats of compressed-tensors. Rotated and sparse weights are refused."""
    hf.read |= set(SILENT.split())
    for name in ("transform_config", "sparsity_config", "moe_sparsity_config"):
        given = hf.get(name, {})
        if given and (not isinstance(given, dict) or given.get("format") != "dense"):
            raise hf.fault(name, given, "{}")
    groups, bits, block = hf.get("config_groups"), set[int](), None
    if not isinstance(groups, dict):
        raise hf.fault("config_groups", groups, "{group: {weights}}")
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict) or type(weights.get("num_bits")) is not int or weights["num_bits"] not in (2, 4, 8):
            raise hf.fault(f"config_groups.{name}.weights", weights, "num_bits 2, 4, 8")
        bits.add(weights["num_bits"])
        if weights.get("strategy") == "block":
            block = weights.get("block_structure")
            if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and 0 < n <= LARGEST_BLOCK for n in block):
                raise hf.fault(f"config_groups.{name}.weights.block_structure", block, "[rows, columns]")
    return CompressedTensors(tuple(sorted(bits)), None if block is None else (block[0], block[1]))
