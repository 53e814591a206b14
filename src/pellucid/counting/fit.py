"""What a device holds, and what it costs at the bound: the largest batch, the longest context, seconds a token, money a million tokens.

Weights, the cache of every layer as far as it grows, and what a decoder keeps of a source are held. Activations are not: what must be kept
of them at once is a kernel's choice, so that a largest batch is a bound too.
"""

from collections.abc import Callable
from math import ceil

from pellucid.counting.bill import Bill
from pellucid.counting.bounds import Device, multiplicity, parts
from pellucid.counting.distinct import PLACE

MOST = 2**40


def bytes_held(bill: Bill, context: int, batch: int) -> int:
    """Bytes of the weights, and of the past of `batch` requests of `context` tokens."""
    each = [(name, int(n)) for name, n in bill.below("cache") if PLACE.fullmatch(name)]
    cache = sum(n * multiplicity(bill, name) * bill.layer(name).attn.rows_kept(context) for name, n in each)
    if "cache.bytes_per_source_token" in bill:
        cache += int(bill["cache.bytes_per_source_token"]) * (bill.setting.source or context)
    return int(bill["bytes.total"]) + cache * batch


def largest(fits: Callable[[int], bool], most: int) -> int | None:
    """The largest n up to `most` that fits, by bisection, where all smaller ones fit; 0 where none does, None where all do."""
    if fits(most):
        return None
    low, high = 0, most  # low fits or is 0, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_batch(bill: Bill, device: Device) -> int | None:
    """Requests at the bill's context that fit."""
    return largest(lambda n: bytes_held(bill, bill.setting.context, n) <= device.memory, MOST)


def longest_context(bill: Bill, device: Device) -> int | None:
    """Tokens of each of the bill's requests that fit; a table of positions ends them."""
    return largest(lambda n: bytes_held(bill, n, bill.setting.batch) <= device.memory, bill.config.positions or MOST)


def devices(bill: Bill, device: Device) -> int:
    """How many hold the weights and the past, if both split evenly."""
    return ceil(bytes_held(bill, bill.setting.context, bill.setting.batch) / device.memory)


def tokens(bill: Bill, phase: str) -> int:
    """How many tokens a step of a phase reads or writes, of all its requests."""
    return bill.setting.batch * (bill.setting.context if phase == "prefill" else 1)


def seconds(bill: Bill, phase: str, device: Device) -> float:
    """The bound of a phase: of "prefill", to the first token; of "decode", between two."""
    return sum(p.seconds for p in parts(bill, phase, device))


def price(bill: Bill, phase: str, device: Device, hour: float) -> float:
    """What a million tokens cost at the bound, where the device costs `hour` an hour: read in "prefill", written in "decode".

    On n devices that split the work evenly it is the same: an n-th of the time, n times the price.
    """
    return seconds(bill, phase, device) / 3600 * hour / tokens(bill, phase) * 1e6
