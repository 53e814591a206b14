"""The page's chat: the next answer of a conversation, as a stream of its events.

Under `pellucid serve` the engine that answers clients draws them too, with its prefix cache. Otherwise a thread of their own does, so that
a long answer keeps no other view waiting.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import Request
from starlette.responses import Response

from pellucid.errors import RequestError
from pellucid.runs.worker import Stop, Worker
from pellucid.server.event_stream import EventStream
from pellucid.server.faults import error_table
from pellucid.server.guard import language

if TYPE_CHECKING:
    from pellucid.runs.chat_prompt import ChatPrompt
    from pellucid.server.app import Api
    from pellucid.server.openai.served_model import ServedModel


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
        served = session.answering.get(given.model) if prompt.loaded.plain is None else None
        made = AnswerEvents(request, self.worker, prompt) if served is None else EngineEvents(prompt, served)
        return EventStream(request, made, language(request.scope), {})


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


class EngineEvents:
    """The events of one answer, which the engine of a served model draws among its clients' requests. A UseError if its queue is full."""

    end = b""

    def __init__(self, prompt: "ChatPrompt", served: "ServedModel") -> None:
        from pellucid.documents.chat_answer import ChatWriter

        self.prompt, self.writer = prompt, ChatWriter(prompt)
        self.submitted = served.submit([self.writer.request(served.speculate)])

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the prompt, the tokens as they come, and the end."""
        from pellucid.documents.chat_answer import prompt_document

        yield {"prompt": prompt_document(self.prompt)}
        async with aclosing(self.submitted.outputs()) as outputs:
            async for _, output in outputs:
                if output.ended == "cancelled":
                    raise RequestError("serve.draining", 503)
                for event in self.writer.events(output):
                    yield cast(dict[str, Any], event)
        yield cast(dict[str, Any], self.writer.end())

    def failure(self, fault: Exception, language: str | None) -> dict[str, Any]:
        """Return the event that ends an answer which failed."""
        return error_table(fault, language)[1]

    def close(self) -> None:
        """End the request, if it has not ended."""
        self.submitted.close()
