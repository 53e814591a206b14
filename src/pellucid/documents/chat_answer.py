"""The next answer of a conversation as it grows: what the model reads, each token with what else was likely, and the end.

{"prompt": {"rule": "joined", "text": "The capital of France is", "ids": [54, ...], ...}}
{"token": {"text": " Paris", "answer": {"picked": ..., "candidates": [...]}, ...}}
{"end": {"ended": "stop", "text": ""}}
"""

import math
from collections.abc import Iterator
from contextlib import closing
from time import perf_counter
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

from pellucid.documents.definition import Constraint, Count
from pellucid.documents.run import AnswerDocument, CandidateDocument, candidate_of
from pellucid.engine.memory import page_size
from pellucid.engine.requests import Output, Request
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
    proposed: NotRequired[Annotated[Count, "tokens that were proposed, by the text itself or by a draft, if any were"]]
    accepted: NotRequired[Annotated[Count, "of them, those that came in the step of the token before"]]


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


class ChatWriter:
    """An answer as the engine draws it. stops: tokens that end it."""

    def __init__(self, prompt: ChatPrompt) -> None:
        assert prompt.loaded.model is not None
        self.prompt, self.model, self.began = prompt, prompt.loaded.model, perf_counter()
        self.tokenizer = self.model.tokenizer
        self.stops = (*self.model.stops, *(id for name, id in self.tokenizer.special.items() if name == "eos"))
        self.stream, self.reused, self.ended = self.tokenizer.stream(skip_special=True), 0, False
        self.proposed = self.accepted = 0

    def outputs(self) -> Iterator[Output]:
        """Yield the outputs of the model's own engine."""
        prompt = self.prompt
        return self.model.stream([prompt.ids], prompt.most, prompt.sampling, self.stops, cached=True, logprobs=BEST)

    def request(self, speculate: bool) -> Request:
        """Return the request of another engine of the model. speculate: see Request."""
        prompt = self.prompt
        how: dict[str, Any] = {"logprobs": BEST, "speculate": speculate}
        (made,) = self.model.requests([prompt.ids], prompt.most, prompt.sampling, self.stops, **how)
        return made

    def candidate(self, id: int, logprob: float) -> CandidateDocument:
        """Return a token that could have come; the engine gives its log-probability, and no logit."""
        piece = piece_of(self.tokenizer, id)
        return candidate_of(piece, Candidate(piece, math.nan, math.exp(logprob)))

    def events(self, output: Output) -> Iterator[ChatEventDocument]:
        """Yield the event of an output, none for one without a token."""
        self.reused = self.reused or output.cached
        self.proposed, self.accepted = self.proposed + output.proposed, self.accepted + output.same_step
        if (token := output.token) is None:
            return
        self.ended = output.ended == "stop"
        assert token.logprob is not None
        answer: AnswerDocument = {
            "row": -1,
            "picked": self.candidate(token.id, token.logprob),
            "candidates": [self.candidate(id, logprob) for id, logprob in token.top],
        }
        shown = "" if self.ended else self.stream.feed(token.id)
        yield {"token": {"text": shown, "answer": answer, "reused": self.reused, "seconds": perf_counter() - self.began}}

    def end(self) -> ChatEventDocument:
        """Return the last event."""
        made: ChatEndDocument = {"ended": "stop" if self.ended else "length", "text": self.stream.end()}
        if self.proposed:
            made |= {"proposed": self.proposed, "accepted": self.accepted}
        return {"end": made}


def chat_events(prompt: ChatPrompt, stop: Stop) -> Iterator[ChatEventDocument]:
    """Yield the tokens of the answer as they are drawn, and its end. A RequestError once `stop` is set."""
    writer = ChatWriter(prompt)
    with closing(writer.outputs()) as outputs:  # type: ignore[type-var]
        for output in outputs:
            stop.check()
            yield from writer.events(output)
    yield writer.end()
