"""The page's chat: the next answer of a conversation, as a stream of its events.

Answers are drawn in a thread of their own, so that a long one keeps no other view waiting.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from pellucid.runs.worker import Stop, Worker
from pellucid.server.event_stream import EventStream
from pellucid.server.faults import error_table
from pellucid.server.guard import language

if TYPE_CHECKING:
    from pellucid.runs.chat_prompt import ChatPrompt
    from pellucid.server.app import Api


class ChatApi:
    """The route of answers. api: whose session has the models."""

    def __init__(self, api: "Api") -> None:
        self.api, self.worker = api, Worker(api.limits.waiting)

    async def answer(self, request: Request) -> Response:
        """Return the stream of an answer. What the model cannot read is refused before it begins."""
        body, session = await self.api.body(request), await self.api.session()
        from pellucid.runs.chat_prompt import chat_of, chat_prompt

        given, limits = chat_of(body, self.api.limits), self.api.limits
        session.registry.require(given.model)
        prompt = await self.worker.run(request, lambda stop: chat_prompt(session.registry[given.model], given, limits))
        return EventStream(request, AnswerEvents(request, self.worker, prompt), language(request.scope), {})


class AnswerEvents:
    """The events of one answer, which a thread draws."""

    end = b""

    def __init__(self, request: Request, worker: Worker, prompt: "ChatPrompt") -> None:
        self.request, self.worker, self.prompt = request, worker, prompt

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the prompt, the tokens as they come, and the end."""
        from pellucid.documents.chat_answer import chat_events, prompt_document

        yield {"prompt": prompt_document(self.prompt)}
        loop, made = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def draw(stop: Stop) -> None:
            for event in chat_events(self.prompt, stop):
                loop.call_soon_threadsafe(made.put_nowait, event)

        drawing = asyncio.ensure_future(self.worker.run(self.request, draw))
        drawing.add_done_callback(lambda done: made.put_nowait(None))
        try:
            while (event := await made.get()) is not None:
                yield event
            drawing.result()
        finally:
            drawing.cancel()
            await asyncio.gather(drawing, return_exceptions=True)

    def failure(self, fault: Exception, language: str | None) -> dict[str, Any]:
        """Return the event that ends an answer which failed."""
        return error_table(fault, language)[1]

    def close(self) -> None:
        """Do nothing: the stream's end cancels what draws."""
