"""Attribution of any cell, in float64, for every family: the parts sum to the cell, and each is what it is by hand."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from judge import make
from pellucid.analysis.attribution import attribution
from pellucid.analysis.walk_back import Walk
from pellucid.errors import TraceError, UseError
from pellucid.nn.adapted import Addition, add
from pellucid.tracing import Trace
from recorded_models import KINDS, ODD, lived
from tiny import LLAMA, swapped

ALL = KINDS | ODD
CELLS = 100
BY = ("H", "", "H S", "H E", "H S E F")


def gaps(model: Any, trace: Trace, cells: int = CELLS, seed: int = 0) -> dict[str, float]:
    """Return the largest gap of a cell's parts from the cell, by op, over random cells of random records."""
    draw, out = random.Random(seed), dict[str, float]()
    for n in range(cells):
        s = draw.choice(list(trace))
        cell = tuple(draw.randrange(size) for size in s.shape)
        parts = attribution(model, trace, cell=(s.path, cell), step=s.step, by=BY[n % len(BY)].replace(" ", ""))
        assert parts.value == float(s.value[cell])
        out[str(s.op)] = max(out.get(str(s.op), 0.0), abs(parts.total - parts.value))
    return out


@pytest.mark.parametrize(("kind", "steps"), [(kind, steps) for kind in ALL for steps in (1, 3) if kind != "fills" or steps == 1])
@pytest.mark.quick(10)
def test_the_parts_of_any_cell_sum_to_it(kind: str, steps: int) -> None:
    worst = gaps(*lived(ALL[kind], steps))
    assert len(worst) > 6 and max(worst.values()) < 1e-10, worst


# What lies between the values, or z, and the product behind them: a gate, a norm, a clip; and a norm with a bias for each head.
BETWEEN = {"qwen3_next": "plain", "gemma4_text": "plain", "olmo": "clipped", "mpt": "eight heads, own head", "persimmon": "plain"}


@pytest.mark.parametrize("family", BETWEEN)
@pytest.mark.quick(2)
def test_parts_of_attention_with_more_between(family: str) -> None:
    model = pellucid.load(make(family, BETWEEN[family]).folder, dtype="float64")
    assert max(gaps(model, pellucid.trace(model, [5, 6, 7, 8, 9], 2)).values()) < 1e-10
    for by in ("H", "HS", "S"):
        parts = attribution(model, [5, 6, 7, 8, 9], 7, by=by)
        assert parts.total == pytest.approx(parts.value, abs=1e-10)


def test_an_adapted_product_is_one_matrix() -> None:
    model, _ = lived(LLAMA)
    draw = torch.Generator().manual_seed(3)
    for layer in model.module.layers:
        a, b = (torch.nn.Parameter(torch.randn(*shape, generator=draw, dtype=torch.float64)) for shape in ((3, 32), (32, 3)))
        add(layer.attn.q, "more", Addition(a, b, 0.5, "(H K) D", "T"))
    assert max(gaps(model, pellucid.trace(model, [5, 3, 80], 1)).values()) < 1e-10


def dropped(self: Walk, sums: dict[Any, Tensor], origin: Any, x: Tensor) -> None:
    if origin.head != 1:
        sums[origin] = sums[origin] + x if origin in sums else x


def of_another_row(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda self, s, rows: own(self, s, (rows + 1) % (self.value(s).shape[1] if s.dims[0] == "B" else self.value(s).shape[0]))


def neighbours(own: Callable[..., Any]) -> Callable[..., Any]:
    def stored(self: Walk, t: Any, count: int) -> Any:
        return [(s, rows, (at + 1) % count) for s, rows, at in own(self, t, count) or []]

    return stored


MUTANTS: dict[str, tuple[str, Any, str, Any]] = {
    "a head is dropped": ("gpt2", Walk, "add", dropped),
    "the scale of another row": ("llama", torch, "rsqrt", lambda x: x.rsqrt().roll(1, -2) * 1.1),
    "the numbers of another row": ("gpt2", Walk, "at", of_another_row(Walk.at)),
    "the values of a neighbour": ("qwen3", Walk, "stored", neighbours(Walk.stored)),
    "a rotation that is left out": ("llama", Walk, "rotation", lambda self, s, rows, g: self.back(self.inputs(s)[0], rows, g)),
    "another expert's matrix": ("deepseek_v3", Walk, "experts_of", lambda self, s: None if s.rows is None else s.rows * 0),
    "a gate that is left out": ("llama", Walk, "gate", lambda self, s, rows, g: self.back(self.inputs(s)[1], rows, g)),
    "a bias that is left out": ("gpt2", Walk, "bias", lambda self, path, bias, g: None),
    "a cap that is left out": ("sandwich", Walk, "ratio", lambda self, s, rows, g: self.back(self.inputs(s)[0], rows, g)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.quick(4)
def test_a_walk_that_errs_does_not_sum(mutant: str) -> None:
    kind, owner, name, stand_in = MUTANTS[mutant]
    model, trace = lived(ALL[kind], 2)
    with swapped(owner, name, stand_in):
        worst = max(gaps(model, trace).values())
    assert worst > 1e-3


def test_a_query_is_made_of_heads_before_it() -> None:
    """By hand: head 2 of block 0 through W_o, the norm's scale of that row and a row of W_q."""
    model, trace = lived(LLAMA)
    block = model.module.layers[1]
    x, z = trace["layers.0.out"].value[0, 4], trace["layers.0.attn.z"].value[0, 4]
    alone = torch.zeros_like(z)
    alone[2] = z[2]
    added = model.module.layers[0].attn.o.weight @ alone.flatten()
    normed = added * torch.rsqrt(x.pow(2).mean() + block.attn_norm.eps) * block.attn_norm.weight
    parts = attribution(model, trace, cell=("layers.1.attn.q", (0, 4, 3, 5)))
    mine = next(s for s in parts.parts if (s.path, s.head) == ("layers.0.attn", 2))
    assert mine.value == pytest.approx(float((block.attn.q.weight[3 * 8 + 5] @ normed).detach()), abs=1e-12) and mine.row == 4
    assert {s.path for s in parts.rest} == {"embed"} and parts.constant == ("norm",)


def test_a_score_is_made_of_pairs() -> None:
    """By hand: the embedding's part of the query times that of the key, in block 0 of a model with learned positions."""
    model, trace = lived(KINDS["gpt2"])
    attn, norm = model.module.layers[0].attn, model.module.layers[0].attn_norm
    parts = attribution(model, trace, cell=("layers.0.attn.scores", "1,5,2"))

    def side(row: int, product: Any) -> Tensor:
        start, own = trace["start"].value[0, row], trace["embed"].value[0, row]
        scale = torch.rsqrt(start.var(unbiased=False) + norm.eps)
        return product.weight[8:16] @ ((own - own.mean()) * scale * norm.weight)  # type: ignore[no-any-return]

    pair = next(s for s in parts.parts if s.path == "embed" and s.key is not None and s.key.path == "embed")
    assert pair.value == pytest.approx(float(side(5, attn.q) @ side(2, attn.k)) * attn.scale, abs=1e-12)
    assert (pair.row, pair.key.row if pair.key else None) == (5, 2)
    assert len(parts.parts) == 16  # embedding, position, the norm's bias, the product's bias: of the query by those of the key


def test_the_part_of_a_cell_is_opened() -> None:
    """A cell of an attention's output by heads and positions, of a feed-forward part's by neurons, of experts by expert and neuron."""
    model, trace = lived(KINDS["deepseek_v3"])
    heads = attribution(model, trace, cell=("layers.1.attn", "4,7"))
    assert {(s.head, s.source) for s in heads.parts} == {(h, s) for h in range(4) for s in range(6)}
    assert all(abs(s.value) < 1e-12 for s in heads.parts if (s.source or 0) > 4) and heads.constant == ("pattern",)
    dense = attribution(model, trace, cell=("layers.0.ffn", "4,7"))
    down, neurons = model.module.layers[0].ffn.down.weight, trace["layers.0.ffn.neurons"].value
    assert [s.value for s in dense.parts] == pytest.approx((down[7] * neurons[0, 4]).tolist(), abs=1e-12)
    sparse = attribution(model, trace, cell=("layers.2.ffn", "4,7"))
    chosen = set(trace["layers.2.ffn.chosen"].value[0, 4].tolist())
    assert {s.expert for s in sparse.parts} == chosen | {None} and "experts" in sparse.constant
    by_expert = attribution(model, trace, 7, by="HE")
    assert sum(s.expert is not None for s in by_expert.parts) == 4  # two chosen in each of two blocks


def test_sources_are_positions_of_the_text() -> None:
    """In a later step a head reads rows of the steps before it, numbered as in the text."""
    model, trace = lived(LLAMA, 3)
    parts = attribution(model, trace, cell=("layers.0.attn.z", "0,1,3"), step=2)
    assert {s.row for s in parts.rest} == set(range(8)) and {s.path for s in parts.rest} == {"embed"}


def test_a_cell_of_what_is_linear_in_nothing_is_itself() -> None:
    model, trace = lived(LLAMA, edit={"layers.0.out": lambda x: x * 0.5})
    for path in ("layers.0.attn.pattern", "layers.0.out", "embed"):
        parts = attribution(model, trace, cell=(path, (0,) * len(trace[path].shape)))
        assert [s.path for s in (*parts.parts, *parts.rest)] == [path] and parts.total == parts.value


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({}, "attribution.cell"),
        ({"id": 3, "cell": ("embed", "0,0")}, "attribution.cell"),
        ({"id": 3, "by": "HX"}, "attribution.by"),
        ({"cell": ("embed", "0,99")}, "cell.range"),
        ({"cell": ("embed", "0")}, "cell.count"),
        ({"cell": ("layers.0.oot", "0,0")}, "trace.unknown"),
    ],
)
def test_refusals(how: dict[str, Any], error: str) -> None:
    with pytest.raises((UseError, TraceError)) as caught:
        attribution(*lived(LLAMA), **how)
    assert caught.value.key == error
