"""Variants whose weights are made: heads that share keys and values, matrices of low rank; what variants answer, and what they cost.

The specimen's numbers are answers right of 194 capitals, asked in one batch.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.analysis.quality import quality
from pellucid.api import variant as variants
from pellucid.api.model import Model, load, make
from pellucid.api.variant import low_rank, switches, variant
from pellucid.batch.mask import Mask
from pellucid.errors import UseError
from pellucid.ops.latent import FORMS
from test_block_sums import differing, sums_of_run
from tiny import far, swapped
from variant_models import NAMES, PROMPT, copies, inputs, plain

GPT2 = {"model_type": "gpt2", "vocab_size": 97, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64}


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


# The specimen's answers


ANSWERS: list[tuple[dict[str, Any], int]] = [
    ({}, 194),
    ({"norm": "none"}, 0),
    ({"layers.*.order": "bare"}, 0),
    ({"layers.0.order": "bare"}, 194),
    ({"layers.*.attn.scale": 1.0}, 189),
    ({"layers.*.attn.kv_heads": 2}, 76),
    ({"layers.*.attn.kv_heads": 1}, 1),
    ({"layers.*.ffn.act": "relu"}, 194),
    ({"layers.*.attn.fill": 0.0}, 194),
]
RANKS = {64: 194, 32: 189, 16: 7, 8: 0}


@pytest.mark.parametrize(("given", "right"), ANSWERS, ids=str)
@pytest.mark.quick(4)
def test_answers_of_the_specimen(given: dict[str, Any], right: int) -> None:
    assert quality(variant(plain(), given)).right == right


@pytest.mark.parametrize("rank", RANKS)
def test_answers_of_thinner_feed_forward_parts(rank: int) -> None:
    assert quality(low_rank(plain(), {"layers.*.ffn.*": rank})).right == RANKS[rank]


def ahead() -> float:
    """Return the weight that the first row of a prompt has on tokens after it, in the first head, under a fill of 0."""
    other = variant(plain(), {"layers.*.attn.fill": 0})
    with pellucid.watch(other, only="layers.0.attn.pattern") as seen:
        other(*inputs("capitals", plain()))
    return float(seen["layers.0.attn.pattern"].value[0, 0, 0, 1:].sum())


def test_a_filled_mask_leaks_the_future() -> None:
    """72% of the first row lies on the future, though every answer stays; the mutant that keeps −∞ puts none there."""
    assert ahead() == pytest.approx(0.7215, abs=1e-3)
    with swapped(Mask, "hide", lambda self, scores, allowed, present: torch.where(allowed, scores, float("-inf"))):
        assert ahead() == 0.0


# Heads that share keys and values


def by_hand(model: Model, groups: int) -> Tensor:
    """Return the logits of the specimen with keys and values replaced by the means of each group's heads, as edits of its own run."""

    def shared(x: Tensor) -> Tensor:
        means = [part.mean(2, keepdim=True).expand_as(part) for part in x.chunk(groups, 2)]
        return torch.cat(means, 2)

    with pellucid.watch(model, only="logits", edit={"layers.*.attn.k": shared, "layers.*.attn.v": shared}):
        return model(*inputs("capitals", model))


@pytest.mark.parametrize("groups", [2, 1])
def test_shared_heads_are_means_of_neighbours(groups: int) -> None:
    """Against the means of the keys and values of a plain run; only these matrices are new, and a variant of it shares them."""
    model = load("pellucid/capitals", dtype="float64")
    other = variant(model, {"layers.*.attn.kv_heads": groups})
    assert far(other(*inputs("capitals", model)), by_hand(model, groups)) < 1e-10
    assert set(other.own) == {f"layers.{i}.attn.{n}.{w}" for i in range(4) for n in "kv" for w in ("weight", "bias")}
    assert copies(other, model) == [] and "16" in repr(other)
    again = variant(other, {"layers.0.ffn.act": "relu"})
    assert again.own == other.own and again.module.get_parameter(other.own[0]) is other.module.get_parameter(other.own[0])


def test_other_neighbours_are_seen() -> None:
    model = load("pellucid/capitals", dtype="float64")
    with swapped(variants, "pooled", interleaved_pairs):
        assert far(variant(model, {"layers.*.attn.kv_heads": 2})(*inputs("capitals", model)), by_hand(model, 2)) > 1e-2


def interleaved_pairs(module: Any, model: Model, name: str, value: Tensor, shape: torch.Size) -> Tensor:
    """The mutant: heads 0 and 2, 1 and 3, in place of neighbours."""
    return torch.nn.Parameter(value.detach().unflatten(0, (2, 2, 32)).mean(0).flatten(0, 1), requires_grad=False)


def test_twelve_heads_in_four_groups() -> None:
    model = make({**GPT2, "n_head": 12, "n_embd": 48}, dtype=torch.float64)
    draw = torch.Generator().manual_seed(1)
    for p in model.module.parameters():
        p.data = torch.randn(p.shape, generator=draw, dtype=torch.float64)
    other = variant(model, {"layers.1.attn.kv_heads": 4})
    k, four = (m.module.get_parameter("layers.1.attn.k.weight") for m in (model, other))
    assert far(four, torch.stack([k[12 * g : 12 * g + 12].unflatten(0, (3, 4)).mean(0) for g in range(4)]).flatten(0, 1)) < 1e-12
    assert copies(other, model) == [] and other.config.layers[0] == model.config.layers[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick(6)
def test_every_family_shares_heads(name: str) -> None:
    """One key/value head for all, wherever a family has keys and values by heads; MLA's latent has none to share."""
    model = plain(name)
    stacks = {"layers": model.config.layers, "encoder": model.config.encoder or ()}
    given = {f"{stack}.*.attn.kv_heads": 1 for stack, layers in stacks.items() if any(one.attn.kv_heads for one in layers)}
    if not given:
        with pytest.raises(UseError, match="kv_heads"):
            variant(model, {"layers.*.attn.kv_heads": 1})
        return
    other = variant(model, given)
    layers = (*other.config.layers, *(other.config.encoder or ()))
    assert {one.attn.kv_heads for one in layers if one.attn.heads} == {1}
    assert bool(other(*inputs(name, model)).isfinite().all()) and copies(other, model) == []


# Thinner matrices


def dropped(rank: int) -> tuple[float, float]:
    """Return the squared error of a matrix of this rank, and the sum of the squares of the singular values beyond it."""
    model = load("pellucid/capitals", dtype="float64")
    thin = low_rank(model, {"layers.1.ffn.up": rank}).module.get_submodule("layers.1.ffn.up")
    full = model.module.get_parameter("layers.1.ffn.up.weight")
    lost = (full - thin.widen.weight @ thin.narrow.weight).pow(2).sum()  # type: ignore[operator, union-attr]
    return float(lost), float(torch.linalg.svdvals(full)[rank:].pow(2).sum())


@pytest.mark.parametrize("rank", [1, 8, 100, 128])
def test_the_error_is_what_is_dropped(rank: int) -> None:
    """And with no other pair is it less; the mutant drops one singular value more."""
    error, sizes = dropped(rank)
    assert abs(error - sizes) <= 1e-10 * max(sizes, 1.0)
    right = torch.linalg.svd

    def one_less(w: Tensor, full_matrices: bool = True) -> Any:
        u, sizes, v = right(w, full_matrices=full_matrices)
        return u, torch.where(torch.arange(len(sizes)) == rank - 1, 0.0, sizes), v

    with swapped(torch.linalg, "svd", one_less):
        error, sizes = dropped(rank)
        assert error > sizes + 1e-6


def test_all_else_is_shared() -> None:
    model = plain()
    thin = low_rank(model, {"layers.*.ffn.up": 32, "layers.0.attn.o": 16})
    assert thin.name == "pellucid/capitals with layers.*.ffn.up.rank=32, layers.0.attn.o.rank=16"
    assert len(thin.own) == 10 and copies_but(thin, model, "widen.bias") == []
    assert thin.module.get_parameter("layers.2.ffn.up.widen.bias") is model.module.get_parameter("layers.2.ffn.up.bias")
    assert thin.config.layers[0].ranks == (("ffn.up", 32), ("attn.o", 16)) and thin.config.layers[3].ranks == (("ffn.up", 32),)
    row = thin.tokenizer.encode(PROMPT)
    new = thin.generate(row, 5, eos=None)
    assert all(int(thin(torch.tensor([[*row, *new[:i]]]))[0, -1].argmax()) == token for i, token in enumerate(new))
    texts = switches(["layers.*.ffn.up.rank=32", "layers.0.attn.o.rank=16"])
    assert variant(model, texts).name == variant(model, thin.switches).name == thin.name and variant(model, texts).config == thin.config
    with pytest.raises(UseError, match="c_attn"):
        low_rank(model, {"layers.0.attn.q": 8}).weight("transformer.h.0.attn.c_attn.weight")
    two = variant(thin, {"layers.*.attn.scale": 1.0})
    assert two.own == thin.own and two.config.layers[0].ranks == thin.config.layers[0].ranks
    three = low_rank(variant(model, {"layers.*.attn.scale": 1.0}), {"layers.*.ffn.up": 32, "layers.0.attn.o": 16})
    assert torch.equal(two(*inputs("capitals", model)), three(*inputs("capitals", model)))


def copies_but(model: Model, other: Model, end: str) -> list[str]:
    """Return `copies` without the names that end so."""
    return [name for name in copies(model, other) if not name.endswith(end)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick(6)
def test_every_family_has_thinner_matrices(name: str) -> None:
    model = plain(name)
    thin = low_rank(model, {"*layers.*": 1})
    assert bool(thin(*inputs(name, model)).isfinite().all()) and thin.num_parameters() < model.num_parameters()
    assert copies_but(thin, model, "widen.bias") == []


THIN: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no such matrix": ({"layers.*.ffn.upp": 3}, ("layers.*.ffn.upp", "layers.*.ffn.up")),
    "outside the blocks": ({"embed": 3}, ("embed",)),
    "a matrix that is switched off": ({"layers.*.ffn.gate": 3}, ("layers.*.ffn.gate",)),
    "rank 0": ({"layers.*.ffn.up": 0}, ("layers.0.ffn.up", "0", "1 … 128")),
    "more than its own": ({"layers.*.ffn.up": 129}, ("layers.0.ffn.up", "129", "1 … 128")),
    "no number": ({"layers.*.ffn.up": "thin"}, ("layers.0.ffn.up.rank", "thin")),
}


@pytest.mark.parametrize("fault", THIN)
def test_what_cannot_be_thinner_is_one_line(fault: str) -> None:
    given, words = THIN[fault]
    with pytest.raises(UseError) as caught:
        low_rank(plain(), given)
    assert "\n" not in str(caught.value) and all(word in str(caught.value) for word in words), str(caught.value)


def test_fields_and_ranks_together() -> None:
    """A matrix that a field switches off cannot be thin; one whose heads are shared is thin in no second way."""
    llama = plain("capitals-llama")
    both = variant(llama, {"layers.*.ffn.up.rank": 8, "norm": "none"})
    assert both.config.norm == "none" and both.config.layers[0].ranks == (("ffn.up", 8),)
    assert list(both.switches) == ["layers.*.ffn.up.rank", "norm"]
    for given, word in (({"layers.*.ffn.gated": False}, "ffn.gate"), ({"layers.*.attn.kv_heads": 1}, "attn.k")):
        with pytest.raises(UseError, match=word):
            variant(llama, {**given, f"layers.*.{word}.rank": 4})


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_blocks_are_switched_and_not_averaged(quant: str) -> None:
    """A quantised model has variants of its own blocks; a mean or a split of them is refused by the weight's name."""
    model = load("pellucid/capitals", quant=quant)
    assert copies(variant(model, {"layers.*.attn.scale": 1.0}), model) == []
    for refused in (lambda: variant(model, {"layers.*.attn.kv_heads": 1}), lambda: low_rank(model, {"layers.*.ffn.up": 8})):
        with pytest.raises(UseError, match=rf"layers\.0\..*weight.*{quant}"):
            refused()


# Taken apart


@pytest.mark.parametrize(
    "given", [{"norm": "none"}, {"layers.*.order": "bare"}, {"layers.*.attn.fill": 0.0}, {"layers.*.order": "post"}, {}], ids=str
)
@pytest.mark.parametrize("rank", [None, 16])
@pytest.mark.quick(4)
def test_parts_of_a_variant_sum_to_its_logit(given: dict[str, Any], rank: int | None) -> None:
    """Attribution and the lens go through what is left out, and take a thin matrix as part of its own."""
    model = load("pellucid/capitals", dtype="float64")
    other = variant(model if rank is None else low_rank(model, {"layers.*.ffn.*": rank, "layers.*.attn.o": rank}), given)
    trace = pellucid.trace(other, PROMPT)
    parts = pellucid.attribution(other, trace, " Paris")
    assert abs(parts.total - parts.value) <= 1e-10 * max(1.0, abs(parts.value))
    last = pellucid.lens(other, trace)[-1][1]
    assert far(last, trace.last_logits()) <= 1e-10 * float(last.abs().max())


# Counted as it ran


COUNTED: list[tuple[str, dict[str, Any]]] = [
    ("capitals", {"norm": "none"}), ("capitals", {"layers.0.order": "bare"}), ("capitals", {"layers.*.attn.kv_heads": 1}),
    ("capitals", {"layers.*.attn.fill": 0.0}), ("capitals-deepseek", {"layers.*.attn.form": "absorbed"}),
    ("capitals-t5", {"layers.*.cross": None}), ("capitals-llama", {"layers.1.ffn.gated": False}),
]  # fmt: skip


def unequal(model: Model) -> list[str]:
    """Return the outputs whose blocks do not sum to the count of the model's Config."""
    return differing(sums_of_run(model, [3, 4, 5]))


@pytest.mark.parametrize(("name", "given"), COUNTED, ids=str)
@pytest.mark.quick(4)
def test_blocks_of_a_variant_sum_to_their_count(name: str, given: dict[str, Any]) -> None:
    other = variant(plain(name), given)
    bill = pellucid.count(other.name, context=16, known=(other.family.name, other.config))
    assert bill["parameters.total"].value == other.num_parameters() and unequal(other) == []


def test_blocks_with_thinner_matrices_sum_to_their_count() -> None:
    other = low_rank(plain(), {"layers.*.ffn.*": 32, "layers.2.attn.q": 8})
    bill = pellucid.count(other.name, context=16, known=(other.family.name, other.config))
    assert bill["parameters.total"].value == other.num_parameters() and unequal(other) == []


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_of_mla_are_counted(form: str) -> None:
    """The same numbers, with the FLOPs of the form that ran; the page's run and the bill agree."""
    model = plain("capitals-deepseek")
    other = variant(model, {"layers.*.attn.form": form})
    with pellucid.watch(other, only="layers.0.attn.z") as seen:
        out = other(*inputs("capitals-deepseek", model))
    assert far(out, model(*inputs("capitals-deepseek", model))) < 1e-3 and seen["layers.0.attn.z"].settings["form"] == form
    bill = pellucid.count(other.name, context=5, known=(other.family.name, other.config))
    assert bill["flops.prefill.layers.0.attn"].value == seen["layers.0.attn.z"].flops
