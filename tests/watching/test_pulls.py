"""Why a weight has its gradient: for any cell of any parameter, the rows' contributions add up to autograd's own gradient."""

import importlib
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pellucid
from pellucid import config as c
from pellucid.batch.step import Step
from pellucid.nn.adapted import Addition, add
from pellucid.nn.linear import Linear
from pellucid.nn.recurrent import Gru
from pellucid.nn.transformer import Decoder
from pellucid.watching.pulls import Reading, Use, uses
from pellucid.watching.watch import Watch, watch
from test_gradients import BLOCKS, layered
from tiny import FAMILIES, GPT2, LLAMA, D, ids, inputs, swapped, tiny

CELLS = 2
BOUND = 1e-10
FIRST = LLAMA.layers[0]
ENCODER = replace(GPT2, layers=(replace(GPT2.layers[0], attn=replace(GPT2.layers[0].attn, causal=False)),), types=2, transform="gelu")
KINDS: dict[str, c.Config] = {
    **FAMILIES,
    **BLOCKS,
    "distances": layered(replace(FIRST, attn=c.Attention(4, 2, 8, distances=True))),
    "encoder with a transform": replace(ENCODER, head_bias=True, embed_norm=True),
    "narrow embedding": layered(FIRST, embed_width=20),
}
SPECIMENS = sorted(p.name for p in (Path(pellucid.__file__).parent / "specimens").iterdir() if (p / "config.json").is_file())


def loss_of(out: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), targets.flatten())


def backward(model: nn.Module, *batches: tuple[Any, ...], targets: Tensor | None = None) -> Watch:
    """Return the records of a forward and a backward for each batch; gradients add up."""
    model.requires_grad_().zero_grad()
    with watch(model, grad=True, terms=True, inside="listed") as seen:
        for given in batches:
            tokens = [g for g in given if isinstance(g, Tensor)][-1]
            loss_of(model(*given), tokens.roll(-1) if targets is None else targets).backward()
    return seen


def cells_of(p: Tensor, draw: random.Random, rows: Iterable[int] | None = None) -> list[tuple[int, ...]]:
    """Draw random cells; of a table, one in a row of these."""
    drawn = [tuple(draw.randrange(n) for n in p.shape) for _ in range(CELLS)]
    return drawn if rows is None else [(draw.choice([*rows]), *drawn[0][1:]), drawn[1]]


def gap(got: list[Use], gradient: float) -> float:
    """Return the difference of the rows' sum from a gradient, over the largest of them."""
    largest = max((float(u.product.abs().max()) for u in got if len(u.product)), default=0.0)
    return abs(sum(u.total() for u in got) - gradient) / max(largest, abs(gradient), 1e-30)


def gaps(model: nn.Module, seen: Watch, seed: int = 0) -> dict[str, float]:
    """Return by path the largest gap of random cells. A parameter without a gradient must have no use with a contribution."""
    draw, worst = random.Random(seed), dict[str, float]()
    for path, p in model.named_parameters():
        tokens = ids(2, 11).unique().tolist() if path == "embed.weight" else None
        for cell in cells_of(p, draw, tokens):
            gradient = 0.0 if p.grad is None else float(p.grad[cell])
            worst[path] = max(worst.get(path, 0.0), gap(uses(seen, p, cell), gradient))
    return worst


def given(cfg: c.Config) -> tuple[Tensor, ...]:
    return inputs("t5" if cfg.encoder is not None else "llama")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick(5)
def test_rows_add_up_to_the_gradient(kind: str) -> None:
    """Every parameter, random cells, in float64."""
    model = tiny(KINDS[kind])
    got = gaps(model, backward(model, given(KINDS[kind])))
    assert max(got.values()) < BOUND, got


@pytest.mark.parametrize("specimen", SPECIMENS)
@pytest.mark.quick(4)
def test_rows_add_up_in_the_specimens(specimen: str) -> None:
    model = pellucid.load(str(Path(pellucid.__file__).parent / "specimens" / specimen)).module.double()
    tokens = torch.tensor([[5, 9, 60, 31, 9, 14], [5, 80, 22, 9, 41, 3]])
    source = (tokens[:, :4],) if model.config.encoder is not None else ()
    got = gaps(model, backward(model, (*source, tokens)))
    assert max(got.values()) < BOUND, got


MUTANTS = {
    "a row is dropped": lambda self: float(self.product.sum() - self.product.gather(0, self.product.abs().argmax(0, True)).sum()),
    "another row's δ": lambda self: float((self.x * self.delta.roll(1, 0)).sum()),
    "a column is dropped": lambda self: float((self.x * self.delta)[:, 1:].sum()),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(4)
def test_mutants_of_the_sum(family: str, mutant: str) -> None:
    """Nearly every matrix and norm shows each of them; an expert without rows, or a bias, whose rows all count 1, need not."""
    model = tiny(family)
    seen = backward(model, inputs(family))
    with swapped(Use, "total", MUTANTS[mutant]):
        got = [g for path, g in gaps(model, seen).items() if "bias" not in path]
    assert sum(g > 1e-6 for g in got) > 0.8 * len(got), got


def test_a_tied_table_has_two_uses() -> None:
    """The embedding's rows and the head's are told apart, and either alone is not the gradient."""
    model, (tokens,) = tiny("gpt2"), inputs("gpt2")
    seen, p = backward(model, (tokens, Step.plain(tokens))), model.embed.weight
    cell = int(tokens[0, 3]), 5
    by_path = {u.path: u for u in uses(seen, p, cell)}
    assert set(by_path) == {"embed", "logits"} and model.head.weight is p
    first, last = by_path["embed"], by_path["logits"]
    assert gap([first, last], float(p.grad[cell])) < BOUND
    assert min(gap([u], float(p.grad[cell])) for u in (first, last)) > 1e-3
    assert set(first.x[:, 0].tolist()) == {0.0, 1.0} and torch.equal(first.ids[first.x[:, 0] == 1].unique(), torch.tensor([cell[0]]))
    assert torch.equal(last.x[:, 0], seen["norm"].value.detach().flatten(0, 1)[:, cell[1]])
    assert torch.equal(last.delta[:, 0], seen["logits"].grad.flatten(0, 1)[:, cell[0]])
    assert last.columns == [(cell[0],)]


def test_t5_shares_its_tables() -> None:
    """The embedding is used by the encoder, the decoder and the head, the table of distances by every layer of a stack."""
    model = tiny("t5")
    seen = backward(model, inputs("t5"))
    assert [u.path for u in uses(seen, model.embed.weight, (int(inputs("t5")[0][0, 0]), 2))] == ["source", "embed", "logits"]
    table = model.decoder.layers[0].attn.relative.weight
    got = uses(seen, table, (1, 2))
    assert [u.path for u in got] == [f"decoder.layers.{i}.attn.z" for i in range(3)]
    assert {h for u in got for h, _ in u.columns} == {2}
    assert gap(got, float(table.grad[1, 2])) < BOUND < 1e-6 < gap(got[1:], float(table.grad[1, 2]))


def test_rows_are_those_of_the_op() -> None:
    """A product's x and δ are its input and its gradient; a norm's x is the normed row; an expert's rows are those routed to it."""
    model = tiny("deepseek_v3")
    seen = backward(model, inputs("deepseek_v3"))
    (use,) = uses(seen, model.layers[0].ffn.down.weight, (5, 17))
    assert torch.equal(use.x[:, 0], seen["layers.0.ffn.neurons"].value.detach().flatten(0, 1)[:, 17])
    assert torch.equal(use.delta[:, 0], seen["layers.0.ffn"].grad.flatten(0, 1)[:, 5]) and use.columns == [(5,)]
    assert use.texts.tolist() == [0] * 11 + [1] * 11 and use.positions.tolist() == [*range(11)] * 2
    assert torch.equal(use.ids, inputs("deepseek_v3")[0].flatten())
    (norm,) = uses(seen, model.layers[0].ffn_norm.weight, (3,))
    x = seen["layers.0.mid"].value.detach().flatten(0, 1)
    assert torch.allclose(norm.x[:, 0], x[:, 3] / (x.pow(2).mean(-1) + 1e-6).sqrt(), rtol=1e-12)
    chosen = seen["layers.1.ffn.chosen"].value
    (routed,) = uses(seen, model.layers[1].ffn.up, (2, 3, 4))
    went = [(b, t) for b, t, a in (chosen == 2).nonzero().tolist()]
    read = [(b, t) for b, t, x in zip(routed.texts.tolist(), routed.positions.tolist(), routed.x.tolist(), strict=True) if x != [0.0]]
    assert sorted(read) == sorted(went) and len(routed.x) == 44


def test_forwards_add_up() -> None:
    """Gradients of two batches: the rows of both, each with its forward's number; one of them alone is not the gradient."""
    model = tiny("qwen3")
    seen = backward(model, (ids(2, 5),), (ids(1, 8, seed=3),))
    p, cell = model.layers[1].attn.v.weight, (3, 7)
    got = uses(seen, p, cell)
    assert [(u.forward, len(u.positions)) for u in got] == [(0, 10), (1, 8)]
    assert gap(got, float(p.grad[cell])) < BOUND < 1e-6 < gap(got[:1], float(p.grad[cell]))


def test_padding_is_left_out() -> None:
    """Rows of padding contribute nothing, and are not listed; the others keep their ids."""
    model, tokens = tiny("gpt2"), ids(2, 7)
    padding = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    seen = backward(model, (tokens, Step.plain(tokens, padding)), targets=tokens.roll(-1).masked_fill(padding == 0, -100))
    for path, p in model.named_parameters():
        ((cell, _),) = [cells_of(p, random.Random(1))]
        got = uses(seen, p, cell)
        assert gap(got, float(p.grad[cell])) < BOUND, path
        assert all(len(u.positions) == 11 and int(u.texts.sum()) == 4 for u in got), path
        assert all(torch.equal(u.ids, tokens[padding.bool()]) for u in got)


def test_documents_in_one_row() -> None:
    """Packed documents: a record for each, whose rows carry the number and positions of their own document."""
    model, tokens = tiny("llama"), ids(1, 9)
    step = Step.packed([4, 5], prompts={"a": tokens[0, :4].tolist(), "b": tokens[0, 4:].tolist()})
    seen = backward(model, (tokens, step))
    p, cell = model.layers[0].ffn.up.weight, (3, 7)
    got = uses(seen, p, cell)
    assert [u.texts.tolist() for u in got] == [[0] * 4, [1] * 5] and [u.positions.tolist() for u in got] == [[*range(4)], [*range(5)]]
    assert torch.equal(torch.cat([u.ids for u in got]), tokens[0])
    assert max(gaps(model, seen).values()) < BOUND


def adapted(path: str, family: str) -> Decoder:
    """Return a family's model with two additions of rank 3 on one matrix, the second scaled."""
    model: Decoder = tiny(family)
    linear = model.get_submodule(path)
    assert isinstance(linear, Linear)
    draw = torch.Generator().manual_seed(5)
    for name, scale in (("one", 1.0), ("two", 0.5)):
        a, b = (
            nn.Parameter(torch.randn(s, generator=draw, dtype=torch.float64)) for s in ((3, linear.in_features), (linear.out_features, 3))
        )
        add(linear, name, Addition(a, b, scale, "F D", "T"))
    return model


@pytest.mark.parametrize(
    ("path", "family"), [("layers.0.ffn.up", "llama"), ("layers.1.attn.kv_b", "deepseek_v3"), ("layers.1.ffn.router", "qwen2_moe")]
)
def test_adapters_and_the_matrices_made_with_them(path: str, family: str) -> None:
    """A matrix that is called, and two that are merged with their additions and read: every part of them adds up."""
    model = adapted(path, family)
    got = gaps(model, backward(model, inputs(family)))
    assert max(got.values()) < BOUND, got
    assert sum("lora" in name for name in got) == 4
    if path != "layers.0.ffn.up":
        with swapped(Reading, "maker", lambda self, w: None):
            assert gaps(model, backward(model, inputs(family)))[f"{path}.adapters.one.lora_a.weight"] > 1e-6


def test_rows_without_positions() -> None:
    """A recurrent layer reads its weights once a step, from rows that have no axis of positions: one use for each step."""
    model = Gru(D).double()
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.3
    with watch(model, grad=True, terms=True) as seen:
        model(torch.randn(2, 4, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)).pow(2).sum().backward()
    p = model.h_new.weight
    assert len(uses(seen, p, (2, 3))) == 4 and max(gaps(model, seen).values()) < BOUND


def test_an_op_that_does_not_say_is_missed() -> None:
    """Each op's own account is needed: without it the sums of its weights are wrong."""
    for name, kind in (("linear", "gpt2"), ("norm", "gpt2"), ("norm", "llama"), ("norm", "norm from 1"), ("experts", "deepseek_v3"),
                       ("attend", "gpt_oss"), ("attend", "encoder"), ("latent", "deepseek_v3")):  # fmt: skip
        module = importlib.import_module(f"pellucid.ops.{name}")
        right, model = module.note, tiny(KINDS[kind])

        def mute(x: Tensor, op: str, *rest: Any, right: Any = right, **how: Any) -> Tensor:
            return right(x, op, *rest[:5], **{k: v for k, v in how.items() if k != "again"})

        with swapped(module, "note", mute):
            assert max(gaps(model, backward(model, given(KINDS[kind]))).values()) > 1e-6, (name, kind)


def test_only_a_watch_with_terms_and_gradients_keeps_them() -> None:
    """And the derivative of the cells changes nothing that was recorded."""
    model = tiny("llama")
    for how in ({"grad": True}, {"terms": True}, {}):
        with watch(model, **how) as seen:
            model(*inputs("llama"))
        assert all(s.pulls is None for s in seen)
    first = backward(model, inputs("llama"))
    before = {s.path: (s.value.clone(), s.grad.clone()) for s in first if s.grad is not None}
    uses(first, model.layers[0].attn.q.weight, (0, 0))
    assert all(torch.equal(a, s.value) and torch.equal(b, s.grad) for s in first if s.grad is not None for a, b in [before[s.path]])
