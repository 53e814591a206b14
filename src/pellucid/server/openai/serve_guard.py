"""The guard of `pellucid serve`: the page's rules of Host, Origin and site, with an API key where there is one.

On a loopback address Host is 127.0.0.1, localhost or [::1] with the port. On another it is any address in numbers, at any port, or a name
that was allowed: a page of another site can point a name of its own here, but not a number.
"""

import ipaddress
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import ASGIApp

from pellucid.errors import RequestError
from pellucid.runs.limits import Limits
from pellucid.server.guard import Guard
from pellucid.server.openai.error_shape import refused

HEALTH = "/health"


class ServeGuard(Guard):
    """The check of every request. key: what clients send as `Authorization: Bearer KEY`, None for none.  names: more hosts.

    page: the paths of the page's own files, which need no key.  scheme: http, or https behind a certificate.
    """

    def __init__(
        self,
        app: ASGIApp,
        key: str | None,
        port: int,
        loopback: bool,
        names: frozenset[str],
        limits: Limits,
        page: frozenset[str] = frozenset(),
        scheme: str = "http",
    ) -> None:
        super().__init__(app, key or "", port, page | {HEALTH}, limits, scheme)
        self.open, self.loopback, self.names = key is None, loopback, names

    def refusal(self, fault: Exception, language: str | None) -> Response:
        return refused(fault, language)

    def own(self, host: str) -> bool:
        if super().own(host):
            return True
        name, _, port = host.rpartition(":") if not host.endswith("]") and host.count(":") else (host, "", "")
        if port and not (port.isascii() and port.isdigit()):
            return False
        return name in self.names or (not self.loopback and is_address(name))

    def knows(self, headers: Mapping[str, str]) -> bool:
        return self.open or super().knows(headers)

    def unknown(self) -> RequestError:
        return RequestError("serve.key", 401, "authorization")


def is_address(name: str) -> bool:
    """True for an address in numbers, IPv6 in brackets."""
    try:
        return ipaddress.ip_address(name[1:-1] if name[:1] + name[-1:] == "[]" else name).version == (6 if name[:1] == "[" else 4)
    except ValueError:
        return False
