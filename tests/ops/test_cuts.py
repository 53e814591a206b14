"""A draw from a long row by quick sums is the draw by torch's own sums, which are used wherever it is not certain."""

import importlib
import math
import random
from collections.abc import Callable, Iterator
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
    """Values are rounded as torch rounds, indices are complete and in order, and sums are within 1e-12."""
    for kind in KINDS.values():
        x = kind(rand(size, size))
        top = float(x.max())
        if top == -INF:
            continue
        for by in (0.7, 1e-30, 3.0):
            assert torch.equal(native.cooled(x, top, by), (x - x.amax()) / by)
        for low, high in ((0.0, 1.0), (-INF, INF), (top, INF), (top - 1, top), (2.0, 1.0)):
            assert native.indices_between(x, low, high).tolist() == ((x >= low) & (x <= high)).nonzero()[:, 0].tolist()
        e = (x.double() - top).exp()
        assert torch.allclose(native.masses(x, top, 512), torch.stack([part.sum() for part in e.split(512)]), rtol=1e-12, atol=1e-290)
        for count, rate in ((1, 1.0), (2, 3.3), (100, 16.0), (512, 50.0)):
            at = torch.from_numpy(native.level(x.clamp(min=-1e6).numpy(), top, rate)).long().clamp(max=count - 1)
            levels, wanted = native.levels(x, top, count, rate), torch.zeros(count, dtype=torch.float64).index_add(0, at, e)
            assert torch.allclose(levels.cumsum(0), wanted.cumsum(0), rtol=1e-12, atol=1e-290)


def test_the_largest() -> None:
    """Of equal values the earlier comes first, in any bounds, as in a sorted list."""
    for size in (5, 200, 3000):
        for seed, kind in enumerate(KINDS.values()):
            x = kind(rand(seed, size))
            ranked = sorted(range(size), key=lambda i: (-float(x[i]), i))
            for k in (0, 1, 2, 3, 9, size // 128, size // 64, size // 16, size // 2, size - 1, size, size + 1):
                assert cuts.largest(x, k).tolist() == sorted(ranked[:k])
                assert cuts.largest(x.double(), k).tolist() == sorted(ranked[:k])


def nuclei() -> str:
    """Return the first nucleus that is not torch's, or that too few were found by quick sums; "" if neither."""
    answered = tried = 0
    for seed, (name, kind) in enumerate(KINDS.items()):
        x = kind(rand(seed))
        mass = (x.double().sort(descending=True)[0] - float(x.max())).exp().cumsum(0)
        edges = (mass[[3, 50, 900, 1000, 7000, 19_000]] / mass[-1]).numpy()
        ps = [1e-6, 0.3, 0.9, 0.99, 0.9999, *edges.tolist(), *np.nextafter(edges, 1).tolist(), *(edges + 1e-12).tolist()]
        with native.off():
            slow = {p: cuts.nucleus(x, p) for p in ps if p < 1}
        for p, wanted in slow.items():
            nucleus = cuts.quick_nucleus(x, p)
            tried, answered = tried + (p in ps[:5]), answered + (nucleus is not None and p in ps[:5])
            if nucleus is not None and not torch.equal(nucleus, wanted):
                return f"{name} {p}"
    return "" if answered > 0.85 * tried else f"{answered} of {tried}"


def draws() -> str:
    """Return the first draw that is not torch's, at even numbers and at and next to torch's own sums; "" if all are equal."""
    answered = tried = 0
    for seed, (name, kind) in enumerate(KINDS.items()):
        for size in (1, 40, N):
            x = kind(rand(seed, size))
            if not bool(x.max().isfinite()):
                continue
            shares = x.double().softmax(0)
            sums = shares.cumsum(0)
            edges = sums[:: max(1, size // 50)] / sums[-1]
            us = [*np.linspace(1e-3, 0.999, 40), *edges.tolist(), *np.nextafter(edges.numpy(), 0), *(edges - 3e-12).tolist()]
            for i, u in enumerate(us):
                token = cuts.drawn(x, float(u))
                tried, answered = tried + (i < 40), answered + (token is not None and i < 40)
                if token is not None and 0 <= u < 1 and token != int(sample.draw(shares, float(u))):
                    return f"{name} {size} {u}"
    return "" if answered > 0.98 * tried else f"{answered} of {tried}"


@needs_kernels
def test_nuclei_are_torch_s(kernels: None) -> None:
    assert nuclei() == ""


@needs_kernels
def test_draws_are_torch_s(kernels: None) -> None:
    assert draws() == ""


LEVELS, MASSES, LEVEL, BETWEEN, CROSSING = native.levels, native.masses, native.level, native.indices_between, cuts.crossing
MUTANTS: list[tuple[Callable[[], str], Any, str, Any]] = [
    (nuclei, native, "levels", lambda x, top, count, rate: LEVELS(x, top, count, rate) * torch.linspace(1, 1.001, count)),
    (nuclei, native, "level", lambda *given: LEVEL(*given) + 1),
    (nuclei, native, "indices_between", lambda x, low, high: (x > low).nonzero()[:, 0]),
    (nuclei, cuts, "crossing", lambda *given: (at := CROSSING(*given)) and at - 1),
    (nuclei, native, "indices_between", lambda x, low, high: BETWEEN(x, low + 1e-2, high)),
    (nuclei, cuts, "SURE", -1.0),
    (nuclei, cuts, "SURE", 1.0),
    (draws, native, "masses", lambda x, top, size: MASSES(x, top, size).float().double()),
    (draws, cuts, "SURE", -1.0),
    (draws, cuts, "SURE", 1.0),
    (draws, native, "masses", lambda x, top, size: MASSES(x, top, size - 12)),  # not the runs that are looked at
]


@needs_kernels
@pytest.mark.parametrize(("law", "owner", "name", "value"), MUTANTS)
def test_mutants_are_seen(law: Callable[[], str], owner: Any, name: str, value: Any) -> None:
    with swapped(owner, name, value):
        assert law() != ""


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
