"""The engine's storage: pages, and the prefix cache over them.

What a text stored may serve another that begins with the same tokens, if everything else that made it is the same too.
"""

from collections.abc import Hashable

from pellucid.engine.plans import addresses, memory
from pellucid.engine.prefix import PrefixCache
from pellucid.engine.requests import Sequence
from pellucid.models import Decoder, EncoderDecoder
from pellucid.past import Pages
from pellucid.tap import here


class Memory:
    """Pages of a model's texts. cached: what has ended stays as long as nobody needs its pages."""

    def __init__(self, module: Decoder | EncoderDecoder, pages: Pages, cached: bool = True) -> None:
        self.module, self.pages = module, pages
        self.cache = PrefixCache(pages) if cached and not module.config.prefix else None  # a prefix sees what comes after it
        ropes = (getattr(layer.attn, "rope", None) for layer in module.config.layers)
        self.by_length = any(rope is not None and rope.by_length for rope in ropes)

    def root(self, sequence: Sequence) -> Hashable:
        """All that tells what is stored for a token, besides the tokens before it."""
        place = addresses(map(memory, self.module.parameters()))
        return self.module.edition, place, sequence.request.source, sequence.request.budget if self.by_length else None

    def open(self, sequence: Sequence) -> int:
        key, held = sequence.key, 0
        if self.cache is not None:
            sequence.root = self.root(sequence)  # now: a text begun under old weights is not kept under new ones
            if not sequence.request.scored and not changed():
                held = self.cache.start(key, sequence.root, sequence.tokens)
        self.pages.budget[key] = sequence.request.budget
        self.pages.reserve(key, held)
        return held

    def room(self, key: Hashable, tokens: int) -> bool:
        return self.pages.fits(key, tokens) if self.cache is None else self.cache.room(key, tokens)

    def reserve(self, key: Hashable, tokens: int) -> None:
        self.pages.reserve(key, tokens)

    def fork(self, sequence: Sequence, sibling: Sequence) -> None:
        self.pages.fork(sequence.key, sibling.key)

    def keep(self, sequence: Sequence) -> None:
        if self.cache is not None and sequence.stored and not sequence.edited:
            self.cache.keep(sequence.key, sequence.root, sequence.tokens[: sequence.stored])

    def close(self, sequence: Sequence) -> None:
        self.keep(sequence)
        self.pages.release(sequence.key)

    def forget(self) -> None:
        """Let nothing of what has ended serve again."""
        if self.cache is not None:
            self.cache.forget()


def changed() -> bool:
    """Whether a watcher of this thread changes what a forward computes."""
    return any(w.edit for w in here.watches)
