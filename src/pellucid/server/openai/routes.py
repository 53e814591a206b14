"""The routes of `pellucid serve`: OpenAI's under /v1, and vLLM's /tokenize, /detokenize, /tokenizer_info, /version and /health."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from pellucid.checkpoint.json_file import parse_object
from pellucid.errors import RequestError, UseError
from pellucid.messages import speaking
from pellucid.runs.limits import Limits
from pellucid.runs.request import described, wrong
from pellucid.server.event_stream import EventStream
from pellucid.server.faults import answer
from pellucid.server.guard import language
from pellucid.server.handler import with_allow
from pellucid.server.openai.error_shape import refused
from pellucid.server.openai.operation import AccessLog, Operation
from pellucid.server.openai.serve_guard import HEALTH, ServeGuard
from pellucid.server.openai.trace_pages import TracePages, page_routes

if TYPE_CHECKING:
    from pellucid.server.openai.answering import GeneratedAnswer
    from pellucid.server.openai.inspection import Inspector
    from pellucid.server.openai.jobs import Job
    from pellucid.server.openai.response_items import ResponseAnswer
    from pellucid.server.openai.served_model import ServedModel

Handler = Callable[[Request], Awaitable[Response]]


class OpenAiApi:
    """The handlers. Those that need a model answer 503 while it loads."""

    def __init__(self, operation: Operation, limits: Limits) -> None:
        self.operation, self.limits = operation, limits

    def routes(self) -> list[Route]:
        def route(path: str, handler: Handler, method: str = "GET") -> Route:
            return Route(path, answered(handler), methods=[method])

        return [
            route(HEALTH, self.health),
            route("/version", self.version),
            route("/openapi.json", self.openapi),
            route("/v1/models", self.models),
            route("/v1/models/{name:path}", self.model),
            route("/v1/completions", self.completions, "POST"),
            route("/v1/chat/completions", self.chat_completions, "POST"),
            route("/v1/responses", self.responses, "POST"),
            route("/v1/responses/input_tokens", self.response_tokens, "POST"),
            *(route("/v1/responses/{id:path}", self.earlier, method) for method in ("GET", "DELETE", "POST")),
            route("/v1/embeddings", self.embeddings, "POST"),
            route("/metrics", self.metrics),
            route("/tokenize", self.tokenize, "POST"),
            route("/detokenize", self.detokenize, "POST"),
            route("/tokenizer_info", self.tokenizer_info),
        ]

    async def health(self, request: Request) -> Response:
        """Answer 200 and nothing once the models are loaded, else 503 and the state."""
        state = self.operation.state
        return Response() if state == "ready" else answer({"status": state}, 503, {"retry-after": "1"})

    async def version(self, request: Request) -> Response:
        return answer({"version": self.operation.version})

    async def openapi(self, request: Request) -> Response:
        from pellucid.server.openai.openapi import openapi

        names = list(self.operation.loaded.result()) if self.operation.loaded.done() else []
        return answer(await run_in_threadpool(openapi, self.operation.version, names))

    async def models(self, request: Request) -> Response:
        return answer({"object": "list", "data": [model_entry(served) for served in self.operation.models.values()]})

    async def model(self, request: Request) -> Response:
        return answer(model_entry(self.named(request.path_params["name"])))

    def named(self, name: Any) -> "ServedModel":
        """Return the model of a name. A RequestError if there is no such one."""
        models = self.operation.models
        if name is None and len(models) == 1:
            return next(iter(models.values()))
        if not isinstance(name, str):
            raise wrong("model", described(name), " | ".join(models))
        if name not in models:
            raise RequestError("serve.model", 404, "model", name="model", found=name, known=", ".join(models))
        return models[name]

    async def body(self, request: Request) -> "tuple[dict[str, Any], ServedModel]":
        """Read the body, and return it with the model that it names; without a name, the only one."""
        try:
            raw = await asyncio.wait_for(request.body(), self.limits.patience)
        except TimeoutError:
            raise RequestError("server.slow", 408, seconds=self.limits.patience) from None
        body = parse_object(raw, "body", UseError)
        if (header := request.headers.get("pellucid")) is not None and "pellucid" not in body:
            body["pellucid"] = parse_object(header.encode("latin-1", "replace"), "pellucid", UseError)
        served = self.named(body.get("model"))
        request.scope["pellucid.facts"]["model"] = served.name
        return body, served

    async def completions(self, request: Request) -> Response:
        from pellucid.server.openai.jobs import completion_job

        body, served = await self.body(request)
        return await self.generated(request, await run_in_threadpool(completion_job, served, body, self.inspector(body)))

    async def chat_completions(self, request: Request) -> Response:
        from pellucid.server.openai.jobs import chat_job

        body, served = await self.body(request)
        return await self.generated(request, await run_in_threadpool(chat_job, served, body, self.inspector(body)))

    async def responses(self, request: Request) -> Response:
        """Answer as a chat does, with the items and events of /v1/responses."""
        from pellucid.server.openai.jobs import chat_job
        from pellucid.server.openai.response_input import chat_body, renamed
        from pellucid.server.openai.response_items import ResponseAnswer

        body, served = await self.body(request)
        chat = chat_body(body)
        with renamed(body):
            job = await run_in_threadpool(chat_job, served, chat, self.inspector(body))
        return await self.generated(request, job, lambda generated: ResponseAnswer(body, generated))

    async def response_tokens(self, request: Request) -> Response:
        """Return the number of tokens that the input of /v1/responses has."""
        from pellucid.server.openai.body_fields import BodyFields
        from pellucid.server.openai.chat_reply import given_tools
        from pellucid.server.openai.jobs import CHAT
        from pellucid.server.openai.prompts import chat_prompt
        from pellucid.server.openai.response_input import chat_body, renamed

        body, served = await self.body(request)
        fields = BodyFields(chat_body(body), CHAT)
        with renamed(body):
            ids = await run_in_threadpool(chat_prompt, served, fields, given_tools(fields))
        return answer({"object": "response.input_tokens", "input_tokens": len(ids)})

    async def earlier(self, request: Request) -> Response:
        """Refuse to return, cancel or forget an earlier answer, since none is kept."""
        raise RequestError("serve.earlier", 404, "response_id", found=request.path_params["id"].partition("/")[0][:100])

    def inspector(self, body: "dict[str, Any]") -> "Inspector | None":
        """Return the inspector for a body with the field `pellucid`."""
        promised = self.operation.inspector
        return promised.result() if promised is not None and "pellucid" in body else None

    async def generated(
        self, request: Request, job: "Job", shaped: "Callable[[GeneratedAnswer], GeneratedAnswer | ResponseAnswer]" = lambda chat: chat
    ) -> Response:
        """Submit a job and return its answer, or the stream of it. shaped: gives the answer another route's shape."""
        from pellucid.server.openai.answering import GeneratedAnswer, unless_left

        facts = request.scope["pellucid.facts"]
        facts |= {"trace": job.trace} if job.trace else {}
        headers = {"pellucid-trace": job.trace} if job.trace else {}
        current = shaped(GeneratedAnswer(job, job.served.submit(job.requests), facts))
        if job.stream:
            return EventStream(request, current, language(request.scope), headers)
        return answer(await unless_left(request, current), headers=headers)

    async def embeddings(self, request: Request) -> Response:
        from pellucid.server.openai.embedder import embeddings_document

        body, served = await self.body(request)
        return answer(await run_in_threadpool(embeddings_document, served, body, request.scope["pellucid.facts"]))

    async def metrics(self, request: Request) -> Response:
        """Answer in Prometheus' text format. A RequestError without prometheus_client."""
        from pellucid.server.openai.prometheus import exposed

        models = self.operation.loaded.result().values() if self.operation.loaded.done() else ()
        content, kind = await run_in_threadpool(exposed, models)
        return Response(content, 200, {"cache-control": "no-store"}, kind)

    async def tokenize(self, request: Request) -> Response:
        """Return the ids of a `prompt`, or of `messages` by the chat template."""
        from pellucid.server.openai.body_fields import BodyFields
        from pellucid.server.openai.chat_reply import given_tools
        from pellucid.server.openai.jobs import TOKENIZE
        from pellucid.server.openai.prompts import chat_prompt

        body, served = await self.body(request)
        fields = BodyFields(body, TOKENIZE)
        if "messages" in fields.given:
            ids = await run_in_threadpool(chat_prompt, served, fields, given_tools(fields))
        else:
            special = fields.truth("add_special_tokens", True)
            ids = await run_in_threadpool(served.tokenizer.encode, fields.text("prompt"), special=special)
        out: dict[str, Any] = {"count": len(ids), "max_model_len": served.longest, "tokens": ids}
        if fields.truth("return_token_strs"):
            out["token_strs"] = [p.text for p in served.tokenizer.pieces(ids)]
        return answer(out)

    async def detokenize(self, request: Request) -> Response:
        from pellucid.server.openai.body_fields import BodyFields

        body, served = await self.body(request)
        fields = BodyFields(body, {"model", "tokens"})
        return answer({"prompt": served.tokenizer.decode(fields.ids("tokens", served.vocab))})

    async def tokenizer_info(self, request: Request) -> Response:
        """Return the special tokens and the chat template, which evaluation programs ask for."""
        served = self.named(request.query_params.get("model"))
        tokenizer = served.tokenizer
        named = {f"{kind}_token": tokenizer.piece(id) for kind, id in tokenizer.special.items()}
        template = tokenizer.templates.get("default") or next(iter(tokenizer.templates.values()), None)
        absent = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"))
        about = {"tokenizer_class": type(tokenizer).__name__, "vocab_size": served.vocab, "model_max_length": served.longest}
        return answer(about | absent | named | {"chat_template": template.source if template else None})


def model_entry(served: "ServedModel") -> dict[str, Any]:
    """Return a model's entry in the list."""
    return {
        "id": served.name, "object": "model", "created": served.created, "owned_by": "pellucid",
        "root": served.parent or served.name, "parent": served.parent, "max_model_len": served.longest,
    }  # fmt: skip


def answered(handler: Handler) -> Handler:
    """Wrap a handler: its language is the request's, and its failures have OpenAI's shape."""

    async def handle(request: Request) -> Response:
        with speaking(language(request.scope)):
            try:
                return await handler(request)
            except ClientDisconnect:
                return refused(RequestError("server.stopped", 503))
            except Exception as fault:
                return refused(fault)

    return handle


async def no_route(request: Request, fault: Exception) -> Response:
    """Answer a path or a method that does not exist."""
    missing = getattr(fault, "status_code", 404) != 405
    path, method = request.scope["path"], request.method  # no URL can be made of some hosts
    wrong = RequestError("server.missing", 404, path=path) if missing else RequestError("server.method", 405, found=method)
    with speaking(language(request.scope)):
        return with_allow(refused(wrong), fault)


def application(
    operation: Operation,
    limits: Limits,
    port: int,
    key: str | None = None,
    loopback: bool = True,
    names: frozenset[str] = frozenset(),
    quiet: bool = False,
    page: bool = True,
    scheme: str = "http",
) -> ASGIApp:
    """Return the guarded application. key, loopback, names, scheme: see ServeGuard.  quiet: write no line for each request.

    page: serve the page and traces too.
    """
    routes, paths = OpenAiApi(operation, limits).routes(), frozenset[str]()
    if page:
        shown, paths = page_routes(operation, limits)
        routes += shown
    app = Starlette(routes=routes, exception_handlers={HTTPException: no_route})
    app.router.redirect_slashes = False  # to an address made of the client's own Host
    guarded = ServeGuard(app, key, port, loopback, names, limits, paths, scheme)
    return AccessLog(TracePages(guarded) if page else guarded, operation, quiet)
