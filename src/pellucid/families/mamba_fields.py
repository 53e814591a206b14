"""What families with Mamba's layers share: Mamba-2's fields, the limits of dt, and the names of a layer's tensors."""

from math import inf
from typing import Any

from pellucid import config as c
from pellucid.families.acts import ACTS
from pellucid.families.fields import Fields
from pellucid.families.names import CHANNEL_BIASES, CHANNELS, SPLIT, TURNED, Rule, prefixed

NO_LIMIT = {"__float__": "Infinity"}  # transformers' own spelling of it


def mamba2(hf: Fields, inner: int, name: str) -> c.Mamba2:
    """Return Mamba-2's part, of fields that begin with "mamba_". inner: its width.  name: of the width in an error."""
    heads, groups = hf.integer("mamba_n_heads", 128), hf.integer("mamba_n_groups", 1)
    hf.relate(inner % heads == 0, f"{name} % mamba_n_heads == 0", inner=inner, mamba_n_heads=heads)
    hf.relate(heads % groups == 0, "mamba_n_heads % mamba_n_groups == 0", mamba_n_heads=heads, mamba_n_groups=groups)
    if hf.get("mamba_d_head", "auto") != "auto":
        head = hf.integer("mamba_d_head")
        hf.relate(head * heads == inner, f"mamba_d_head * mamba_n_heads == {name}", mamba_d_head=head, inner=inner)
    least, most = limits(hf)
    return c.Mamba2(
        groups=groups,
        state_width=hf.integer("mamba_d_state", 256),
        state_heads=heads,
        row_width=inner // heads,
        rows=hf.integer("mamba_d_conv", 4, high=4096),
        act=hf.choice("hidden_act", ACTS, "silu"),
        kernel_bias=hf.flag("mamba_conv_bias", True),
        bias=hf.flag("mamba_proj_bias", False),
        least=least,
        most=most,
    )


def limits(hf: Fields) -> tuple[float, float | None]:
    """Return the limits of dt; the upper one may be infinite."""
    value = hf.get("time_step_limit", [0.0, NO_LIMIT])
    pair: list[Any] = value if isinstance(value, list) and len(value) == 2 else [None, None]
    numbers = pair[:1] if pair[1] in (NO_LIMIT, inf) else pair
    if any(type(n) not in (int, float) for n in numbers) or not 0 <= numbers[0] <= numbers[-1]:
        raise hf.fault("time_step_limit", value, "[a, b], 0 ≤ a ≤ b ≤ ∞")
    return float(numbers[0]), float(numbers[1]) if len(numbers) > 1 else None


def rules(disk: str, ours: str = "layers.{i}.mamba") -> tuple[Rule, ...]:
    """Return the rules of the tensors of a layer of Mamba-2 below these names."""
    return (
        Rule(f"{disk}.in_proj.*", tuple(f"{ours}.{n}.*" for n in ("z", "x", "b", "c", "dt_in")), SPLIT),
        Rule(f"{disk}.conv1d.weight", tuple(f"{ours}.{n}_kernel" for n in "xbc"), CHANNELS),
        Rule(f"{disk}.conv1d.bias", tuple(f"{ours}.{n}_kernel_bias" for n in "xbc"), CHANNEL_BIASES),
        Rule(f"{disk}.A_log", f"{ours}.log_rate"),
        Rule(f"{disk}.dt_bias", f"{ours}.rate_bias"),
        Rule(f"{disk}.D", f"{ours}.skip"),
        Rule(f"{disk}.norm.weight", f"{ours}.norm.weight"),
        Rule(f"{disk}.out_proj.*", f"{ours}.o.*"),
    )


def selective_rules(disk: str, ours: str = "layers.{i}.mamba") -> tuple[Rule, ...]:
    """Return the rules of the tensors of a layer of Mamba-1 below these names."""
    return (
        Rule(f"{disk}.in_proj.*", (f"{ours}.x.*", f"{ours}.z.*"), SPLIT),
        Rule(f"{disk}.conv1d.weight", (f"{ours}.x_kernel",), CHANNELS),
        Rule(f"{disk}.conv1d.bias", (f"{ours}.x_kernel_bias",), CHANNEL_BIASES),
        Rule(f"{disk}.x_proj.weight", tuple(f"{ours}.{n}.weight" for n in ("dt_low", "b", "c")), SPLIT),
        Rule(f"{disk}.dt_proj.weight", f"{ours}.dt_in.weight"),
        Rule(f"{disk}.dt_proj.bias", f"{ours}.rate_bias"),
        *(Rule(f"{disk}.{n}_layernorm.weight", f"{ours}.{n}_norm.weight") for n in ("dt", "b", "c")),
        Rule(f"{disk}.A_log", f"{ours}.log_rate", TURNED),
        Rule(f"{disk}.D", f"{ours}.skip"),
        Rule(f"{disk}.out_proj.*", f"{ours}.o.*"),
    )


def alone(layer: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return the table of names of a model whose blocks are one of Mamba's layers alone. layer: the rules of its tensors."""
    return (
        Rule("backbone.embeddings.*", "embed.*"),
        Rule("backbone.layers.{i}.norm.*", "layers.{i}.mamba_norm.*"),
        *layer,
        Rule("backbone.norm_f.*", "norm.*"),
        Rule("lm_head.*", "head.*"),
    )


def respell(name: str) -> str:
    """Return the complete name of a tensor of such a model, of the first files' embedding as later ones have it."""
    return prefixed("backbone.", "lm_head.")(name).replace("backbone.embedding.", "backbone.embeddings.")
