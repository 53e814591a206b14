"""A prompt that arrives among texts that decode: its chunks keep steps short, as the last steps' times allow."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from torch import Tensor

from pellucid.engine.bursts import STREAMED
from pellucid.engine.chunk_size import AGAIN, LEAST, ChunkSize
from pellucid.engine.requests import Request, Sequence
from pellucid.engine.scheduler import SchedulerLimits
from simulate import Simulation

STALL = 2.0
LEARNING = 6  # steps with a chunk, which double from LEAST


@dataclass
class Machine:
    """A simulation on a machine where steps take a known time: `step` seconds, `more` with a chunk, and `row` for each of its rows.

    steps: of each step with a chunk its rows, whether others decoded, and its seconds.
    """

    simulation: Simulation
    step: float
    more: float
    row: float
    now: float = 0.0
    steps: list[tuple[int, bool, float]] = field(default_factory=list)

    def run(self, chunks: Mapping[Sequence, int]) -> dict[Sequence, Tensor]:
        rows = sum(n for s, n in chunks.items() if s.pending > 1)
        seconds = self.step + (self.more + rows * self.row if rows else 0.0)
        self.now += seconds
        if rows:
            self.steps.append((rows, any(s.written for s in chunks), seconds))
        return self.simulation.model.run(chunks)


def machine(stall: float | None, step: float, more: float, row: float) -> Machine:
    limits = SchedulerLimits(512, 16, 64, stall=stall)
    made = Machine(Simulation.of(256, 16, limits, cached=False), step, more, row)
    made.simulation.engine.run = made.run
    made.simulation.engine.chunk_size = ChunkSize(limits.rows, stall, lambda: made.now)
    return made


def submit(m: Machine, prompt: int, new: int) -> None:
    request = Request(tuple(random.Random(prompt).choices(range(50), k=prompt)), new)
    m.simulation.requests[m.simulation.engine.submit(request)] = request


def arrival(m: Machine, prompt: int = 1500, texts: int = 3) -> list[tuple[int, bool, float]]:
    """Let a prompt arrive while texts decode. Returns the steps with its chunks."""
    for i in range(texts):
        submit(m, 5 + i, 300)
    for _ in range(8):
        m.simulation.step()
    m.steps.clear()
    submit(m, prompt, 2)
    while not m.simulation.engine.idle:
        m.simulation.step()
    assert m.simulation.faults() == ""
    return m.steps


# seconds of a step, more with a chunk, and for each of its rows
MACHINES = [(0.045, 0.0, 0.0009), (0.045, 0.02, 0.0003), (0.001, 0.005, 0.0004), (0.2, 0.0, 0.0001), (0.3, 0.1, 0.002)]


def most(step: float) -> float:
    """Return the seconds that the limit allows a step with a chunk."""
    return STALL * max(step, STREAMED)


@pytest.mark.parametrize(("step", "more", "row"), MACHINES)
def test_a_prompt_that_arrives_keeps_steps_short(step: float, more: float, row: float) -> None:
    steps = arrival(machine(STALL, step, more, row))
    assert sum(rows for rows, _, _ in steps) == 1500 and all(decoding for _, decoding, _ in steps)
    assert max(seconds for _, _, seconds in steps) <= most(step)
    allowed = min(512, int((most(step) - step - more) / row))  # rows that the limit leaves
    assert len(steps) <= LEARNING + 1500 / (0.7 * allowed) + 1


@pytest.mark.parametrize(("step", "more", "row"), MACHINES)
def test_without_the_limit_they_take_longer(step: float, more: float, row: float) -> None:
    """The mutant of the law above: 512 rows at once, as without a limit."""
    steps = arrival(machine(None, step, more, row))
    assert [rows for rows, _, _ in steps] == [509, 509, 482]
    assert (max(seconds for _, _, seconds in steps) > most(step)) == (row > 0.0001)


def test_a_prompt_alone_has_all_rows() -> None:
    m = machine(STALL, 0.045, 0.0, 0.0009)
    submit(m, 1500, 2)
    while not m.simulation.engine.idle:
        m.simulation.step()
    assert [rows for rows, _, _ in m.steps] == [512, 512, 476]


def test_a_machine_too_slow_for_any_row_still_reads() -> None:
    """A chunk has LEAST rows where even one takes longer than the limit."""
    steps = arrival(machine(STALL, 0.045, 0.4, 0.01), prompt=100)
    assert [rows for rows, _, _ in steps] == [LEAST] * 12 + [4]


def test_what_decoding_takes_is_timed_again() -> None:
    """Texts that decode for longer steps give a prompt more rows, and those that end take them back."""
    size = ChunkSize(512, STALL, lambda: 0.0)
    assert size.rows == 0  # nothing is known: a step in which all decode comes first
    size.took(0, 0.1)
    for _ in range(AGAIN):
        assert 0 < size.rows < 20
        size.took(size.rows, 0.1 + 0.005 * size.rows)
    assert size.rows == 0
    for _ in range(8):
        size.took(0, 0.2)
    assert size.rows > 20
