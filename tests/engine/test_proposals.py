"""Proposed tokens: the same texts as without, in fewer steps, whatever the model, the draw, the pages and the neighbours."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import tiny
from campaigns.speculation import SETTINGS, campaign, ids, requests, texts
from pellucid.engine.engine import Engine
from pellucid.engine.memory import Memory
from pellucid.engine.plans import Plans
from pellucid.engine.proposals import MOST, PromptLookup
from pellucid.ops import native
from pellucid.ops.sampling.settings import Sampling
from pellucid.watching.watch import watch
from tiny import swapped


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "deepseek_v3"])  # plain rows, windows and sinks, latents
@pytest.mark.quick(5)
def test_the_text_is_the_same(family: str) -> None:
    """The quick form of the campaign, which asks it of a thousand prompts."""
    report = campaign(3, 0, [family])
    assert report["faults"] == [] and report["accepted"][family]["lookup"] > 3 < report["accepted"][family]["draft"]


@pytest.mark.skipif(not native.available(), reason="no kernels here")
@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_deterministic_to_the_bit(family: str) -> None:
    module = tiny.tiny(family, torch.float32)
    for sampling in SETTINGS.values():
        plain, _ = texts(module, requests(1, sampling), False, deterministic=True)
        given, _ = texts(module, requests(1, sampling), True, deterministic=True)
        assert [[replace(o, same_step=False, proposed=0) for o in text] for text in given] == plain


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
@pytest.mark.quick(2)
def test_few_pages_chunks_and_preemption(family: str) -> None:
    """Texts are preempted and begin again; prompts in chunks share steps with texts that decode; pages fit for one text."""
    module, wanted = tiny.tiny(family), requests(2, Sampling())
    plain, _ = texts(module, wanted, False)
    for how in ({"rows": 3}, {"tokens": 72}, {"tokens": 120, "rows": 5}, {"size": 1}, {"prefix_cache": False, "running": 2}):
        given, _ = texts(module, wanted, True, **how)
        assert ids(given) == ids(plain), how


def faulty(name: str) -> Any:
    """Return the mutant `name` of the engine: (owner, attribute, stand-in)."""
    step, accept = Plans.step, Memory.accept

    def shifted(self: Plans, feed: Any, proposed: Any, **burst: Any) -> Any:
        return step(self, feed, {r: [(t + 1) % tiny.V for t in tokens] for r, tokens in proposed.items()}, **burst)

    def trusting(self: Engine, s: Any, logits: Any) -> None:
        storage: Any = self.storage
        proposed, s.proposed = s.proposed, []
        for token in proposed:
            s.tokens.append(token)
            s.stored += 1
            accept(storage, s.key, s.stored)
        self.sample(s, logits[-1])
        s.pace.learn(len(proposed), len(proposed))

    def late(self: Memory, key: Any, tokens: int) -> None:
        accept(self, key, tokens - 1)

    return {"rows": (Plans, "step", shifted), "trusting": (Engine, "sample_proposed", trusting), "late": (Memory, "accept", late)}[name]


@pytest.mark.parametrize("name", ["rows", "trusting", "late"])
def test_mutants(name: str) -> None:
    """Proposals that are computed wrongly, accepted unseen, or whose rows are miscounted."""
    module, sampling = tiny.tiny("llama"), SETTINGS["penalised"]
    plain, _ = texts(module, requests(0, sampling), False)
    with swapped(*faulty(name)):
        try:
            given = ids(texts(module, requests(0, sampling), True)[0])
        except (AssertionError, IndexError, KeyError):
            return
    assert given != ids(plain)


def test_a_watch_sees_the_same() -> None:
    module = tiny.tiny("llama")
    request = requests(0, SETTINGS["penalised"])[0]

    def seen(speculate: bool) -> list[Any]:
        engine = Engine.of(module, 200, size=4)
        engine.submit(replace(request, speculate=speculate))
        with watch(module, only="layers.0.out") as records:
            list(engine.outputs())
        return [record.value.tolist() for record in records]

    assert seen(True) == seen(False)


def test_lookup() -> None:
    """What followed the longest ending that stood before; more while it is accepted, none for a while where it is not."""
    lookup = PromptLookup()
    assert lookup.propose([1, 2, 3, 4, 9, 3, 4]) == [9, 3]
    assert lookup.propose([1, 2, 3, 4, 9, 3, 4, 9]) == [3, 4]
    assert lookup.propose([1, 2, 3, 4, 9, 3, 4, 9], 1) == [3]
    assert lookup.propose([1, 2, 3, 4, 9, 3, 4, 9, 8]) == []
    lookup.learn(2, 2)
    assert lookup.most == 5
    lookup.learn(5, 5)
    assert lookup.most == MOST
    lookup.learn(7, 3)
    assert lookup.most == 3 and not lookup.pause
    lookup.learn(3, 0)
    assert lookup.most == 1 and not lookup.pause
    lookup.learn(1, 0)
    assert lookup.pause == 4
    text = [5, 6, 7] * 4
    assert [bool(lookup.propose(text + [5, 6, 7][:i])) for i in range(4)] + [bool(lookup.propose([*text, 5, 6, 7, 5]))] == [False] * 4 + [
        True
    ]
    assert PromptLookup().propose([]) == PromptLookup().propose([1]) == []
