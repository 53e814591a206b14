"""Texts that grow beyond the length at which rotary positions change equal transformers' `generate`, token by token.

LongRope (Phi-3): at the bound transformers drops its cache and reads the text again with the long factors. Dynamic NTK (Llama): each new
row is rotated by the text's current length, and stored rows keep their rotation. transformers' dynamic frequencies remember the longest
text so far, and its batches rotate short rows by their longest; so it is reset before each prompt, which gives every text as it is alone.
"""

import warnings
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from covering import FULL
from judge import Judge, make, ours, promoted
from pellucid.api.model import Model
from pellucid.api.trace import trace
from pellucid.batch.step import Step
from pellucid.engine.engine import Engine
from pellucid.engine.memory import Memory
from pellucid.engine.requests import Request, Sequence
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder
from pellucid.ops import native
from pellucid.watching.watch import watch
from tiny import swapped

ORIGINAL, NEW = 32, 14
LENGTHS = (20, 31, 32, 33, 25, 7, 40)  # the first to cross, of just its length, beyond, and one that never comes there
CASES = [("phi3", "longrope"), ("phi3", "longrope of a part, tied"), ("llama", "dynamic")][0 if FULL else 1 :]


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def prompt(n: int, seed: int = 0) -> list[int]:
    draw = torch.Generator().manual_seed(100 * n + seed)
    return torch.randint(1, 97, (n,), generator=draw).tolist()


def theirs(j: Judge, prompts: Tensor, new: int = NEW) -> Tensor:
    """Return the new tokens of transformers' own `generate`, [B new]."""
    fresh(j)
    with promoted(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = j.hf.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=new, do_sample=False, eos_token_id=None)
    return cast(Tensor, out[:, prompts.shape[1] :])


def fresh(j: Judge) -> None:
    """Reset the judge's rotary table to its original length."""
    rope = j.hf.model.rotary_emb
    rope.max_seq_len_cached = rope.original_max_seq_len
    rope.inv_freq = rope.original_inv_freq.clone()


@pytest.fixture(scope="module", params=CASES, ids=[" ".join(c) for c in CASES])
def case(request: Any) -> tuple[Judge, Model, dict[int, list[int]]]:
    """Return a judge, our model of its folder, and the judge's texts for a prompt of each length."""
    family, quirk = request.param
    j = make(family, quirk)
    model = Model(family, ours(j.folder)[1], cast(Any, None), {}, None)
    with torch.no_grad():
        return j, model, {n: theirs(j, torch.tensor([prompt(n)]))[0].tolist() for n in LENGTHS}


def written(model: Model, prompts: list[list[int]], **how: Any) -> list[list[int]]:
    return model.generate(prompts, max_new_tokens=NEW, eos=None, **how)


def by_budget(self: Memory, s: Sequence) -> int:
    """Return the longest length that the text may reach."""
    return s.request.budget


def never(self: Memory, s: Sequence) -> int:
    """Return the prompt's length, so that no text is read again."""
    return len(s.request.prompt)


def row_by_row(self: Step) -> Tensor:
    """Return each row's own position, whatever the text's length."""
    return self.positions + 1


def test_one_prompt_at_a_time(case: tuple[Judge, Model, dict[int, list[int]]]) -> None:
    _, model, want = case
    assert {n: written(model, [prompt(n)])[0] for n in LENGTHS} == want
    with swapped(Memory, "angle_length", by_budget):
        assert written(model, [prompt(20)])[0] != want[20]
    if model.name == "phi3":
        with swapped(Memory, "angle_length", never):
            assert written(model, [prompt(20)])[0] != want[20]
    with swapped(Step, "totals", row_by_row), native.off():
        assert written(model, [prompt(40)])[0] != want[40]


def test_a_ragged_batch(case: tuple[Judge, Model, dict[int, list[int]]]) -> None:
    """In a batch of texts that cross, stay short or start long, each is what it is alone."""
    _, model, want = case
    assert written(model, [prompt(n) for n in LENGTHS]) == list(want.values())


def test_a_batch_of_one_length(case: tuple[Judge, Model, dict[int, list[int]]]) -> None:
    """A batch of equal lengths equals transformers' own batch."""
    j, model, _ = case
    rows = torch.tensor([prompt(27, seed) for seed in range(3)])
    assert model.generate(rows, max_new_tokens=NEW, eos=None).tolist() == theirs(j, rows).tolist()


def test_the_first_token_is_the_forwards(case: tuple[Judge, Model, dict[int, list[int]]]) -> None:
    _, model, want = case
    assert {n: int(model(torch.tensor([prompt(n)]))[0, -1].argmax()) for n in LENGTHS} == {n: w[0] for n, w in want.items()}


def batch(model: Model, pages: int, size: int, limits: SchedulerLimits, cached: bool = True) -> tuple[dict[int, list[int]], int]:
    """Return an engine's texts over few pages for prompts of all lengths, and the number of rows that it read."""
    module = cast(Decoder, model.module)
    engine = Engine.of(module, pages * size, limits, size, cached)
    read, run = 0, engine.run

    def counted(chunks: Any) -> Any:
        nonlocal read
        read += sum(chunks.values())
        return run(chunks)

    engine.run = counted
    numbers = {engine.submit(Request(tuple(prompt(n)), NEW)): n for n in LENGTHS}
    out: dict[int, list[int]] = {n: [] for n in LENGTHS}
    for output in engine.outputs():
        assert output.token is not None
        out[numbers[output.request]].append(output.token.id)
        assert engine.storage.cache is None or engine.storage.cache.sound()  # type: ignore[attr-defined]
    return out, read


@pytest.mark.parametrize(("rows", "cached"), [(2, True), (5, False), (64, True)])
@pytest.mark.quick(5)
def test_few_pages_and_small_chunks(case: tuple[Judge, Model, dict[int, list[int]]], rows: int, cached: bool) -> None:
    """Texts are right when they are preempted before or after the bound, with prompts and second readings cut anywhere."""
    _, model, want = case
    out, read = batch(model, 14, 4, SchedulerLimits(rows, 5), cached)
    reopen = [n for n in LENGTHS if model.name == "phi3" and n <= ORIGINAL < n + NEW - 1]
    once = sum(n + NEW - 1 for n in LENGTHS) + ORIGINAL * len(reopen)
    assert out == want and (cached or rows == 2 or read > once)


def test_the_prefix_cache_keeps_both_readings_apart(case: tuple[Judge, Model, dict[int, list[int]]]) -> None:
    """Rows that were stored for a short text do not serve a long one, nor the other way round."""
    j, model, _ = case
    text = prompt(40)
    prompts = [text[:20], text[:35], text[:24], text[:40], text[:33], text[:18]]
    want = [theirs(j, torch.tensor([ids]))[0].tolist() for ids in prompts]

    def got(engine: Engine) -> Iterator[list[int]]:
        for ids in prompts * 2:
            engine.submit(Request(tuple(ids), NEW))
            yield [output.token.id for output in engine.outputs() if output.token is not None]

    engine = Engine.of(cast(Decoder, model.module), 400, size=4)
    assert list(got(engine)) == want * 2 and engine.storage.cache.hits > 100  # type: ignore[attr-defined]
    with swapped(Memory, "root", lambda self, s: "one for all"):
        mutant = Engine.of(cast(Decoder, model.module), 400, size=4)
        assert any(out != own for out, own in zip(got(mutant), want * 2, strict=True))


def test_each_of_several_texts_crosses(case: tuple[Judge, Model, dict[int, list[int]]]) -> None:
    """Texts of one request share its prompt's pages, and each is read again by itself."""
    _, model, want = case
    engine = Engine.of(cast(Decoder, model.module), 400, size=4)
    engine.submit(Request(tuple(prompt(25)), NEW, n=3))
    out: dict[int, list[int]] = {}
    for output in engine.outputs():
        assert output.token is not None
        out.setdefault(output.index, []).append(output.token.id)
    assert out == dict.fromkeys(range(3), want[25])


def test_a_watch_sees_the_second_reading(case: tuple[Judge, Model, dict[int, list[int]]]) -> None:
    """The watched step records all rows of the text that is read again and one of the others; no text changes."""
    _, model, want = case
    engine = Engine.of(cast(Decoder, model.module), 400, size=4)
    numbers = [engine.submit(Request(tuple(prompt(n)), NEW)) for n in (20, 25)]
    out: dict[int, list[int]] = {n: [] for n in numbers}
    with engine.watch(numbers[0], only="layers.0.attn.q_rot") as seen:
        for output in engine.outputs():
            assert output.token is not None
            out[output.request].append(output.token.id)
    assert list(out.values()) == [want[20], want[25]]
    reopen = [] if model.name == "llama" else [ORIGINAL + 1]
    rows = [s.shape[1] for s in seen]
    assert [n for n in rows if n > 1] == [20, *reopen] and len(rows) == NEW


def test_a_trace_of_a_text_that_crosses(case: tuple[Judge, Model, dict[int, list[int]]]) -> None:
    """Each step's logits are those of a forward over all tokens so far, and a deferred table is that of its step."""
    _, model, want = case
    model.generation = {"eos_token_id": 97}  # none
    traced = trace(model, prompt(25), NEW, inside="listed")
    assert traced.new == want[25]
    seen = traced.all("layers.1.attn.pattern")
    late = [s.later().value for s in seen if s.later is not None]
    recomputed = [s.value for s in trace(model, prompt(25), NEW, inside="beside").all("layers.1.attn.pattern")]
    assert len(late) == len(recomputed) == NEW and all(torch.equal(a, b) for a, b in zip(late, recomputed, strict=True))
    if model.name == "phi3":
        with swapped(Memory, "reopen", released), pytest.raises(UseError, match="others have been given"):
            [s.later().value for s in trace(model, prompt(25), NEW, inside="listed").all("layers.1.attn.pattern") if s.later is not None]
        for k, s in enumerate(traced.all("logits")):
            tokens = torch.tensor([[*prompt(25), *want[25][:k]]])
            assert float((s.value[0, -1] - model(tokens)[0, -1]).abs().max()) < 1e-10


def released(self: Memory, s: Sequence) -> int:
    """Release stored rows although a watch may still read them."""
    self.close(s)
    return self.open(s)


def test_plans_replay_what_the_forward_does(case: tuple[Judge, Model, dict[int, list[int]]]) -> None:
    """In float32 plans give the forward's texts, with the native kernels and without, watched or not."""
    j, _, _ = case
    model = Model(j.family, ours(j.folder, torch.float32)[1], cast(Any, None), {}, None)
    got = written(model, [prompt(n) for n in LENGTHS])
    with native.off():
        assert written(model, [prompt(n) for n in LENGTHS]) == got
    with watch(model.module, only="logits"):
        assert written(model, [prompt(n) for n in LENGTHS]) == got
