"""The shapes of answers: a choice of a completion or a chat, plain or as a chunk of a stream, and log-probabilities in both forms.

A token that is no text alone, such as one byte of a character, is written "bytes:\\\\xe4", so that no two tokens have one name.
"""

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pellucid.server.openai.chat_reply import ReplyForm, ReplyStream
from pellucid.server.openai.choice import Delta, TokenEntry
from pellucid.tokenizer.tokenizer import Tokenizer

NEAR = 4  # characters that a normalizer may have taken between two tokens


def written(tokenizer: Tokenizer, id: int) -> tuple[str, bytes]:
    """Return the name of a token in log-probabilities, and its bytes."""
    (piece,) = tokenizer.pieces([id])
    try:
        return piece.raw.decode("utf-8"), piece.raw
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece.raw), piece.raw


def prompt_starts(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[int]:
    """Return where each token of a prompt begins in its text, which special tokens may or may not be part of.

    Where a normalizer changed the text, the next token whose text is close by is in its place again.
    """
    stream, out, at = tokenizer.stream(skip_special=tokenizer.decode(ids) != text), list[int](), 0
    for piece in map(stream.feed, ids):
        met = text.find(piece, at, at + len(piece) + NEAR)
        at = min(at, len(text)) if met < 0 else met
        out.append(at)
        at += len(piece)
    return out


class CompletionShape:
    """The shapes of /v1/completions."""

    object, chunk, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, tokenizer: Tokenizer, logprobs: int | None) -> None:
        self.tokenizer, self.count = tokenizer, logprobs

    def logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any] | None:
        """Return tokens, their log-probabilities, the likeliest in their places, and where each begins in the text."""
        if self.count is None:
            return None
        out: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for e in entries:
            name, _ = written(self.tokenizer, e.id)
            top = {written(self.tokenizer, id)[0]: finite(value) for id, value in e.top}
            out["tokens"].append(name)
            out["token_logprobs"].append(finite(e.logprob))
            out["top_logprobs"].append(None if e.logprob is None else top | {name: finite(e.logprob)})
            out["text_offset"].append(e.start)
        return out

    def full(self, index: int, text: str, entries: Sequence[TokenEntry], finish: str | None) -> dict[str, Any]:
        """Return a choice of an answer that is not streamed. Tokens of a stop string begin at the end of the text."""
        return self.choice(index, text, [replace(e, start=min(e.start, len(text))) for e in entries], finish)

    def choice(self, index: int, text: str, entries: Sequence[TokenEntry], finish: str | None) -> dict[str, Any]:
        """Return a choice, or what a chunk adds to it."""
        return {"index": index, "text": text, "logprobs": self.logprobs(entries), "finish_reason": finish}

    def pieces(self, index: int, delta: Delta, all_entries: bool) -> Iterator[dict[str, Any]]:
        """Yield the choice of a chunk that a delta makes, if it shows anything. all_entries: a token without text does too."""
        if delta.text or (delta.entries and all_entries) or delta.finish is not None:
            yield self.choice(index, delta.text, delta.entries, delta.finish)


class ChatShape:
    """The shapes of /v1/chat/completions. form: how replies are written.  streams: of the choices of a stream."""

    object, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(self, tokenizer: Tokenizer, logprobs: int | None, form: ReplyForm | None = None) -> None:
        self.tokenizer, self.count, self.form = tokenizer, logprobs, form or ReplyForm()
        self.streams: dict[int, ReplyStream] = {}

    def logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any] | None:
        """Return each token with its log-probability, its bytes and the likeliest tokens in its place."""
        if self.count is None:
            return None
        content = [self.entry(e.id, e.logprob) | {"top_logprobs": [self.entry(*pair) for pair in e.top]} for e in entries]
        return {"content": content, "refusal": None}

    def entry(self, id: int, logprob: float | None) -> dict[str, Any]:
        name, raw = written(self.tokenizer, id)
        return {"token": name, "logprob": finite(logprob), "bytes": list(raw)}

    def full(self, index: int, text: str, entries: Sequence[TokenEntry], finish: str | None) -> dict[str, Any]:
        """Return a choice of an answer that is not streamed."""
        message = self.form.message(text)
        finish = "tool_calls" if finish == "stop" and "tool_calls" in message else finish
        return {"index": index, "message": message, "logprobs": self.logprobs(entries), "finish_reason": finish}

    def pieces(self, index: int, delta: Delta, all_entries: bool) -> Iterator[dict[str, Any]]:
        """Yield the choices of chunks that a delta makes: what it shows of the message, with log-probabilities, and the end apart.

        all_entries: a token that shows nothing yet has a chunk too.
        """
        stream = self.streams.setdefault(index, ReplyStream(self.form))
        shown = stream.feed(delta.text, delta.finish is not None)
        if shown or (delta.entries and all_entries):
            logprobs = self.logprobs(delta.entries)
            yield {"index": index, "delta": shown or {"content": ""}, "logprobs": logprobs, "finish_reason": None}
        if delta.finish is not None:
            finish = "tool_calls" if delta.finish == "stop" and stream.sent.calls else delta.finish
            yield {"index": index, "delta": {}, "logprobs": None, "finish_reason": finish, "stop_reason": delta.reason}


def head(shape: CompletionShape | ChatShape, model: str, fingerprint: str, chunk: bool) -> dict[str, Any]:
    """Return the fields that an answer, or every chunk of it, begins with."""
    kind = shape.chunk if chunk else shape.object
    return {
        "id": f"{shape.prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model,
        "system_fingerprint": fingerprint,
    }  # fmt: skip


def usage_of(prompt: int, completion: int, cached: int, reasoning: int) -> dict[str, Any]:
    """Return the count of tokens of an answer. cached: of prompts whose rows were stored already.  reasoning: of the completion."""
    return {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached}, "completion_tokens_details": {"reasoning_tokens": reasoning},
    }  # fmt: skip


def finite(logprob: float | None) -> float | None:
    """Return a log-probability that JSON can hold: -9999 for -∞, as OpenAI does."""
    return None if logprob is None else max(logprob, -9999.0)
