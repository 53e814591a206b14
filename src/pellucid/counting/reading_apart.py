"""Prompts read on one kind of machine and answers written on another (arXiv 2407.00079), beside both on one.

A request's prompt is read alone and its tokens are written in a full batch; between the two its cache is sent. At the bound as many
requests a second come of the same devices either way. What differs is the wait: where one machine does both, a prompt that is read stands
between two tokens of every text.
"""

from dataclasses import dataclass

from pellucid.counting.bill import Bill
from pellucid.counting.bounds import Device
from pellucid.counting.fit import bytes_held
from pellucid.counting.ranks import Split, pace


@dataclass(frozen=True)
class SeparateMachines:
    """A request on machines that read and machines that write, of `ranks` devices each. written: its tokens.  batch: texts at once.

    read: seconds of its prompt.  step: seconds of one token of all texts.  read_together: seconds of the prompt on a machine that writes.
    sent: bytes of its cache.  over: seconds on the narrower link, None where a link is not known.
    """

    written: int
    batch: int
    ranks: int
    read: float
    step: float
    read_together: float
    sent: int
    over: float | None

    @property
    def write(self) -> float:
        """Seconds of a machine that the request's tokens take: its part of each step."""
        return self.written * self.step / self.batch

    @property
    def together(self) -> float:
        """Seconds of a machine that does both."""
        return self.read_together + self.write

    @property
    def share(self) -> float:
        """The share of machines that read, where neither kind waits for the other."""
        return self.read / (self.read + self.write)

    @property
    def between(self) -> float:
        """Seconds between two tokens of a text, on average, where one machine does both: a step, and the prompts that are read for it."""
        return self.step + self.batch * self.read_together / self.written


def apart(
    one: Bill, all_texts: Bill, written: int, reads: Device, writes: Device, split: Split, efficiency: float = 1.0
) -> SeparateMachines:
    """Return what a request takes. one: the bill of its prompt.  all_texts: of the batch, at a text's mean length.

    efficiency: the share of the bound that is reached.
    """
    read, together = (pace(one, split, "prefill", device).seconds / efficiency for device in (reads, writes))
    sent = bytes_held(one, one.setting.context, 1) - int(one["bytes.total"])
    links = [device.link for device in (reads, writes)]
    over = None if None in links else sent / (min(link for link in links if link) * split.ranks)
    step = pace(all_texts, split, "decode", writes).seconds / efficiency
    return SeparateMachines(written, all_texts.setting.batch, split.ranks, read, step, together, sent, over)
