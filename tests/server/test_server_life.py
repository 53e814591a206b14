"""Requests that wait, disconnect, are too many or too old; and the command that serves them."""

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from pellucid.errors import RequestError
from pellucid.runs.limits import LIMITS, Limits
from pellucid.runs.worker import Stop, Worker
from pellucid.server.app import build
from served import PAGE, PORT, TOKEN, Served, judge, served
from tiny import swapped


class Asker:
    """A request whose client disconnects when `left` is set."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}


def test_a_client_that_disconnects_is_dropped() -> None:
    """A client that disconnects ends its run at the next tensor, or before it starts; others are answered, and a full queue refuses."""
    ran: list[str] = []

    async def scene() -> None:
        worker, begun = Worker(2), threading.Event()
        askers = {name: Asker() for name in "abc"}

        def job(name: str, stop: Stop) -> str:
            ran.append(name)
            begun.set()
            while name == "a":  # a forward, tensor by tensor
                time.sleep(0.001)
                stop.check()
            return name

        def ask(name: str) -> "asyncio.Task[str]":
            request: Request = askers[name]  # type: ignore[assignment]
            return asyncio.ensure_future(worker.run(request, lambda stop: job(name, stop)))

        tasks = {name: ask(name) for name in "abc"}
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as full:
            await worker.run(askers["a"], lambda stop: None)  # type: ignore[arg-type]
        assert full.value.status == 429
        assert await asyncio.to_thread(begun.wait, 10)
        askers["b"].left.set()
        askers["a"].left.set()
        assert await asyncio.wait_for(tasks["c"], 10) == "c"
        for name in "ab":
            with pytest.raises(RequestError):
                await tasks[name]
        assert worker.waiting == 0 and not worker.stops
        worker.close()
        assert not worker.thread.is_alive()

    asyncio.run(scene())
    assert ran == ["a", "c"]


def test_a_run_ends_at_its_next_tensor(api: Served) -> None:
    from pellucid.runs import execute, request

    stop, count = Stop(), 0

    def check(self: Stop) -> None:
        nonlocal count
        count += 1
        if count == 20:
            raise RequestError("server.stopped", 503)

    given = request.run_of({"model": "pellucid/capitals", "prompt": "The", "new": 50}, LIMITS)
    with swapped(Stop, "check", check), pytest.raises(RequestError):
        execute.run_prompt(api.session.registry["pellucid/capitals"], given, stop, LIMITS)
    assert count == 20
    assert api.run("pellucid/capitals", "The")["new"]  # nothing of it is left behind


def test_old_runs_go_first() -> None:
    with served(limits=Limits(runs=3)) as api:
        first, second = (api.run("pellucid/capitals", "The")["run"] for _ in range(2))
        api.run("pellucid/capitals", "The")
        api.get(f"/api/runs/{first}", "run")
        api.run("pellucid/capitals", "The")
        api.wrong(f"/api/runs/{second}", 404, "server.run")
        assert len(api.session.runs) == 3 and api.get(f"/api/runs/{first}", "run")
    with served(limits=Limits(kept=300_000)) as api:
        for _ in range(5):
            api.run("pellucid/capitals", "The capital of France is")
        assert 1 <= len(api.session.runs) <= 2 and api.session.runs.budget.total <= 300_000


def test_the_page_is_there_before_the_model() -> None:
    session: Future[Any] = Future()
    app, api = build(session, TOKEN, PORT, LIMITS, PAGE)
    with TestClient(app, f"http://127.0.0.1:{PORT}", headers={"authorization": f"Bearer {TOKEN}"}) as client:
        assert client.get("/").status_code == 200
        threading.Timer(0.2, session.set_exception, [RequestError("server.model", 404, found="x", known="y")]).start()
        waited = client.get("/api/models")
        assert (waited.status_code, judge(waited.json(), "error")["error"]["code"]) == (404, "server.model")
    api.close()


def test_no_failure_leaves_who_waits() -> None:
    async def scene() -> None:
        worker = Worker(2)

        def fail(fault: BaseException) -> None:
            raise fault

        for fault, seen in ((StopIteration(1), RuntimeError), (MemoryError(), MemoryError), (KeyError(1), KeyError)):
            with pytest.raises(seen):
                await asyncio.wait_for(worker.run(Asker(), lambda stop, fault=fault: fail(fault)), 10)  # type: ignore[arg-type,misc]
        assert await worker.run(Asker(), lambda stop: 7) == 7  # type: ignore[arg-type]
        worker.close()

    asyncio.run(scene())
