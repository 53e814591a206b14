"""Numbers that correct what is often said, each counted or run when it is asked for: {name of a correction: (its exhibit, its number)}."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pellucid.analysis.bilinear import embedding_gap
from pellucid.analysis.cache_cost import shared_by_all
from pellucid.analysis.catalogue import biases, built
from pellucid.analysis.corrected_runs import (
    computed_rows,
    first_product,
    nearest_to_sum,
    slices,
    trained_count,
    when_shuffled,
    with_space,
    without_norms,
)
from pellucid.analysis.latent_forms import latent_sizes
from pellucid.analysis.mask_leak import future_shares
from pellucid.analysis.releases import releases
from pellucid.analysis.rotary import wavelengths
from pellucid.analysis.silence import curve
from pellucid.analysis.split_heads import join_by_reshape, moved_rows, parameters, shape
from pellucid.analysis.two_ahead import of_catalogue
from pellucid.api.count import described
from pellucid.config import Rope
from pellucid.counting.meta_run import meta_model
from pellucid.tracing import Trace


@dataclass(frozen=True)
class CorrectedFact:
    """A correction. exhibit: that shows it.  number: computes what is so, from a recorded run or from nothing but configurations."""

    exhibit: str
    number: Callable[[Trace], str]


def blocks(name: str) -> str:
    """Write the blocks of a catalogue's encoder-decoder: "6 + 6"."""
    cfg = described(name)[1]
    return f"{len(cfg.encoder or ())} + {len(cfg.layers)}"


def saved_by_sharing(name: str) -> str:
    """Write how many times fewer bytes a catalogue's model stores, and reads in a step, with one key and value for all heads."""
    own, one, ratio = shared_by_all(name)
    return f"1/{ratio}, 1/{own.read // one.read}"


def biased(start: str) -> str:
    """Write how many models of a line have a bias at the head, and how many in attention."""
    own = biases(start)
    return f"{own.head} / {own.models}, {own.attention} / {own.models}"


def head_widths(*names: str) -> str:
    """Write the width of a key of one head, by which scores are divided under the root, of several models."""
    specs = [described(name)[1].layers[0].attn for name in names]
    return ", ".join(str(sum(spec.uncompressed[:2]) if spec.uncompressed else spec.head_width) for spec in specs)


def query_path(name: str) -> str:
    """Write the two matrices of a catalogue's latent queries."""
    matrices = latent_sizes(name).matrices
    return ", ".join("{} × {}".format(*matrices[part]) for part in ("q_a", "q_b"))


def dense(name: str) -> str:
    """Write how many layers of a catalogue's model have no experts, of how many."""
    layers = described(name)[1].layers
    return f"{sum(not layer.ffn.experts for layer in layers)} / {len(layers)}"


def unconfirmed() -> str:
    """Write how many statements about models without a published configuration are unconfirmed, of how many."""
    closed = [one for one in releases() if not one.disclosed]
    return f"{sum(one.unconfirmed for one in closed)} / {sum(len(one.statements) for one in closed)}"


def equal_counts(width: int, few: int, many: int) -> str:
    """Write the parameters of attention of a width with few heads and with many."""
    return f"{parameters(width, few):,}, {parameters(width, many):,}"


def pattern_shape(run: Trace) -> str:
    """Write the shape of a run's first attention pattern."""
    return shape(next(s.value for s in run if s.path.endswith(".attn.pattern"))[0])


def each(*names: str) -> str:
    """Write the parameters of several models of the catalogue."""
    return ", ".join(f"{built(name):,}" for name in names)


def by_part(name: str, *parts: str) -> str:
    """Write the parameters of a catalogue's model whose paths have one of some words, "a|b", for each of `parts`."""
    sizes = {path: p.numel() for path, p in meta_model(described(name)[1], torch.bfloat16).named_parameters()}
    return ", ".join(f"{sum(n for path, n in sizes.items() if any(word in path for word in part.split('|'))):,}" for part in parts)


def head_shapes(name: str) -> str:
    """Write what a head of a catalogue's model gives for a token, its slice of a matrix, and the matrix over all heads."""
    cfg = described(name)[1]
    attn = cfg.layers[0].attn
    return f"{attn.head_width}, {attn.head_width} × {cfg.width}, {attn.heads * attn.head_width} × {cfg.width}"


def routed(name: str) -> str:
    """Write how a catalogue's model chooses: experts of all, groups of all, and the factor of the shares."""
    spec: Any = next(layer.ffn for layer in described(name)[1].layers if layer.ffn.experts)
    return f"{spec.chosen} / {spec.experts}, {spec.groups_chosen} / {spec.groups}, × {spec.scale:g}"


CORRECTED: Mapping[str, CorrectedFact] = {
    "ids": CorrectedFact("pieces", with_space),
    "vocabulary": CorrectedFact("pieces", lambda run: f"{described('gpt2-small')[1].vocab:,}"),
    "gpt2": CorrectedFact("sizes", lambda run: f"{built('gpt2-small'):,}"),
    "parts": CorrectedFact("sizes", lambda run: by_part("gpt2-small", ".q.|.k.|.v.", ".o.", ".ffn.")),
    "sizes": CorrectedFact("sizes", lambda run: each("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl")),
    "padded": CorrectedFact("ragged", computed_rows),
    "maps": CorrectedFact("patterns", pattern_shape),
    "heads": CorrectedFact("patterns", lambda run: equal_counts(512, 1, 64)),
    "slices": CorrectedFact("patterns", slices),
    "reshape": CorrectedFact("heads", lambda run: f"{moved_rows(join_by_reshape, 4, 16, 128)} / 16"),
    "original": CorrectedFact("architectures", lambda run: blocks("transformer-base")),
    "large": CorrectedFact("heads", lambda run: head_shapes("gpt3-175b")),
    "t5": CorrectedFact("architectures", lambda run: blocks("t5-base")),
    "future": CorrectedFact("mask", lambda run: f"{max(future_shares(run)):g}"),
    "values": CorrectedFact("equation", lambda run: first_product(run, "v")),
    "embedding": CorrectedFact("equation", lambda run: f"{embedding_gap(run.runner, run.ids):g}"),
    "grown": CorrectedFact("learning", lambda run: trained_count()),
    "norms": CorrectedFact("norms", without_norms),
    "shuffled": CorrectedFact("order", when_shuffled),
    "sum": CorrectedFact("analogy", nearest_to_sum),
    "shared": CorrectedFact("kinds", lambda run: saved_by_sharing("gpt3-175b")),
    "relu": CorrectedFact("activations", lambda run: ", ".join(f"{y:g}" for y in curve("relu", [-2, -1, 1, 2]))),
    "shift": CorrectedFact("activations", lambda run: ", ".join(f"{y:g}" for y in curve("relu", [-0.5, -0.5 + 1]))),
    "bias": CorrectedFact("softmax", lambda run: biased("qwen2-")),
    "rope": CorrectedFact("turns", lambda run: f"{wavelengths(Rope(128))[0]:.4f}"),
    "width": CorrectedFact("scale", lambda run: head_widths("gpt2-small", "llama-2-7b", "deepseek-v3")),
    "queries": CorrectedFact("latent", lambda run: query_path("deepseek-v3")),
    "v3": CorrectedFact("sizes", lambda run: f"{built('deepseek-v3'):,}"),
    "blocks": CorrectedFact("sizes", lambda run: by_part("deepseek-v3", "layers.0.attn.", "layers.0.ffn.")),
    "ahead": CorrectedFact("second", lambda run: f"{of_catalogue('deepseek-v3'):,}"),
    "routing": CorrectedFact("routing", lambda run: routed("deepseek-v3")),
    "dense": CorrectedFact("routing", lambda run: dense("deepseek-v3")),
    "printed": CorrectedFact("sizes", lambda run: each("gpt3-xl", "gpt3-13b")),
    "closed": CorrectedFact("releases", lambda run: unconfirmed()),
}
