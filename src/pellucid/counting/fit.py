"""What fits on a device and what it costs at the bound: largest batch, longest context, seconds a token, money per million tokens.

Weights, the cache of every layer and what a decoder keeps of a source are counted. Activations are not: how many of them are kept at once
is a kernel's choice, so a largest batch is a bound too.
"""

from collections.abc import Callable
from math import ceil

from pellucid.counting.bill import Bill
from pellucid.counting.bounds import Device, multiplicity, parts
from pellucid.counting.distinct import PLACE

MOST = 2**40


def bytes_held(bill: Bill, context: int, batch: int) -> int:
    """Return the bytes of the weights and of the cache of `batch` requests of `context` tokens."""
    each = [(name, int(n)) for name, n in bill.below("cache") if PLACE.fullmatch(name)]
    cache = sum(n * multiplicity(bill, name) * bill.mixer(name).rows_kept(context) for name, n in each)
    cache += sum(int(n) * multiplicity(bill, name) for name, n in bill.below("states"))
    if "cache.bytes_per_source_token" in bill:
        cache += int(bill["cache.bytes_per_source_token"]) * (bill.setting.source or context)
    return int(bill["bytes.total"]) + cache * batch


def largest(fits: Callable[[int], bool], most: int) -> int | None:
    """Return the largest n up to `most` that fits, by bisection; 0 if none does, None if all do."""
    if fits(most):
        return None
    low, high = 0, most  # low fits or is 0, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_batch(bill: Bill, device: Device) -> int | None:
    """Return the number of requests at the bill's context that fit; None if any number does."""
    return largest(lambda n: bytes_held(bill, bill.setting.context, n) <= device.memory, MOST)


def longest_context(bill: Bill, device: Device) -> int | None:
    """Return the longest context at the bill's batch that fits; None if any does, up to the table of positions."""
    return largest(lambda n: bytes_held(bill, n, bill.setting.batch) <= device.memory, bill.config.positions or MOST)


def devices(bill: Bill, device: Device) -> int:
    """Return how many devices hold the weights and the cache, if both split evenly."""
    return ceil(bytes_held(bill, bill.setting.context, bill.setting.batch) / device.memory)


def tokens(bill: Bill, phase: str) -> int:
    """Return the number of tokens that a step of a phase reads or writes, over all its requests."""
    return bill.setting.batch * (bill.setting.context if phase == "prefill" else 1)


def seconds(bill: Bill, phase: str, device: Device) -> float:
    """Return the bound of a phase: of "prefill", to the first token; of "decode", between two tokens."""
    return sum(p.seconds for p in parts(bill, phase, device))


def price(bill: Bill, phase: str, device: Device, hour: float) -> float:
    """Return the cost of a million tokens at the bound, on a device that costs `hour` an hour: read in "prefill", written in "decode".

    On n devices that split the work evenly it is the same: an n-th of the time, n times the price.
    """
    return seconds(bill, phase, device) / 3600 * hour / tokens(bill, phase) * 1e6
