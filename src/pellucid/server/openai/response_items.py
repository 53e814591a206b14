"""The answers of /v1/responses: items with parts, made from a chat's chunks as they come.

    chunk  {"delta": {"content": "Par"}}        event  response.output_item.added, response.content_part.added, response.output_text.delta
    chunk  {"delta": {"content": "is"}}         event  response.output_text.delta
    chunk  {"finish_reason": "stop"}            event  response.output_text.done, response.content_part.done, response.output_item.done

An answer that is not streamed is the response of the last event.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pellucid.server.openai.error_shape import error_body

if TYPE_CHECKING:
    from pellucid.server.openai.answering import GeneratedAnswer

Event = dict[str, Any]
# Of each kind of item: the prefix of its id, and of its events.
KINDS = {
    "reasoning": ("rs", "response.reasoning_text"),
    "message": ("msg", "response.output_text"),
    "function_call": ("fc", "response.function_call_arguments"),
}
# Fields of the body that an answer repeats, with their values where it has none.
ECHOED: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    "top_logprobs": 0, "user": None,
}  # fmt: skip


class ResponseItems:
    """The items of an answer so far. The last one is open until another kind begins, or the answer ends.

    waiting: log-probabilities of tokens that have shown nothing yet, such as the first byte of a character. They are those of the message
    if text of it follows, or nothing; a mark that begins reasoning or a call is none of it.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.text = ""  # of the open item
        self.logprobs: list[dict[str, Any]] = []
        self.waiting: list[dict[str, Any]] = []
        self.open: str | None = None

    def feed(self, delta: Mapping[str, Any], logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        """Add a chat's delta, with the log-probabilities of its tokens. Yields the events that it makes."""
        waiting, self.waiting = self.waiting, logprobs
        if text := delta.get("reasoning_content"):
            yield from self.begin("reasoning", content=[], summary=[])
            yield self.grow(text)
        else:
            self.waiting = waiting + logprobs
        if text := delta.get("content"):
            self.waiting = tail(self.waiting, text) if self.open == "reasoning" else self.waiting
            yield from self.begin("message", role="assistant", content=[])
            yield self.add_text(text)
        elif delta.get("reasoning_content") or delta.get("tool_calls"):
            self.waiting = []
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                yield from self.close()
                yield from self.begin("function_call", call_id=call["id"], name=call["function"]["name"], arguments="")
            if arguments := call["function"]["arguments"]:
                yield self.grow(arguments)

    def begin(self, kind: str, **fields: Any) -> Iterator[Event]:
        """Open an item of a kind, unless it is open."""
        if self.open == kind:
            return
        yield from self.close()
        prefix, _ = KINDS[kind]
        self.open, self.text, self.logprobs = kind, "", []
        self.items.append({"id": f"{prefix}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **fields})
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": dict(self.items[-1])}
        if kind != "function_call":
            yield self.place("response.content_part.added") | {"part": self.part()}

    def grow(self, text: str) -> Event:
        """Add text to the open item."""
        assert self.open is not None
        self.text += text
        return self.place(f"{KINDS[self.open][1]}.delta") | {"delta": text}

    def add_text(self, text: str) -> Event:
        """Add text to the open message, with the log-probabilities of its tokens."""
        shown, self.waiting = self.waiting, []
        self.logprobs += shown
        return self.grow(text) | {"logprobs": shown}

    def close(self, status: str = "completed") -> Iterator[Event]:
        """Close the open item, if there is one."""
        if self.open is None:
            return
        if self.open == "message" and self.waiting:
            yield self.add_text("")
        done, item = self.place(f"{KINDS[self.open][1]}.done"), self.items[-1]
        item["status"] = status
        if self.open == "function_call":
            item["arguments"] = self.text
            yield done | {"arguments": self.text, "name": item["name"]}
        else:
            item["content"] = [self.part()]
            yield done | {"text": self.text} | ({"logprobs": self.logprobs} if self.open == "message" else {})
            yield self.place("response.content_part.done") | {"part": self.part()}
        self.open = None
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": dict(item)}

    def place(self, kind: str) -> Event:
        """Return an event of the open item, without what it says."""
        index = {} if self.open == "function_call" else {"content_index": 0}
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1} | index

    def part(self) -> dict[str, Any]:
        """Return the one part of the open item's content."""
        if self.open == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self.logprobs)}


def tail(entries: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return the last entries that have a text: behind reasoning stand its closing mark and blank lines, no part of a message."""
    raw = b""
    for i in range(len(entries) - 1, -1, -1):
        raw = bytes(entries[i]["bytes"]) + raw
        if text.encode() in raw:
            return entries[i:]
    return entries


class ResponseAnswer:
    """An answer of /v1/responses. body: as it came.  answer: the chat's."""

    end = b""  # the last event says that it is the last

    def __init__(self, body: Mapping[str, Any], answer: "GeneratedAnswer") -> None:
        self.answer, self.items, self.count = answer, ResponseItems(), 0
        sampling = answer.job.requests[0].sampling
        given = {name: value for name, value in body.items() if value is not None}
        self.head = {
            "id": f"resp_{uuid.uuid4().hex}", "object": "response", "created_at": int(time.time()), "model": answer.job.served.name,
            "status": "in_progress", "background": False, "error": None, "incomplete_details": None, "previous_response_id": None,
            "store": False, "truncation": "disabled", "service_tier": "default", "usage": None,
            "temperature": sampling.temperature, "top_p": sampling.top_p,
            "reasoning": {"effort": None, "summary": None} | given.get("reasoning", {}),
            "text": {"format": {"type": "text"}} | given.get("text", {}),
        } | {name: given.get(name, absent) for name, absent in ECHOED.items()}  # fmt: skip

    def close(self) -> None:
        """Cancel what has not ended."""
        self.answer.close()

    def response(self, **fields: Any) -> dict[str, Any]:
        """Return the answer so far."""
        return self.head | {"output": [dict(item) for item in self.items.items]} | fields

    async def document(self) -> dict[str, Any]:
        """Return the answer as one document."""
        last: Event = {}
        async with aclosing(self.events()) as events:
            async for event in events:
                last = event
        document: dict[str, Any] = last["response"]
        return document

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events of a stream, numbered from 0."""
        async with aclosing(self.parts()) as parts:
            async for event in parts:
                yield self.numbered(event)

    def numbered(self, event: Event) -> Event:
        """Return an event with the next number."""
        self.count += 1
        return event | {"sequence_number": self.count - 1}

    async def parts(self) -> AsyncGenerator[Event, None]:
        """Yield the events of a stream, without their numbers."""
        yield {"type": "response.created", "response": self.response()}
        yield {"type": "response.in_progress", "response": self.response()}
        finish, noted = "stop", dict[str, Any]()
        async with aclosing(self.answer.events()) as chunks:
            async for chunk in chunks:
                for choice in chunk["choices"]:
                    entries = (choice["logprobs"] or {}).get("content", [])
                    for event in self.items.feed(choice["delta"], entries):
                        yield event
                    finish = choice["finish_reason"] or finish
                noted |= {"pellucid": chunk["pellucid"]} if "pellucid" in chunk else {}
        status = "incomplete" if finish == "length" else "completed"
        for event in self.items.close(status):
            yield event
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        response = self.response(status=status, incomplete_details=details, usage=usage_of_response(self.answer.usage()), **noted)
        yield {"type": f"response.{status}", "response": response}

    def failure(self, fault: Exception, language: str | None) -> Event:
        """Return the event that ends a stream which failed."""
        error = error_body(fault, language)[1]["error"]
        shown = {name: error[name] for name in ("code", "message")}
        return self.numbered({"type": "response.failed", "response": self.response(status="failed", error=shown)})


def usage_of_response(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat's count of tokens under this route's names."""
    return {
        "input_tokens": usage["prompt_tokens"], "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"], "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }  # fmt: skip
