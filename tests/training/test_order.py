"""The order of training data: every epoch has each row once, and any step is computed without those before it."""

from collections import Counter
from collections.abc import Callable
from itertools import accumulate, chain, pairwise

import pytest

from pellucid.training import order
from pellucid.training.order import mixed_rows_of_step, permuted, rows_of_step
from tiny import swapped

Permutation = Callable[[int, int, int, int], int]


def epochs(count: int, batch: int, most: int = 3, seed: int = 7) -> list[list[int]]:
    """The rows of the first epochs, cut out of the steps."""
    steps = -(-count * most // batch)
    rows = list(chain.from_iterable(rows_of_step(step, batch, count, seed) for step in range(steps)))
    return [rows[i * count : (i + 1) * count] for i in range(most)]


def sound(count: int, batch: int) -> bool:
    """True if every epoch has each row once, and no two epochs have one order."""
    made = epochs(count, batch)
    return all(sorted(rows) == list(range(count)) for rows in made) and (count < 8 or len({tuple(rows) for rows in made}) == len(made))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 15, 16, 17, 63, 64, 65, 100, 257, 1000])
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_each_epoch_has_each_row_once(count: int, batch: int) -> None:
    assert sound(count, batch)


MUTANTS: dict[str, Permutation] = {
    "the tail comes again": lambda index, count, seed, epoch: min(permuted(index, 1 << (count - 1).bit_length(), seed, epoch), count - 1),
    "no walk": lambda index, count, seed, epoch: permuted(index, 1 << (count - 1).bit_length(), seed, epoch) % count,
    "the first epoch again": lambda index, count, seed, epoch: permuted(index, count, seed, 0),
    "the last is left out": lambda index, count, seed, epoch: permuted(index % max(1, count - 1), max(1, count - 1), seed, epoch),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_seen(name: str) -> None:
    with swapped(order, "permuted", MUTANTS[name]):
        assert not sound(100, 16)


def test_a_far_step_is_computed_alone() -> None:
    """Row 10^12 of a corpus of a billion rows: the same twice, inside, and of one draw each."""
    rows = rows_of_step(10**12, 8, 10**9 + 7, 3)
    assert rows == rows_of_step(10**12, 8, 10**9 + 7, 3) and len(set(rows)) == 8 and max(rows) < 10**9 + 7


def test_seeds_and_epochs_give_other_orders() -> None:
    """The orders of 40 seeds and epochs differ, and a row's place is spread over all places."""
    orders = {tuple(permuted(i, 64, seed, epoch) for i in range(64)) for seed in range(8) for epoch in range(5)}
    assert len(orders) == 40
    places = [permuted(0, 64, seed, 0) for seed in range(2000)]
    expected = 2000 / 64
    assert sum((places.count(i) - expected) ** 2 / expected for i in range(64)) < 120  # chi-square of 63 degrees: 1 in 10^5 above


def mixed(counts: list[int], drawn: list[int], most: int, batch: int = 5) -> list[list[int]]:
    """The rows of the first epochs of several sources, cut out of the steps."""
    total = sum(drawn)
    rows = list(chain.from_iterable(mixed_rows_of_step(step, batch, counts, drawn, 7) for step in range(-(-total * most // batch))))
    return [rows[i * total : (i + 1) * total] for i in range(most)]


def weighed(counts: list[int], drawn: list[int]) -> bool:
    """True if every epoch draws as many rows of each source as it shall, and after several epochs none came twice more than another."""
    made, most = Counter[int](), 6
    for rows in mixed(counts, drawn, most):
        firsts = [0, *accumulate(counts)]
        if [sum(a <= row < b for row in rows) for a, b in pairwise(firsts)] != drawn:
            return False
        made.update(rows)
        for (a, b), n in zip(pairwise(firsts), drawn, strict=True):
            own = [made[row] for row in range(a, b)]
            if n and max(own) - min(own) > 1:
                return False
    return True


@pytest.mark.parametrize(("counts", "drawn"), [([7, 20], [7, 20]), ([7, 20], [21, 5]), ([1, 50, 3], [4, 13, 0]), ([9], [5])])
def test_sources_come_by_their_weights(counts: list[int], drawn: list[int]) -> None:
    """A source of half its rows an epoch has all of them in two; one of three times comes three times; any step is computed alone."""
    assert weighed(counts, drawn)
    assert len({tuple(rows) for rows in mixed(counts, drawn, 4)}) == 4


def test_a_source_that_begins_again_is_seen() -> None:
    """The mutant draws the same part of a source in every epoch."""
    with swapped(order, "row_of_source", lambda draw, count, seed, source: permuted(draw % 5, count, seed, -2)):
        assert not weighed([7, 20], [21, 5])
