"""The records of a replayed step equal those of the forward, to the bit, in every family.

Each family and one in four of its other variants are watched whole, and one in three also in one of four narrower ways; with
PELLUCID_FULL=1 each variant in all five.
"""

import os
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

from covering import config_of
from pellucid.batch.states import stateful
from pellucid.engine import replay_trace
from pellucid.engine.plans import DecodeStep, Plans
from pellucid.nn.transformer import EncoderDecoder
from pellucid.ops import native
from pellucid.watching.records import Seen
from pellucid.watching.tap import Made
from pellucid.watching.watch import watch
from test_plan import FAMILIES, needs_kernels
from test_plan_families import DECODED, FEED, REFUSED, prefilled
from tiny import swapped, tiny

FULL = bool(os.environ.get("PELLUCID_FULL"))
VARIANTS = [case for i, case in enumerate(DECODED) if FULL or case[1] == "plain" or i % 4 == 0]
ASKED: tuple[dict[str, Any], ...] = (
    {}, {"request": "a"}, {"only": "*layers.0.*.*"}, {"only": "*layers.0.*norm*", "request": "b"}, {"request": "c", "inside": "listed"},
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def fields_of(s: Seen) -> tuple[Any, ...]:
    """Return all fields of a record but its numbers."""
    return (
        s.path,
        s.dims,
        s.shape,
        s.dtype,
        s.step,
        s.request,
        s.call,
        s.source,
        s.error,
        s.op,
        s.inputs,
        s.weights,
        s.flops,
        bool(s.later),
    )


def equal(a: Any, b: Any) -> bool:
    """Return True if two tensors have the same bits, or both are None."""
    return a is b if a is None or b is None else bool(a.dtype == b.dtype and (a.is_meta or torch.equal(a, b)))


def watched(made: Plans, how: dict[str, Any]) -> list[list[Seen]]:
    """Return the records of each step: all steps in one watch, then each in a watch of its own."""
    with watch(made.model, **how) as seen:
        for feed in FEED:
            made.step(feed)
    apart = []
    for feed in FEED:
        with watch(made.model, **how) as own:
            made.step(feed)
        apart.append(list(own))
    return [list(seen), *apart]


def alike(a: list[list[Seen]], b: list[list[Seen]]) -> bool:
    return len(a) == len(b) and all(
        [fields_of(s) for s in x] == [fields_of(s) for s in y]
        and all(equal(s.value, t.value) and equal(s.rows, t.rows) for s, t in zip(x, y, strict=True))
        for x, y in zip(a, b, strict=True)
    )


def holds(model: Any, how: dict[str, Any]) -> bool:
    """Return True if a watched plan and a watched forward give the same records."""
    return alike(watched(prefilled(model, True), how), watched(prefilled(model, False), how))


@needs_kernels
@pytest.mark.parametrize(("family", "quirk"), VARIANTS)
@pytest.mark.quick(15)
def test_a_replay_tells_what_a_forward_shows(family: str, quirk: str) -> None:
    """Once steps of one row and of three are recorded, replays give the forward's records and no forward runs.

    A state has gone on when a replay tells of it, so watched steps of such a model are forwards.
    """
    model = tiny(config_of(family, quirk), torch.float32, std=0.2)
    planned = (family, quirk) not in REFUSED and family not in REFUSED and not isinstance(model, EncoderDecoder)
    variant = VARIANTS.index((family, quirk))
    narrower = ASKED[1 + variant // 3 % 4 :][:1] if variant % 3 == 0 else ()
    for how in ASKED if FULL else (ASKED[0], *narrower):
        forwards, ahead = [0], Plans.forward

        def forward(self: Plans, *given: Any, forwards: list[int] = forwards) -> tuple[Tensor, Tensor]:
            forwards[0] += 1
            return ahead(self, *given)

        made = prefilled(model, True)
        with swapped(Plans, "forward", forward):
            got = watched(made, how)
        assert alike(got, watched(prefilled(model, False), how))
        assert sum(map(len, got)) > 0
        if planned and "inside" not in how:
            assert len(made.buffers) == 2 and (forwards[0] == 2) != stateful(model)


@needs_kernels
def test_what_a_plan_cannot_tell_is_seen_in_a_forward() -> None:
    """Edits, gradients and terms run the forward; the plan is kept for the steps after."""
    model = tiny(FAMILIES["llama"], torch.float32)
    for how in ({"edit": {"layers.0.attn": lambda x: -x}}, {"terms": True}, {"inside": "reference"}, {"grad": True}, {"only": "logits"}):
        made, free = prefilled(model, True), prefilled(model, False)
        for given in ({"request": "b"}, how, {}):
            with watch(model, **given) as seen:
                got = made.step(FEED[1]).clone()
            with watch(model, **given) as want:
                assert torch.equal(got, free.step(FEED[1]))
            assert [fields_of(s) for s in seen] == [fields_of(s) for s in want] and len(seen) > 0
            if how.get("terms"):
                assert all((s.terms is None) == (t.terms is None) for s, t in zip(seen, want, strict=True))
        assert alike(watched(made, {"request": "a"}), watched(free, {"request": "a"}))  # as long after as it likes


@needs_kernels
def test_two_watch_at_once_and_leave_nothing_behind() -> None:
    """Each watch records its own request, and a hundred watches leave the plan's memory unchanged."""
    model = tiny(FAMILIES["llama"], torch.float32)
    made, free, feed = prefilled(model, True), prefilled(model, False), FEED[1]

    def both(plans: Plans) -> list[list[Seen]]:
        with watch(model, request="a") as a, watch(model, only="layers.*.out") as batch:
            plans.step(feed)
        return [list(a), list(batch)]

    for _ in range(4):
        assert alike(both(made), both(free))
    for _ in range(50):
        with watch(model, only="logits"):
            made.step(feed)
            made.pages.length |= {r: n - 1 for r, n in made.pages.length.items() if r in feed}
    marks = made.buffers[3].logits.untyped_storage().__dict__["pellucid"]
    assert len(marks) <= 3


@needs_kernels
def test_kept_values_stay() -> None:
    """A recorded value is a copy that the next replay does not change."""
    model = tiny(FAMILIES["gpt2"], torch.float32)
    made = prefilled(model, True)
    with watch(model, keep=lambda x: x) as seen:
        for feed in FEED:
            made.step(feed)
    values = [s.value.clone() for s in seen]
    for feed in FEED:
        made.step(feed)
    assert all(torch.equal(a, s.value) for a, s in zip(values, seen, strict=True))
    spans = {t.data_ptr() for t in values}
    assert len(spans) == len(values) == len({s.value.data_ptr() for s in seen if s.value.numel()})


def uncopied(self: replay_trace.TapEvent, w: Any, cuts: Any) -> None:
    """Record the tensor itself, which the next step changes."""
    part, rows = ((), self.rows) if w.request is None else w.part_of_request(self.x, self.spot.dims, self.rows)
    if part is not None:
        w.record(self.spot, self.x, self.x[part] if part else self.x, part, rows, self.made, False, int(bool(self.flops)))


def another(self: replay_trace.TapEvent, w: Any, cuts: Any) -> None:
    """Record the first request's row for every watch."""
    w.record(self.spot, self.x, self.x[:, :1].clone(), (), None, self.made, False, 0)


def unmade(self: replay_trace.TapRecorder, *given: Any) -> None:
    """Record a tensor without its op."""
    self.mark(given[0]).made = Made("tap")


@needs_kernels
@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (replay_trace.TapEvent, "emit", uncopied),
        (replay_trace.TapEvent, "emit", another),
        (replay_trace.InsideOp, "emit", lambda self, w, cuts: None),
        (replay_trace.TapRecorder, "made", unmade),
        (DecodeStep, "set_spans", lambda self, spans: setattr(self, "spans", spans)),
    ],
)
@pytest.mark.quick(4)
def test_mutants_are_seen(where: Any, name: str, value: Any) -> None:
    model = tiny(FAMILIES["llama"], torch.float32)
    assert all(holds(model, how) for how in ASKED)
    with swapped(where, name, value), suppress(RuntimeError, IndexError, ValueError):
        assert not all(holds(model, how) for how in ASKED)


@needs_kernels
def test_without_kernels_the_forward_is_watched() -> None:
    model = tiny(FAMILIES["llama"], torch.float32)
    with native.off():
        assert alike(watched(prefilled(model, True), {}), watched(prefilled(model, False), {}))
