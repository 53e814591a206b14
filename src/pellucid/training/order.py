"""The order of training data: an exact permutation of each epoch, of which any place is computed alone.

    permuted(0, 5, seed=1, epoch=0) ... permuted(4, 5, seed=1, epoch=0)   ->   each of 0 to 4 once, in an order of the seed and epoch

A Feistel network permutes a power of four. A result outside of the range is permuted again until it falls inside (cycle walking,
Black and Rogaway 2002), which permutes the range itself. So a resumed run reads its place, and never the places before it.
"""

from hashlib import blake2b

ROUNDS = 4


def permuted(index: int, count: int, seed: int, epoch: int) -> int:
    """Return which of `count` rows stands at place `index` of an epoch."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(ROUNDS):
            drawn = blake2b(f"{seed}:{epoch}:{turn}:{right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(drawn, "little") & mask)
        index = left << half | right
        if index < count:
            return index


def row_of_source(draw: int, count: int, seed: int, source: int) -> int:
    """Return the row of draw number `draw` from a source of `count` rows: pass after pass over all of them, each in an order of its own."""
    turn, index = divmod(draw, count)
    return permuted(index, count, seed, -2 - source - (turn << 16))


def mixed_rows_of_step(step: int, batch: int, counts: list[int], drawn: list[int], seed: int) -> list[int]:
    """Return the `batch` rows of a step of several sources. counts: rows of each, which are numbered one source after another.

    drawn: how many rows of each an epoch has. An epoch goes on in each source where the one before it stopped, so that in the long run
    every row of a source comes as often as any other.
    """
    total, out = sum(drawn), list[int]()
    for n in range(step * batch, (step + 1) * batch):
        epoch, index = divmod(n, total)
        place, first, source = permuted(index, total, seed, epoch), 0, 0
        while place >= drawn[source]:
            place, first, source = place - drawn[source], first + counts[source], source + 1
        out.append(first + row_of_source(epoch * drawn[source] + place, counts[source], seed, source))
    return out


def rows_of_step(step: int, batch: int, count: int, seed: int) -> list[int]:
    """Return the `batch` rows of a step, 0 for the first. Epochs follow each other without a gap, also in the middle of a step."""
    places = (divmod(n, count) for n in range(step * batch, (step + 1) * batch))
    return [permuted(index, count, seed, epoch) for epoch, index in places]
