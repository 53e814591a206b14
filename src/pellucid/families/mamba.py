"""Mamba (arXiv 2312.00752): blocks of one part each, in which every channel keeps a few numbers of all the text; no attention."""

from pellucid import config as c
from pellucid.families import mamba_fields
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields

# of the first weights, of kernels, and of rounding
UNUSED = """
    expand fused_add_norm pad_vocab_size_multiple rescale_prenorm_residual residual_in_fp32 time_step_floor time_step_init_scheme
    time_step_max time_step_min time_step_scale use_associative_scan use_mambapy
"""


def selective(hf: Fields) -> c.Mamba1:
    """Return Mamba-1's part. Falcon Mamba's files have another `expand` than their width, and transformers reads the width."""
    width = hf.integer("hidden_size")
    rank = -(-width // 16) if hf.get("time_step_rank", "auto") == "auto" else hf.integer("time_step_rank")
    return c.Mamba1(
        state_width=hf.integer("state_size", 16),
        row_width=hf.integer("intermediate_size", width * hf.integer("expand", 2)),
        rank=rank,
        rows=hf.integer("conv_kernel", 4, high=4096),
        act=hf.choice("hidden_act", ACTS, "silu"),
        kernel_bias=hf.flag("use_conv_bias", True),
        bias=hf.flag("use_bias", False),
    )


def around(hf: Fields, scan: c.Mamba1) -> c.Config:
    """Return the Config of blocks that are this part alone. The first files repeat sizes under their authors' names."""
    hf.read |= {*UNUSED.split()}
    width, layers = hf.integer("hidden_size"), hf.integer("num_hidden_layers", high=100_000)
    for name, value in {"d_model": width, "d_inner": scan.row_width, "n_layer": layers, "rms_norm": True, "ssm_cfg": {}}.items():
        hf.fixed(name, value)
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(scan, c.Without()),) * layers,
        tied=hf.flag("tie_word_embeddings", True),
        eps=hf.number("layer_norm_epsilon", 1e-5),
    )


def config(hf: Fields) -> c.Config:
    return around(hf, selective(hf))


RULES = mamba_fields.alone(mamba_fields.selective_rules("backbone.layers.{i}.mixer"))

FAMILY = Family(config=config, rules=RULES, respell=mamba_fields.respell, architecture="MambaForCausalLM")
