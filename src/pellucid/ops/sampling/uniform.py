"""The number behind a draw, from a seed and a step alone: no state, so nothing that a batch, a preemption or another request could move.

SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, doi 10.1145/2660193.2660195; the constants are those of Vigna's splitmix64.c, his choice of
Stafford's mixers). Integers alone: the same 53 bits in every language.

    n-th output after a state   z = state + (n + 1) · 9E3779B97F4A7C15, mixed
    seed's own state            output number `seed` after 0: two seeds far apart, however near they are
    uniform(seed, step)         output number `step` after that state, its upper 53 bits · 2⁻⁵³
"""

import os

GOLDEN = 0x9E3779B97F4A7C15  # 2⁶⁴ over the golden ratio, odd
MASK = 2**64 - 1


def splitmix(state: int, n: int) -> int:
    """Output number n, from 0, of SplitMix64 after this state: 64 bits. From state 1234567 the first is 6457827717110365317."""
    z = (state + (n + 1) * GOLDEN) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def uniform(seed: int, step: int) -> float:
    """The number of this seed's step, from 0 up to but without 1: a multiple of 2⁻⁵³. A negative seed counts from 2⁶⁴ down."""
    return (splitmix(splitmix(0, seed), step) >> 11) * 2.0**-53


def sibling(seed: int, index: int) -> int:
    """The seed of one of several texts after one prompt: the first has the seed itself, the others 53 bits made from it."""
    return seed if index == 0 else splitmix(splitmix(1, seed), index) >> 11


def fresh() -> int:
    """A seed from the system's entropy: 53 bits, which JSON keeps exactly everywhere."""
    return int.from_bytes(os.urandom(7), "little") >> 3
