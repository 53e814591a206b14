"""A change may read another tensor of the same forward, and may stand before a part: what that part alone reads."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid import add, put, times, zero
from pellucid.api.change_values import changes
from pellucid.api.model import Model
from pellucid.errors import PellucidError
from pellucid.watching.forward_values import ForwardValues
from tiny import far, ids, law, tiny

VALUES, WRAP = sys.modules["pellucid.watching.forward_values"], sys.modules["pellucid.watching.wrap"]
FAMILIES = ("gpt2", "llama", "deepseek_v3")
PROMPT = "法国的首都是"


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals-deepseek", dtype="float64")


def logits(model: Any, edit: Any, given: Tensor) -> Tensor:
    with torch.no_grad(), pellucid.watch(model, only=(), edit=edit):
        return model(given)  # type: ignore[no-any-return]


def by_hand(module: Any, given: Tensor) -> Tensor:
    """The logits with each feed-forward part's rows from 2 on in place of what it makes of them, by two functions."""
    kept: dict[int, Tensor] = {}

    def keep(n: int) -> Any:
        return lambda x: kept.__setitem__(n, x.clone())

    def use(n: int) -> Any:
        return lambda x: torch.cat([x[:, :2], kept[n][:, 2:]], 1)

    blocks = range(len(module.config.layers))
    own = {f"layers.{n}.ffn_norm": keep(n) for n in blocks} | {f"layers.{n}.ffn": use(n) for n in blocks}
    return logits(module, own, given)


@law(
    1e-12,
    first_star=(sys.modules["pellucid.watching.change"], "filled", lambda reads, pattern, path: reads.replace("*", "0")),
    other_rows=(ForwardValues, "cells", lambda self, path, which, right=ForwardValues.cells: right(self, path, which).flip(1)),
)
def test_a_change_reads_a_tensor_of_its_own_forward() -> float:
    gaps = []
    for family in FAMILIES:
        module, given = tiny(family), ids(7)[None]
        right = by_hand(module, given)
        for reads in ("layers.*.ffn_norm", "layers.*.ffn.in"):
            gaps.append(far(logits(module, [put("layers.*.ffn", reads, T=slice(2, None))], given), right))
    return max(gaps)


@law(1e-12, after=(WRAP, "enter", lambda w, args: args), every_reader=(VALUES, "ENTERS", ""))
def test_a_change_before_a_part_is_its_own_alone() -> float:
    """Half of what q reads is half of q, without its bias; k and v read the whole."""
    module, given = tiny("llama"), ids(7)[None]
    with pellucid.watch(module) as plain:
        module(given)
    try:
        with pellucid.watch(module, edit=[times("layers.1.attn.q.in", 0.5, T=4)]) as seen:
            module(given)
    except PellucidError:  # a mutant that meets no tensor
        return float("inf")
    want = plain["layers.1.attn.q"].value.clone()
    want[:, 4] *= 0.5
    same = [far(seen[p].value, plain[p].value) for p in ("layers.1.attn_norm", "layers.1.attn.k", "layers.1.attn.v")]
    return max(far(seen["layers.1.attn.q"].value, want), *same)


def test_a_generation_over_a_cache_reads_the_same(model: Model) -> None:
    """Each new token's logits are those of the whole text at once."""
    edit = [add("layers.2.out", "layers.0.out", T=slice(1, None)), times("layers.3.ffn.in", 0.5)]
    text = model.ids(PROMPT)
    with pellucid.watch(model, only="logits", edit=edit) as seen:
        new = model.generate(torch.tensor([text]), 5)
    ended = [s.value[0, -1] for s in seen.all("logits")]
    full = logits(model, edit, torch.tensor([[*text, *new.tolist()[0][len(text) :]]]))[0, len(text) - 1 :]
    assert all(far(a, b) < 1e-10 for a, b in zip(ended, full, strict=False)) and len(ended) >= 3
    assert far(full, logits(model, [], torch.tensor([[*text, *new.tolist()[0][len(text) :]]]))[0, len(text) - 1 :]) > 1e-3


def test_a_tensor_inside_a_fused_op_is_read(model: Model) -> None:
    """Scores, which are there only if the reference runs, in the pattern's place."""
    given = torch.tensor([model.ids(PROMPT)])
    with torch.no_grad(), pellucid.watch(model, edit=changes(model, ["layers.1.attn.pattern[H=1] = layers.1.attn.scores"])) as seen:
        model(given)
    scores, pattern = (seen[f"layers.1.attn.{name}"].value for name in ("scores", "pattern"))
    assert torch.equal(pattern[:, 1], scores[:, 1]) and not torch.equal(pattern[:, 0], scores[:, 0])


REFUSED = {
    "layers.1.out = layers.2.out": "no tensor layers.2.out was made before it",
    "layers.1.out = layers.1.otu": "; nearest: layers.0.out",
    "layers.1.ffn = layers.1.attn.q": "layers.1.attn.q has the axes B T H",
    "layers.1.attn.o.in = 0": "met no tensor",
    "layers.1.ffn.in[H=0] = 0": "it has B T D",
    "layers.1.ffn = 3 layers": "is no change",
    "layers.1.ffn without layers.0.out": "is no change",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_read_is_one_line(model: Model, text: str) -> None:
    with pytest.raises(PellucidError) as caught:
        logits(model, changes(model, [text]), torch.tensor([model.ids(PROMPT)]))
    assert REFUSED[text] in str(caught.value) and "\n" not in str(caught.value)


def test_a_change_in_writing_is_its_own_text() -> None:
    assert put("layers.1.ffn", "layers.1.ffn_norm", T=3).text == "layers.1.ffn[T=3] = layers.1.ffn_norm"
    assert zero("layers.1.ffn.in").text == "layers.1.ffn.in = 0.0"
