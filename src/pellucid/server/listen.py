"""The port: taken before anything else is done, so that a busy one is told at once, and given back at once when Ctrl-C says so."""

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
from pellucid.server.connections import Connection, Room

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from pellucid.server.session import Session

HOST = "127.0.0.1"


def taken(port: int) -> socket.socket:
    """A socket that listens on a port of this machine alone; 0 takes a free one."""
    if not 0 <= port < 1 << 16:
        raise UseError("open.port", found=port)
    own = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        own.bind((HOST, port))
        own.listen(128)
    except OSError as wrong:
        own.close()
        raise UseError("open.taken", port=port, reason=wrong.strerror) from None
    return own


def serve(port: int, opened: str | None, ready: Callable[[str], None], limits: Limits = LIMITS, **how: Any) -> None:
    """Serve the page until Ctrl-C. ready: is told the address, token and all, once the port answers.

    opened, how: see `Session`. A model that cannot be opened ends the server, and is the error.
    """
    own, token, session = taken(port), secrets.token_urlsafe(32), Future["Session"]()
    at = int(own.getsockname()[1])
    app, api = build(session, token, at, limits)
    server = listening(app, limits)
    threading.Thread(target=set_up, args=(session, server, opened, limits, how), name="pellucid-session", daemon=True).start()
    try:
        with ended_by_hand(server):
            ready(f"http://{HOST}:{at}/#token={token}")  # from here on Ctrl-C may come
            server.run([own])
    finally:
        own.close()
        api.worker.close()
    if session.done() and (wrong := session.exception()) is not None:
        raise wrong


def listening(app: "ASGIApp", limits: Limits) -> uvicorn.Server:
    """The server of an application, whose connections have deadlines; see connections.py."""
    settings: Any = {
        "log_level": "critical", "access_log": False, "lifespan": "off", "timeout_graceful_shutdown": 1, "server_header": False,
        "proxy_headers": False, "timeout_keep_alive": limits.idle, "ws": "none", "http": partial(Connection, Room(limits)),
    }  # fmt: skip
    return uvicorn.Server(uvicorn.Config(app, **settings))


@contextmanager
def ended_by_hand(server: uvicorn.Server) -> Iterator[None]:
    """Ctrl-C asks the server to end, from now on and not only once it listens. It raises nothing: an import that is cleaning up behind
    itself, as uvicorn's are, would drop what is raised there, and the server would never hear of it.
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
    """Import torch and open what was asked for."""
    try:
        from pellucid.server.session import Session

        session.set_result(Session(opened, limits, **how))
    except BaseException as wrong:
        session.set_exception(wrong)
        server.should_exit = True
