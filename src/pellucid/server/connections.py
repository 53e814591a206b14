"""Connections with a deadline at every stage. Those without the token have short deadlines and few places, and take none from others.

    accept -- head -- body -- working -- answer -- idle -- head ...       closing
              10 s    20 s    (ours)     60 s      30 s    10 s           10 s

A stage is read off the state of a connection, never noted, so that no path through HTTP's rules forgets to note it. It ends when the client
has done its part; a byte now and then is not enough. Without the token the answer has 10 s too. If too many such connections wait, a new
one closes the oldest.
"""

from asyncio import AbstractEventLoop, TimerHandle, Transport
from math import inf
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from pellucid.errors import RequestError
from pellucid.runs.limits import Limits


class ConnectionPool:
    """The connections of one server."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.inside = limits, list[Connection]()

    def strangers(self) -> list["Connection"]:
        """Return the connections that have not shown the token and are not closing."""
        return [c for c in self.inside if not c.known and not c.transport.is_closing()]

    def enter(self, connection: "Connection") -> None:
        """Add an accepted connection. If it is one stranger too many, abort the one that has waited longest."""
        self.inside.append(connection)
        if len(strangers := self.strangers()) > self.limits.strangers:
            min(strangers, key=lambda c: c.since).transport.abort()

    def leave(self, connection: "Connection") -> None:
        """Remove a closed connection."""
        if connection in self.inside:
            self.inside.remove(connection)

    def admit(self, connection: "Connection") -> None:
        """Mark a connection as one that has shown the token. A RequestError if there are too many of them."""
        if not connection.known and sum(c.known for c in self.inside) >= self.limits.connections:
            raise RequestError("server.connections", 503, limit=self.limits.connections)
        connection.known = True


class Connection(H11Protocol):
    """A connection with deadlines. known: it has shown the token.  since: start of its stage, by the loop's clock."""

    def __init__(
        self, pool: ConnectionPool, config: Any, server_state: Any, app_state: dict[str, Any], _loop: AbstractEventLoop | None = None
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.pool, self.known, self.since, self.last = pool, False, 0.0, ("head", 0)
        self.timer: TimerHandle | None = None
        self.period = min(1.0, pool.limits.patience / 4)

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        self.timer = self.loop.call_later(self.period, self.tick)
        self.pool.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.pool.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.scope is not None:
            self.scope["state"]["connection"] = self  # for the guard, which runs after this

    def stage(self) -> str:
        """Return the stage that the connection is in."""
        if self.transport.is_closing():
            return "closing"
        if self.transport.get_write_buffer_size():
            return "answer"
        if self.cycle is not None and not self.cycle.response_complete:
            return "body" if self.cycle.more_body else "working"
        if self.conn.their_state is h11.SEND_BODY:  # what was answered before it was read
            return "body"
        return "head" if self.cycle is None or self.conn.trailing_data[0] else "idle"

    def allowed(self, stage: str) -> float:
        """Return the seconds that a stage may last."""
        limits = self.pool.limits
        if stage == "working":
            return inf
        if stage == "body":
            return 2 * limits.patience  # the application gives up first, and says so
        return {"answer": limits.answer, "idle": limits.idle}.get(stage, limits.patience) if self.known else limits.patience

    def tick(self) -> None:
        """Abort the connection if its stage has lasted too long, else check again after `period` seconds."""
        now, stage = self.loop.time(), (self.stage(), id(self.cycle))
        if stage != self.last:
            self.last, self.since = stage, now
        if now - self.since >= self.allowed(stage[0]):
            self.transport.abort()
            return
        self.timer = self.loop.call_later(self.period, self.tick)
