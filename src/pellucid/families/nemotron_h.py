"""Nemotron-H (arXiv 2504.03624) and Nemotron Nano 2: Mamba-2, a few layers of attention without positions, and squared feed-forward parts.

A layer of the files is one part. Here a feed-forward part belongs to the block of the part before it, as elsewhere:

    M-M-M*-    files: seven layers        here: [M -] [M -] [M] [* -], four blocks, of which one has no feed-forward part
"""

from collections.abc import Iterator

from pellucid import config as c
from pellucid.families import mamba_fields
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

KINDS = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-"}
# of training and of kernels, of layers with experts, which are refused, and of modules behind the last layer, which are another model
UNUSED = """
    chunk_size expand hidden_dropout mamba_ssm_cache_dtype moe_intermediate_size moe_latent_size moe_shared_expert_intermediate_size
    moe_shared_expert_overlap mtp_hybrid_override_pattern mtp_layers_block_type n_group n_routed_experts n_shared_experts norm_topk_prob
    num_experts_per_tok num_logits_to_keep num_nextn_predict_layers rescale_prenorm_residual residual_in_fp32 routed_scaling_factor
    time_step_floor time_step_limit time_step_max topk_group use_mamba_kernels
"""


def pattern(hf: Fields) -> str:
    """Return the layers of the file as a text of M, * and -; a feed-forward part must stand behind one that mixes rows."""
    field = "hybrid_override_pattern" if "hybrid_override_pattern" in hf and "layers_block_type" not in hf else "layers_block_type"
    value = hf.get(field)
    letters = [KINDS.get(v, "") if isinstance(v, str) else "" for v in value] if isinstance(value, list) else value
    allowed = "M, *, -: mamba | linear_attention, attention | full_attention, mlp"
    if not letters or not isinstance(letters, list | str) or any(n not in ("M", "*", "-") for n in letters):
        raise hf.fault(field, value, allowed)
    text = "".join(letters)
    if "--" in text or text.startswith("-"):
        raise hf.fault(field, value, f"{allowed}; - after M or *")
    hf.read |= {"layers_block_type", "hybrid_override_pattern"}
    hf.fixed("num_hidden_layers", len(text))
    return text


def mamba(hf: Fields) -> c.Mamba2:
    """Return Mamba-2's part, whose dt has a lower limit alone, in transformers as `time_step_min`."""
    heads, groups = hf.integer("mamba_num_heads", 128), hf.integer("n_groups", 8)
    hf.relate(heads % groups == 0, "mamba_num_heads % n_groups == 0", mamba_num_heads=heads, n_groups=groups)
    hf.fixed("mamba_proj_bias", False)
    return c.Mamba2(
        groups=groups,
        state_width=hf.integer("ssm_state_size", 128),
        state_heads=heads,
        row_width=hf.integer("mamba_head_dim", 64),
        rows=hf.integer("conv_kernel", 4, high=4096),
        act=hf.choice("mamba_hidden_act", ACTS, "silu"),
        kernel_bias=hf.flag("use_conv_bias", True),
        bias=hf.flag("use_bias", False),
        least=hf.number("time_step_min", 0.001),
    )


def attention(hf: Fields) -> c.Attention:
    heads, kv_heads = hf.integer("num_attention_heads", 32), hf.integer("num_key_value_heads", 8)
    hf.relate(heads % kv_heads == 0, "num_attention_heads % num_key_value_heads == 0", heads=heads, kv_heads=kv_heads)
    width = hf.integer("head_dim", hf.integer("attention_head_dim", 128))
    hf.fixed("attention_head_dim", width)
    hf.fixed("num_query_groups", kv_heads)
    hf.fixed("attention_bias", False)
    return c.Attention(heads, kv_heads, width)


def config(hf: Fields) -> c.Config:
    text = pattern(hf)
    mixers: dict[str, c.AnyAttention] = {"M": mamba(hf), "*": attention(hf)}
    act, bias = hf.choice("mlp_hidden_act", ACTS, "relu2"), hf.flag("mlp_bias", False)
    mlp = c.Mlp(hf.integer("intermediate_size", 21504), act, gated=False, bias=bias)
    eps = hf.number("layer_norm_epsilon", 1e-5)
    hf.fixed("rms_norm_eps", eps)
    hf.fixed("tie_word_embeddings", False)
    hf.read |= set(UNUSED.split())
    follows = [text[i + 1 : i + 2] == "-" for i in range(len(text))]
    return c.Config(
        vocab=hf.integer("vocab_size", 131072),
        width=hf.integer("hidden_size", 4096),
        layers=tuple(c.Layer(mixers[k], mlp if f else c.Without()) for k, f in zip(text, follows, strict=True) if k != "-"),
        eps=eps,
        context=hf.maybe("max_position_embeddings"),
    )


def layers(cfg: c.Config) -> Iterator[Rule]:
    """Yield the rules of each block: its part's layer in the file, and behind it the feed-forward part's."""
    disk = 0
    for i, layer in enumerate(cfg.layers):
        at, part = f"backbone.layers.{disk}", layer.attn.part
        yield Rule(f"{at}.norm.*", f"layers.{i}.{part}_norm.*")
        yield from (
            mamba_fields.rules(f"{at}.mixer", f"layers.{i}.mamba")
            if part == "mamba"
            else (Rule(f"{at}.mixer.{n}_proj.*", f"layers.{i}.attn.{n}.*") for n in "qkvo")
        )
        disk += 1
        if layer.ffn.width:
            yield Rule(f"backbone.layers.{disk}.norm.*", f"layers.{i}.ffn_norm.*")
            yield from (Rule(f"backbone.layers.{disk}.mixer.{n}_proj.*", f"layers.{i}.ffn.{n}.*") for n in ("up", "down"))
            disk += 1


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    return (
        Rule("backbone.embeddings.*", "embed.*"),
        *layers(cfg),
        Rule("backbone.norm_f.*", "norm.*"),
        Rule("lm_head.*", "head.*"),
    )


def respell(name: str) -> str:
    """Return a name as published files have it, in place of transformers' names in memory."""
    return f"backbone.{name.removeprefix('model.')}" if name.startswith("model.") else name


FAMILY = Family(config=config, rules=rules, ignored=(r"mtp\..*",), respell=respell, architecture="NemotronHForCausalLM")
