"""The next answer of a conversation as it grows: what the model reads, each token with what else was likely, and the end.

{"prompt": {"rule": "joined", "text": "The capital of France is", "ids": [54, ...], ...}}
{"token": {"text": " Paris", "answer": {"picked": ..., "candidates": [...]}, ...}}
{"end": {"ended": "stop", "text": ""}}
"""

import math
from collections.abc import Iterator
from contextlib import closing
from time import perf_counter
from typing import Annotated, Final, Literal, NotRequired, TypedDict

from pellucid.documents.definition import Constraint, Count
from pellucid.documents.run import AnswerDocument, CandidateDocument, candidate_of
from pellucid.engine.memory import page_size
from pellucid.runs.answers import Candidate, piece_of, visible
from pellucid.runs.chat_prompt import ChatPrompt
from pellucid.runs.worker import Stop

SCHEMA: Final = 1
BEST = 10  # candidates of a token


class ChatPromptDocument(TypedDict):
    """What the model reads of a conversation."""

    model: str
    rule: Annotated[Literal["template", "joined", "last"], "without a template: all messages as one text, or the last alone"]
    text: Annotated[str, "that the rule makes of the messages"]
    ids: list[Count]
    pieces: Annotated[list[str], "of the ids, as they are shown"]
    page: Annotated[int, Constraint(minimum=1), "rows of a page: full ones are read again from the prefix cache"]


class ChatTokenDocument(TypedDict):
    """A token of an answer."""

    text: Annotated[str, "that it adds to the answer; empty while a character is incomplete, and of a token that is no text"]
    answer: Annotated[AnswerDocument, "by the model's own distribution, before any setting of sampling"]
    reused: Annotated[Count, "rows of the prompt that the prefix cache had"]
    seconds: Annotated[float, "since the answer began"]


class ChatEndDocument(TypedDict):
    """The end of an answer."""

    ended: Annotated[Literal["stop", "length"], "a token that ends a text, or no more are asked for or have a place"]
    text: Annotated[str, "that was held back"]


class FaultDocument(TypedDict):
    """What an error says."""

    message: str
    type: str
    param: str | None
    code: str


class ChatEventDocument(TypedDict):
    """One event of an answer: exactly one of its parts."""

    prompt: NotRequired[ChatPromptDocument]
    token: NotRequired[ChatTokenDocument]
    end: NotRequired[ChatEndDocument]
    error: NotRequired[FaultDocument]


def prompt_document(prompt: ChatPrompt) -> ChatPromptDocument:
    """Return the document of what the model reads."""
    model = prompt.loaded.model
    assert model is not None
    pieces = [visible(piece) for piece in model.tokenizer.pieces(prompt.ids)]
    page = page_size(model.module)
    return {"model": prompt.loaded.name, "rule": prompt.rule, "text": prompt.text, "ids": prompt.ids, "pieces": pieces, "page": page}


def chat_events(prompt: ChatPrompt, stop: Stop) -> Iterator[ChatEventDocument]:
    """Yield the tokens of the answer as they are drawn, and its end. A RequestError once `stop` is set."""
    model = prompt.loaded.model
    assert model is not None
    tokenizer, began = model.tokenizer, perf_counter()
    stops = (*model.stops, *(id for name, id in tokenizer.special.items() if name == "eos"))
    stream, reused, ended = tokenizer.stream(skip_special=True), 0, False

    def candidate(id: int, logprob: float) -> CandidateDocument:
        piece = piece_of(tokenizer, id)
        return candidate_of(piece, Candidate(piece, math.nan, math.exp(logprob)))  # the engine gives no logit

    outputs = model.stream([prompt.ids], prompt.most, prompt.sampling, stops, cached=True, logprobs=BEST)
    with closing(outputs):  # type: ignore[type-var]
        for output in outputs:
            stop.check()
            reused = reused or output.cached
            if (token := output.token) is None:
                continue
            ended = output.ended == "stop"
            assert token.logprob is not None
            answer: AnswerDocument = {
                "row": -1,
                "picked": candidate(token.id, token.logprob),
                "candidates": [candidate(id, logprob) for id, logprob in token.top],
            }
            shown = "" if ended else stream.feed(token.id)
            yield {"token": {"text": shown, "answer": answer, "reused": reused, "seconds": perf_counter() - began}}
    yield {"end": {"ended": "stop" if ended else "length", "text": stream.end()}}
