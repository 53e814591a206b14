"""A burst of steps gives the tokens and the logits of single steps, bit for bit, and ends where Python is needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from covering import COVER, config_of
from kinds import KINDS, WRITES
from pellucid.batch.page_allocator import PageAllocator
from pellucid.batch.step import Step
from pellucid.engine import bursts
from pellucid.engine.bursts import Burst
from pellucid.engine.engine import Engine
from pellucid.engine.memory import Memory
from pellucid.engine.requests import Output, Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.nn.transformer import EncoderDecoder
from pellucid.ops import native
from pellucid.ops.sampling.settings import Sampling
from test_lengths import SCALINGS, built
from test_plan_families import REFUSED
from test_quant import pack
from tiny import LLAMA, ids, swapped, tiny

pytestmark = pytest.mark.skipif(not native.available(), reason="no kernels here")
DECODED = [(f, q) for f, q in COVER if KINDS[f].task in WRITES]
STATES = ["qwen3_next", "granitemoehybrid", "mamba2", "lfm2", "falcon_h1"]
SETTINGS = {
    "greedy": Sampling(), "sampled": Sampling(1.0, seed=4), "cool": Sampling(0.6, seed=-7), "top_k": Sampling(0.9, top_k=5, seed=1),
    "top_p": Sampling(1.3, top_p=0.8, seed=2**64 - 1), "min_p": Sampling(1.0, min_p=0.1, seed=9),
    "all": Sampling(0.8, top_k=30, top_p=0.9, min_p=0.02, seed=3),
}  # fmt: skip
FALLS_BACK = {
    "penalties": {"sampling": Sampling(0.8, repetition=1.3, presence=0.1, frequency=0.1, seed=2)},
    "bias": {"sampling": Sampling(bias={5: 1.0})},
    "log-probabilities": {"logprobs": 2},
    "a reader's stops": {"stepwise": True},
}


@pytest.fixture(autouse=True)
def _at_leisure() -> Iterator[None]:
    """Let bursts have as many steps on a busy machine as on an idle one."""
    with torch.no_grad(), swapped(bursts, "STREAMED", 1e6), swapped(bursts, "COLLECTED", 1e6):
        yield


@dataclass
class Ran:
    """What an engine gave. outputs: of each text. logits: of each text and length. steps, rows: of each burst."""

    outputs: dict[tuple[int, int], list[Output]] = field(default_factory=dict)
    logits: dict[tuple[object, int], Tensor] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def same(self, single: "Ran") -> bool:
        """True if all tokens and ends are those of single steps, and so are the logits that Python had."""
        shared = self.logits.keys() & single.logits.keys()
        return self.outputs == single.outputs and bool(shared) and all(torch.equal(self.logits[key], single.logits[key]) for key in shared)


def ran(module: Any, requests: list[Request], burst: int = 8, **how: Any) -> Ran:
    """Run requests through an engine of their own with pages of `size` rows."""
    limits = SchedulerLimits(how.pop("rows", 64), how.pop("running", 8), burst=burst)
    engine, out = Engine.of(module, how.pop("tokens", 800), limits, how.pop("size", 4), **how), Ran()
    forward = engine.run

    def run(chunks: Any) -> Any:
        logits = forward(chunks)
        for s in chunks:
            if len(logits[s]):
                out.logits[s.key, len(s.tokens) + s.steps - 1] = logits[s][0].clone()
        return logits

    engine.run = run
    with counted(out.steps, out.rows):
        for request in requests:
            engine.submit(request)
        for o in engine.outputs():
            out.outputs.setdefault((o.request, o.index), []).append(replace(o, same_step=False, proposed=0, cached=0))
    storage: Any = engine.storage
    assert storage.pages.sound({w: list(g.cached) for w, g in storage.pages.allocators.items()}) and not storage.pages.holders()
    return out


def short(self: PageAllocator, rows: np.ndarray, request: object) -> None:
    """Write a table without its last page, which a burst may reach."""
    first, pages = self.first[request], self.allocated[request][:-1]
    rows[..., first : first + len(pages)] = pages


@contextmanager
def counted(steps: list[int], rows: list[int] | None = None) -> Iterator[None]:
    """Append the numbers of steps and of rows of each burst."""
    honest = native.Plan.burst

    def burst(self: native.Plan, words: Any) -> int:
        steps.append(honest(self, words))
        if rows is not None:
            rows.append(words["rows"])
        return steps[-1]

    with swapped(native.Plan, "burst", burst):
        yield


def requests_of(module: Any, settings: list[Sampling], new: int = 21) -> list[Request]:
    """Return requests of several lengths and settings; one has two texts, one stops at some tokens, one must not at first."""
    vocab, has_source = min(90, module.config.vocab), isinstance(module, EncoderDecoder)
    some = frozenset(range(0, vocab, 11))
    given: list[dict[str, Any]] = [{"n": 2}, {"stops": some}, {"new": new - 8}, {"stops": some, "least": 9}]
    out = []
    for i, more in enumerate(given):
        prompt = tuple(torch.randint(vocab, (3 + 4 * i,), generator=torch.Generator().manual_seed(i)).tolist())
        request = Request(prompt, new, settings[i % len(settings)], source=prompt[::-1] if has_source else None)
        out.append(replace(request, **more))
    return out


def holds(module: Any, requests: list[Request], **how: Any) -> tuple[bool, Ran]:
    burst, single = ran(module, requests, **how), ran(module, requests, 1, **how)
    assert not single.steps
    return burst.same(single), burst


MIXED = [SETTINGS["greedy"], SETTINGS["all"], SETTINGS["sampled"], SETTINGS["top_p"]]


@pytest.mark.parametrize(("family", "quirk"), [*DECODED, *((f, "plain") for f in STATES if (f, "plain") not in DECODED)])
@pytest.mark.quick(18)
def test_a_burst_is_its_single_steps(family: str, quirk: str) -> None:
    """In every family that has a plan: four requests of five texts, over borders of pages."""
    if quirk not in KINDS[family].quirks:
        quirk = next(iter(KINDS[family].quirks))
    module = tiny(config_of(family, quirk), torch.float32, std=0.2)
    same, burst = holds(module, requests_of(module, MIXED))
    assert same
    planned = REFUSED.get((family, quirk), REFUSED.get(family)) is None
    assert (max(burst.steps, default=0) > 2) == planned


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.quick(4)
def test_settings(name: str, dtype: torch.dtype) -> None:
    """Each way to choose, with several texts and with one; the wider vocabulary has more than one run of numbers."""
    module = tiny(replace(LLAMA, vocab=1100), dtype, std=0.2)
    requests = requests_of(module, [SETTINGS[name]])
    for texts, most in ((requests, 7), (requests[2:3], 8)):  # of the former some end, and one takes single steps at first
        same, burst = holds(module, texts, size=16)
        assert same and max(burst.steps) == most


@pytest.mark.parametrize("name", FALLS_BACK)
def test_what_needs_python_takes_single_steps(name: str) -> None:
    module = tiny("llama", torch.float32)
    requests = [replace(r, **FALLS_BACK[name]) for r in requests_of(module, [Sampling()])]
    same, burst = holds(module, requests)
    assert same and not burst.steps
    same, burst = holds(module, [requests[0], *requests_of(module, MIXED)[1:]])  # one such text holds the others while it runs
    assert same


@pytest.mark.parametrize("packed", ["int8", "int4"])
def test_weights_in_blocks(packed: str) -> None:
    module = pack(tiny(replace(LLAMA, width=64), torch.float32), packed)
    same, burst = holds(module, requests_of(module, MIXED))
    assert same and max(burst.steps) > 2


def test_few_pages_and_preemption() -> None:
    """Texts are preempted and begun again; no text is preempted for pages that a burst takes ahead."""
    for family in ("llama", "gpt_oss"):
        module = tiny(family, torch.float32)
        requests = requests_of(module, MIXED, 30)
        for tokens, size in ((64, 4), (80, 16), (60, 1)):
            same, burst = holds(module, requests, tokens=tokens, size=size, rows=16)
            assert same and (size == 1 or burst.steps)


@pytest.mark.parametrize("how", ["itself", "draft"])
def test_with_proposals(how: str) -> None:
    """Texts that ask for proposals take bursts while they wait with them."""
    module, draft = tiny("llama", torch.float32), tiny("llama", torch.float32, seed=5) if how == "draft" else None
    requests = [replace(r, speculate=True, new=60) for r in requests_of(module, MIXED)]
    same, burst = holds(module, requests, draft=draft)
    assert same and burst.steps
    assert burst.outputs == ran(module, [replace(r, speculate=False) for r in requests]).outputs


def test_deterministic() -> None:
    """A text has the same logits alone, in any company, in bursts and in single steps."""
    module = tiny("llama", torch.float32)
    requests = requests_of(module, MIXED)
    same, burst = holds(module, requests, deterministic=True)
    assert same
    for number, request in enumerate(requests):
        alone = ran(module, [request], deterministic=True)
        assert [replace(o, request=number) for o in alone.outputs[0, 0]] == burst.outputs[number, 0]


def many_of(module: Any) -> list[Request]:
    """Return 19 requests of 23 texts, some of which end early."""
    return [request for k in range(5) for request in requests_of(module, MIXED, 20 + k)][1:]


@pytest.mark.parametrize(
    ("dtype", "packed", "deterministic"),
    [(torch.float32, None, True), (torch.bfloat16, None, False), (torch.bfloat16, "int8", False)],
    ids=str,
)
def test_many_texts(dtype: torch.dtype, packed: str | None, deterministic: bool) -> None:
    """More texts than a kernel of few rows takes, over borders of pages, and fewer as some end."""
    module = tiny(replace(LLAMA, width=64), dtype, std=0.2)
    if packed is not None:
        module = pack(module, packed)
    same, burst = holds(module, many_of(module), tokens=2400, running=32, deterministic=deterministic)
    assert same and max(burst.steps) > 1 and (max(burst.rows) > native.ROWS) == (deterministic or native.leads(dtype))


def test_mutants_of_many_texts_are_seen() -> None:
    """With no last page in the tables, and with steps that the pages do not count."""
    module = tiny(replace(LLAMA, width=64), torch.float32, std=0.2)
    requests, how = many_of(module), {"tokens": 2400, "running": 32, "deterministic": True}
    single, advance = ran(module, requests, 1, **how), Step.advance
    for owner, name, wrong in (
        (PageAllocator, "fill", short),
        (Step, "advance", lambda self, steps=1: advance(self)),
    ):
        with swapped(owner, name, wrong):
            try:
                same = ran(module, requests, **how).same(single)
            except (AssertionError, IndexError, ValueError):
                same = False
        assert not same, name


@pytest.mark.parametrize("scaling", SCALINGS)
def test_lengths_that_change_angles(scaling: str) -> None:
    """A text that outgrows a length is computed again between two bursts; new rows have the angles of the longer text."""
    module = built(scaling).float()
    same, burst = holds(module, [Request(tuple(ids(n, seed=n).tolist()), 20) for n in (5, 12, 10)], size=16)
    assert same and max(burst.steps) > 2


def test_a_stop_ends_its_text_where_it_stands() -> None:
    """Of every place in a burst; other texts go on."""
    module = tiny("llama", torch.float32)
    prompt = tuple(ids(5).tolist())
    text = [o.token.id for o in ran(module, [Request(prompt, 24)]).outputs[0, 0] if o.token]
    for at in range(1, 20):
        if text[at] in text[:at]:
            continue
        same, _ = holds(module, [Request(prompt, 24, stops=frozenset({text[at]})), Request(prompt[1:], 30)], size=16)
        assert same


def test_a_row_without_numbers_ends_in_python() -> None:
    """Weights that spoil a later position: the error is that of single steps, and comes at the same token."""
    module = tiny("gpt2", torch.float32)
    module.positions.weight.data[13] = float("nan")
    outputs = []
    for burst in (8, 1):
        engine = Engine.of(module, 64, SchedulerLimits(burst=burst), 16)
        engine.submit(Request((5, 6, 7), 30))
        outputs.append([(o.token and o.token.id, o.ended, str(o.error)) for o in engine.outputs()])
    assert outputs[0] == outputs[1] and outputs[0][-1][1] == "error" and len(outputs[0]) == 12


def choices(new: int, **more: Any) -> tuple[int, int]:
    """Return how many tokens Python chooses for a text, and how many bursts it took."""
    engine, steps, calls = Engine.of(tiny("llama", torch.float32), 400, SchedulerLimits(burst=8), 64), list[int](), list[int]()
    honest = engine.choose

    def choose(*given: Any, **how: Any) -> int:
        calls.append(honest(*given, **how))
        return calls[-1]

    engine.choose = choose
    with counted(steps):
        engine.submit(Request((1, 2, 3), new, **more))
        assert sum(o.token is not None for o in engine.outputs()) == new
    return len(calls), len(steps)


def test_a_burst_makes_its_last_choice_too() -> None:
    """Python chooses after the prompt and after the step that is recorded. The mutant leaves it the last choice of each burst."""
    assert choices(42) == (2, 5) and choices(42, sampling=SETTINGS["sampled"]) == (2, 5)

    def run(self: Burst, *given: Any) -> Any:
        done, tokens = RUN(self, *given)
        return done, [ids[: done - 1] for ids in tokens]

    with swapped(Burst, "run", run):
        assert choices(42) == (7, 5)


# Mutants.

INIT, RUN, AHEAD, BURST = Burst.__init__, Burst.run, Memory.ahead, native.Plan.burst


def words(**changed: Any) -> Any:
    """Call a burst with other words."""
    return native.Plan, "burst", lambda self, given: BURST(self, given | {name: value(given[name]) for name, value in changed.items()})


def zeros(name: str) -> Any:
    """Call a burst with zeros in place of one of its lists."""
    own = np.zeros(64, np.int64)
    return words(**{name: lambda address: own.ctypes.data})


def unwritten(self: Burst, *given: Any) -> Any:
    """Draw by the numbers of the text's first steps."""
    with swapped(self, "counts", np.zeros_like(self.counts)):
        return RUN(self, *given)


def other_seed(self: Burst, buffers: Any, texts: Any, interrupt: Any) -> None:
    """Draw by the numbers of the next text of a request."""
    INIT(self, buffers, [replace(s, index=s.index + 1) for s in texts], interrupt)


def forgetful(self: Memory, *given: Any) -> int:
    """Let a burst outgrow a length."""
    with swapped(self, "restart_lengths", []):
        return AHEAD(self, *given)


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "no last page in the tables": (PageAllocator, "fill", short),
    "no page of its own": (Memory, "ahead", lambda self, s, steps, grow: steps),
    "no stops": zeros("ends"),
    "all greedy": zeros("sampled"),
    "another text's numbers": (Burst, "__init__", other_seed),
    "a text's first numbers": (Burst, "run", unwritten),
    "an ended text's settings": (Burst, "serves", lambda self, texts: len(texts) == len(self.texts)),
}
LENGTH_MUTANTS = {"longrope": (Memory, "ahead", forgetful), "dynamic": zeros("lengths")}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_seen(mutant: str) -> None:
    module, requests = tiny("llama", torch.float32), requests_of(tiny("llama", torch.float32), MIXED)
    singles = [ran(module, requests, 1, running=running) for running in (8, 2)]
    with swapped(*MUTANTS[mutant]):
        try:
            same = all(ran(module, requests, running=running).same(single) for running, single in zip((8, 2), singles, strict=True))
        except (AssertionError, IndexError, ValueError):
            same = False
    assert not same


@pytest.mark.parametrize("scaling", LENGTH_MUTANTS)
def test_mutants_of_lengths_are_seen(scaling: str) -> None:
    module, requests = built(scaling).float(), [Request(tuple(ids(n, seed=n).tolist()), 20) for n in (5, 12, 10)]
    single = ran(module, requests, 1, size=16)
    with swapped(*LENGTH_MUTANTS[scaling]):
        assert not ran(module, requests, size=16).same(single)
