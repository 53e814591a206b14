"""The page, and the traces of watched requests, in the process of `pellucid serve`, under its guard.

/                        the page, with the served models
/traces/ID/              the page, which opens with a trace; its own requests, such as /traces/ID/api/models, are the page's
/api/traces              the kept traces, the newest first, and their limits
/api/traces/ID           one trace: its request, and a line for each tensor
/api/traces/ID.tar       its folder, which `pellucid open` reads
"""

import io
import re
import tarfile
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pellucid.runs.limits import Limits
from pellucid.server.address import query
from pellucid.server.app import Api
from pellucid.server.faults import answer
from pellucid.server.files import files
from pellucid.server.handler import spoken

if TYPE_CHECKING:
    from pellucid.server.openai.inspection import Inspector
    from pellucid.server.openai.operation import Operation
    from pellucid.server.openai.served_model import ServedModel
    from pellucid.server.session import Session

TRACE = re.compile(r"/traces/([0-9a-f]{32})(/.*)")


class TracePages:
    """A wrapper of the application: an address below /traces/ID/ is that of the page's own, shown with a trace."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = TRACE.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if match is None:
            await self.app(scope, receive, send)
        else:
            await self.app({**scope, "path": match[2], "raw_path": match[2].encode(), "pellucid.trace": match[1]}, receive, send)


class TraceApi:
    """The handlers of traces. inspector: a future, as the models may still be loading."""

    def __init__(self, inspector: "Future[Inspector]") -> None:
        self.promised = inspector

    def routes(self) -> list[Route]:
        return [
            Route("/api/traces", spoken(self.list)),
            Route("/api/traces/{id}.tar", spoken(self.folder)),
            Route("/api/traces/{id}", spoken(self.one)),
            Route("/api/traces/{id}", spoken(self.drop), methods=["DELETE"]),
        ]

    async def inspector(self) -> "Inspector":
        """Wait for the inspector."""
        return await run_in_threadpool(self.promised.result)

    async def list(self, request: Request) -> Response:
        query(request)
        return answer(await run_in_threadpool((await self.inspector()).list))

    async def one(self, request: Request) -> Response:
        query(request)
        return answer(await run_in_threadpool((await self.inspector()).document, request.path_params["id"]))

    async def drop(self, request: Request) -> Response:
        query(request)
        await run_in_threadpool((await self.inspector()).drop, request.path_params["id"])
        return Response(status_code=204)

    async def folder(self, request: Request) -> Response:
        """Return the trace's folder, ID/, as a tar file."""
        query(request)
        inspector, id = await self.inspector(), request.path_params["id"]
        inspector.summary(id)
        content = await run_in_threadpool(packed, inspector, id)
        return Response(content, 200, {"cache-control": "no-store"}, "application/x-tar")


def packed(inspector: "Inspector", id: str) -> bytes:
    """Return the folder of a trace as a tar file, written in a folder that is deleted after."""
    out = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="pellucid-") as folder, tarfile.open(fileobj=out, mode="w") as tar:
        inspector.session.runs[id].trace.save(Path(folder) / id)
        tar.add(Path(folder) / id, id)
    return out.getvalue()


def page_routes(operation: "Operation", limits: Limits) -> tuple[list[Route], frozenset[str]]:
    """Return the routes of traces and of the page, and the paths of the page's files. The models' session follows once they are loaded."""
    inspector: Future[Inspector] = Future()
    session: Future[Session] = Future()
    page = files()
    api = Api(session, page, limits)
    operation.inspector = inspector
    operation.closing.append(api.close)

    def loaded(models: "Future[Mapping[str, ServedModel]]") -> None:
        if (wrong := models.exception()) is not None:
            for promised in (inspector, session):
                promised.set_exception(wrong)
            return
        from pellucid.server.openai.inspection import Inspector

        made = Inspector(models.result(), limits)
        inspector.set_result(made)
        session.set_result(made.session)

    operation.loaded.add_done_callback(loaded)
    return [*TraceApi(inspector).routes(), *api.routes()], frozenset(page)
