"""Rendered chats to ids: names of control tokens that the template wrote are fenced, and only those are read as control tokens."""

import json
import re
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Any

from pellucid.errors import TokenizerError
from pellucid.messages import say
from pellucid.tokenizer.backend import library
from pellucid.tokenizer.chat_template import Rendered
from pellucid.tokenizer.tokenizer_file import Spec

FENCE = "\U0010fffe"  # not a character, so that a fenced name of a control token cannot occur in a text
LONGEST_TEXT = 32_000_000  # characters; a longer one is for the caller to cut


class Chat:
    """An encoder of rendered prompts: names of control tokens that the template wrote are fenced, and only those are control tokens.

    control: the tokens that only a template may write, by id.
    """

    def __init__(self, spec: Spec, file: str, control: dict[int, str]) -> None:
        self.file, self._control = file, control
        self._fenced = fenceable(spec, control)
        names = sorted(control.values(), key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names)) or "(?!)")
        self._library = library(untrimmed(fenced(spec, self._fenced)), file, parse=True)

    def ids(self, rendered: Rendered, given: Any) -> list[int]:
        """Return the ids of a prompt; `given` is what it was rendered from."""
        fenced_text, own = self._fence(rendered)
        ids, _ = self._library.encode(fenced_text, None, special=False)
        self._judge(rendered.text, ids, own, given)
        return ids

    def located(self, rendered: Rendered, given: Any) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a prompt, and for each the start and stop of its characters in it."""
        fenced_text, own = self._fence(rendered)
        ids, places = self._library.located(fenced_text)
        self._judge(rendered.text, ids, own, given)
        fences = [match.start() for match in re.finditer(FENCE, fenced_text)]
        return ids, [(start - bisect_left(fences, start), stop - bisect_left(fences, stop)) for start, stop in places]

    def _fence(self, rendered: Rendered) -> tuple[str, Counter[str]]:
        """Return the prompt with its own control tokens fenced, and how often each is its own."""
        text = rendered.text.replace(FENCE, "\ufffd")
        refuse_text(text)
        parts, end, own = list[str](), 0, Counter[str]()

        def fence(match: re.Match[str]) -> str:
            own[match[0]] += 1
            return f"{FENCE}{match[0]}{FENCE}" if match[0] in self._fenced else match[0]

        for start, stop in rendered.own:
            parts += [text[end:start], self._names.sub(fence, text[start:stop])]
            end = stop
        return "".join([*parts, text[end:]]), own

    def _judge(self, text: str, ids: list[int], own: Counter[str], given: Any) -> None:
        """Raise a TokenizerError if the ids hold more of a control token than the template wrote."""
        for id, count in Counter(id for id in ids if id in self._control).items():
            if count > own[self._control[id]]:
                raise TokenizerError("tokenizer.control", file=self.file, token=self._control[id], id=id)
        self._warn(Counter(self._names.findall(text)) - own, given)

    def _warn(self, unowned: Counter[str], given: Any) -> None:
        """Warn of control tokens in a prompt that were not typed and are not marked as the template's: their origin was lost on the way."""
        typed = json.dumps(given, ensure_ascii=False, default=str) if unowned else ""
        if lost := [name for name in unowned if name not in typed]:
            warnings.warn(say("template.lost", file=self.file, tokens=", ".join(lost)), stacklevel=5)


def refuse_text(text: str) -> None:
    """Raise a TokenizerError if a text is no str, has half characters, or is too long."""
    if len(text) > LONGEST_TEXT:
        raise TokenizerError("tokenizer.long", count=len(text), limit=LONGEST_TEXT)
    try:
        text.encode()
    except UnicodeEncodeError as half:
        raise TokenizerError("tokenizer.text", offset=half.start) from None


def fenceable(spec: Spec, control: Iterable[int]) -> set[str]:
    """Return the names of control tokens that can be fenced: not those built by merges, since the merges name them."""
    ids = set(control)
    merges = spec["model"].get("merges") or []
    prefix = len(spec["model"].get("continuing_subword_prefix") or "")
    built = {left + right[prefix:] for left, right in merges} | {half for pair in merges for half in pair}
    return {token["content"] for token in spec.get("added_tokens") or [] if token["id"] in ids} - built


def fenced(spec: Spec, names: set[str]) -> Spec:
    """Return the same spec with these tokens under names that no text holds: else a unigram model finds "</s>" in a sentence.

    Where a token keeps its name, `encode` and `chat` refuse a text that yields it.
    """
    model = spec["model"]

    def fence(name: str) -> str:
        return f"{FENCE}{name}{FENCE}" if name in names else name

    if model["type"] == "Unigram":
        vocab: Any = [[fence(piece), score] for piece, score in model["vocab"]]
    else:
        vocab = {fence(piece): id for piece, id in model["vocab"].items()}
    added = [{**token, "content": fence(token["content"])} for token in spec.get("added_tokens") or []]
    return {**spec, "added_tokens": added, "model": {**model, "vocab": vocab}}


def untrimmed(spec: Spec) -> Spec:
    """Return the same spec, whose tokens cover the spaces that they begin with; their ids are the same."""
    processor: Spec = spec.get("post_processor") or {}
    return {**spec, "post_processor": {**processor, "trim_offsets": False}} if "trim_offsets" in processor else spec
