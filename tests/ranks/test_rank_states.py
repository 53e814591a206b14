"""States of several ranks: whole after either of two ranks is killed at a border of the disk, and bit for bit on fewer and fewer ranks.

PELLUCID_FULL=1 kills either at each border.
"""

import signal
from collections.abc import Callable

import pytest

from pellucid.errors import RankError
from rank_grids import FULL, Measured

pytestmark = pytest.mark.timeout(1800 if FULL else 300)  # seconds: a full run kills 180 times and takes each run up again


@pytest.fixture
def got(measured: Callable[[str, int], Measured]) -> Measured:
    return measured("killed", 2)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("grid", ["data=2 tensor=1", "data=1 tensor=2"])
def test_a_rank_killed_at_a_border_of_the_disk(got: Measured, grid: str, victim: int) -> None:
    """The newest state is whole and of the bits of a run without a kill, the other rank ends, and the run goes on to the same bits."""
    if (case := got["kills"].get(f"{grid} {victim}")) is None:
        pytest.skip("PELLUCID_FULL=1")
    assert case["killed"] == len(case["survivors"]) >= (20 if FULL else 1)
    assert case["wrong"] == case["ends"] == [] and set(case["survivors"]) == {1}


def test_a_rank_that_forgets_its_moments_is_seen(got: Measured) -> None:
    assert got["kills"]["forgetful"]


def test_a_state_of_four_ranks_opens_on_two_and_on_one(got: Measured) -> None:
    """Saved on 2 x 2, opened and saved on 2 tensor ranks, and from there on one: the same bytes; a changed bit is seen."""
    states, damaged = got["narrowing"]["states"], got["narrowing"]["damaged"]
    assert set(got["narrowing"]["statuses"]) == {0} and states[0] == states[1] == states[2]
    assert damaged[0] != states[0][0] and damaged[1] == states[0][1]


def test_a_log_without_a_state_is_moved_by_one_rank(got: Measured) -> None:
    """The mutant: each rank moves what it has seen, and one of them finds it gone."""
    assert got["clearing"]["alone"] == [0, 0] and got["clearing"]["each"] == [1, 1]


def test_a_rank_that_computes_is_ended(got: Measured) -> None:
    """With the status of a lost rank if the other one was killed, else with that of SIGTERM."""
    assert got["computing"] == {"killed": [RankError.exit_code, -signal.SIGKILL], "ended": [128 + signal.SIGTERM] * 2}


def test_a_rank_that_is_stopped_at_the_end_is_not_waited_for(got: Measured) -> None:
    """The first rank ends by an error after its patience."""
    assert got["leaving"]["statuses"] == [1, -signal.SIGKILL]


def test_the_command_on_four_ranks_is_that_of_one(got: Measured) -> None:
    """`train` with `dtype = "float64"` on 2 x 2 ranks, alone, and alone from a state of the four: the same log and weights."""
    case = got["command"]
    assert case["statuses"] == [0] * 6 and case["steps"] == [4] * 3 and case["dtypes"] == ["torch.float64"]
    assert case["curve"] < 1e-10 and case["weights"] < 1e-10 and case["clipped"] > 0.5
