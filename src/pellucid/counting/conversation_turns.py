"""What each turn of a conversation reads, if the text before stays in the KV cache, and if it does not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pellucid.counting.bill import Bill
from pellucid.counting.bounds import Device, parts
from pellucid.counting.fit import bytes_held

NOWHERE = Device("", 1.0, 1.0, {"float32": 1.0})  # whose times are not used


@dataclass(frozen=True)
class ConversationTurn:
    """One turn. before: tokens of the text so far.  read: new ones.  kept, again: FLOP of reading the new ones, and of reading all.

    cache: bytes at its end.  least, least_again: seconds of both at the bound, None without a device.
    """

    number: int
    before: int
    read: int
    kept: float
    again: float
    cache: int
    least: float | None
    least_again: float | None


def turns(bill_at: Callable[[int], Bill], count: int, context: int, device: Device | None) -> Iterator[ConversationTurn]:
    """Yield the turns of a conversation that has `context` tokens after `count` of them, each as long as the others but for one token.

    bill_at(context): the bill of the model. Work is that which the mask leaves; a token reads the keys of all before it either way, so what
    a prefix saves is the difference of two prompts. Weights and cache are read once a turn.
    """
    ends = [context * (i + 1) // count for i in range(count)]
    earlier = {p.path: (0.0, 0.0) for p in parts(bill_at(max(1, ends[0])), "prefill", device or NOWHERE)}
    before = 0
    for number, end in enumerate(ends, 1):
        bill = bill_at(end)
        now = {p.path: p for p in parts(bill, "prefill", device or NOWHERE)}
        kept = sum(p.flops - earlier[path][0] for path, p in now.items())
        least = sum(max(p.compute - earlier[path][1], p.memory) for path, p in now.items())
        cache = (bytes_held(bill, end, 1) - int(bill["bytes.total"])) * bill.setting.batch
        times = (None, None) if device is None else (least, sum(p.seconds for p in now.values()))
        yield ConversationTurn(number, before, end - before, kept, sum(p.flops for p in now.values()), cache, *times)
        earlier, before = {path: (p.flops, p.compute) for path, p in now.items()}, end
