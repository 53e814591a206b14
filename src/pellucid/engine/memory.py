"""The engine's storage: pages, and the prefix cache over them.

Stored rows serve another sequence that begins with the same tokens, if everything else that they depend on is the same: `root`.

Rotary frequencies may depend on a text's length. A prompt counts as one text, and each new row has the length of the text up to it:

    Dynamic    a stored row keeps its frequencies; only new rows take those of the longer text
    LongRope   a text that outgrows the original context is computed again from its start, with the factors of long texts
"""

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

from torch import nn

from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.plain_rows import PLAIN, PlainRows
from pellucid.batch.states import stateful
from pellucid.config import Dynamic, LongRope
from pellucid.engine.plans import addresses, memory
from pellucid.engine.prefix_cache import PrefixCache
from pellucid.engine.requests import Sequence
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.watching.tap import here

if TYPE_CHECKING:
    from pellucid.engine.draft import Draft

PAGE, STATE_PAGE = 64, 256  # rows


class Memory:
    """The pages of a model's texts; implements scheduler.Storage.

    prefix_cache: keep the pages of ended texts until other texts need them.
    keep_outgrown: keep a text's rows when it outgrows a restart length, for a watch that reads them later.
    draft: gives back its pages of a text with the text's.
    """

    draft: "Draft | None" = None

    def __init__(self, module: Decoder | EncoderDecoder, pages: PagedCache, prefix_cache: bool = True, keep_outgrown: bool = False) -> None:
        self.module, self.pages, self.keep_outgrown = module, pages, keep_outgrown
        self.cache = PrefixCache(pages) if prefix_cache and not module.config.whole_prompts else None
        self.dynamic = sorted({s.original for s in scalings(module) if isinstance(s, Dynamic)})
        self.restart_lengths = restart_lengths(module)

    def root(self, sequence: Sequence) -> Hashable:
        """Return everything that a stored row depends on, besides its token and earlier ones: weights, source, rotary frequencies."""
        place, length = addresses(map(memory, self.module.parameters())), self.angle_length(sequence)
        frequencies = *(max(length, original) for original in self.dynamic), *(length > restart for restart in self.restart_lengths)
        return self.module.edition, place, sequence.request.source, frequencies

    def angle_length(self, sequence: Sequence) -> int:
        """Return the least text length that rotary scaling assumes: the prompt's, or one more than the last outgrown restart length."""
        return max(len(sequence.request.prompt), *(length + 1 for length in self.restart_lengths if len(sequence.tokens) > length), 0)

    def outgrown(self, sequence: Sequence) -> bool:
        return bool(self.restart_lengths) and self.pages.angle_length[sequence.key] != self.angle_length(sequence)

    def reopen(self, sequence: Sequence) -> int:
        if self.keep_outgrown:
            self.pages.fork(sequence.key, (sequence.key, sequence.stored))
        self.close(sequence)
        return self.open(sequence)

    def open(self, sequence: Sequence) -> int:
        key, stored = sequence.key, 0
        if self.cache is not None:
            sequence.root = self.root(sequence)  # set here: a text begun under old weights is not kept under new ones
            if not sequence.request.scored and sequence.request.watched is None and not edits(key):
                stored = self.cache.start(key, sequence.root, sequence.tokens)
        self.pages.angle_length[key] = self.angle_length(sequence)
        self.pages.prompts[key] = sequence.request.prompt, sequence.request.source
        self.pages.reserve(key, stored)
        return stored

    def can_grow(self, key: Hashable, tokens: int) -> bool:
        return self.pages.fits(key, tokens) if self.cache is None else self.cache.can_grow(key, tokens)

    def reserve(self, key: Hashable, tokens: int) -> None:
        self.pages.reserve(key, tokens)

    def ahead(self, sequence: Sequence, steps: int, grow: bool) -> int:
        length, stored, size = len(sequence.tokens), sequence.stored, self.pages.size
        steps = min([steps, *(restart - length + 1 for restart in self.restart_lengths if restart >= length)])
        left = size - stored % size  # rows up to the end of the page that its next row is in
        if steps <= left or not (grow and self.pages.fits(sequence.key, stored + steps)):  # no row of the cache goes for them
            return min(steps, left)
        self.pages.reserve(sequence.key, stored + steps)
        return steps

    def accept(self, key: Hashable, tokens: int) -> None:
        self.pages.advance(key, tokens)

    def fork(self, sequence: Sequence, sibling: Sequence) -> None:
        self.pages.fork(sequence.key, sibling.key)

    def keep(self, sequence: Sequence) -> None:
        if self.cache is not None and sequence.stored and not sequence.edited:
            self.cache.keep(sequence.key, sequence.root, sequence.tokens[: sequence.stored])

    def close(self, sequence: Sequence) -> None:
        self.keep(sequence)
        self.pages.release(sequence.key)
        if self.draft is not None:
            self.draft.close(sequence.key)

    def forget(self) -> None:
        if self.cache is not None:
            self.cache.forget()
        if self.draft is not None:
            self.draft.forget()

    def recover(self) -> None:
        """Take back all pages of all sequences, after a step that failed at any call. Clears the cache too if its counts are wrong."""
        try:
            for key in self.pages.holders():
                self.pages.release(key)
            sound = self.pages.sound() if self.cache is None else self.cache.sound()
        except Exception:  # an entry that was half written
            sound = False
        if not sound:
            self.pages.clear()
            if self.cache is not None:
                self.cache.clear()
        if self.draft is not None:
            self.draft.recover()


def scalings(module: Decoder | EncoderDecoder) -> Iterator[object]:
    """Yield the scaling of each layer's rotary positions."""
    ropes = (getattr(layer.attn, "rope", None) for layer in module.config.layers)
    return (rope.scaling for rope in ropes if rope is not None)


def restart_lengths(module: Decoder | EncoderDecoder) -> list[int]:
    """Return the lengths beyond which a text is computed again from its start."""
    return sorted({s.original for s in scalings(module) if isinstance(s, LongRope)})


def page_size(module: nn.Module) -> int:
    """Return the rows of a page. A state, one for each page, may be as large as a thousand rows."""
    return STATE_PAGE if stateful(module) else PAGE


def in_pages(module: nn.Module, tokens: int) -> int:
    """Return the rows of the pages that hold this many tokens."""
    size = page_size(module)
    return -(-tokens // size) * size


def pages_for(
    module: Decoder | EncoderDecoder, count: int, limits: SchedulerLimits, size: int, keep_all: bool, format: PlainRows = PLAIN
) -> PagedCache:
    """Make `count` pages of `size` rows, and fewer for layers with a window, which give pages back as a text grows."""
    windows = {None} if keep_all else windows_of(module)
    short = {w: min(count, limits.running * most_pages(w, limits.rows, size)) for w in windows if w is not None}
    # a text that outgrows one of these lengths is computed again from its start, and its old pages are kept as well
    outgrown = sum(-(-length // size) for length in restart_lengths(module)) if keep_all else 0
    device = next(module.parameters()).device
    return PagedCache(count + outgrown if None in windows else 0, size, short, count * size, format, device)


def windows_of(module: nn.Module) -> set[int | None]:
    """Return the windows of a model's parts, in positions, a query's own included; None: no window."""
    return {part.window for part in module.modules() if hasattr(part, "window")}  # type: ignore[misc]


def most_pages(window: int, rows: int, size: int) -> int:
    """Return the most pages of `size` that a text holds under a window when `rows` are stored at once, wherever page edges fall.

    It holds what a query at the end of its last full page sees, and the pages behind.
    """
    return -(-(window - 1) // size) + (rows + size - 2) // size + 1


def edits(key: Hashable) -> bool:
    """True if a watch of this thread edits tensors of the text `key`."""
    changed = (w.request if c.request is None else c.request for w in here.watches for c in w.changes)
    return any(request is None or request == key for request in changed)
