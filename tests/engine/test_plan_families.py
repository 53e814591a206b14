"""Every family's batched decode step is a plan equal to its forward bit for bit, or refused for the reason in one table.

Asked of the cases that have every part; with PELLUCID_FULL=1 of all.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from covering import COVER, PLAIN_COVER, config_of
from kinds import KINDS, WRITES
from pellucid import config as c
from pellucid.batch.kv_cache import PagedCache, Span
from pellucid.batch.step import Step
from pellucid.engine.plans import Plans, StepBuffers
from pellucid.nn.transformer import Encoder, EncoderDecoder
from pellucid.ops import native
from test_plan import needs_kernels
from test_quant import pack
from tiny import swapped, tiny

# (family, quirk), or a family in all its quirks: what its step does that no kernel does yet
REFUSED: dict[Any, str] = {
    "deepseek_v32": "the choice of keys",
    "glm_moe_dsa": "the choice of keys",
    **dict.fromkeys(("mamba", "falcon_mamba", "jamba"), "a scan with a decay for each number of a state"),
}  # fmt: skip
LENGTHS = {"a": 7, "b": 21, "c": 1}
FEED = [{"a": 5}, {"b": 9, "a": 4, "c": 3}, {"c": 1, "a": 2, "b": 3}, {"b": 8}, {"b": 4, "c": 6, "a": 90}]


def decodes(family: str) -> bool:
    return KINDS[family].task in WRITES


DECODED = [(f, q) for f, q in COVER if decodes(f)]


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def prefilled(model: Any, planned: bool) -> Plans:
    """Return three requests whose prompts are read, each with a source of its own if there is an encoder."""
    pages, draw = PagedCache(40, 4), torch.Generator().manual_seed(3)
    for i, (request, n) in enumerate(LENGTHS.items()):
        pages.angle_length[request] = n + 12
        step, tokens = Step.paged(pages, {request: n}), torch.randint(90, (1, n), generator=draw)
        if isinstance(model, EncoderDecoder):
            source = torch.randint(90, (1, 5 + i), generator=draw)
            model(source, tokens, step, Step(torch.arange(5 + i)[None], (Span(request, 0, 5 + i),)))
        else:
            model(tokens, step)
        step.advance()
    return Plans(model, pages, planned)


def steps(model: Any, planned: bool) -> tuple[list[Tensor], Plans]:
    made = prefilled(model, planned)
    return [made.step(feed).clone() for feed in FEED], made


def same(model: Any) -> bool:
    (got, made), (want, _) = steps(model, True), steps(model, False)
    return all(torch.equal(a, b) and bool(a.isfinite().all()) for a, b in zip(got, want, strict=True)) and bool(made.buffers)


@needs_kernels
@pytest.mark.parametrize(("family", "quirk"), DECODED)
@pytest.mark.quick(11)
def test_a_family_is_planned_or_refused(family: str, quirk: str) -> None:
    model = tiny(config_of(family, quirk), torch.float32, std=0.2)
    assert not isinstance(model, Encoder)
    (got, made), (want, _) = steps(model, True), steps(model, False)
    assert all(torch.equal(a, b) and bool(a.isfinite().all()) for a, b in zip(got, want, strict=True))
    why = REFUSED.get((family, quirk), REFUSED.get(family))
    assert [(p.plan is not None, p.refused is not None) for p in made.buffers.values()] == [(why is None, why is not None)] * 2
    with native.off():
        theirs, _ = steps(model, True)
    gap = max(float((a - b).abs().max()) for a, b in zip(got, theirs, strict=True))
    assert gap < 2e-4 * max(float(b.abs().max()) for b in theirs)


HELD = [f for f in PLAIN_COVER if decodes(f)]


@needs_kernels
@pytest.mark.parametrize("family", HELD)
@pytest.mark.quick(11)
def test_in_bfloat16(family: str) -> None:
    """In bfloat16 a plan's mean error against float64 is at most twice that of torch's forward."""
    cfg = config_of(family, "plain")
    model = tiny(cfg, torch.bfloat16, std=0.2)
    assert same(model)
    truth, exact = tiny(cfg, torch.float64, std=0.2), []
    for p, low in zip(truth.parameters(), model.parameters(), strict=True):
        p.copy_(low)
    exact = torch.cat(steps(truth, False)[0])
    with native.off():
        theirs = torch.cat(steps(model, True)[0])
    ours = torch.cat(steps(model, True)[0])
    gap, other = ((x.double() - exact).abs().mean() for x in (ours, theirs))
    assert gap <= 2 * other + 1e-6


def named(made: Plans) -> set[str]:
    """Return the ops of a model's plans."""
    return {line.op.name for place in made.buffers.values() if place.plan for line in place.plan.calls}


@needs_kernels
@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("family", HELD)
@pytest.mark.quick(16)
def test_in_blocks(family: str, form: str) -> None:
    """Weights in blocks are planned as plain ones are, experts and latents too, and only a few matrices are made plain."""
    cfg = config_of(family, "plain")
    model = pack(tiny(cfg, torch.float32, std=0.2), form)
    (got, made), (want, _) = steps(model, True), steps(model, False)
    assert all(torch.equal(a, b) and bool(a.isfinite().all()) for a, b in zip(got, want, strict=True))
    assert all((place.plan is not None) == (family not in REFUSED) for place in made.buffers.values())
    if family in REFUSED:
        return
    routed = [layer for layer in cfg.layers if isinstance(layer.ffn, c.Moe)]
    assert (f"experts_{form}" in named(made)) == bool(routed) and "experts" not in named(made)
    assert "linear" not in named(made)


def test_the_table_names_what_is_there() -> None:
    for key in REFUSED:
        assert key in DECODED or key in KINDS


def prefill(model: Any, pages: PagedCache, request: str, source: Tensor, tokens: Tensor) -> None:
    pages.angle_length[request] = 20
    step = Step.paged(pages, {request: tokens.shape[1]})
    model(source, tokens, step, Step(torch.arange(source.shape[1])[None], (Span(request, 0, source.shape[1]),)))
    step.advance()


def new_source_is_read() -> bool:
    """Return True if a plan reads the new memory after a request's name comes again with another source."""
    model, tokens, got = tiny(config_of("t5", "plain"), torch.float32, std=0.2), torch.tensor([[3, 4]]), []
    for planned in (True, False):
        pages = PagedCache(20, 4)
        made, draw = Plans(model, pages, planned), torch.Generator().manual_seed(0)
        for request in "ab":
            prefill(model, pages, request, torch.randint(90, (1, 6), generator=draw), tokens)
        made.step({"b": 5, "a": 6})
        pages.release("a")
        prefill(model, pages, "a", torch.randint(90, (1, 9), generator=draw), tokens)
        got.append(made.step({"a": 7, "b": 8}).clone())
    return torch.equal(*got)


@needs_kernels
def test_a_plan_reads_the_memory_of_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert new_source_is_read()
    real, known = Plans.memory_addresses, dict[Any, Any]()

    def looked_up_once(self: Plans, request: Any) -> Any:
        return known.setdefault((id(self), request), real(self, request)) if self.planned else real(self, request)

    monkeypatch.setattr(Plans, "memory_addresses", looked_up_once)
    assert not new_source_is_read()  # a memory that is looked up once


def by_length(quirk: str) -> float:
    """Return the largest difference of a planned batch of long and short texts from the plain forward, over the largest logit."""
    model = tiny(config_of("llama", quirk), torch.float32, std=0.2)
    pages, gaps, (got, _) = prefilled(model, False).pages, [], steps(model, True)
    for feed, rows in zip(FEED, got, strict=True):
        step = Step.paged(pages, dict.fromkeys(feed, 1))
        with native.off():
            want = model(torch.tensor([list(feed.values())]), step)[0]
        step.advance()
        gaps.append(float((rows - want).abs().max() / want.abs().max()))
    return max(gaps)


@needs_kernels
@pytest.mark.parametrize("quirk", ["longrope", "dynamic"])
def test_each_text_turns_by_its_own_length(quirk: str) -> None:
    """Of three texts one is rotated as beyond the original context, and the others are not."""
    assert by_length(quirk) < 1e-4
    real = StepBuffers.set
    with swapped(StepBuffers, "set", lambda self, feed, at, together: real(self, feed, at, dict.fromkeys(feed, 1))):
        assert by_length(quirk) > 1e-3
