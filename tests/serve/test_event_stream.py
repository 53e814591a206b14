"""A stream of events: what is made at once is sent at once, a slow reader holds back what makes them, and an error is the last event."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import Request

from pellucid.server import event_stream
from pellucid.server.event_stream import MOST, EventStream, PendingEvents
from tiny import swapped

SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}


class Bursts:
    """A source of events that come several at once. bursts: how many each time.  fails: at the end."""

    end = b"data: [DONE]\n\n"

    def __init__(self, bursts: list[int], fails: bool = False, width: int = 1) -> None:
        self.bursts, self.fails, self.width = bursts, fails, width
        self.made, self.closed, self.left = 0, 0, False

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        try:
            for burst in self.bursts:
                await asyncio.sleep(0.005)
                for _ in range(burst):
                    self.made += 1
                    yield {"n": self.made, "text": "x" * self.width}
            if self.fails:
                raise ValueError
        finally:
            self.left = True

    def failure(self, fault: Exception, language: str | None) -> dict[str, Any]:
        return {"error": type(fault).__name__}

    def close(self) -> None:
        self.closed += 1


def sent(source: Bursts, slow: bool = False, leaves: bool = False) -> list[bytes]:
    """Return the bodies that a stream sends. slow: the reader waits before each.  leaves: the client goes after the first."""
    behind = [0]

    async def run() -> list[bytes]:
        out, gone = list[bytes](), asyncio.Event()

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if slow and out:
                await asyncio.sleep(0.05)
                behind.append(source.made - sum(body.count(b'"n"') for body in out))
            out.extend([message["body"]] if message.get("body") else [])
            if leaves and out:
                gone.set()
                await asyncio.sleep(9)

        await EventStream(Request(SCOPE, receive), source, None, {})(SCOPE, receive, send)
        return out

    out = asyncio.run(run())
    assert max(behind) * source.width < 2 * MOST + 2 * source.width
    return out


def test_what_is_made_at_once_is_sent_at_once() -> None:
    source = Bursts([1, 8, 3])
    bodies = sent(source)
    events = b"".join(bodies).decode().split("\n\n")
    assert [json.loads(e[6:])["n"] for e in events[:-2]] == list(range(1, 13)) and events[-2:] == ["data: [DONE]", ""]
    assert [body.count(b'"n"') for body in bodies] == [1, 8, 3] and source.closed == 1 and source.left


def test_sending_each_event_alone_is_seen() -> None:
    async def put(self: PendingEvents, event: bytes, honest: Any = PendingEvents.put) -> None:
        await honest(self, event)
        while self.size:
            await asyncio.sleep(0)

    with swapped(event_stream.PendingEvents, "put", put):
        assert len(sent(Bursts([1, 8, 3]))) == 13


def test_a_slow_reader_holds_back_what_makes_events() -> None:
    """At most MOST bytes are being sent, and as many wait; without that bound all are made at once."""
    assert sum(body.count(b'"n"') for body in sent(Bursts([1, 400], width=1000), slow=True)) == 401
    with swapped(event_stream, "MOST", 1 << 30), pytest.raises(AssertionError):
        sent(Bursts([1, 400], width=1000), slow=True)


def test_an_error_is_the_last_event() -> None:
    bodies = b"".join(sent(Bursts([2], fails=True)))
    assert bodies.endswith(b'data: {"error":"ValueError"}\n\n') and b"DONE" not in bodies


def test_a_client_that_leaves_ends_the_source() -> None:
    source = Bursts([1, *[1] * 1000])
    sent(source, leaves=True)
    assert source.left and source.closed == 1 and source.made < 1000
