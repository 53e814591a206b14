"""Mamba-2 (arXiv 2405.21060): blocks of one part each, which keeps a state; no attention and no feed-forward part."""

from pellucid import config as c
from pellucid.families import mamba_fields
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields

TRAINING = {"time_step_rank", "time_step_min", "time_step_max", "time_step_floor", "rescale_prenorm_residual"}  # of the first weights


def config(hf: Fields) -> c.Config:
    """Return the Config. Residuals in float32 and the chunks of the scan change rounding alone."""
    width, heads, head, groups = hf.integer("hidden_size"), hf.integer("num_heads"), hf.integer("head_dim"), hf.integer("n_groups", 8)
    inner = width * hf.integer("expand", 2)
    hf.relate(heads * head == inner, "num_heads * head_dim == expand * hidden_size", heads=heads, head_dim=head, inner=inner)
    hf.relate(heads % groups == 0, "num_heads % n_groups == 0", num_heads=heads, n_groups=groups)
    hf.read |= TRAINING | {"residual_in_fp32", "chunk_size"}
    least, most = mamba_fields.limits(hf)
    scan = c.Mamba2(
        groups=groups,
        state_width=hf.integer("state_size", 128),
        state_heads=heads,
        row_width=head,
        rows=hf.integer("conv_kernel", 4, high=4096),
        act=hf.choice("hidden_act", ACTS, "silu"),
        kernel_bias=hf.flag("use_conv_bias", True),
        bias=hf.flag("use_bias", False),
        least=least,
        most=most,
    )
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(scan, c.Without()),) * hf.integer("num_hidden_layers", high=100_000),
        tied=hf.flag("tie_word_embeddings", False),
        eps=hf.number("layer_norm_epsilon", 1e-5),
    )


RULES = mamba_fields.alone(mamba_fields.rules("backbone.layers.{i}.mixer"))

FAMILY = Family(config=config, rules=RULES, respell=mamba_fields.respell, architecture="Mamba2ForCausalLM")
