"""The engine's storage: pages, and the prefix cache over them.

What a text stored may serve another that begins with the same tokens, if everything else that made it is the same too.

Rotary positions may turn by the text's length. A prompt is read as one text, and each new row with the text as long as it then is:

    Dynamic    a stored row keeps the frequencies it was turned by, and only new rows have those of a longer text
    LongRope   a text that outgrows the original context is read again from its start, with the factors of long texts
"""

from collections.abc import Hashable, Iterator

from pellucid.batch.kv_cache import PagedCache
from pellucid.config import Dynamic, LongRope
from pellucid.engine.plans import addresses, memory
from pellucid.engine.prefix_cache import PrefixCache
from pellucid.engine.requests import Sequence
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.watching.tap import here


class Memory:
    """Pages of a model's texts. cached: keep the pages of ended texts until others need the room.

    every: what a text has outgrown stays where it lies, for a watcher who asks late what a row was made of.
    """

    def __init__(self, module: Decoder | EncoderDecoder, pages: PagedCache, cached: bool = True, every: bool = False) -> None:
        self.module, self.pages, self.every = module, pages, every
        self.cache = PrefixCache(pages) if cached and not module.config.prefix else None  # a prefix sees what comes after it
        self.dynamic = sorted({s.original for s in scalings(module) if isinstance(s, Dynamic)})
        self.bounds = bounds(module)

    def root(self, sequence: Sequence) -> Hashable:
        """All that tells what is stored for a token, besides the tokens before it."""
        place, together = addresses(map(memory, self.module.parameters())), self.together(sequence)
        turned = *(max(together, original) for original in self.dynamic), *(together > bound for bound in self.bounds)
        return self.module.edition, place, sequence.request.source, turned

    def together(self, sequence: Sequence) -> int:
        """How many first tokens of a text are read as one: its prompt, and all up to the first that lies beyond a bound."""
        return max(len(sequence.request.prompt), *(bound + 1 for bound in self.bounds if len(sequence.tokens) > bound), 0)

    def outgrown(self, sequence: Sequence) -> bool:
        return bool(self.bounds) and self.pages.together[sequence.key] != self.together(sequence)

    def again(self, sequence: Sequence) -> int:
        if self.every:
            self.pages.fork(sequence.key, (sequence.key, sequence.stored))
        self.close(sequence)
        return self.open(sequence)

    def open(self, sequence: Sequence) -> int:
        key, held = sequence.key, 0
        if self.cache is not None:
            sequence.root = self.root(sequence)  # now: a text begun under old weights is not kept under new ones
            if not sequence.request.scored and not changed():
                held = self.cache.start(key, sequence.root, sequence.tokens)
        self.pages.together[key] = self.together(sequence)
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

    def recover(self) -> None:
        """Take back all that any text holds, after a step that failed at any moment. Where the books do not balance then, what has ended
        is forgotten too.
        """
        try:
            for key in self.pages.holders():
                self.pages.release(key)
            sound = self.pages.sound() if self.cache is None else self.cache.sound()
        except Exception:  # half of an entry
            sound = False
        if not sound:
            self.pages.clear()
            if self.cache is not None:
                self.cache.clear()


def scalings(module: Decoder | EncoderDecoder) -> Iterator[object]:
    """What the rotary positions of each layer are bent by."""
    ropes = (getattr(layer.attn, "rope", None) for layer in module.config.layers)
    return (rope.scaling for rope in ropes if rope is not None)


def bounds(module: Decoder | EncoderDecoder) -> list[int]:
    """The lengths beyond which a text is read again from its start."""
    return sorted({s.original for s in scalings(module) if isinstance(s, LongRope)})


def changed() -> bool:
    """Whether a watcher of this thread changes what a forward computes."""
    return any(w.edit for w in here.watches)
