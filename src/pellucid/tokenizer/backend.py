"""The `tokenizers` library behind one interface: in this process if a file's regular expressions are published ones, else in a worker.

Its regular expressions backtrack: `(a+)+$` takes minutes for a line of a's, and nothing in this process could stop it.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import tokenizers

from pellucid.errors import PellucidError, TokenizerError
from pellucid.tokenizer.limited_process import LimitedProcess
from pellucid.tokenizer.patterns import PUBLISHED

SETTING_UP = 20.0  # seconds of a processor for a vocabulary of millions
Spec = dict[str, Any]


class TextEncoder(Protocol):
    """The interface to one of the library's tokenizers."""

    def encode(self, text: str, pair: str | None, special: bool) -> tuple[list[int], list[int]]:
        """Return the ids of a text, and 1 for each that the post-processor added."""

    def located(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text without special tokens, and for each the start and stop of its characters."""

    def ids(self, tokens: Sequence[str]) -> list[int | None]:
        """Return the id of each of these tokens, None for an unknown one."""

    def pieces(self, ids: Sequence[int]) -> list[str | None]:
        """Return what the library decodes each of these ids from."""

    def words(self, text: str) -> list[str]:
        """Return the parts of a text that are encoded apart, in the vocabulary's writing."""


def library(spec: Spec, file: str, parse: bool) -> TextEncoder:
    """Return the library's tokenizer of a checked spec. parse: control tokens are taken from text."""
    setup = {"serve": "tokenizer", "spec": spec, "parse": parse}
    if unpublished(spec):
        return RemoteEncoder(setup, file)
    with guarded(file):
        return LocalEncoder(setup, file)


def unpublished(spec: Any) -> list[str]:
    """Return the regular expressions of a spec's normalizer and pre-tokenizer that are not known to be harmless."""
    patterns, waiting = list[str](), [spec.get("normalizer"), spec.get("pre_tokenizer")]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += part.values()
            pattern = part.get("Regex")
            patterns += [pattern] if isinstance(pattern, str) and pattern not in PUBLISHED else []
        elif isinstance(part, list):
            waiting += part
    return patterns


class LocalEncoder:
    """A tokenizer in this process; the worker serves one too."""

    def __init__(self, setup: Spec, file: str = "") -> None:
        self.file, self.setup_reply = file, Spec()
        self._made = tokenizers.Tokenizer.from_str(json.dumps(setup["spec"], ensure_ascii=False))
        self._made.encode_special_tokens = not setup["parse"]

    def encode(self, text: str, pair: str | None, special: bool) -> tuple[list[int], list[int]]:
        with guarded(self.file):
            encoding = self._made.encode(text, pair, add_special_tokens=special)
            return encoding.ids, encoding.special_tokens_mask

    def located(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        with guarded(self.file):
            encoding = self._made.encode(text, add_special_tokens=False)
            return encoding.ids, encoding.offsets

    def ids(self, tokens: Sequence[str]) -> list[int | None]:
        return [self._made.token_to_id(token) for token in tokens]

    def pieces(self, ids: Sequence[int]) -> list[str | None]:
        return [self._made.id_to_token(id) for id in ids]

    def words(self, text: str) -> list[str]:
        with guarded(self.file):
            normal, split = self._made.normalizer, self._made.pre_tokenizer
            text = text if normal is None else normal.normalize_str(text)
            return [text] if split is None else [word for word, _ in split.pre_tokenize_str(text)]

    def __call__(self, request: Spec) -> Spec:
        if "words" in request:
            return {"words": self.words(request["words"])}
        if "located" in request:
            return dict(zip(("ids", "places"), self.located(request["located"]), strict=True))
        if "tokens" in request:
            return {"ids": self.ids(request["tokens"])}
        if "ids" in request:
            return {"pieces": self.pieces(request["ids"])}
        encoding = self._made.encode(request["text"], request["pair"], add_special_tokens=request["special"])
        return {"ids": encoding.ids, "mask": encoding.special_tokens_mask}

    @staticmethod
    def fault(broken: BaseException) -> Spec:
        """Return the fault as a reply."""
        return {"fault": "memory"} if isinstance(broken, MemoryError) else {"fault": "library", "found": one_line(broken)}


class RemoteEncoder:
    """A tokenizer in a worker."""

    def __init__(self, setup: Spec, file: str) -> None:
        self._worker = LimitedProcess(setup, file, SETTING_UP)

    def encode(self, text: str, pair: str | None, special: bool) -> tuple[list[int], list[int]]:
        answer = self._worker.ask({"text": text, "pair": pair, "special": special})
        return answer["ids"], answer["mask"]

    def located(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        answer = self._worker.ask({"located": text})
        return answer["ids"], [(start, stop) for start, stop in answer["places"]]

    def ids(self, tokens: Sequence[str]) -> list[int | None]:
        ids_there: list[int | None] = self._worker.ask({"tokens": list(tokens)})["ids"]
        return ids_there

    def pieces(self, ids: Sequence[int]) -> list[str | None]:
        texts: list[str | None] = self._worker.ask({"ids": list(ids)})["pieces"]
        return texts

    def words(self, text: str) -> list[str]:
        parts: list[str] = self._worker.ask({"words": text})["words"]
        return parts


@contextmanager
def guarded(file: str) -> Iterator[None]:
    """Turn the library's faults into a TokenizerError; a panic of its Rust code is no Exception in Python."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, PellucidError):
        raise
    except BaseException as broken:
        raise TokenizerError("tokenizer.library", file=file, found=one_line(broken)) from None


def one_line(broken: BaseException) -> str:
    """Return a fault's message on one line."""
    return " ".join(str(broken).split())[:1000] or type(broken).__name__
