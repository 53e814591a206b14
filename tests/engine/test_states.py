"""Layers that keep a state: one text by one forward, in chunks, by steps, among others, preempted, forked and behind a cached beginning."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from judge import judge
from pellucid.api.model import load
from pellucid.batch import states
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.states import TextStates
from pellucid.batch.step import Step
from pellucid.documents.cell import cell_of
from pellucid.engine.engine import Engine
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.nn.gated_delta import GatedDelta
from pellucid.nn.selective import Mamba1
from pellucid.nn.state_space import Mamba2
from pellucid.nn.transformer import Decoder
from pellucid.ops import native, scan
from pellucid.ops.sampling.settings import Sampling
from pellucid.watching.watch import watch
from tiny import far, ids, swapped

FAMILIES = ("qwen3_5_text", "qwen3_next", "granitemoehybrid", "nemotron_h", "mamba2", "falcon_h1", "mamba", "jamba")
PARTS = {
    "qwen3_5_text": "delta",
    "granitemoehybrid": "mamba",
    "mamba2": "mamba",
    "falcon_h1": "mamba",
    "jamba": "mamba",
}  # each kind, one without attention, one beside it
GREEDY = Sampling(temperature=0.0, seed=1)
BOUNDS = {torch.float64: 1e-11, torch.float32: 1e-4}
DTYPES = [*BOUNDS]


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def model(family: str = FAMILIES[0], dtype: torch.dtype = torch.float64) -> Decoder:
    """Return a tiny model of a family."""
    made = load(judge(family).folder, dtype=dtype).module
    assert isinstance(made, Decoder)
    for part in made.modules():
        if isinstance(part, GatedDelta | Mamba1 | Mamba2):
            part.log_rate.fill_(-3.0)  # a state of long memory, in which a wrong beginning shows
    return made


def in_chunks(module: Decoder, text: Tensor, chunk: int, size: int = 4) -> Tensor:
    """Return the logits of a text that is read in chunks, over pages of `size` tokens."""
    pages, out = PagedCache(3 * len(text), size, {4: 64}), []
    for start in range(0, len(text), chunk):
        step = Step.paged(pages, {0: min(chunk, len(text) - start)})
        out.append(module(text[None, start : start + chunk], step)[0])
        step.advance()
    return torch.cat(out)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.quick(8)
def test_chunks_and_steps_are_the_whole(family: str, dtype: torch.dtype) -> None:
    module, text = model(family, dtype), ids(23)
    right = module(text[None])[0]
    for chunk in (1, 3, 4, 9, 23):
        assert far(in_chunks(module, text, chunk), right) < BOUNDS[dtype], chunk


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.quick(8)
def test_the_kernel_gives_the_same_bits_in_any_chunks(family: str, dtype: torch.dtype) -> None:
    """The kernel takes tokens one after another; in float32 the reference is within the rounding of it."""
    module, text = model(family, dtype), ids(23)
    with native.any_rows():
        once = in_chunks(module, text, 23)
        assert all(torch.equal(in_chunks(module, text, chunk, size), once) for chunk in (1, 4, 9) for size in (1, 4, 32))
    with swapped(native, "fits_scan", lambda *args: False):
        assert dtype is torch.bfloat16 or far(in_chunks(module, text, 9), once) < 1e-4


@pytest.mark.parametrize("family", PARTS)
def test_padding_leaves_a_state_as_it_is(family: str) -> None:
    module, text = model(family), ids(9)
    padding = torch.tensor([[1] * 9, [0, 0, 0] + [1] * 6])
    rows = torch.stack([text, torch.cat([text.new_zeros(3), text[:6]])])
    logits = module(rows, Step.plain(rows, padding))
    assert far(logits[0], module(text[None])[0]) < 1e-12 and far(logits[1, 3:], module(text[None, :6])[0]) < 1e-12


@pytest.mark.parametrize("family", PARTS)
def test_documents_of_a_packed_row_have_their_own_states(family: str) -> None:
    module, first, second = model(family), ids(7, seed=1), ids(5, seed=2)
    logits = module(torch.cat([first, second])[None], Step.packed([7, 5]))[0]
    assert far(logits, torch.cat([module(first[None])[0], module(second[None])[0]])) < 1e-12


def answers(engine: Engine, prompts: list[list[int]], new: int, n: int = 1) -> list[list[float]]:
    """Return the log-probabilities of the tokens of every text that the engine writes."""
    for prompt in prompts:
        engine.submit(Request(tuple(prompt), new, GREEDY, n=n, logprobs=0))
    out: dict[tuple[int, int], list[float]] = {}
    while not engine.idle:
        for o in engine.step():
            assert o.error is None
            if o.token is not None and o.token.logprob is not None:
                out.setdefault((o.request, o.index), []).append(o.token.logprob)
    return [out[key] for key in sorted(out)]


def alone(module: Decoder, prompt: list[int], new: int) -> list[float]:
    """Return the log-probabilities of the likeliest tokens after a prompt, each by a forward of the text so far."""
    text, out = list(prompt), []
    for _ in range(new):
        best = module(torch.tensor([text]))[0, -1].double().log_softmax(-1).max(-1)
        text.append(int(best.indices))
        out.append(float(best.values))
    return out


def apart(a: list[list[float]], b: list[list[float]]) -> float:
    """Return the largest difference of two lists of texts."""
    assert [len(x) for x in a] == [len(x) for x in b]
    return max(abs(x - y) for one, other in zip(a, b, strict=True) for x, y in zip(one, other, strict=True))


PROMPTS = [ids(n, seed=n).tolist() for n in (5, 16, 33, 21, 8)]


@pytest.mark.parametrize("family", PARTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.quick(5)
def test_among_others_and_preempted(family: str, dtype: torch.dtype) -> None:
    """Each text is the one that it would be alone, in steps of mixed chunks, and where pages run out and a text begins again."""
    module = model(family, dtype)
    right = [alone(module, prompt, 12) for prompt in PROMPTS]
    for tokens, limits in ((400, SchedulerLimits(rows=11)), (80, SchedulerLimits(running=3, rows=32))):
        assert apart(answers(Engine.of(module, tokens, limits, size=8), PROMPTS, 12), right) < BOUNDS[dtype]


@pytest.mark.parametrize("family", PARTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.quick(5)
def test_forks_of_one_prompt(family: str, dtype: torch.dtype) -> None:
    module = model(family, dtype=dtype)
    for prompt in PROMPTS[:3]:  # one ends with a page
        assert apart(answers(Engine.of(module, 400, size=8), [prompt], 9, n=3), [alone(module, prompt, 9)] * 3) < BOUNDS[dtype]


@pytest.mark.parametrize("family", PARTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.quick(5)
def test_behind_a_cached_beginning(family: str, dtype: torch.dtype) -> None:
    """A later text goes on from the state at the end of the last full page that both have."""
    module, engine = model(family, dtype=dtype), Engine.of(model(family, dtype=dtype), 400, size=8)
    beginning = ids(27, seed=7).tolist()
    for ending in ([1, 2, 3], [4], [1, 2, 9, 9, 9], []):
        prompt = beginning + ending
        assert apart(answers(engine, [prompt], 9), [alone(module, prompt, 9)]) < BOUNDS[dtype]
    cache = engine.storage.cache  # type: ignore[attr-defined]
    assert cache.hits >= 3 * 24 and cache.sound()


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "no state is kept": (TextStates, "keep", lambda self, row, state: None),
    "a text begins with another's state": (
        TextStates,
        "first",
        lambda self, shape, dtype: torch.ones(len(self.positions), *shape, dtype=dtype),
    ),
    "copies leave states out": (
        PagedCache,
        "copy",
        lambda self, allocator, request, indices: copied_rows(self, allocator, request, indices),
    ),
}
copy = PagedCache.copy


def copied_rows(self: PagedCache, allocator: Any, request: object, indices: Any) -> None:
    """Copy shared pages without the states in them."""
    with swapped(self, "states", {}):
        copy(self, allocator, request, indices)


@pytest.mark.parametrize("family", PARTS)
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.quick(5)
def test_mutants_are_seen(family: str, mutant: str) -> None:
    module, prompt = model(family), PROMPTS[0]
    right = [alone(module, prompt, 9)] * 3
    with swapped(*MUTANTS[mutant]), swapped(native, "fits_scan", lambda *args: False):
        assert apart(answers(Engine.of(module, 400, size=8), [prompt], 9, n=3), right) > 1e-6


@pytest.mark.parametrize("family", PARTS)
def test_no_tokens_are_proposed(family: str) -> None:
    """A state cannot be taken back, so a text that asks for proposals is written without."""
    module = model(family)
    assert states.stateful(module) and not Engine.of(module, 100).speculates


@pytest.mark.parametrize("family", [family for family in PARTS if family != "jamba"])
@pytest.mark.quick(2)
def test_in_deterministic_mode_a_text_has_the_bits_of_a_lone_run(family: str) -> None:
    """Among others, in chunks, and behind a cached beginning."""
    module = model(family, dtype=torch.float32)
    right = [answers(Engine.of(module, 100, size=8, deterministic=True), [prompt], 12) for prompt in PROMPTS]
    among = Engine.of(module, 400, SchedulerLimits(rows=11), size=8, deterministic=True)
    assert answers(among, PROMPTS, 12) == [text for (text,) in right]
    assert [answers(among, [prompt], 12) for prompt in PROMPTS] == right
    assert among.storage.cache.hits > 40  # type: ignore[attr-defined]


def test_deterministic_mode_is_refused_where_a_scan_has_no_kernel() -> None:
    with pytest.raises(UseError, match=r"deterministic mode does not hold here: aten\.exp"):
        Engine.of(model("jamba", dtype=torch.float32), 100, size=8, deterministic=True)


@pytest.mark.parametrize("family", PARTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.quick(5)
def test_a_step_of_one_token_may_run_again(family: str, dtype: torch.dtype) -> None:
    """As a plan is recorded, and the forward runs in its place where that is refused."""
    module, text = model(family, dtype=dtype), ids(13)
    pages, right = PagedCache(48, 4, {4: 16}), module(text[None])[0]
    for at, token in enumerate(text):
        step = Step.paged(pages, {0: 1})
        for _ in range(2):
            assert far(module(token[None, None], step)[0, 0], right[at]) < BOUNDS[dtype]
        step.advance()


@pytest.mark.parametrize("family", PARTS)
def test_a_refused_plan_leaves_states_right(family: str) -> None:
    """An op outside the kernels refuses the plan after the first layers have run."""
    module, prompt = model(family, dtype=torch.float32), PROMPTS[1]
    right = alone(module, prompt, 9)
    with swapped(native, "fits_argmax", lambda *args: False):
        assert apart(answers(Engine.of(module, 400, size=8), [prompt], 9), [right]) < BOUNDS[torch.float32]


@pytest.mark.parametrize("family", PARTS)
def test_watched_steps_explain_their_cells(family: str) -> None:
    """The terms of a cell of every step sum to it, whatever ran since."""
    module, prompt = model(family, dtype=torch.float32), PROMPTS[0]
    engine = Engine.of(module, 400, size=8)
    with watch(module, f"layers.*.{PARTS[family]}.y", terms=True) as seen:
        answers(engine, [prompt], 12)
    assert len(seen) > 20
    for s in seen:
        assert s.terms is not None and s.value is not None
        last = tuple(n - 1 for n in s.shape)
        assert abs(s.terms(last).total() - float(s.value[last])) < 1e-5


@pytest.mark.parametrize("family", PARTS)
def test_states_of_a_long_prompt_are_computed_on_demand(family: str) -> None:
    """A state may be megabytes a token: beyond a bound records have shapes, and the same values and terms when they are asked for."""
    module, text, path = model(family), ids(9), f"layers.0.{PARTS[family]}.state"
    with watch(module, path, terms=True) as small:
        module(text[None])
    with swapped(scan, "LARGE", 0), watch(module, path, terms=True) as large:
        module(text[None])
    shapes, right = large[path], small[path].value
    assert shapes.value.is_meta and shapes.later is not None
    assert torch.equal(shapes.later().value, right)
    last = right.shape[2] - 1  # Mamba-1 has one head
    assert cell_of(shapes, f"4,{last},2,3").value == float(right[0, 4, last, 2, 3])
