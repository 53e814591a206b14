"""A draft model: the texts are those without it, whatever it proposes; and what it has read of them is right."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

import tiny
from campaigns.speculation import near
from pellucid.engine.draft import Draft, Followed, require_draft, require_proposals
from pellucid.engine.engine import Engine
from pellucid.engine.engine_thread import EngineThread
from pellucid.engine.generation import generate
from pellucid.engine.memory import Memory
from pellucid.engine.plans import Plans
from pellucid.engine.requests import Output, Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.ops import native
from pellucid.ops.sampling.settings import Sampling
from tiny import V, ids, swapped

SETTINGS = {
    "greedy": Sampling(seed=1),
    "sampled": Sampling(0.7, seed=5),
    "penalised": Sampling(0.8, top_k=9, top_p=0.9, repetition=1.2, presence=0.3, seed=7, bias={3: 2.0}),
}


def requests(sampling: Sampling, new: int = 24) -> list[Request]:
    """Return requests of several lengths; one has two texts, one stops at some tokens."""
    out = [Request(tuple(ids(n, seed=n).tolist()), new, sampling, logprobs=2, speculate=True) for n in (3, 11, 26)]
    return [out[0], replace(out[1], n=2), replace(out[2], stops=frozenset(range(0, V, 9)), least=5)]


def engine_of(module: Any, draft: Any, **how: Any) -> Engine:
    limits = SchedulerLimits(how.pop("rows", 64), how.pop("running", 8))
    return Engine.of(module, how.pop("tokens", 400), limits, how.pop("size", 4), draft=draft, **how)


def texts(engine: Engine, wanted: list[Request]) -> list[list[Output]]:
    """Return the outputs of each text as they are without proposals. Fails if a page of the draft is left over."""
    for request in wanted:
        engine.submit(request)
    out: dict[tuple[int, int], list[Output]] = {}
    for o in engine.outputs():
        out.setdefault((o.request, o.index), []).append(replace(o, cached=0, same_step=False, proposed=0))
    assert clean(engine)
    return [out[key] for key in sorted(out)]


def clean(engine: Engine) -> bool:
    """True if no text has a page of the draft, and every page is accounted for."""
    draft = engine.draft
    if draft is None:
        return True
    memory = draft.memory
    sound = memory.pages.sound() if memory.cache is None else memory.cache.sound()
    return not draft.texts and not memory.pages.holders() and sound


def ids_of(outputs: list[list[Output]]) -> list[list[int]]:
    return [[o.token.id for o in text if o.token is not None] for text in outputs]


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.quick(5)
def test_the_text_is_the_same(family: str, name: str) -> None:
    """With a draft that is often right, one of another family with a window, and a smaller vocabulary, which knows nothing."""
    module, wanted = tiny.tiny(family), requests(SETTINGS[name])
    plain = texts(engine_of(module, None), [replace(r, speculate=False) for r in wanted])
    few = tiny.tiny(replace(tiny.LLAMA, vocab=V - 5), seed=3)
    for draft, least in ((near(family), 10), (tiny.tiny("gpt_oss", seed=4), 0), (few, 0)):
        engine = engine_of(module, draft)
        given = texts(engine, wanted)
        assert ids_of(given) == ids_of(plain)
        for a, b in zip(itertools.chain(*given), itertools.chain(*plain), strict=True):
            assert a.ended == b.ended and (
                a.token is None or b.token is None or abs((a.token.logprob or 0) - (b.token.logprob or 0)) < 1e-9
            )
        assert engine.queue.proposed > 1 and engine.queue.accepted >= least


@pytest.mark.skipif(not native.available(), reason="no kernels here")
def test_deterministic_to_the_bit() -> None:
    module = tiny.tiny("llama", torch.float32)
    for sampling in SETTINGS.values():
        wanted = requests(sampling)
        plain = texts(engine_of(module, None, deterministic=True), [replace(r, speculate=False) for r in wanted])
        engine = engine_of(module, near("llama", torch.float32), deterministic=True)
        assert texts(engine, wanted) == plain
        assert engine.queue.accepted


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "deepseek_v3", "gpt2"])
@pytest.mark.quick(4)
def test_a_model_accepts_all_that_it_proposes_to_itself(family: str) -> None:
    """So it has read each text as it is: in chunks, over pages that windows give back, preempted and begun again."""
    module = tiny.tiny(family)
    for how, sampling in zip(({}, {"rows": 20, "size": 1}, {"tokens": 150}), SETTINGS.values(), strict=True):
        engine = engine_of(module, module, **how)
        stopped = sum(text[-1].ended == "stop" for text in texts(engine, requests(sampling)))
        assert 0 <= engine.queue.proposed - engine.queue.accepted <= stopped and engine.queue.proposed > 30, how


def test_no_page_is_taken_where_there_is_none() -> None:
    """A draft with few pages, or few positions, proposes to some texts; all are written."""
    module = tiny.tiny("llama")
    plain = texts(engine_of(module, None), requests(SETTINGS["sampled"]))
    for draft in (tiny.tiny(replace(tiny.GPT2, positions=20)), near("llama")):
        engine = engine_of(module, draft)
        if draft.config.positions is None:
            engine.draft = engine.storage.draft = Draft(draft, V, 12, 4, engine.limits)  # type: ignore[attr-defined]
        assert ids_of(texts(engine, requests(SETTINGS["sampled"]))) == ids_of(plain)
        assert engine.queue.proposed


def test_pages_are_free_after_a_cancel_and_a_preemption() -> None:
    engine = engine_of(tiny.tiny("llama"), near("llama"), tokens=120, prefix_cache=False)
    assert engine.draft is not None
    numbers = [engine.submit(r) for r in requests(SETTINGS["sampled"], 60)]
    while not engine.queue.preempted and not engine.idle:
        engine.step()
        assert engine.draft.texts.keys() <= {s.key for s in engine.queue.running}
    assert engine.queue.preempted and engine.draft.texts
    for number in numbers:
        engine.cancel(number)
    engine.step()
    assert engine.idle and clean(engine) and engine.draft.memory.pages.free_pages == engine.draft.memory.pages.count


def test_a_later_text_finds_what_the_draft_has_read() -> None:
    engine, request = engine_of(tiny.tiny("llama"), near("llama")), requests(SETTINGS["greedy"])[0]
    prompt = tuple(ids(40).tolist())
    for _ in range(2):
        texts(engine, [replace(request, prompt=prompt)])
    assert engine.draft is not None and engine.draft.memory.cache is not None
    assert engine.draft.memory.cache.hits >= 36


def faulty(name: str) -> Any:
    """Return the mutant `name` of what a draft remembers: (owner, attribute, stand-in)."""
    follow, step, count = Draft.follow, Plans.step, Draft.count

    def trusting(self: Draft, s: Any, most: int) -> Followed | None:
        text = self.texts.get(s.key)
        if text is not None and text.guessed:
            text.guessed = s.tokens[len(text.own.tokens) :][: len(text.guessed)]
        return follow(self, s, most)

    def early(self: Plans, feed: Any, proposed: Any, ahead: Any = {}, **burst: Any) -> Any:  # noqa: B006
        return step(self, feed, proposed, dict.fromkeys(ahead, 0), **burst)

    def late(self: Draft, own: Any, rows: int) -> None:
        count(self, own, max(own.stored, rows - 1))

    return {"trusting": (Draft, "follow", trusting), "places": (Plans, "step", early), "late": (Draft, "count", late)}[name]


@pytest.mark.parametrize("name", ["trusting", "places", "late"])
def test_mutants(name: str) -> None:
    """Rows of rejected guesses kept, guesses all in one place, rows counted late: the text stays, and proposals are rejected."""
    module, wanted = tiny.tiny("llama"), requests(SETTINGS["sampled"])
    plain = texts(engine_of(module, None), wanted)

    def accepted() -> int:
        engine = engine_of(module, near("llama"))
        assert ids_of(texts(engine, wanted)) == ids_of(plain)
        return engine.queue.accepted

    right = accepted()
    with swapped(*faulty(name)):
        try:
            assert accepted() != right
        except (AssertionError, IndexError, KeyError):
            return


def prompts_read(engine: Engine, extend: Any) -> int:
    """Write six texts one after another with guesses by `extend`. Returns the number of prompts that the draft has read for them."""
    assert engine.draft is not None
    draft, opened = engine.draft, list[Any]()
    begin = draft.memory.open
    with swapped(draft.memory, "open", lambda own: opened.append(own) or begin(own)), swapped(draft, "extend", extend):
        for seed in range(6):
            texts(engine, [Request(tuple(ids(20, seed=seed).tolist()), 60, speculate=True)])
    return len(opened)


def test_a_draft_that_is_always_wrong_reads_few_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked at most thirty times in 360 steps. Once it is right it is asked as at first."""
    module = tiny.tiny("llama")
    engine = engine_of(module, module, prefix_cache=False, size=32)  # every page is a product of its own
    assert engine.draft is not None
    right = engine.draft.extend

    def wrong(s: Any, out: list[int], *row: Any) -> bool:
        goes_on = right(s, out, *row)
        out[-1] = (out[-1] + 1) % V
        return goes_on

    assert prompts_read(engine, wrong) < 6 and engine.queue.proposed <= 30 and not engine.queue.accepted
    engine.draft.pace.pause = 0
    assert prompts_read(engine, right) == 6 and engine.queue.accepted > 200
    other = engine_of(module, module, prefix_cache=False, size=32)
    assert other.draft is not None
    monkeypatch.setattr(other.draft.pace, "learn", lambda *numbers: None)
    right = other.draft.extend
    assert prompts_read(other, wrong) == 6


def test_a_draft_that_fails_harms_no_text() -> None:
    module, got = tiny.tiny("llama"), list[Output]()
    plain = texts(engine_of(module, None), requests(SETTINGS["sampled"]))
    engine, faults = engine_of(module, near("llama")), list[Exception]()
    assert engine.draft is not None
    calls = itertools.count()

    def run(*given: Any) -> Any:
        if next(calls) == 5:
            raise MemoryError
        return step(*given)

    step = engine.draft.forward.plans.step
    engine.draft.forward.plans.step = run  # type: ignore[method-assign]
    thread = EngineThread(engine, got.extend, faults.append)
    for request in requests(SETTINGS["sampled"]):
        thread.submit(request)
    while sum(o.ended is not None for o in got) < 4:
        pass
    assert thread.close() and thread.broken is None and [type(f) for f in faults] == [MemoryError] and clean(engine)
    keys = sorted({(o.request, o.index) for o in got})
    assert [[o.token.id for o in got if (o.request, o.index) == key and o.token] for key in keys] == ids_of(plain)


def test_an_idle_engine_keeps_its_draft() -> None:
    module, draft = tiny.tiny("llama"), near("llama")
    free = list[Engine]()
    for used in (draft, None, draft):
        list(generate(module, requests(SETTINGS["greedy"]), free, draft=used))
    assert [e.draft and e.draft.module for e in free] == [None, draft]


def test_models_that_take_no_proposals_are_named() -> None:
    for cfg, check, key in (
        ("t5", require_proposals, "speculate.source"),
        (replace(tiny.LLAMA, prefix=True), require_draft, "speculate.draft"),
    ):
        with pytest.raises(UseError) as refused:
            check(tiny.tiny(cfg), "name")
        assert refused.value.key == key
    require_draft(tiny.tiny("llama"), "name")
    assert Memory.draft is None
