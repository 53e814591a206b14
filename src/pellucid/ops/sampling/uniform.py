"""The random number of a draw, from a seed and a step alone: without state, so that no batch, preemption or other request changes it.

SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, doi 10.1145/2660193.2660195), with the constants of splitmix64.c. It uses integers
alone: the same 53 bits in every language.

    n-th output after a state   z = state + (n + 1) · 9E3779B97F4A7C15, mixed
    a seed's state              output number `seed` after 0, so that the states of near seeds are far apart
    uniform(seed, step)         output number `step` after that state, its upper 53 bits · 2⁻⁵³
"""

import os

GOLDEN = 0x9E3779B97F4A7C15  # 2⁶⁴ over the golden ratio, odd
MASK = 2**64 - 1


def splitmix(state: int, n: int) -> int:
    """Return output number n, from 0, of SplitMix64 after a state: 64 bits. The first one after 1234567 is 6457827717110365317."""
    z = (state + (n + 1) * GOLDEN) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def uniform(seed: int, step: int) -> float:
    """Return the number of a seed's step, a multiple of 2⁻⁵³ in [0, 1). A negative seed counts from 2⁶⁴ down."""
    return (splitmix(state(seed), step) >> 11) * 2.0**-53


def state(seed: int) -> int:
    """Return a seed's state, whose outputs are its random numbers."""
    return splitmix(0, seed)


def sibling(seed: int, index: int) -> int:
    """Return the seed of text number `index` after one prompt: the seed itself for the first, 53 bits made from it for the others."""
    return seed if index == 0 else splitmix(splitmix(1, seed), index) >> 11


def fresh() -> int:
    """Return a seed from the system's entropy: 53 bits, which a number in JSON holds exactly."""
    return int.from_bytes(os.urandom(7), "little") >> 3
