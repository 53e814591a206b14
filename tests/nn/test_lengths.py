"""Rotary scalings that depend on the text's length equal transformers on both sides of the border and in texts that cross it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from judge import make, ours, prompts
from pellucid import config as c
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.step import Step
from pellucid.engine.engine import Engine
from pellucid.engine.requests import Request
from pellucid.nn.transformer import Decoder
from tiny import LLAMA, far, ids, swapped, tiny

ORIGINAL = 16
SHORT, LONG = (1.0, 1.1, 1.5, 2.0), (1.0, 3.0, 9.0, 20.0)
SCALINGS = {"dynamic": c.Dynamic(3.0, ORIGINAL), "longrope": c.LongRope(SHORT, LONG, ORIGINAL, 1.2)}
TOTALS = Step.totals


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


CASES = [
    ("llama", "dynamic"),
    ("llama", "longrope"),
    ("phi3", "longrope"),
    ("phi3", "longrope of a part, tied"),
    ("gemma3_text", "by length"),
]


@pytest.mark.parametrize(("family", "quirk"), CASES)
def test_both_sides_of_the_border(family: str, quirk: str) -> None:
    """With an original context of 32, prompts within it, at it, one token beyond and far beyond are transformers'.

    They grow, since transformers' dynamic frequencies remember the longest text so far.
    """
    j = make(family, quirk)
    model = ours(j.folder)[1]

    def error(length: int) -> float:
        rows = prompts(family, length)
        return far(model(*rows), j.logits(*rows))

    assert max(error(length) for length in (9, 31, 32, 33, 60)) < 1e-9
    with swapped(Step, "totals", lambda self: TOTALS(self) + 1):
        assert error(32 if quirk != "dynamic" else 60) > 1e-6  # one token more crosses the border


def built(scaling: str) -> Decoder:
    attn = c.Attention(4, 2, 8, c.Rope(8, 500.0, scaling=SCALINGS[scaling]))
    return tiny(replace(LLAMA, layers=(c.Layer(attn, c.Mlp(48)),) * 2))  # type: ignore[no-any-return]


NEW = 6
PROMPTS = [ids(n, seed=n).tolist() for n in (5, 12, 10, 20)]  # within; across the border; up to it; beyond


def generated(model: Decoder, prompts: list[list[int]]) -> list[tuple[Tensor, Tensor]]:
    """Return each prompt's text with its new tokens [1 T], and the logits of each step [NEW V]."""
    engine, rows = Engine.of(model, 200, size=16), dict[int, list[Tensor]]()
    inner, texts = engine.run, dict[int, list[int]]()

    def recorded(chunks: Any) -> Any:
        out = inner(chunks)
        for s in chunks:
            rows.setdefault(s.number, []).append(out[s][-1].clone())
            texts[s.number] = s.tokens
        return out

    engine.run = recorded
    for p in prompts:
        engine.submit(Request(tuple(p), NEW))
    list(engine.outputs())
    return [(torch.tensor([texts[i]]), torch.stack(rows[i])) for i in range(len(prompts))]


def each_row(self: Step) -> Tensor:
    """Return each row's own position, as a mutant."""
    return self.positions + 1 if self.spans else TOTALS(self)


def budget(self: Step) -> Tensor:
    """Return the longest length that the text may reach, as a mutant."""
    return TOTALS(self) + NEW


def longest(self: Step) -> Tensor:
    """Return the longest request's length for all, as a mutant."""
    return TOTALS(self).amax(-1, keepdim=True).expand(self.positions.shape)


def truth(model: Decoder, scaling: str, text: Tensor) -> Tensor:
    """Return the logits of each step by forwards without a cache, [NEW V].

    longrope: one over the text as long as it was then.  dynamic: one whose rows are rotated as when they were read.
    """
    read = text.shape[1] - NEW
    if scaling == "longrope":
        return torch.stack([model(text[:, : read + k])[0, -1] for k in range(NEW)])
    with swapped(Step, "totals", lambda self: (self.positions + 1).clamp(min=read)):
        return model(text)[0, -NEW - 1 : -1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("scaling", SCALINGS)
def test_generation_is_forwards_without_a_cache(scaling: str) -> None:
    model = built(scaling)

    def gap() -> float:
        texts = generated(model, PROMPTS)
        with swapped(Step, "totals", TOTALS):
            return max(far(rows, truth(model, scaling, text)) for text, rows in texts)

    assert gap() < 1e-10
    for mutant in (each_row, budget, longest):
        with swapped(Step, "totals", mutant):
            assert gap() > 1e-4, mutant


@pytest.mark.parametrize("scaling", SCALINGS)
def test_batch_is_lone(scaling: str) -> None:
    """Each request follows its own length, though one step holds short and long ones."""
    model = built(scaling)

    def gap() -> float:
        return max(far(rows, generated(model, [p])[0][1]) for p, (_, rows) in zip(PROMPTS, generated(model, PROMPTS), strict=True))

    assert gap() < 1e-10
    with swapped(Step, "totals", longest):
        assert gap() > 1e-4


def test_what_was_read_together_goes_with_its_request() -> None:
    """A released slot keeps nothing of its old request."""
    pages = PagedCache(8, 4)
    pages.angle_length["a"] = 30
    step = Step.paged(pages, {"a": 3, "b": 2})
    assert step.totals().tolist() == [[30, 30, 30, 2, 2]]
    step.advance()
    pages.release("a")
    assert pages.angle_length == {} and Step.paged(pages, {"a": 1}).totals().tolist() == [[1]]


def test_padded_rows_have_lengths_of_their_own() -> None:
    """Padding does not count, and a short row beside a long one stays short."""
    model, tokens = built("longrope"), ids(2, 20)
    padding = torch.ones_like(tokens)
    padding[0, 11:] = 0
    step = Step.plain(tokens, padding)
    assert step.totals().tolist() == [[11], [20]]
    out = model(tokens, step)
    assert far(out[0, :11], model(tokens[:1, :11])[0]) < 1e-10 and far(out[1], model(tokens[1:])[0]) < 1e-10
