"""Each number's origin: the summands of its cell, the operands and weights of its tensor, its FLOPs."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.kv_cache import PagedCache
from pellucid.watching import watch as watching
from pellucid.watching.records import Seen
from pellucid.watching.tap import Weights
from pellucid.watching.terms import Terms
from pellucid.watching.watch import Watch, watch
from tiny import DECODERS, FAMILIES, far, has_encoder, ids, inputs, serve, swapped, tiny

PLAN = [{"a": 5, "d": 2}, {"a": 1, "b": 4, "c": 6}, {"b": 2, "a": 1, "c": 3}, {"a": 1, "c": 1, "b": 1, "d": 1}]
PROMPTS = {r: ids(sum(chunks.get(r, 0) for chunks in PLAN), seed=i) for i, r in enumerate("abcd")}
SOURCES = {r: ids(n, seed=9) for r, n in {"a": 7, "b": 3, "c": 5, "d": 2}.items()}
CELLS = 20


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def batch(family: str, **how: Any) -> Watch:
    model = tiny(family)
    with watch(model, **how) as seen:
        model(*inputs(family))
    return seen


def flat_batch(family: str, **how: Any) -> list[Seen]:
    """Return the records of a batch over pages."""
    model, records = tiny(family), list[Seen]()

    def feed(*arguments: Any) -> Tensor:
        with watch(model, to=records.append, **how):
            return model(*arguments)  # type: ignore[no-any-return]

    serve(model, PROMPTS, PLAN, PagedCache(64, 4), feed, SOURCES if has_encoder(family) else None)
    return records


# Terms


def gaps(records: Sequence[Seen], cells: int = CELLS) -> dict[str, float]:
    """Return by path the largest difference of random cells from the sum of their terms, over the largest number involved."""
    draw, worst = random.Random(0), dict[str, float]()
    for s in records:
        assert s.terms is not None, s.path
        for _ in range(cells):
            at = tuple(draw.randrange(n) for n in s.shape)
            terms, value = s.terms(at), float(s.value[at])
            assert terms.factors or terms.added, s.path
            size = max(abs(value), float(terms.summands.abs().max()), 1e-3)
            gap = abs(terms.total() - value) / size
            worst[s.path] = max(worst.get(s.path, 0.0), gap if gap == gap else math.inf)
    return worst


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(4)
def test_cells_are_the_sum_of_their_terms(family: str) -> None:
    """Every tap's cells add up, in a batch, recomputed and as the reference."""
    for inside in ("beside", "reference"):
        by_path = gaps(list(batch(family, terms=True, inside=inside)))
        assert max(by_path.values()) < 1e-11, by_path
    assert ("decoder.layers.1.cross.pattern" in by_path) == has_encoder(family)


@pytest.mark.parametrize("request_", [None, "c"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(8)
def test_cells_in_a_batch(family: str, request_: str | None) -> None:
    """Cells add up over pages, with cross attention, watched for all requests and for one."""
    by_path = gaps(flat_batch(family, terms=True, request=request_), 6)
    assert max(by_path.values()) < 1e-11, by_path


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(4)
def test_forgotten_summand_mutant(family: str) -> None:
    """Without the first summand, or with half of it, every path whose cells are sums is wrong."""
    records = list(batch(family, terms=True))
    with swapped(Terms, "total", lambda self: float(self.summands[1:].sum())):
        assert min(gaps(records).values()) > 1e-6
    with swapped(Terms, "total", lambda self: float(self.summands.sum() - 0.5 * self.summands[0])):
        assert min(gaps(records).values()) > 1e-6


# Weights


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def unsourced(family: str) -> set[str]:
    """Return parameters that no record names, and those that a record names though disturbing them does not change it."""
    model, given = tiny(family), inputs(family)

    def run() -> list[Seen]:
        with watch(model) as seen:
            model(*given)
        return list(seen)

    plain = run()
    wrong = set(parameters(model))
    for name, p in parameters(model).items():
        named = [i for i, s in enumerate(plain) if name in s.weights]
        kept = p.clone()
        p += torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=p.dtype)
        after = run()
        p.copy_(kept)
        if named and all(far(plain[i].value, after[i].value) > 1e-6 for i in named):
            wrong.discard(name)
    return wrong


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(11)
def test_every_parameter_is_the_source_of_a_record(family: str) -> None:
    assert unsourced(family) == set()


def test_parameters_without_a_record_mutants() -> None:
    """Seen are a bias that the note omits, and a weight with another's name."""
    right = Watch.made
    with swapped(Watch, "made", lambda self, storage, op, inputs, weights, *how: right(self, storage, op, inputs, weights[:1], *how)):
        assert unsourced("gpt2")
    name = Weights.name

    def next_layer(self: Weights, w: Tensor) -> str | None:
        path = name(self, w)
        return path and path.replace("layers.0", "layers.1")

    with swapped(Weights, "name", next_layer):
        assert any("layers.1" in path for path in unsourced("llama"))


# Operands


def disturbed(x: Tensor) -> Tensor:
    """Return other numbers of the same kind."""
    if not x.is_floating_point():
        return x.flip(-1)
    return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)


def misled(family: str, known: Callable[[Seen], Sequence[str]] = lambda s: s.inputs) -> set[tuple[str, str]]:
    """Return (record, operand) if the operand has no earlier record, or changing it does not change the record."""
    model, given = tiny(family), inputs(family)
    with watch(model, inside="reference") as plain:
        model(*given)
    wrong, order = set[tuple[str, str]](), dict[str, int]()
    uses: dict[str, list[int]] = {}
    for i, s in enumerate(plain):
        for path in known(s):
            uses.setdefault(path, []).append(i)
            wrong |= {(s.path, path)} if path not in order else set()
        order.setdefault(s.path, i)
    for path, users in uses.items():
        with watch(model, inside="reference", edit={path: disturbed}) as after:
            model(*given)
        for i in users:
            if far(plain.seen[i].value, after.seen[i].value) < 1e-6:
                wrong.add((plain.seen[i].path, path))
    return wrong


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(11)
def test_operands_are_operands(family: str) -> None:
    """Each operand has an earlier record, and disturbing it by an edit changes the record."""
    assert misled(family) == set()


def test_operands_mutants() -> None:
    """Seen are the tensor before the operand, and an operand that comes later."""
    assert misled("llama", lambda s: ["norm"] if s.path == "embed" else s.inputs)
    assert misled("llama", lambda s: ["layers.0.attn.k"] if s.path == "layers.0.attn.q_rot" else s.inputs)


INNER = ("scores", "pattern", "attn.k", "attn.v")


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_lead_back_to_everything(family: str) -> None:
    """From the logits, operands lead to every parameter and every record outside a fused op."""

    def met() -> tuple[set[str], set[str]]:
        seen = batch(family, inside="reference")
        by_path = {s.path: s for s in seen}
        queue, paths, weights = ["logits"], {"logits"}, set[str]()
        while queue:
            s = by_path[queue.pop()]
            weights |= set(s.weights)
            new = set(s.inputs) - paths
            paths |= new
            queue += new
        return set(by_path) - paths, set(parameters(tiny(family))) - weights

    paths, weights = met()
    assert all(p.endswith(INNER) for p in paths) and not weights, (paths, weights)
    right = watching.Watch.name_of
    with swapped(watching.Watch, "name_of", lambda self, x: None if right(self, x) == "norm" else right(self, x)):
        assert met()[0]


# Products


def formula(cfg: c.Config, rows: int, pairs: int) -> int:
    """Return twice the multiply-adds of a dense decoder: every matrix for each row, K and W of every head for each pair of rows."""
    total = cfg.vocab * cfg.width * rows
    for layer in cfg.layers:
        attn, ffn = layer.attn, layer.ffn
        assert isinstance(attn, c.Attention) and isinstance(ffn, c.Mlp)
        total += rows * cfg.width * attn.width * 2 * (attn.heads + attn.kv_heads)
        total += pairs * attn.heads * attn.width * 2
        total += rows * cfg.width * ffn.width * (3 if ffn.gated else 2)
    return 2 * total


@pytest.mark.parametrize("only", ["logits", "*"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_flops_are_twice_the_products(family: str, only: str) -> None:
    """The FLOPs of a plain and a flat batch fit the formula; recomputed tensors count none."""

    def counted() -> tuple[int, int]:
        model, total = tiny(family), [0]

        def feed(*arguments: Any) -> Tensor:
            with watch(model, only=only) as seen:
                out = model(*arguments)
            total[0] += sum(seen.flops.values())
            return out  # type: ignore[no-any-return]

        feed(ids(2, 11))
        alone, total[0] = total[0], 0
        serve(model, PROMPTS, PLAN, PagedCache(64, 4), feed)
        return alone, total[0]

    ends, pairs = dict.fromkeys(PROMPTS, 0), 0
    for chunks in PLAN:
        for r, n in chunks.items():
            ends[r] += n
            pairs += n * ends[r]
    expected = formula(DECODERS[family], 22, 2 * 11 * 11), formula(DECODERS[family], sum(ends.values()), pairs)
    assert counted() == expected
    linear = ops.linear
    with swapped(ops, "linear", lambda x, w, b=None: linear(linear(x, w, b) @ w.new_zeros(len(w), x.shape[-1]), w, b)):
        assert counted() != expected
