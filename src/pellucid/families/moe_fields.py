"""Readers of the fields that families with experts share: their number, how many are chosen, their groups, and their layers."""

from typing import Any

from pellucid import config as c
from pellucid.families.acts import ACTS
from pellucid.families.fields import Fields

COUNTS = ("n_routed_experts", "num_experts", "num_local_experts")  # transformers writes the last for files that came with the others


def experts(hf: Fields) -> int:
    """Return the number of experts of a layer, under whichever name the file has; several must agree."""
    return hf.either(*COUNTS)


def groups(hf: Fields, count: int, chosen: int, *silent: int) -> tuple[int, int]:
    """Return the number of groups of experts, and how many of them are kept for a token. silent: both, where a file does not say."""
    groups, kept = hf.integer("n_group", *silent), hf.integer("topk_group", *silent)
    hf.relate(count % groups == 0, "n_routed_experts % n_group == 0", n_routed_experts=count, n_group=groups)
    hf.relate(kept <= groups, "topk_group <= n_group", topk_group=kept, n_group=groups)
    law = "num_experts_per_tok <= n_routed_experts / n_group * topk_group"
    hf.relate(chosen <= count // groups * kept, law, num_experts_per_tok=chosen, n_routed_experts=count, n_group=groups, topk_group=kept)
    return groups, kept


def by_softmax(hf: Fields, width: str, **more: Any) -> c.Moe:
    """Return experts whose width is the field `width`, chosen by a softmax over all of them, without corrections."""
    count, chosen = experts(hf), hf.integer("num_experts_per_tok")
    hf.relate(chosen <= count, "num_experts_per_tok <= experts", num_experts_per_tok=chosen, experts=count)
    act = hf.choice("hidden_act", ACTS, "silu")
    return c.Moe(count, chosen, hf.integer(width), affinity="softmax", corrected=False, act=act, **more)


def dense_first(hf: Fields, attn: c.Attention | c.Latent, moe: c.Moe) -> tuple[c.Layer, ...]:
    """Return layers with this attention: dense up to `first_k_dense_replace`, with experts from there on."""
    layers, dense = hf.integer("num_hidden_layers", high=100_000), hf.integer("first_k_dense_replace", low=0)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    return tuple(c.Layer(attn, mlp if i < dense else moe) for i in range(layers))


def sparse(hf: Fields, layers: int) -> list[bool]:
    """Return which layers have experts: every `decoder_sparse_step`-th, except those in `mlp_only_layers`."""
    step, dense = hf.integer("decoder_sparse_step", 1), hf.indices("mlp_only_layers", layers)
    return [i not in dense and (i + 1) % step == 0 for i in range(layers)]
