"""Shapes of equal size: their parameters by hand, their training by steps of its own."""

import pytest

from pellucid.analysis.deep_or_wide import TOTAL, apart, config_of, means, neurons_for, parameters, steps_shown, trained_shape

VOCAB = 320


def by_hand(blocks: int, width: int, neurons: int) -> int:
    """Return table, and of each block four square matrices, two of the network, two norms; and the last norm."""
    return VOCAB * width + blocks * (4 * width**2 + 2 * width * neurons + 2 * width) + width


@pytest.mark.parametrize(("blocks", "width"), [(1, 64), (3, 40), (6, 24)])
def test_parameters_by_hand(blocks: int, width: int) -> None:
    for neurons in (1, 50):
        assert parameters(config_of(VOCAB, blocks, width, neurons)) == by_hand(blocks, width, neurons)
    neurons = neurons_for(VOCAB, blocks, width)
    near = [abs(by_hand(blocks, width, n) - TOTAL) for n in (neurons - 1, neurons, neurons + 1)]
    assert min(near) == near[1]


def test_windows() -> None:
    assert [*means([1.0] * 10 + [3.0] * 5)] == [1.0, 3.0] and steps_shown(15) == [10, 15] and apart([100, 110]) == pytest.approx(0.1)


def test_training() -> None:
    equal, left = trained_shape(3, 40, 12), trained_shape(3, 40, 12, False)
    assert len(equal.losses) == 2 and equal.losses[1] < equal.losses[0] and trained_shape.__wrapped__(3, 40, 12) == equal
    assert left.neurons == 160 and left.parameters == by_hand(3, 40, 160) != equal.parameters
