"""The names of tensors in GGUF files and ours, a reversible table for each architecture (families/names.py).

blk.{i}.attn_q.weight           layers.{i}.attn.q.weight         llama: rows in another order, pairs of a head side by side
blk.{i}.attn_norm.weight        layers.{i}.attn_norm.weight      gemma: plus 1, so that llama.cpp's norm is the plain one
blk.{i}.ffn_gate_exps.weight    layers.{i}.ffn.gate              all experts of a layer in one tensor, as ours are
"""

import re
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pellucid.config import Attention, Config, GatedDelta, Layer, Mamba2, Mlp
from pellucid.families.names import CHANNEL_BIASES, CHANNELS, PLAIN, SPLIT, Layout, Rule, Shape, grouped

OFFSET = Layout(lambda disk, _: [x - 1 for x in disk], lambda ours: [x + 1 for x in ours], moves=False)
ROW = re.compile(r"blk\.\d+\.(ffn_gate_inp_shexp|ssm_norm)\.weight")  # a vector, or a matrix of one row
SETTING = re.compile(r"rope_freqs\.weight|rope_factors_(long|short)\.weight")  # read with the keys


def side_by_side(heads: int) -> Layout:
    """Return the layout of a head's channels in pairs: llama.cpp turns neighbours, transformers' files half a head apart."""

    def read(x: Tensor) -> Tensor:
        return x.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)  # type: ignore[no-any-return]

    def write(x: Tensor) -> Tensor:
        return x.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)  # type: ignore[no-any-return]

    return Layout(lambda disk, _: [read(x) for x in disk], lambda ours: [write(x) for x in ours])


# a convolution's weight without the axis of length 1;  −e^x of a rate, [H, 1];  a number a head, [H, 1]
FLAT_CHANNELS = Layout(
    lambda disk, shapes: CHANNELS.read([disk[0][:, None]], shapes), lambda ours: [w[:, 0].contiguous() for w in CHANNELS.write(ours)]
)
RATE = Layout(lambda disk, _: [torch.log(-x[:, 0].double()) for x in disk], lambda ours: [-torch.exp(x.float())[:, None] for x in ours])
COLUMN = Layout(lambda disk, _: [x[:, 0] for x in disk], lambda ours: [x[:, None] for x in ours])


ONE_ROW = Layout(lambda disk, _: [x[None] for x in disk], lambda ours: [x[0] for x in ours])  # a matrix of one row, as a vector
NEGATIVE_RATE = Layout(lambda disk, _: [torch.log(-x.double()) for x in disk], lambda ours: [-torch.exp(x.float()) for x in ours])
RATES = Layout(lambda disk, _: [torch.log(-x.double()).T for x in disk], lambda ours: [-torch.exp(x.float()).T for x in ours])  # [W K]


def multiplied(*factors: float, inner: Layout = PLAIN) -> Layout:
    """Return a layout that has the numbers of each of our tensors times its factor on disk."""
    if all(factor == 1.0 for factor in factors):
        return inner

    def read(disk: list[Tensor], shapes: list[Shape]) -> list[Tensor]:
        return [x / factor for x, factor in zip(inner.read(disk, shapes), factors, strict=True)]

    def write(ours: list[Tensor]) -> list[Tensor]:
        return inner.write([x.float() * factor for x, factor in zip(ours, factors, strict=True)])

    return Layout(read, write, moves=False)


def in_groups(groups: int) -> Layout:
    """Return the layout of a norm's weight by groups, [G, inner / G]; a vector of one."""
    if groups == 1:
        return PLAIN
    return Layout(lambda disk, _: [x.flatten() for x in disk], lambda ours: [x.unflatten(0, (groups, -1)) for x in ours])


def layer(disk: str, ours: str | tuple[str, ...], layout: Layout = PLAIN) -> Rule:
    """Return the rule of a layer's weights and biases."""
    names = (ours,) if isinstance(ours, str) else ours
    return Rule(f"blk.{{i}}.{disk}.*", tuple(f"layers.{{i}}.{n}.*" for n in names), layout)


def tensor(disk: str, ours: str, layout: Layout = PLAIN) -> Rule:
    """Return the rule of one tensor of a layer."""
    return Rule(f"blk.{{i}}.{disk}", f"layers.{{i}}.{ours}", layout)


def ends(norm: Layout = PLAIN) -> tuple[Rule, ...]:
    """Return the rules of the embedding, the last norm and the head."""
    return Rule("token_embd.*", "embed.*"), Rule("output_norm.*", "norm.*", norm), Rule("output.*", "head.*")


PRE_NORMS = (layer("attn_norm", "attn_norm"), layer("ffn_norm", "ffn_norm"))
GATED = tuple(layer(f"ffn_{n}", f"ffn.{n}") for n in ("gate", "up", "down"))
FUSED = (layer("ffn_up", ("ffn.gate", "ffn.up"), SPLIT), layer("ffn_down", "ffn.down"))
QKVO = (layer("attn_q", "attn.q"), layer("attn_k", "attn.k"), layer("attn_v", "attn.v"), layer("attn_output", "attn.o"))
QKV = layer("attn_qkv", ("attn.q", "attn.k", "attn.v"), SPLIT)
QK_NORMS = (layer("attn_q_norm", "attn.q_norm"), layer("attn_k_norm", "attn.k_norm"))
EXPERTS = (
    tensor("ffn_gate_inp.weight", "ffn.router.weight"),
    *(tensor(f"ffn_{n}_exps.weight", f"ffn.{n}") for n in ("gate", "up", "down")),
)


def sandwich(norm: Layout) -> tuple[Rule, ...]:
    """Return the rules of a norm before and one after each part."""
    names = {"attn_norm": "attn_norm", "post_attention_norm": "attn_post_norm", "ffn_norm": "ffn_norm", "post_ffw_norm": "ffn_post_norm"}
    return tuple(layer(disk, ours, norm) for disk, ours in names.items())


def llama(cfg: Config) -> tuple[Rule, ...]:
    attn = cfg.layers[0].attn
    q, k = side_by_side(attn.heads), side_by_side(getattr(attn, "kv_heads", attn.heads))
    return (*ends(), *PRE_NORMS, layer("attn_q", "attn.q", q), layer("attn_k", "attn.k", k), *QKVO[2:], *EXPERTS, *GATED)


def gemma(cfg: Config) -> tuple[Rule, ...]:
    return (*ends(OFFSET), *(layer(n, n, OFFSET) for n in ("attn_norm", "ffn_norm")), *QKVO, *GATED)


def gemma2(cfg: Config) -> tuple[Rule, ...]:
    return (*ends(OFFSET), *sandwich(OFFSET), *QKVO, *GATED)


def gemma3(cfg: Config) -> tuple[Rule, ...]:
    return (*gemma2(cfg), *(layer(f"attn_{n}_norm", f"attn.{n}_norm", OFFSET) for n in "qk"))


def qwen(cfg: Config) -> tuple[Rule, ...]:
    return (*ends(), *PRE_NORMS, *QKVO, *QK_NORMS, *EXPERTS, *GATED)


def phi3(cfg: Config) -> tuple[Rule, ...]:
    return (*ends(), *PRE_NORMS, QKV, QKVO[3], *FUSED)


def glm4(cfg: Config) -> tuple[Rule, ...]:
    return (*ends(), *sandwich(PLAIN), *QKVO, *FUSED)


def gpt2(cfg: Config) -> tuple[Rule, ...]:
    return (*ends(), Rule("position_embd.*", "positions.*"), *PRE_NORMS, QKV, QKVO[3], *GATED[1:])


def gpt_oss(cfg: Config) -> tuple[Rule, ...]:
    norms = (layer("attn_norm", "attn_norm"), layer("post_attention_norm", "ffn_norm"))
    experts = tuple(tensor(f"ffn_{n}_exps.bias", f"ffn.{n}_bias") for n in ("gate", "up", "down"))
    return (*ends(), *norms, *QKVO, tensor("attn_sinks.weight", "attn.sinks"), layer("ffn_gate_inp", "ffn.router"), *EXPERTS[1:], *experts)


def seed_oss(cfg: Config) -> tuple[Rule, ...]:
    return (*ends(), layer("attn_norm", "attn_norm"), layer("post_attention_norm", "ffn_norm"), *QKVO, *GATED)


def olmo2(cfg: Config) -> tuple[Rule, ...]:
    return (*ends(), layer("post_attention_norm", "attn_norm"), layer("post_ffw_norm", "ffn_norm"), *QKVO, *QK_NORMS, *GATED)


def scan(cfg: Config) -> tuple[Rule, ...]:
    """Return the rules of Mamba-2's part and its norm, of any layer."""
    spec = next(mixer for one in cfg.layers for mixer in one.mixers if isinstance(mixer, Mamba2))
    return (
        layer("attn_norm", "mamba_norm"),
        layer("ssm_in", tuple(f"mamba.{n}" for n in ("z", "x", "b", "c", "dt_in")), SPLIT),
        Rule("blk.{i}.ssm_conv1d.weight", tuple(f"layers.{{i}}.mamba.{n}_kernel" for n in "xbc"), FLAT_CHANNELS),
        Rule("blk.{i}.ssm_conv1d.bias", tuple(f"layers.{{i}}.mamba.{n}_kernel_bias" for n in "xbc"), CHANNEL_BIASES),
        tensor("ssm_dt.bias", "mamba.rate_bias"),
        tensor("ssm_a", "mamba.log_rate", RATE),
        tensor("ssm_d", "mamba.skip", COLUMN),
        tensor("ssm_norm.weight", "mamba.norm.weight", in_groups(spec.groups)),
        layer("ssm_out", "mamba.o"),
    )


def selective(cfg: Config) -> tuple[Rule, ...]:
    """Return the rules of Mamba-1's part and its norms, of any layer; llama.cpp has no biases of its products."""
    return (
        layer("attn_norm", "mamba_norm"),
        Rule("blk.{i}.ssm_in.weight", tuple(f"layers.{{i}}.mamba.{n}.weight" for n in "xz"), SPLIT),
        Rule("blk.{i}.ssm_conv1d.weight", ("layers.{i}.mamba.x_kernel",), FLAT_CHANNELS),
        Rule("blk.{i}.ssm_conv1d.bias", ("layers.{i}.mamba.x_kernel_bias",), CHANNEL_BIASES),
        layer("ssm_x", tuple(f"mamba.{n}" for n in ("dt_low", "b", "c")), SPLIT),
        tensor("ssm_dt.weight", "mamba.dt_in.weight"),
        tensor("ssm_dt.bias", "mamba.rate_bias"),
        *(layer(f"ssm_{n}_norm", f"mamba.{n}_norm") for n in ("dt", "b", "c")),
        tensor("ssm_a", "mamba.log_rate", RATES),
        tensor("ssm_d", "mamba.skip"),
        tensor("ssm_out.weight", "mamba.o.weight"),
    )


def mamba(cfg: Config) -> tuple[Rule, ...]:
    return (*ends(), *selective(cfg))


def jamba(cfg: Config) -> tuple[Rule, ...]:
    return (*ends(), *PRE_NORMS, *QKVO, *selective(cfg), *EXPERTS, *GATED)


def mamba2(cfg: Config) -> tuple[Rule, ...]:
    return (*ends(), *scan(cfg))


def granitehybrid(cfg: Config) -> tuple[Rule, ...]:
    attn = next(one.attn for one in cfg.layers if not isinstance(one.attn, Mamba2))
    rotary = (layer(f"attn_{n}", f"attn.{n}", side_by_side(heads)) for n, heads in (("q", attn.heads), ("k", attn.kv_heads or 1)))
    shared = (layer(f"ffn_{n}_shexp", f"ffn.shared.{n}") for n in ("gate", "up", "down"))
    return (*ends(), *PRE_NORMS, *rotary, *QKVO[2:], *scan(cfg), *EXPERTS, *shared, *GATED)


def at(rule: Rule, disk: int, ours: int) -> Rule:
    """Return a layer's rule for one layer, which has another number in the file."""
    return Rule(rule.disk.replace("{i}", str(disk)), tuple(n.replace("{i}", str(ours)) for n in rule.names), rule.layout)


def nemotron_h(cfg: Config) -> tuple[Rule, ...]:
    """Return the table of a file whose blocks are single parts: a feed-forward part is a block behind that of the part before it."""
    state, attends = scan(cfg), (layer("attn_norm", "attn_norm"), *QKVO)
    feeds, out, disk = (layer("attn_norm", "ffn_norm"), *GATED[1:]), [*ends()], 0
    for i, one in enumerate(cfg.layers):
        for rules in (state if isinstance(one.attn, Mamba2) else attends, *([feeds] if one.ffn.width else [])):
            out += [at(rule, disk, i) for rule in rules]
            disk += 1
    return tuple(out)


def falcon_h1(cfg: Config) -> tuple[Rule, ...]:
    """Return the table of a file whose weights have the multipliers in them."""
    one = cfg.layers[0]
    attn, scanned, ffn, by = one.attn, one.second, one.ffn, dict(one.factors)
    assert isinstance(attn, Attention) and isinstance(scanned, Mamba2)
    reads, state = by.get("attn.in", 1.0), by.get("mamba.in", 1.0)
    into = multiplied(*(n * state for n in scanned.factors or (1.0,) * 5), inner=SPLIT)
    return (
        Rule("token_embd.*", "embed.*", multiplied(cfg.embed_scale)),
        Rule("output_norm.*", "norm.*"),
        Rule("output.*", "head.*", multiplied(cfg.logit_factor)),
        layer("attn_norm", "attn_norm"),
        tensor("ffn_norm", "ffn_norm.weight"),  # without an ending, as llama.cpp has it
        layer("attn_q", "attn.q", multiplied(reads)),
        layer("attn_k", "attn.k", multiplied(reads * attn.key_factor)),
        layer("attn_v", "attn.v", multiplied(reads)),
        layer("attn_output", "attn.o", multiplied(by.get("attn", 1.0))),
        layer("ssm_in", tuple(f"mamba.{n}" for n in ("z", "x", "b", "c", "dt_in")), into),
        *scan(cfg)[2:-1],
        layer("ssm_out", "mamba.o", multiplied(by.get("mamba", 1.0))),
        layer("ffn_gate", "ffn.gate", multiplied(getattr(ffn, "gate_factor", 1.0))),
        layer("ffn_up", "ffn.up"),
        layer("ffn_down", "ffn.down", multiplied(by.get("ffn", 1.0))),
    )


def folded(cfg: Config) -> Config:
    """Return the config of what `falcon_h1` writes, without the multipliers that are in the weights; any other config as it is.

    One tensor cannot have those of an embedding and of another head tied to it.
    """

    def plain(one: Layer) -> Layer:
        assert isinstance(one.attn, Attention) and isinstance(one.second, Mamba2) and isinstance(one.ffn, Mlp)
        attn, second = replace(one.attn, key_factor=1.0), replace(one.second, factors=())
        return replace(one, attn=attn, second=second, ffn=replace(one.ffn, gate_factor=1.0), factors=())

    if cfg.layers[0].second is None or (cfg.tied and cfg.embed_scale != cfg.logit_factor):
        return cfg
    return replace(cfg, layers=tuple(map(plain, cfg.layers)), embed_scale=1.0, logit_factor=1.0)


def qwen3next(cfg: Config) -> tuple[Rule, ...]:
    """Return the table of attention whose queries and gates lie by heads, and of states whose two small products lie by key heads."""
    attn = next(one.attn for one in cfg.layers if isinstance(one.attn, Attention))
    delta = next(one.attn for one in cfg.layers if isinstance(one.attn, GatedDelta))
    norms = {"attn_norm": ("attn_norm", "delta_norm"), "post_attention_norm": ("ffn_norm",)}
    return (
        *ends(OFFSET),
        *(layer(disk, ours, OFFSET) for disk, names in norms.items() for ours in names),
        layer("attn_q", ("attn.q", "attn.gate"), grouped(attn.heads)),
        *QKVO[1:],
        *(layer(f"attn_{n}_norm", f"attn.{n}_norm", OFFSET) for n in "qk"),
        layer("attn_qkv", ("delta.q", "delta.k", "delta.v"), SPLIT),
        layer("attn_gate", "delta.z"),
        layer("ssm_ba", ("delta.b", "delta.a"), grouped(delta.key_heads)),
        Rule("blk.{i}.ssm_conv1d.weight", tuple(f"layers.{{i}}.delta.{n}_kernel" for n in "qkv"), FLAT_CHANNELS),
        tensor("ssm_dt.bias", "delta.rate_bias"),
        tensor("ssm_a", "delta.log_rate", NEGATIVE_RATE),
        layer("ssm_norm", "delta.norm"),
        layer("ssm_out", "delta.o"),
        *EXPERTS,
        *(layer(f"ffn_{n}_shexp", f"ffn.shared.{n}") for n in ("gate", "up", "down")),
        tensor("ffn_gate_inp_shexp.weight", "ffn.shared_gate.weight", ONE_ROW),
    )


TABLES: dict[str, Callable[[Config], tuple[Rule, ...]]] = {
    "llama": llama, "qwen2": qwen, "qwen3": qwen, "qwen3moe": qwen, "gemma": gemma, "gemma2": gemma2, "gemma3": gemma3, "phi3": phi3,
    "gpt2": gpt2, "glm4": glm4, "gpt-oss": gpt_oss, "granite": llama, "granitemoe": llama, "smollm3": llama, "arcee": llama,
    "seed_oss": seed_oss, "olmo2": olmo2, "hunyuan-dense": qwen, "starcoder2": qwen, "mamba2": mamba2, "granitehybrid": granitehybrid,
    "nemotron_h": nemotron_h, "falcon-h1": falcon_h1, "qwen3next": qwen3next, "mamba": mamba, "jamba": jamba,
}  # fmt: skip
