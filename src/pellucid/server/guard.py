"""The guard of every route: it admits this machine's own browser on this page, and a program that knows the token.

A page of another site can make a browser send requests here (and, by a name that it points to 127.0.0.1, even read the answers); it cannot
choose Host, Origin or Sec-Fetch-Site, and does not know the token. The token is no cookie: cookies of 127.0.0.1 go to every port of it.
"""

import hmac
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid.errors import RequestError
from pellucid.messages import LANGUAGES
from pellucid.runs.limits import Limits
from pellucid.server import faults

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": " ".join(("'self'", "data:", "blob:")),
    "connect-src": "'self'",
    "worker-src": "blob:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
METHODS = ("GET", "HEAD", "POST", "DELETE")


class Guard:
    """A check of every request before its route. free: paths that need no token, the page's own files, which hold nothing of a user's.

    scheme: of the server's own address.
    """

    def __init__(self, app: ASGIApp, token: str, port: int, free: frozenset[str], limits: Limits, scheme: str = "http") -> None:
        self.app, self.token, self.free, self.limits, self.scheme = app, token.encode(), free, limits, scheme
        ends = ("", f":{port}") if port == {"http": 80, "https": 443}[scheme] else (f":{port}",)
        self.hosts = {f"{name}{end}" for name in ("127.0.0.1", "localhost", "[::1]") for end in ends}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no websockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        started, refused = False, True

        async def sealed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                own = [(k, v) for k, v in message["headers"] if k.decode() not in HEADERS]
                last = [(b"connection", b"close")] if refused else []  # a refused request ends its connection
                if message["status"] == 405 and b"allow" not in dict(own):
                    last.append((b"allow", ", ".join(sorted(METHODS)).encode()))
                message = {**message, "headers": [*own, *((k.encode(), v.encode()) for k, v in HEADERS.items()), *last]}
            await send(message)

        try:
            self.check(scope)
            if (connection := scope.get("state", {}).get("connection")) is not None and scope["path"] not in self.free:
                connection.pool.admit(connection)
            refused = False
            await self.app(scope, self.measured(receive), sealed)
        except Exception as fault:
            if started:
                raise
            await self.refusal(fault, language(scope))(scope, receive, sealed)

    def refusal(self, fault: Exception, language: str | None) -> Response:
        """Return the response to a refused request."""
        return faults.error_response(fault, language)

    def check(self, scope: Scope) -> None:
        """Raise a RequestError for a request that does not come from this page, or is of a kind that is not served."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        for name in ("host", "origin", "authorization", "content-type", "content-length", "sec-fetch-site"):
            if len(headers.get(name, ())) > 1:
                raise RequestError("server.twice", 400, name, name=name)
        one = {name: values[0] for name, values in headers.items()}
        path, method = scope["path"], scope["method"]
        if not self.own(one.get("host", "")):
            raise RequestError("server.host", 403, "host", found=one.get("host", "-"), allowed=", ".join(sorted(self.hosts)))
        own = f"{self.scheme}://{one['host']}"
        if one.get("origin", own) != own:
            raise RequestError("server.origin", 403, "origin", found=one["origin"], allowed=own)
        opened = method == "GET" and path in self.free and one.get("sec-fetch-mode") == "navigate"  # a link that a person followed
        if one.get("sec-fetch-site", "none") not in ("none", "same-origin") and not opened:
            raise RequestError("server.site", 403, "sec-fetch-site", found=one["sec-fetch-site"])
        if path not in self.free and not self.knows(one):
            raise self.unknown()
        if method not in METHODS:
            raise RequestError("server.method", 405, found=method)
        if len(scope.get("query_string", b"")) > self.limits.query:
            raise RequestError("server.query", 414, limit=self.limits.query)
        length = one.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise RequestError("server.length", 400, "content-length", found=length)
        if len(length) > 12 or int(length) > self.limits.body:
            raise RequestError("server.body", 413, limit=self.limits.body)
        if method == "POST" and one.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError("server.type", 415, "content-type", found=one.get("content-type", "-"))
        if one.get("content-encoding", "identity") != "identity":
            raise RequestError("server.encoding", 415, "content-encoding", found=one["content-encoding"])

    def own(self, host: str) -> bool:
        """True if `host` names this server."""
        return host in self.hosts

    def unknown(self) -> RequestError:
        """Return the error for a request without the token."""
        return RequestError("server.token", 401, "authorization")

    def knows(self, headers: Mapping[str, str]) -> bool:
        """True if the request carries the token. The comparison takes the same time for every wrong one."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        return hmac.compare_digest(given.encode(), self.token) and kind.lower() == "bearer"

    def measured(self, receive: Receive) -> Receive:
        """Wrap `receive`: it raises a RequestError once the body exceeds the limit."""
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.limits.body:
                raise RequestError("server.body", 413, limit=self.limits.body)
            return message

        return counted


def language(scope: Scope) -> str | None:
    """Return the language of the request, `?lang=en` or `?lang=zh`; None for the command's own."""
    parameters = scope.get("query_string", b"").decode("latin-1").split("&")
    languages = [part.removeprefix("lang=") for part in parameters if part.startswith("lang=")]
    return languages[0] if languages and languages[0] in LANGUAGES else None
