"""Every accepted socket has a deadline at every stage, and connections without the token never take the places of those with it.

The clock is the test's own.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from pellucid.errors import RequestError
from pellucid.runs.limits import LIMITS, Limits
from pellucid.server.app import build
from pellucid.server.connections import Connection, ConnectionPool
from pellucid.server.guard import Guard
from pellucid.server.listen import listening, taken
from served import PAGE, PORT, TOKEN
from tiny import swapped

HEAD = f"GET /api/models HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\nAuthorization: Bearer {TOKEN}\r\n"
POST = f"POST /api/runs HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\nContent-Type: application/json\r\nContent-Length: 500\r\n"


class Clock:
    """An event loop's clock that advances by command."""

    def __init__(self) -> None:
        self.now, self.calls = 100.0, list[tuple[float, "Clock.Handle"]]()

    @dataclass
    class Handle:
        call: Callable[[], None]
        cancelled: bool = False

        def cancel(self) -> None:
            self.cancelled = True

    def time(self) -> float:
        return self.now

    def call_later(self, after: float, call: Callable[[], None]) -> "Clock.Handle":
        self.calls.append((self.now + after, handle := Clock.Handle(call)))
        return handle

    def create_task(self, made: Any, **how: Any) -> Any:
        return asyncio.get_running_loop().create_task(made, **how)

    def go(self, seconds: float) -> None:
        """Advance the time and make the calls that are due, in order."""
        end = self.now + seconds
        while due := [c for c in self.calls if c[0] <= end]:
            self.calls.remove(first := min(due, key=lambda c: c[0]))
            self.now = max(self.now, first[0])
            if not first[1].cancelled:
                first[1].call()
        self.now = end


@dataclass
class Wire:
    """A transport to a client. reads: whether the client takes what is written."""

    protocol: Any = None
    reads: bool = True
    sent: bytes = b""
    waiting: int = 0
    closing: bool = False
    gone: bool = False
    paused: list[str] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.sent += data
        self.waiting += 0 if self.reads else len(data)

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 4711) if name in ("peername", "sockname") else None

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True
        if not self.waiting:
            self.abort()

    def abort(self) -> None:
        if not self.gone:
            self.closing = self.gone = True
            self.protocol.connection_lost(None)

    def pause_reading(self) -> None:
        self.paused.append("paused")

    def resume_reading(self) -> None:
        self.paused.append("resumed")


async def turns() -> None:
    """Let every task run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


class Scene:
    """Connections to an application behind the guard: /api/models answers when `answered` is set, / at once."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.clock, self.connections, self.state, self.answered = Clock(), ConnectionPool(limits), ServerState(), asyncio.Event()
        guard = Guard(self.app, TOKEN, PORT, frozenset(PAGE), limits)
        self.config = uvicorn.Config(guard, lifespan="off", ws="none", log_level="critical", timeout_keep_alive=10**6)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] not in PAGE:
            await self.answered.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"hello"})

    def connect(self, reads: bool = True) -> tuple[Connection, Wire]:
        wire = Wire(reads=reads)
        wire.protocol = made = Connection(self.connections, self.config, self.state, {}, self.clock)  # type: ignore[arg-type]
        made.connection_made(wire)  # type: ignore[arg-type]
        return made, wire


Stage = Callable[[Scene, Connection, Wire], Awaitable[None]]


async def head(scene: Scene, made: Connection, wire: Wire) -> None:
    made.data_received(HEAD.encode()[:40])


async def nothing(scene: Scene, made: Connection, wire: Wire) -> None:
    """Open a connection and send no byte."""


async def body(scene: Scene, made: Connection, wire: Wire) -> None:
    made.data_received((POST + f"Authorization: Bearer {TOKEN}\r\n\r\n12345").encode())
    await turns()


async def refused_body(scene: Scene, made: Connection, wire: Wire) -> None:
    """Send a request that is refused before its body arrives, on a connection that stays open."""
    scene.answered.set()
    made.data_received((POST + f"Authorization: Bearer {TOKEN}\r\n\r\n12345").encode())
    await turns()
    assert b" 200 " in wire.sent


async def unread(scene: Scene, made: Connection, wire: Wire) -> None:
    scene.answered.set()
    wire.reads = False
    made.data_received((HEAD + "\r\n").encode())
    await turns()


async def idle(scene: Scene, made: Connection, wire: Wire) -> None:
    scene.answered.set()
    made.data_received((HEAD + "\r\n").encode())
    await turns()


async def second_head(scene: Scene, made: Connection, wire: Wire) -> None:
    await idle(scene, made, wire)
    made.data_received(HEAD.encode()[:40])


async def closing(scene: Scene, made: Connection, wire: Wire) -> None:
    """Close a connection whose last bytes are never read."""
    scene.answered.set()
    wire.reads = False
    made.data_received((HEAD + "Connection: close\r\n\r\n").encode())
    await turns()


async def stranger_unread(scene: Scene, made: Connection, wire: Wire) -> None:
    wire.reads = False
    made.data_received(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\n\r\n".encode())
    await turns()


async def stranger_idle(scene: Scene, made: Connection, wire: Wire) -> None:
    made.data_received(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\n\r\n".encode())
    await turns()


STAGES: dict[str, tuple[Stage, str, float]] = {
    "nothing": (nothing, "head", 10), "head": (head, "head", 10), "body": (body, "body", 20), "refused body": (refused_body, "body", 20),
    "answer": (unread, "answer", 60), "idle": (idle, "idle", 30), "next head": (second_head, "head", 10),
    "closing": (closing, "closing", 10), "a stranger's answer": (stranger_unread, "answer", 10),
    "a stranger idle": (stranger_idle, "idle", 10),
}  # fmt: skip


async def lasted(name: str, limits: Limits = LIMITS) -> tuple[bool, bool]:
    """Return whether a connection in this stage is open a second before its deadline, and two seconds after."""
    scene, (bring, stage, allowed) = Scene(limits), STAGES[name]
    made, wire = scene.connect()
    await bring(scene, made, wire)
    assert made.stage() == stage and not wire.gone
    for _ in range(int(allowed) - 1):
        scene.clock.go(1)
        if stage in ("head", "body") and not wire.gone and name != "nothing":
            made.data_received(b"x")  # a byte a second is no progress
        await turns()
    before = not wire.gone
    scene.clock.go(2 + made.period)
    await turns()
    return before, not wire.gone


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_has_a_deadline(name: str) -> None:
    assert asyncio.run(lasted(name)) == (True, False)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_without_a_deadline_is_seen(name: str) -> None:
    """The mutant removes the deadline of a stage."""
    allowed = Connection.allowed
    with swapped(Connection, "allowed", lambda self, stage: 1e9 if stage == STAGES[name][1] else allowed(self, stage)):
        assert asyncio.run(lasted(name)) == (True, True)


def test_a_running_answer_has_no_deadline() -> None:
    """A connection has no deadline while the server computes its answer, and stays open after it."""

    async def scene() -> None:
        own = Scene()
        made, wire = own.connect()
        made.data_received((HEAD + "\r\n").encode())
        await turns()
        own.clock.go(10_000)
        assert made.stage() == "working" and not wire.gone
        own.answered.set()
        await turns()
        assert wire.sent.endswith(b"hello") and made.stage() == "idle"
        own.clock.go(5)
        made.data_received((HEAD + "\r\n").encode())
        await turns()
        assert wire.sent.count(b"hello") == 2 and not wire.gone

    asyncio.run(scene())


def test_one_answer_after_another_is_no_long_one() -> None:
    """Several short answers in a row do not count as one slow answer."""

    async def scene() -> None:
        own = Scene()
        own.answered.set()
        made, wire = own.connect(reads=False)
        for _ in range(20):
            made.data_received((HEAD + "\r\n").encode())
            await turns()
            own.clock.go(5)
        assert wire.sent.count(b"hello") == 20 and not wire.gone

    asyncio.run(scene())


def test_strangers_take_no_known_place() -> None:
    """A flood of silent connections closes neither a connection that has shown the token nor one that shows it later."""

    async def scene() -> None:
        own = Scene(Limits(connections=3, strangers=4))
        own.answered.set()
        wires = list[Wire]()

        async def asks(made: Connection) -> None:
            made.data_received((HEAD + "\r\n").encode())
            await turns()

        first, wire = own.connect()
        await asks(first)
        for _ in range(50):
            own.clock.go(0.01)
            wires.append(own.connect()[1])
        assert [w.gone for w in wires] == [True] * 46 + [False] * 4 and len(own.connections.inside) == 5 and not wire.gone
        await asks(first)
        second, other = own.connect()
        await asks(second)
        assert wire.sent.count(b"hello") == 2 and other.sent.count(b"hello") == 1 and second.known
        third, _ = own.connect()
        await asks(third)
        fourth, full = own.connect()
        await asks(fourth)
        assert b" 503 " in full.sent and b"server.connections" in full.sent and full.gone and not fourth.known
        assert not wire.gone and not other.gone

    asyncio.run(scene())


def test_a_refused_connection_is_closed() -> None:
    """A wrong token, another site or no token gets one answer, and the connection is closed."""

    async def scene() -> None:
        for wrong in ("Authorization: Bearer x\r\n", "Origin: http://evil.com\r\n", ""):
            own = Scene()
            made, wire = own.connect()
            made.data_received(f"GET /api/models HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\n{wrong}\r\n".encode())
            await turns()
            assert wire.sent[9:12] in (b"401", b"403") and wire.gone and not made.known and not own.connections.inside

    asyncio.run(scene())


# A real port.


@contextlib.contextmanager
def open_port(limits: Limits) -> Iterator[int]:
    """Serve the page on a port of its own, without a model."""
    own = taken(0)
    at, session = int(own.getsockname()[1]), Future[Any]()
    app, api = build(session, TOKEN, at, limits, PAGE)
    server = listening(app, limits)
    thread = threading.Thread(target=server.run, args=([own],))
    thread.start()
    try:
        yield at
    finally:
        server.should_exit = True
        thread.join()
        own.close()
        api.close()


def ask(at: int, path: str = "/") -> bytes:
    """Return the first line of an answer."""
    with socket.create_connection(("127.0.0.1", at), timeout=60) as s:
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{at}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n".encode())
        return s.recv(65536).split(b"\r\n")[0]


def test_a_hundred_half_sent_requests() -> None:
    """Other requests are served, half-sent ones are closed, and a connection that has shown the token stays."""
    limits = Limits(patience=0.5)
    with open_port(limits) as at, contextlib.ExitStack() as end:
        half = [end.enter_context(socket.create_connection(("127.0.0.1", at), timeout=60)) for _ in range(100)]
        for s in half:
            with contextlib.suppress(ConnectionError):  # the first ones have gone already
                s.sendall(b"GET /api/models HTTP/1.1\r\nHost: ")
        assert ask(at) == b"HTTP/1.1 200 OK" and ask(at, "/api/nix") == b"HTTP/1.1 404 Not Found"
        for s in half:
            with contextlib.suppress(ConnectionError):
                assert s.recv(1) == b""


def test_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant counts all connections alike, so that a hundred half-sent requests block every other."""
    monkeypatch.setattr(ConnectionPool, "strangers", lambda self: [])
    monkeypatch.setattr(ConnectionPool, "admit", counted)
    with open_port(Limits(connections=64)) as at, contextlib.ExitStack() as end:
        half = [end.enter_context(socket.create_connection(("127.0.0.1", at), timeout=60)) for _ in range(100)]
        for s in half:
            s.sendall(b"GET /api/models HTTP/1.1\r\nHost: ")
        assert ask(at, "/api/nix") == b"HTTP/1.1 503 Service Unavailable"


def counted(self: ConnectionPool, connection: Connection) -> None:
    """Give every connection a place, with or without the token, until none is left."""
    if len(self.inside) > self.limits.connections:
        raise RequestError("server.connections", 503, limit=self.limits.connections)
