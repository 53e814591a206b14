"""Shapes of 2018 to 2023 that the first six families lack: norms after the sums, biases by distance, parts side by side, narrow and shifted
tables, sinusoids, kinds of tokens, one more product before the head, a bias of the logits.

The tests of every family's terms, records, batches and generation run on them too.
"""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import test_generate
import tiny
from covering import FULL
from judge import judge, ours, prompts
from pellucid import config as c
from pellucid.families import bloom, names, openai_gpt
from pellucid.nn.attention import Attention
from pellucid.nn.block import Block, ParallelBlock, PostBlock
from pellucid.nn.head import LogitsHead, Transform
from pellucid.nn.linear import Embedding
from pellucid.nn.transformer import Stack
from test_orders import ASKED

GATE = importlib.import_module("pellucid.ops.gate")
V, D = tiny.V, tiny.D
PLAIN = c.Attention(4, 4, 8, bias=True, out_bias=True)
HEARS = c.Attention(4, 4, 8, bias=True, out_bias=True, causal=False)
SHARED = c.Attention(4, 1, 8, c.Rope(8))
SLOPED = c.Attention(3, 3, 8, bias=True, out_bias=True, alibi=c.Alibi())
ROUNDED = c.Attention(6, 2, 8, alibi=c.Alibi(8**-0.5, rounded=True))
HALF = c.Attention(4, 4, 8, bias=True)
MLP = c.Mlp(48, "gelu", gated=False, bias=True)
SMALL = c.Mlp(16, "silu", gated=False)
SWISH = c.Mlp(48, "silu", gated=False, bias=True)
BLOOM = c.Mlp(48, "gelu_bloom", gated=False, bias=True)

WRITERS = {
    "bloom": c.Config(V, D, (c.Layer(SLOPED, BLOOM), c.Layer(ROUNDED, MLP)), True, norm="layer", embed_norm=True),
    "falcon": c.Config(
        V, D, (c.Layer(SHARED, MLP, order="parallel"), c.Layer(SHARED, MLP, order="parallel, two norms")), True, norm="layer"
    ),
    "opt": c.Config(
        V, D, (c.Layer(HALF, SMALL, order="post"),) * 2, True, norm="layer", positions=64, offset=2, embed_width=20, final_norm=False
    ),
}  # fmt: skip
MARIAN = c.Config(
    V, D, (c.Layer(PLAIN, SWISH, HEARS, "post"), c.Layer(PLAIN, SWISH, HEARS)), norm="layer", positions=64,
    encoder=(c.Layer(HEARS, SWISH, order="post"),) * 2, embed_scale=D**0.5, sinusoids=True, final_norm=False, head_bias=True,
)  # fmt: skip
BERT = c.Config(
    V, D, (c.Layer(HEARS, MLP, order="post"),) * 2, True, norm="layer", positions=64, embed_norm=True, types=2, final_norm=False,
    head_bias=True, transform="gelu",
)  # fmt: skip
SHAPES = {**WRITERS, "marian": MARIAN, "bert": BERT}
BATCHED = {"explained", "terms in a batch", "batch", "shuffled pages", "another's page", "greedy", "batch generation"}
OF_ONE_STACK = {"batch", "shuffled pages", "another's page"}


def questions() -> Iterator[tuple[str, str]]:
    """Yield the shapes and the questions that fit them; an encoder generates nothing, and a batch of sources is fed elsewhere."""
    for shape in SHAPES:
        for question in ASKED:
            turn = (list(SHAPES).index(shape) + list(ASKED).index(question)) % 2  # half of them in the quick form, by turns
            if (FULL or turn) and question not in (BATCHED if shape == "bert" else OF_ONE_STACK if shape == "marian" else ()):
                yield shape, question


@pytest.mark.parametrize(("shape", "question"), [*questions()])
@pytest.mark.quick(11)
def test_what_is_asked_of_every_family(shape: str, question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny.FAMILIES, shape, SHAPES[shape])
    with torch.no_grad():
        ASKED[question](shape)


@pytest.mark.parametrize("shape", WRITERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.quick(5)
def test_one_request_goes_by_its_plan(shape: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny.FAMILIES, shape, SHAPES[shape])
    test_generate.test_one_request_goes_by_its_plan(shape, dtype)


def logits(shape: str, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    monkeypatch.setitem(tiny.FAMILIES, shape, SHAPES[shape])
    with torch.no_grad():
        return tiny.tiny(SHAPES[shape])(*tiny.inputs(shape))  # type: ignore[no-any-return]


MUTANTS: list[tuple[str, tuple[Any, str, Any]]] = [
    ("bloom", tiny.without(Attention, "alibi")),
    ("bloom", tiny.without(Stack, "embed_norm")),
    ("bloom", (GATE, "ACTS", GATE.ACTS | {"gelu_bloom": torch.relu})),
    ("falcon", (ParallelBlock, "normed", lambda self, norm, x: x)),
    ("opt", (PostBlock, "sum", Block.sum)),
    ("opt", (Embedding, "forward", lambda self, ids, skip=0: torch.nn.functional.embedding(ids, self.weight))),
    ("marian", tiny.without(Stack, "sinusoids")),
    ("marian", tiny.without(Stack, "scale")),
    ("bert", tiny.without(Stack, "types")),
    ("bert", tiny.without(LogitsHead, "transform", "logits")),
    ("bert", (Transform, "forward", lambda self, x, length, rows: self.norm(self.dense(x)))),
]


@pytest.mark.parametrize(("shape", "mutant"), MUTANTS, ids=lambda x: x if isinstance(x, str) else x[1])
def test_mutants_are_seen(shape: str, mutant: tuple[Any, str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mutant is another model, which the same questions detect."""
    right = logits(shape, monkeypatch)
    with tiny.swapped(*mutant):
        assert tiny.far(logits(shape, monkeypatch), right) > 1e-3


ALIBI = c.Alibi
CONFIG = c.Config
READINGS: list[tuple[str, str, tuple[Any, str, Any]]] = [
    ("falcon", "twelve heads", (c, "Alibi", lambda scale, rounded: ALIBI(scale))),
    ("falcon", "rw", (c, "Alibi", lambda scale, rounded: ALIBI(1.0, rounded))),
    ("falcon", "40b", (bloom, "grouped", lambda groups: names.grouped(1))),
    ("bloom", "plain", (bloom, "grouped", lambda groups: names.SPLIT)),
    ("openai-gpt", "plain", (openai_gpt, "ACTS", openai_gpt.ACTS | {"gelu": "gelu"})),
    ("marian", "plain", (c, "Config", lambda **how: CONFIG(**how | {"embed_scale": 1.0}))),
]


@pytest.mark.parametrize(("family", "quirk", "mutant"), READINGS, ids=lambda x: x if isinstance(x, str) else x[1])
def test_misread_files_are_seen(family: str, quirk: str, mutant: tuple[Any, str, Any]) -> None:
    """Seen are an unrounded or unscaled bias by distance, fused rows cut otherwise, and the GELU of the same name elsewhere."""
    j, ids = judge(family, quirk), prompts(family)
    with torch.no_grad():
        assert tiny.far(ours(j.folder)[1](*ids), j.logits(*ids)) < 1e-9
        with tiny.swapped(*mutant):
            assert tiny.far(ours(j.folder)[1](*ids), j.logits(*ids)) > 1e-4
