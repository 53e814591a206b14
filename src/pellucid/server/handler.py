"""A handler of the page's API, in the language of its request, with failures as JSON."""

from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pellucid.errors import RequestError
from pellucid.messages import speaking
from pellucid.server.faults import error_response
from pellucid.server.guard import language

Handler = Callable[[Request], Awaitable[Response]]


def spoken(handler: Handler) -> Handler:
    """Wrap a handler: its language is the request's, and its failures are answered as JSON."""

    async def handle(request: Request) -> Response:
        with speaking(language(request.scope)):
            try:
                return await handler(request)
            except ClientDisconnect:  # the client has gone
                return error_response(RequestError("server.stopped", 503), None)
            except Exception as fault:
                return error_response(fault, None)

    return handle


async def unrouted(request: Request, fault: Exception) -> Response:
    """Answer a path or a method that does not exist."""
    path, method = request.scope["path"], request.method
    missing = getattr(fault, "status_code", 404) != 405
    wrong = RequestError("server.missing", 404, path=path) if missing else RequestError("server.method", 405, found=method)
    return with_allow(error_response(wrong, language(request.scope)), fault)


def with_allow(response: Response, fault: Exception) -> Response:
    """Return the response to a path or a method that does not exist, with the methods that the path has."""
    response.headers.update({name.lower(): value for name, value in (getattr(fault, "headers", None) or {}).items()})
    return response
