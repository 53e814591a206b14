"""The port: bound before anything else, so that a busy one fails at once, and released as soon as Ctrl-C is pressed."""

import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from pellucid.errors import UseError
from pellucid.runs.limits import LIMITS, Limits
from pellucid.server.app import build
from pellucid.server.connections import Connection, ConnectionPool

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from pellucid.server.session import Session

HOST = "127.0.0.1"


def taken(port: int, host: str = HOST) -> socket.socket:
    """Return a socket that listens on `port` of an address; 0 takes a free one. A UseError if the port is busy."""
    if not 0 <= port < 1 << 16:
        raise UseError("open.port", found=port)
    own = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        own.bind((host, port))
        own.listen(128)
    except OSError as wrong:
        own.close()
        raise UseError("open.taken", port=port, reason=wrong.strerror) from None
    return own


def serve(port: int, opened: str | None, ready: Callable[[str], None], limits: Limits = LIMITS, **how: Any) -> bool:
    """Serve the page until Ctrl-C. ready: called with the address, which holds the token, once the port answers.

    opened, how: see `Session`. Raises the error of a model that cannot be opened. Returns True if every thread of the server has ended:
    one that still imports torch or runs a model cannot be stopped.
    """
    own, token, session = taken(port), secrets.token_urlsafe(32), Future["Session"]()
    at = int(own.getsockname()[1])
    app, api = build(session, token, at, limits)
    server = listening(app, limits)
    loading = threading.Thread(target=set_up, args=(session, server, opened, limits, how), name="pellucid-session", daemon=True)
    loading.start()
    try:
        with ended_by_hand(server):
            ready(f"http://{HOST}:{at}/#token={token}")  # from here on Ctrl-C may come
            server.run([own])
    finally:
        own.close()
        ended = api.close()
    if session.done() and (wrong := session.exception()) is not None:
        raise wrong
    return ended and not loading.is_alive()


def listening(app: "ASGIApp", limits: Limits) -> uvicorn.Server:
    """Return the server of an application, whose connections have deadlines; see connections.py."""
    return uvicorn.Server(configured(app, limits))


def configured(app: "ASGIApp", limits: Limits) -> uvicorn.Config:
    """Return the settings of a server."""
    settings: Any = {
        "log_level": "critical", "access_log": False, "lifespan": "off", "timeout_graceful_shutdown": 1, "server_header": False,
        "proxy_headers": False, "timeout_keep_alive": limits.idle, "ws": "none", "http": partial(Connection, ConnectionPool(limits)),
    }  # fmt: skip
    return uvicorn.Config(app, **settings)


@contextmanager
def ended_by_hand(server: uvicorn.Server) -> Iterator[None]:
    """Let Ctrl-C end the server from now on, not only once it listens.

    The handler raises nothing: an exception inside an import's cleanup, as uvicorn's imports have, would be dropped.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        server.should_exit = True

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def set_up(session: "Future[Session]", server: uvicorn.Server, opened: str | None, limits: Limits, how: dict[str, Any]) -> None:
    """Import torch, build the Session and set the future; end the server if that fails."""
    try:
        from pellucid.server.session import Session

        session.set_result(Session(opened, limits, **how))
    except BaseException as wrong:
        session.set_exception(wrong)
        server.should_exit = True
