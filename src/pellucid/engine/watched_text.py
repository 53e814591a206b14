"""A watch of one request among many: its records, one step for each new token, and its faults, which end this request alone.

    steps of the engine       7        8        9       10         the request joins at 7, is preempted at 9 and begins again at 10
    records, step             0        1                 2         as if it had run alone

What a step records counts once the step's token is there: a step that failed leaves nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from threading import Lock

from torch import Tensor

from pellucid.engine.requests import Sequence
from pellucid.errors import PellucidError, TraceError
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.watching.change import Change
from pellucid.watching.records import Seen
from pellucid.watching.tap import Spot, here, offered
from pellucid.watching.watch import Part, Watch, opened

SAMPLE = "sample"  # the path of the stages of sampling


class Allowance:
    """Bytes that several watches may hold together. Any thread may take and give back."""

    def __init__(self, most: int) -> None:
        self.most, self.used, self.lock = most, 0, Lock()

    def take(self, size: int) -> bool:
        """Count `size` bytes. Returns False, and counts nothing, if they exceed the most."""
        with self.lock:
            if self.used + size > self.most:
                return False
            self.used += size
            return True

    def give_back(self, size: int) -> None:
        """Count `size` bytes less."""
        with self.lock:
            self.used -= size


class WatchedText(Watch):
    """The watch of a request with one text. `open` names the text; `settle` keeps or drops what the last step recorded.

    most: bytes of its tensors; after the first that does not fit, or that `allowance`, shared by several watches, does not hold, all are
    left out.
    chosen: called with each new token, and the logits [V] that it was chosen from.  ended: called once with the watch, when it has closed.
    steps: recorded ones.  left_out: tensors that were not kept.  fault: why a change failed.
    """

    def __init__(
        self,
        module: Decoder | EncoderDecoder,
        only: Iterable[str],
        changes: Iterable[Change],
        most: int,
        allowance: Allowance,
        chosen: Callable[[Tensor, int], None] = lambda logits, id: None,
        ended: "Callable[[WatchedText], None]" = lambda watched: None,
    ) -> None:
        super().__init__(module, tuple(only), keep=self.own, edit=list(changes), to=self.add)
        self.most, self.allowance, self.chosen, self.ended = most, allowance, chosen, ended
        self.fresh: list[Seen] = []
        self.size = self.fresh_size = self.steps = self.left_out = self.missed = 0
        self.full, self.rows = False, 0  # rows of the running step
        self.row: Tensor | None = None
        self.new: list[int] = []
        self.fault: PellucidError | None = None
        self.last: int | None = None  # new tokens after which a stop string was met; set by another thread
        self.stack = ExitStack()
        self.request = ""  # of no text until it is opened

    def open(self, key: object) -> None:
        """Begin to watch the text of this name, in the thread that runs its model."""
        self.request = key
        self.stack.enter_context(opened(self))

    def own(self, x: Tensor) -> Tensor | None:
        """Return the value to keep of a tensor: a copy of one that shares its memory with other requests. None beyond the limits."""
        self.full = self.full or self.size + self.fresh_size + x.nbytes > self.most or not self.allowance.take(x.nbytes)
        if self.full:
            return None
        self.fresh_size += x.nbytes
        return x.clone() if x.untyped_storage().nbytes() > x.nbytes else x

    def add(self, seen: Seen) -> None:
        """Record a tensor of the running step."""
        if seen.value is None:
            self.missed += 1
        else:
            self.fresh.append(seen)

    def see(self, x: Tensor, label: str, rows: Tensor | None, edited: bool) -> Tensor:
        if label == "logits: V" and here.calls[-1].path.get(self) == SAMPLE and getattr(here.segment, "request", None) == self.request:
            self.row = x
        return super().see(x, label, rows, edited)

    def change(self, x: Tensor, c: Change, spot: Spot, rows: Tensor | None) -> tuple[Part, Tensor] | None:
        """Make a change. One that fails is noted and leaves x as it is, so that the other requests' step goes on."""
        try:
            return super().change(x, c, spot, rows)
        except PellucidError as fault:
            self.fault = self.fault or fault
            return None

    def settle(self, s: Sequence, ended: bool = False) -> None:
        """Keep the records of the last step if its token is there, or the text has `ended`; else drop them."""
        written = s.new_tokens
        if len(written) == len(self.new) and not (ended and not written):
            self.drop()
            return
        if self.row is not None and written:
            self.chosen(self.row, written[-1])
        for seen in self.fresh:
            seen.step = self.steps
            if seen.dims.startswith("B N") and seen.shape[1] == self.rows:  # the head's rows, which are all of the text's here
                seen.dims, seen.rows = f"B T{seen.dims[3:]}", None
        self.seen += self.fresh
        self.size, self.left_out = self.size + self.fresh_size, self.left_out + self.missed
        self.new, self.steps = written, self.steps + 1
        self.fresh, self.fresh_size, self.missed, self.row = [], 0, 0, None

    def drop(self) -> None:
        """Forget the records of the last step."""
        self.allowance.give_back(self.fresh_size)
        self.fresh, self.fresh_size, self.missed, self.row = [], 0, 0, None

    def without_effect(self) -> PellucidError | None:
        """Return the error for a change that acted on no tensor, or no cell; None if all acted."""
        known = dict.fromkeys([*(spot.path for spot in self.spots.values()), *self.inner])
        for c in self.changes:
            if c not in self.met:
                return TraceError("edit.unmet", path=c.path, near=offered(c.path, known, self.aliases))
            if c.at and c.required and c not in self.acted:
                return TraceError("change.nowhere", change=c.text)
        return None

    def close(self) -> None:
        """End the watch in its thread, give its bytes back to the allowance, and call `ended`."""
        self.drop()
        self.stack.close()
        if self.last is not None:
            self.seen, self.new = [s for s in self.seen if s.step < self.last], self.new[: self.last]
        self.ended(self)
        self.allowance.give_back(self.size)


class OpenWatches:
    """The watches of an engine's running requests, by request. For the engine's thread alone."""

    def __init__(self) -> None:
        self.texts: dict[int, tuple[Sequence, WatchedText]] = {}

    def begin(self, chunks: Mapping[Sequence, int]) -> None:
        """Open the watches of sequences that run now for the first time, before a forward; settle those of others."""
        for s, rows in chunks.items():
            if (watched := s.request.watched) is None:
                continue
            watched.rows = rows
            if s.number in self.texts:
                watched.settle(s)
            else:
                self.texts[s.number] = s, watched
                watched.open(s.key)

    def faults(self) -> dict[int, PellucidError]:
        """Return the errors of changes that failed, by request."""
        return {number: w.fault for number, (_, w) in self.texts.items() if w.fault is not None}

    def settle(self, ended: Iterable[int], complete: Iterable[int]) -> dict[int, PellucidError]:
        """Settle all watches after a step, and close those of `ended` requests. Returns the errors of changes without effect.

        complete: the requests that ended with all of their text.
        """
        faults: dict[int, PellucidError] = {}
        ended, complete = set(ended), set(complete)
        for number, (s, watched) in list(self.texts.items()):
            watched.settle(s, number in complete)
            if number in ended:
                if number in complete and (fault := watched.without_effect()) is not None:
                    watched.fault = faults[number] = fault
                del self.texts[number]
                watched.close()
        return faults

    def close(self) -> None:
        """Close all watches."""
        for number in list(self.texts):
            _, watched = self.texts.pop(number)
            watched.close()
