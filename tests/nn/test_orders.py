"""Shapes that the first six families lack: norms on both sides of a part, norms that count from 1, soft limits, scaled tables, half
rotations.

The tests of every family's terms, records, batches and generation run on them too.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import test_batch
import test_explain
import test_generate
import test_meta
import test_terms
import tiny
from pellucid import config as c
from pellucid import ops
from pellucid.nn.attention import Attention
from pellucid.nn.block import Block, SandwichBlock
from pellucid.nn.transformer import Stack

MLP = c.Mlp(48, "gelu_tanh")
HALF = c.Attention(4, 2, 16, c.Rope(8, interleaved=True), bias=True)
NEAR = c.Attention(4, 1, 16, c.Rope(16, 500.0), qk_norm=True, window=4, cap=5.0, scale=0.3)
FAR = replace(NEAR, rope=c.Rope(16, 1e6, scaling=c.LinearScaling(8.0)), window=None)

SHAPES = {
    "gemma3": c.Config(
        tiny.V, tiny.D, (c.Layer(NEAR, MLP, order="sandwich"), c.Layer(FAR, MLP, order="sandwich")),
        True, 1e-6, "rms offset", embed_scale=tiny.D**0.5, logit_cap=3.0,
    ),
    "glm4": c.Config(tiny.V, tiny.D, (c.Layer(HALF, c.Mlp(48), order="sandwich"),) * 2),
}  # fmt: skip

ASKED: dict[str, Callable[[str], None]] = {
    "terms": test_terms.test_cells_are_the_sum_of_their_terms,
    "terms in a batch": lambda shape: test_terms.test_cells_in_a_batch(shape, "c"),
    "a forgotten summand": test_terms.test_forgotten_summand_mutant,
    "sources": test_terms.test_every_parameter_is_the_source_of_a_record,
    "operands": test_terms.test_operands_are_operands,
    "leads back": test_terms.test_logits_lead_back_to_everything,
    "meta": lambda shape: test_meta.test_meta_trace_is_the_real_one(shape, torch.bfloat16),
    "sources on meta": test_meta.test_every_parameter_is_a_source,
    "batch": lambda shape: test_batch.test_batch_is_each_alone(shape, 4),
    "shuffled pages": test_batch.test_shuffled_pages,
    "another's page": test_batch.test_a_request_reads_every_page_mutant,
    "explained": test_explain.test_every_family,
    "explained cells": test_explain.test_cells_add_up,
    "greedy": test_generate.test_greedy_is_full_forwards,
    "batch generation": test_generate.test_batch_is_each_alone,
}


@pytest.mark.parametrize("question", ASKED)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.quick(11)
def test_what_is_asked_of_every_family(shape: str, question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny.FAMILIES, shape, SHAPES[shape])
    with torch.no_grad():
        ASKED[question](shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.quick(4)
def test_one_request_goes_by_its_plan(shape: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny.FAMILIES, shape, SHAPES[shape])
    test_generate.test_one_request_goes_by_its_plan(shape, dtype)


def logits(shape: str) -> torch.Tensor:
    with torch.no_grad():
        return tiny.tiny(SHAPES[shape])(tiny.ids(2, 11))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (SandwichBlock, "sum", Block.sum),  # no norm behind
        tiny.without(Attention, "cap"),
        (ops, "capped", lambda x, cap: x),
        tiny.without(Stack, "scale"),
    ],
)
def test_mutants_are_seen(owner: Any, name: str, value: Any) -> None:
    """Each mutant is another model, which the same questions detect."""
    right = logits("gemma3")
    with tiny.swapped(owner, name, value):
        assert tiny.far(logits("gemma3"), right) > 1e-3
