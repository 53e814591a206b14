"""A conversation as a model reads it: by the template of its folder, or, where that has none, as one plain text.

    system "Be brief."   user "The capital of France is"   assistant " Paris."   user "And of Japan?"

    Be brief.                                   without a template: each message on a new line,
    The capital of France is Paris.             an answer right behind what it answers
    And of Japan?

An encoder-decoder without a template reads the last message alone: its source is one text, and its answers are no part of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pellucid.errors import RequestError, UseError
from pellucid.nn.transformer import Encoder
from pellucid.ops.sampling.settings import Sampling
from pellucid.runs.execute import ids_of
from pellucid.runs.limits import Limits
from pellucid.runs.model_registry import ChatRule, LoadedModel
from pellucid.runs.request import known, number, sampling_of, switches_of, text
from pellucid.runs.switched_model import switched
from pellucid.tokenizer.chat import checked

NEW = 128  # tokens of an answer, unless a request says otherwise


@dataclass(frozen=True)
class ChatRequest:
    """A request for the next answer of a conversation. messages: plain ones, the oldest first.  sampling: of `ops.sampling.Sampling`."""

    model: str
    messages: tuple[dict[str, Any], ...]
    new: int
    sampling: dict[str, Any]
    switches: tuple[str, ...]


@dataclass(frozen=True)
class ChatPrompt:
    """What a model reads of a conversation. loaded: with the request's switches.  most: tokens that the answer may have."""

    loaded: LoadedModel
    sampling: Sampling
    rule: ChatRule
    text: str
    ids: list[int]
    most: int


def chat_of(body: Mapping[str, Any], limits: Limits) -> ChatRequest:
    """Read a request for an answer from `body`. A RequestError for a wrong field, a UseError for a wrong message."""
    known(body, ("model", "messages", "new", "sampling", "with"), "")
    messages = tuple(checked(body.get("messages")))
    if (size := sum(len(str(message)) for message in messages)) > 32 * limits.tokens:
        raise RequestError("server.tokens", 400, "messages", found=size, limit=limits.tokens)
    new = int(number(body, "new", int, 1, limits.new, NEW))
    return ChatRequest(text(body, "model"), messages, new, sampling_of(body), switches_of(body, limits))


def chat_prompt(loaded: LoadedModel, request: ChatRequest, limits: Limits) -> ChatPrompt:
    """Return what a model reads of a conversation. An error for one that no model of this kind can answer, or has no place for."""
    loaded = switched(loaded, request.switches, limits)
    model, rule = loaded.model, loaded.chat_rule
    if isinstance(loaded.module, Encoder):
        raise UseError("generate.encoder")
    if model is None or rule is None:
        raise RequestError("server.shapes", 400, "model", model=loaded.name)
    if not loaded.has_weights:
        raise RequestError("server.meta", 400, "model", path="logits")
    sampling = Sampling.of(request.sampling)
    sampling.check(loaded.config.vocab)
    messages, ids = list(request.messages), None
    if rule == "template":
        how: dict[str, Any] = {"now": datetime.now(), "seed": sampling.seed}  # so that both renderings are one
        written, ids = model.tokenizer.render(messages, **how).text, model.tokenizer.chat(messages, **how)
    else:
        written = plain(messages if rule == "joined" else messages[-1:])
    ids = ids_of(model, written, ids, limits)
    rows = model.config.positions
    most = request.new if rows is None or model.config.starts is not None else min(request.new, rows - len(ids))
    if most < 1:
        raise UseError("generate.context", tokens=len(ids), new=1, rows=rows)
    return ChatPrompt(loaded, sampling, rule, written, ids, most)


def plain(messages: Sequence[Mapping[str, Any]]) -> str:
    """Join the contents of messages: each on a new line, an answer right behind what it answers."""
    out = ""
    for message in messages:
        out += ("\n" if out and message["role"] != "assistant" else "") + (message.get("content") or "")
    return out
