"""The process of `pellucid serve`: the port, the thread that loads the models, and the end by a signal.

The first SIGTERM or Ctrl-C drains: running requests end, new ones get 503, and so does /health. A second one ends now.
"""

import ipaddress
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from pellucid.errors import UseError
from pellucid.runs.limits import LIMITS, Limits
from pellucid.server.listen import configured, ended_by_hand, taken
from pellucid.server.openai.operation import Operation
from pellucid.server.openai.routes import application

if TYPE_CHECKING:
    from pellucid.server.openai.served_model import ServedModel

# Prompts are long and clients many; a stream that is not read for a minute is cut.
SERVE_LIMITS = replace(LIMITS, body=32 << 20, connections=4096, strangers=256, idle=75.0, kept=1 << 30)


@dataclass(frozen=True)
class Address:
    """Where a server listens, and which clients it admits. names: more hosts that it is called by.

    certificate: the files of a certificate and of its key, with which it speaks TLS; None for plain HTTP.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = None
    insecure: bool = False
    names: tuple[str, ...] = ()
    certificate: tuple[str, str] | None = None

    def check(self) -> None:
        """Raise a UseError for an address that is not one, and for one that other machines reach if there is no key."""
        try:
            loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            raise UseError("serve.host", found=self.host) from None
        if not loopback and self.key is None and not self.insecure:
            raise UseError("serve.open", host=self.host)
        if self.key is not None and not (self.key.isascii() and self.key.isprintable() and len(self.key.strip()) == len(self.key) > 0):
            raise UseError("serve.key.kind")
        if self.certificate is not None:
            try:
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*self.certificate, password="")
            except OSError as broken:  # ssl's own errors too
                raise UseError("serve.cert", files=", ".join(self.certificate), reason=broken.strerror or broken) from None

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback


class DrainingServer(uvicorn.Server):
    """A server whose first signal drains, and whose second one ends it."""

    def __init__(self, config: uvicorn.Config, operation: Operation) -> None:
        super().__init__(config)
        self.operation, self.forced = operation, False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.operation.draining or not self.operation.loaded.done():
            self.forced = self.should_exit = self.force_exit = True
        self.operation.draining = True

    async def on_tick(self, counter: int) -> bool:
        ended = await super().on_tick(counter)
        return ended or (self.operation.draining and not self.operation.running)


def serve_models(
    address: Address,
    version: str,
    load: "Callable[[], Sequence[ServedModel]]",
    ready: Callable[[str], None],
    limits: Limits = SERVE_LIMITS,
    quiet: bool = False,
    page: bool = True,
) -> bool:
    """Serve the models until a signal. load: makes them, in a thread, while /health says so.  ready: called with the address after that.

    page: serve the page and the traces of requests too.
    Raises the error of a model that cannot be loaded. Returns True if all requests were answered and all threads have ended.
    """
    address.check()
    own, operation = taken(address.port, address.host), Operation(version)
    port = int(own.getsockname()[1])
    app = application(operation, limits, port, address.key, address.loopback, frozenset(address.names), quiet, page, address.scheme)
    settings = configured(app, limits)
    if address.certificate is not None:
        settings.ssl_certfile, settings.ssl_keyfile = address.certificate
    server = DrainingServer(settings, operation)

    def set_up() -> None:
        try:
            operation.loaded.set_result({served.name: served for served in load()})
            host = f"[{address.host}]" if ":" in address.host else address.host
            ready(f"{address.scheme}://{host}:{port}")
        except BaseException as wrong:
            if not operation.loaded.done():
                operation.loaded.set_exception(wrong)
            server.should_exit = True

    loading = threading.Thread(target=set_up, name="pellucid-loading", daemon=True)
    loading.start()
    try:
        with ended_by_hand(server):
            server.run([own])
    finally:
        own.close()
        operation.close()
    if operation.loaded.done() and (wrong := operation.loaded.exception()) is not None:
        raise wrong
    if loading.is_alive():
        return False
    closed = [served.close() for served in operation.loaded.result().values()]
    return all(closed) and not server.forced
