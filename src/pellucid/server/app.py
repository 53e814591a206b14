"""The routes of the page and its API. Handlers that need torch await the session, which a thread sets up while the page already loads."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from pellucid.checkpoint.json_file import parse_object
from pellucid.errors import RequestError, UseError
from pellucid.runs import request as request_body
from pellucid.runs.limits import LIMITS, Limits
from pellucid.runs.worker import Stop, Worker
from pellucid.server.address import integer, named, optional, plain, query, real, run_at, step_at, taken, tensor_at, truth, waiter_of
from pellucid.server.chat_stream import ChatApi
from pellucid.server.faults import answer
from pellucid.server.files import File, files, sent
from pellucid.server.guard import Guard
from pellucid.server.handler import Handler, spoken, unrouted

if TYPE_CHECKING:
    from pellucid.server.session import Session

T = TypeVar("T")
COUNTED: Mapping[str, Callable[[str, str], Any]] = {
    "context": integer, "batch": integer, "source": integer, "dtype": plain, "cache": plain, "device": plain, "attn": plain,
    "experts": plain,
}  # fmt: skip
VIEWED: Mapping[str, Callable[[str, str], Any]] = {
    "price": real, "train": truth, "lora": integer, "recompute": truth, "shards": integer, "ranks": plain, "draft": plain,
    "accepted": real,
}  # fmt: skip
FOREVER = "private, max-age=31536000, immutable"  # a run's id is never given twice


class Api:
    """The handlers of one server. session: a future, as its model may still be loading."""

    def __init__(self, session: "Future[Session]", page: dict[str, File], limits: Limits) -> None:
        self.promised, self.page, self.limits = session, page, limits
        self.worker, self.chats = Worker(limits.waiting), ChatApi(self)

    def routes(self) -> list[Route]:
        def route(path: str, handler: Handler, *methods: str) -> Route:
            return Route(path, spoken(handler), methods=list(methods) or ["GET"])

        return [
            *(route(path, self.file) for path in self.page),
            route("/api/models", self.models),
            route("/api/tokens", self.tokens, "POST"),
            route("/api/runs", self.new_run, "POST"),
            route("/api/runs", self.progress),
            route("/api/runs/{run}", self.run),
            route("/api/runs/{run}/steps/{step}", self.step),
            route("/api/runs/{run}/steps/{step}/sample", self.sample, "POST"),
            route("/api/runs/{run}/steps/{step}/map", self.map),
            route("/api/runs/{run}/steps/{step}/lens", self.lens),
            route("/api/runs/{run}/steps/{step}/attribution", self.attribution),
            route("/api/runs/{run}/turns", self.turns),
            route("/api/runs/{run}/columns", self.columns),
            route("/api/runs/{run}/reuse", self.reuse, "POST"),
            route("/api/runs/{run}/differences", self.differences),
            route("/api/runs/{run}/tensors/{n}", self.tensor),
            route("/api/runs/{run}/tensors/{n}/terms", self.terms),
            route("/api/runs/{run}/tensors/{n}/parts", self.parts),
            route("/api/runs/{run}/tensors/{n}/stats", self.stats),
            route("/api/runs/{run}/tensors/{n}/difference", self.difference),
            route("/api/code", self.code),
            route("/api/sweeps", self.sweep, "POST"),
            route("/api/switches", self.switches),
            route("/api/weights", self.weights),
            route("/api/weights/tensor", self.weight),
            route("/api/weights/tensor/stats", self.weight_stats),
            route("/api/count", self.count),
            route("/api/count/why", self.why),
            route("/api/count/along", self.along),
            route("/api/count/weights", self.counted),
            route("/api/bench", self.bench, "POST"),
            route("/api/bench", self.benched),
            route("/api/catalog", self.catalog),
            route("/api/exhibits", self.exhibits),
            route("/api/exhibits/{name}", self.exhibit, "POST"),
            route("/api/training", self.training),
            route("/api/training/why", self.training_why),
            route("/api/training/tile", self.training_tile),
            route("/api/chats", self.chats.answer, "POST"),
        ]

    def close(self) -> bool:
        """End the threads that run models. Returns True if they have ended."""
        workers = (self.worker, self.chats.worker)
        for worker in workers:
            worker.close()
        return not any(worker.thread.is_alive() for worker in workers)

    async def session(self) -> "Session":
        """Wait for the session, whose model may still be loading."""
        return await asyncio.shield(asyncio.wrap_future(self.promised))

    async def file(self, request: Request) -> Response:
        return sent(self.page.get(request.scope["path"]), request)

    async def models(self, request: Request) -> Response:
        query(request)
        return answer(await run_in_threadpool((await self.session()).models, request.scope.get("pellucid.trace")))

    async def body(self, request: Request) -> dict[str, Any]:
        """Read the body as a JSON object. A RequestError if it does not arrive in time."""
        query(request)
        try:
            raw = await asyncio.wait_for(request.body(), self.limits.patience)
        except TimeoutError:
            raise RequestError("server.slow", 408, seconds=self.limits.patience) from None
        return parse_object(raw, "body", UseError)

    async def tokens(self, request: Request) -> Response:
        body = await self.body(request)
        request_body.known(body, ("model", "prompt", "ids", "special"), "")
        name, (text, ids), session = request_body.text(body, "model"), request_body.given_of(body, self.limits), await self.session()
        special = request_body.flag(body, "special", True)
        given = text if ids is None else ids
        assert given is not None  # one of both
        return answer(await run_in_threadpool(session.tokens, name, given, special))

    async def new_run(self, request: Request) -> Response:
        given, session = request_body.run_of(await self.body(request), self.limits), await self.session()
        session.registry.require(given.model)
        return answer(await self.worker.run(request, lambda stop: session.new_run(given, stop, waiter_of(request))))

    async def progress(self, request: Request) -> Response:
        query(request)
        return answer((await self.session()).going(waiter_of(request)))

    async def run(self, request: Request) -> Response:
        from pellucid.documents.run import run_document

        query(request)
        run = run_at(await self.session(), request)
        return answer(await run_in_threadpool(run_document, run))

    async def step(self, request: Request) -> Response:
        from pellucid.documents.run import step_document

        query(request)
        run = run_at(await self.session(), request)
        return answer(await run_in_threadpool(step_document, run, step_at(request, run)))

    async def sample(self, request: Request) -> Response:
        body, session = await self.body(request), await self.session()
        request_body.known(body, ("sampling", "row", "top"), "")
        run = run_at(session, request)
        k, given = step_at(request, run), request_body.sampling_of(body)
        row = int(request_body.number(body, "row", int, -1, request_body.LARGEST, -1))
        most = int(request_body.number(body, "top", int, 1, self.limits.rows, self.limits.candidates))
        ready = session.ready(run, session.logits(run, k), False)
        return answer(await self.computed(request, ready, lambda stop: session.sample(run, k, row, given, most, stop)))

    async def map(self, request: Request) -> Response:
        from pellucid.documents.run_map import map_document

        query(request)
        run = run_at(await self.session(), request)
        k = step_at(request, run) if run.trace.steps else 0
        return answer(await self.worker.run(request, lambda stop: map_document(run, k, stop)), headers={"cache-control": FOREVER})

    async def lens(self, request: Request) -> Response:
        from pellucid.documents.lens import lens_document

        given, session = query(request, "row", "id", "top"), await self.session()
        run = run_at(session, request)
        k, top = step_at(request, run), integer(given.get("top", "5"), "top", self.limits.candidates)
        row, id = optional(given, "row", -1), optional(given, "id", None)
        return answer(
            await self.worker.run(request, lambda stop: lens_document(run, k, row, id, top, stop)), headers={"cache-control": FOREVER}
        )

    async def attribution(self, request: Request) -> Response:
        from pellucid.documents.lens import attribution_document

        given, session = query(request, "row", "id"), await self.session()
        run = run_at(session, request)
        k = step_at(request, run)
        row, id = optional(given, "row", -1), optional(given, "id", None)
        document = await self.worker.run(request, lambda stop: attribution_document(run, k, row, id, stop))
        return answer(document, headers={"cache-control": FOREVER})

    async def turns(self, request: Request) -> Response:
        from pellucid.documents.rotary import turns_document

        given, session = query(request, "part", "query", "key", "head", "step"), await self.session()
        run = run_at(session, request)
        at, key, head = (integer(given.get(name, ""), name) for name in ("query", "key", "head"))
        step = integer(given["step"], "step") if "step" in given else run.trace.steps - 1
        document = await self.worker.run(request, lambda stop: turns_document(run, given.get("part", ""), at, key, head, step, stop))
        return answer(document, headers={"cache-control": FOREVER})

    async def columns(self, request: Request) -> Response:
        from pellucid.documents.cell_columns import columns_document

        query(request)
        session = await self.session()
        run = run_at(session, request)
        return answer(await self.worker.run(request, lambda stop: columns_document(run, self.limits)), headers={"cache-control": FOREVER})

    async def reuse(self, request: Request) -> Response:
        from pellucid.documents.lens import model_of
        from pellucid.documents.prefix_reuse import reuse_document
        from pellucid.runs.execute import ids_of

        body, session = await self.body(request), await self.session()
        run, (prompt, ids) = run_at(session, request), request_body.prompt_of(body, self.limits)
        return answer(
            await self.worker.run(request, lambda stop: reuse_document(run, ids_of(model_of(run), prompt, ids, self.limits), stop))
        )

    async def differences(self, request: Request) -> Response:
        from pellucid.documents.run_difference import differences_document

        given, session = query(request, "other"), await self.session()
        run, other = run_at(session, request), session.runs[given.get("other", "")]
        return answer(await run_in_threadpool(differences_document, run, other, Stop()))

    async def difference(self, request: Request) -> Response:
        from pellucid.documents.run_difference import difference
        from pellucid.runs.slices import level_of

        given, session = query(request, "other", "m", "at", "level"), await self.session()
        run, n, other = run_at(session, request), tensor_at(request), session.runs[given.get("other", "")]
        m, level = integer(given.get("m", ""), "m"), level_of(given.get("level", "0"))
        ready = session.ready(run, n, False) and session.ready(other, m, False)
        body = await self.computed(request, ready, lambda stop: difference(run, n, other, m, given.get("at"), level, stop))
        return Response(body, 200, {"cache-control": FOREVER}, "application/octet-stream")

    async def tensor(self, request: Request) -> Response:
        from pellucid.runs.slices import level_of

        given, session = query(request, "at", "level"), await self.session()
        run, n, level = run_at(session, request), tensor_at(request), level_of(given.get("level", "0"))
        tag = f'"{run.id[:16]}.{n}.{given.get("at", "")}.{level[0]},{level[1]}"'
        if tag in request.headers.get("if-none-match", ""):
            return Response(None, 304, {"etag": tag, "cache-control": FOREVER})
        body = await self.computed(request, session.ready(run, n, False), lambda stop: session.part(run, n, given.get("at"), level, stop))
        return Response(body, 200, {"etag": tag, "cache-control": FOREVER}, "application/octet-stream")

    async def terms(self, request: Request) -> Response:
        given, session = query(request, "cell"), await self.session()
        run, n = run_at(session, request), tensor_at(request)
        document = await self.computed(
            request, session.ready(run, n, True), lambda stop: session.terms(run, n, given.get("cell", ""), stop)
        )
        return answer(document, headers={"cache-control": FOREVER})

    async def parts(self, request: Request) -> Response:
        from pellucid.documents.lens import run_cell_parts

        given, session = query(request, "cell"), await self.session()
        run, n, cell = run_at(session, request), tensor_at(request), given.get("cell", "")
        return answer(await self.worker.run(request, lambda stop: run_cell_parts(run, n, cell, stop)))

    async def code(self, request: Request) -> Response:
        from pellucid.documents.code import code_document

        given, session = query(request, "run", "tensor", "cell"), await self.session()
        run, n = session.runs[given.get("run", "")], integer(given.get("tensor", ""), "tensor")
        return answer(await run_in_threadpool(code_document, run, n, given.get("cell", "")))

    async def stats(self, request: Request) -> Response:
        query(request)
        session = await self.session()
        run, n = run_at(session, request), tensor_at(request)
        document = await self.computed(request, session.ready(run, n, False), lambda stop: session.stats(run, n, stop))
        return answer(document, headers={"cache-control": FOREVER})

    async def computed(self, request: Request, ready: bool, job: Callable[[Stop], T]) -> T:
        """Run a job and return its result: at once if `ready`, since it needs no model, else in the worker's queue."""
        return await (run_in_threadpool(job, Stop()) if ready else self.worker.run(request, job))

    async def sweep(self, request: Request) -> Response:
        from pellucid.documents.sweep import sweep_document
        from pellucid.runs.patching import run_sweep, sweep_of

        given, session = sweep_of(await self.body(request), self.limits), await self.session()
        session.registry.require(given.model)
        model, swept = await self.worker.run(request, lambda stop: run_sweep(session.registry[given.model], given, stop, self.limits))
        return answer(sweep_document(swept, model.name))

    async def switches(self, request: Request) -> Response:
        from pellucid.documents.switch_list import switches_document

        name, session = named(query(request, "model")), await self.session()
        return answer(await run_in_threadpool(lambda: switches_document(session.registry[name])))

    async def weights(self, request: Request) -> Response:
        from pellucid.documents.weight_list import weights_document

        given, session = query(request, "model", "run"), await self.session()
        return answer(await run_in_threadpool(lambda: weights_document(session.model(named(given), given.get("run")))))

    async def weight(self, request: Request) -> Response:
        from pellucid.runs.slices import level_of

        given, session = query(request, "model", "run", "path", "at", "level"), await self.session()
        level = level_of(given.get("level", "0"))
        body = await run_in_threadpool(
            lambda: session.weight(session.model(named(given), given.get("run")), given.get("path", ""), given.get("at"), level)
        )
        return Response(body, 200, {"cache-control": "no-store"}, "application/octet-stream")

    async def weight_stats(self, request: Request) -> Response:
        given, session = query(request, "model", "run", "path"), await self.session()
        return answer(
            await run_in_threadpool(lambda: session.weight_stats(session.model(named(given), given.get("run")), given.get("path", "")))
        )

    async def count(self, request: Request) -> Response:
        given, session = query(request, "model", *COUNTED, *VIEWED), await self.session()
        return answer(await run_in_threadpool(session.bills.document, named(given), taken(given, COUNTED), taken(given, VIEWED)))

    async def why(self, request: Request) -> Response:
        given, session = query(request, "model", "path", *COUNTED), await self.session()
        return answer(await run_in_threadpool(session.bills.why, named(given), taken(given, COUNTED), given.get("path", "")))

    async def along(self, request: Request) -> Response:
        given, session = query(request, "model", "along", "ranks", *COUNTED), await self.session()
        document = await run_in_threadpool(
            session.bills.along, named(given), taken(given, COUNTED), given.get("along", "context"), given.get("ranks")
        )
        return answer(document)

    async def counted(self, request: Request) -> Response:
        given, session = query(request, "model", *COUNTED), await self.session()
        return answer(await run_in_threadpool(session.bills.weights, named(given), taken(given, COUNTED)))

    async def bench(self, request: Request) -> Response:
        body, session = await self.body(request), await self.session()
        request_body.known(body, ("model", "context", "new"), "")
        name, new = (
            request_body.text(body, "model"),
            int(request_body.number(body, "new", int, 1, self.limits.bench_steps, self.limits.bench_steps)),
        )
        context = request_body.number(body, "context", int, 1, self.limits.bench_context, 0)
        session.registry.require(name)
        with session.bench.taken(name):
            return answer(await self.worker.run(request, lambda stop: session.bench.run(session.registry[name], int(context), new, stop)))

    async def benched(self, request: Request) -> Response:
        query(request)
        return answer((await self.session()).bench.document())

    async def catalog(self, request: Request) -> Response:
        query(request)
        return answer((await self.session()).catalog())

    async def exhibits(self, request: Request) -> Response:
        query(request)
        await self.session()
        from pellucid.documents.exhibit import exhibit_list

        return answer(await run_in_threadpool(exhibit_list))

    async def exhibit(self, request: Request) -> Response:
        body, session = await self.body(request), await self.session()
        from pellucid.server.exhibits import exhibit_request

        name, (model, settings) = request.path_params["name"], exhibit_request(body, self.limits)
        return answer(await self.worker.run(request, lambda stop: session.gallery.run(name, model, settings, stop)))

    async def training(self, request: Request) -> Response:
        given, session = query(request, "step"), await self.session()
        return answer(await run_in_threadpool(session.learning.document, optional(given, "step", None)))

    async def training_why(self, request: Request) -> Response:
        given, session = query(request, "step", "weight", "cell"), await self.session()
        step = integer(given.get("step", ""), "step")
        return answer(
            await self.worker.run(request, lambda stop: session.learning.why(step, given.get("weight", ""), given.get("cell", ""), stop))
        )

    async def training_tile(self, request: Request) -> Response:
        given, session = query(request, "step", "weight", "cell"), await self.session()
        step = integer(given.get("step", ""), "step")
        return answer(await run_in_threadpool(session.learning.tile, step, given.get("weight", ""), given.get("cell", "")))


def build(
    session: "Future[Session]", token: str, port: int, limits: Limits = LIMITS, page: dict[str, File] | None = None
) -> tuple[ASGIApp, Api]:
    """Return the guarded application, and its handlers."""
    page_files = files() if page is None else page
    api = Api(session, page_files, limits)
    app = Starlette(routes=api.routes(), exception_handlers={HTTPException: unrouted})
    app.router.redirect_slashes = False  # to an address made of the client's own Host
    return Guard(app, token, port, frozenset(page_files), limits), api
