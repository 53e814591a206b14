"""A native draw is that of the stages by torch's own sums, which are used wherever it is not certain."""

import importlib
import math
import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pellucid.ops import native
from pellucid.ops.sampling import stages as sample
from pellucid.ops.sampling import truncation as cuts
from pellucid.ops.sampling.settings import Sampling
from test_plan import needs_kernels
from tiny import swapped

N = 20_000
INF = math.inf
PROMPT, OUTPUT = tuple(range(0, 300, 7)), [5, 9, 5, N - 1, 77]


@pytest.fixture(params=["here", "avx2"])
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use the kernels of this machine, and those of the smallest instruction set."""
    library = importlib.import_module("pellucid.ops.native.library")
    lib = library.load("avx2") if request.param == "avx2" else library.lib
    if lib is None:
        pytest.skip("no kernels")
    with swapped(library, "lib", lib):
        yield


def rand(seed: int, size: int = N) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def peaked(x: Tensor) -> Tensor:
    x = x * 2 - 12
    x[::97] += 11
    return x


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "flat": lambda x: x,
    "even": lambda x: (x * 0.01).bfloat16().float(),
    "wide": lambda x: x * 4,
    "peaked": peaked,
    "ties": lambda x: (x * 2).round(),
    "equal": torch.zeros_like,
    "holes": lambda x: x.masked_fill(torch.arange(len(x)) % 3 > 0, -INF),
    "low": lambda x: x * 3 - 2e4,
    "high": lambda x: x * 9 + 3e5,
    "one": lambda x: (x - 200).index_fill(0, torch.tensor(len(x) // 2), 50.0),
}


@needs_kernels
@pytest.mark.parametrize("size", [1, 7, 16, 33, 511, 513, 40_001])
def test_kernels(size: int, kernels: None) -> None:
    """Values are rounded as torch rounds, and indices are complete and in order."""
    for kind in KINDS.values():
        x = kind(rand(size, size))
        top = float(x.max())
        if top == -INF:
            continue
        for by in (0.7, 1e-30, 3.0):
            assert torch.equal(native.cooled(x, top, by), (x - x.amax()) / by)
        for low, high in ((0.0, 1.0), (-INF, INF), (top, INF), (top - 1, top), (2.0, 1.0)):
            assert native.indices_between(x, low, high).tolist() == ((x >= low) & (x <= high)).nonzero()[:, 0].tolist()


def test_the_largest() -> None:
    """Of equal values the earlier comes first, in any bounds, as in a sorted list."""
    for size in (5, 200, 3000):
        for seed, kind in enumerate(KINDS.values()):
            x = kind(rand(seed, size))
            ranked = sorted(range(size), key=lambda i: (-float(x[i]), i))
            for k in (0, 1, 2, 3, 9, size // 128, size // 64, size // 16, size // 2, size - 1, size, size + 1):
                assert cuts.largest(x, k).tolist() == sorted(ranked[:k])
                assert cuts.largest(x.double(), k).tolist() == sorted(ranked[:k])


CUT: list[dict[str, Any]] = [
    {}, {"top_k": 1}, {"top_k": 7}, {"top_k": 40}, {"top_k": 70}, {"top_k": 3000}, {"top_k": N}, {"top_p": 1e-6}, {"top_p": 0.3},
    {"top_p": 0.9}, {"top_p": 0.99}, {"top_p": 0.9999}, {"min_p": 1e-3}, {"min_p": 0.3}, {"min_p": 1.0}, {"top_k": 50, "top_p": 0.9},
    {"top_k": 2000, "top_p": 0.5}, {"top_p": 0.8, "min_p": 0.02}, {"top_k": 20, "min_p": 0.1}, {"top_k": 60, "top_p": 0.95, "min_p": 0.05},
]  # fmt: skip


def wrong_draws() -> str:
    """Return the first native draw that is not the stages' own, or that too few were sure; "" if neither."""
    answered = tried = 0
    for seed, (name, kind) in enumerate(KINDS.items()):
        for size in (1, 40, 257, N):
            x = kind(rand(seed, size))
            if not bool(x.max().isfinite()):
                continue
            for i, cut in enumerate(CUT if size == N else CUT[seed % 4 :: 4]):
                s = Sampling([1.0, 0.6, 1.7][i % 3], **cut, seed=i)
                token = sample.sure_draw(x, s, 0, i)
                with native.off():
                    *_, last = sample.left(x, s, sample.History())
                at = int(sample.draw(last.values.double().softmax(0), sample.uniform(i, i)))
                tried, answered = tried + 1, answered + (token is not None)
                if token is not None and token != (at if last.ids is None else int(last.ids[at])):
                    return f"{name} {size} {s}: {token}"
    return "" if answered > 0.9 * tried else f"{answered} of {tried}"


def edges() -> str:
    """Return the first wrong draw from a nucleus that ends at, or next to, one of torch's own sums; "" if all are right or not sure."""
    for seed, (size, spread) in enumerate(product((3, 5, 40), (0.3, 1.0, 3.0, 0.0))):
        x = rand(seed, size) * spread
        sums = (x.double().softmax(0).sort(descending=True)[0].cumsum(0)).numpy()
        for i, p in enumerate((*sums, *np.nextafter(sums, 0), *np.nextafter(sums, 1), *(sums - 3e-12))):
            for step in range(4):
                s = Sampling(1.0, top_p=min(float(p), 1.0), seed=i)
                token = sample.sure_draw(x, s, 0, step)
                with native.off():
                    wanted = sample.choose(x, s, (), (0,) * step)
                if token not in (None, wanted):
                    return f"{size} {spread} {p}"
    return ""


@needs_kernels
def test_draws_are_the_stages_(kernels: None) -> None:
    assert wrong_draws() == "" and edges() == ""


@needs_kernels
def test_the_numbers_of_draws(kernels: None) -> None:
    """Each draw has the random number of its seed, text and step."""
    even = torch.zeros(1 << 12)
    for seed, index, step in product((0, 1, -1, 2**63, 2**64 - 1, 12345), (0, 1, 7), (0, 1, 1000, 2**40)):
        token = sample.sure_draw(even, Sampling(1.0, seed=seed), index, step)
        assert token == int(sample.uniform(sample.sibling(seed, index), step) * len(even))


def with_words(op: str, **changed: Any) -> Any:
    """Make the calls of a draw with other words of one kernel."""
    honest = native.Draw.make

    def make(self: native.Draw, call: Any) -> None:
        def spoilt(name: str, *given: Any, **words: Any) -> None:
            call(name, *given, **words | ({key: change(words[key]) for key, change in changed.items()} if name == op else {}))

        honest(self, spoilt)

    return make


MUTANTS: dict[str, Any] = {
    "a cooler row": with_words("runs", by=lambda by: by * 1.02),
    "one more is kept": with_words("draw", k=lambda k: k + 1 if k else 0),
    "one less is kept": with_words("draw", k=lambda k: max(k - 1, 1) if k else 0),
    "more mass": with_words("draw", p=lambda p: min(p + 0.01, 1.0)),
    "lower ones": with_words("draw", near=lambda near: near * 1.01),
    "another seed": with_words("draw", state=lambda state: state ^ 1),
    "a shorter row": with_words("draw", n=lambda n: max(1, n - 256)),
    "always sure": with_words("draw", margin=lambda margin: -1.0),
    "never sure": with_words("draw", margin=lambda margin: 1.0),
}


@needs_kernels
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.quick(5)
def test_mutants_are_seen(mutant: str) -> None:
    with swapped(native.Draw, "make", MUTANTS[mutant]):
        assert wrong_draws() + edges() != ""


@needs_kernels
def test_a_token_is_the_same_without_kernels(kernels: None) -> None:
    """Random settings over every kind of row, in the widths of models, give the same tokens."""
    draw = random.Random(2)
    for seed in range(60):
        how: dict[str, Any] = {"temperature": draw.choice([0.0, 0.4, 1.0, 1.0, 2.0])}
        how |= {"top_k": draw.choice([1, 40, 3000])} if draw.random() < 0.3 else {}
        how |= {"top_p": draw.choice([0.1, 0.8, 0.99])} if draw.random() < 0.5 else {}
        how |= {"min_p": draw.choice([0.001, 0.2])} if draw.random() < 0.2 else {}
        how |= {"repetition": 1.2, "presence": 0.3, "frequency": -0.1} if draw.random() < 0.4 else {}
        how |= {"bias": {5: 2.0, 9: -1.0}} if draw.random() < 0.2 else {}
        x = [*KINDS.values()][seed % len(KINDS)](rand(seed)).to(draw.choice([torch.float32, torch.bfloat16]))
        before = x.clone()
        s = Sampling(**how, seed=seed)
        tokens = [sample.choose(x, s, PROMPT, OUTPUT[:i]) for i in range(6)]
        assert torch.equal(x, before), how  # the model's own
        with native.off():
            assert [sample.choose(x, s, PROMPT, OUTPUT[:i]) for i in range(6)] == tokens, how
        for i in range(6):
            *_, last = sample.run(x, s, sample.History(PROMPT, OUTPUT[:i]))
            if not s.greedy:
                at = int(sample.draw(last.values, sample.uniform(seed, i)))
                assert tokens[i] == (at if last.ids is None else int(last.ids[at]))


def test_a_prompt_is_known_by_itself() -> None:
    """A prompt's tokens are counted once; an equal prompt, or one at an old address, gets its own counts."""
    for _ in range(200):
        prompt = tuple(random.Random().randrange(50) for _ in range(5))
        assert sorted(set(sample.History(prompt, [1]).ids().tolist())) == sorted({*prompt, 1})
    before = sample.distinct.cache_info().hits
    sample.History(prompt).ids()
    assert sample.distinct.cache_info().hits == before + 1
