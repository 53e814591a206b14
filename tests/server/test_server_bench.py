"""The server's measurement is the document of `bench` for the open model: one at a time, ended when its client disconnects, refused by
name.

No time is asserted.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from documented import accept
from pellucid import catalog
from pellucid.bench import idle, last_measured, machine_limits, timing
from pellucid.counting.fit import seconds
from pellucid.errors import RequestError
from pellucid.runs.limits import LIMITS, Limits
from pellucid.runs.worker import Stop
from pellucid.server.bench import Bench
from served import Served, judge, served


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make measurements small, and the verdict independent of other processes."""
    monkeypatch.setattr(idle, "MOST", 1.0)
    monkeypatch.setattr(idle, "LEAST", 0.0)
    monkeypatch.setattr(machine_limits, "SHAPES", ((2, 16, 16),))
    monkeypatch.setattr(machine_limits, "A_RUN", 1 << 20)
    monkeypatch.setattr(timing, "SPENT", 0.0)


def post(api: Served, **body: Any) -> Any:
    return api.client.post("/api/bench", json=body)


def test_a_measurement_is_the_commands(api: Served) -> None:
    """The document fits its schema, has the parts and bounds of the Python API's bill, and is kept as the latest."""
    reply = post(api, model="pellucid/capitals", context=12, new=2)
    assert reply.status_code == 200, reply.text
    document = reply.json()
    accept(document, "bench")
    assert document["setting"] == {"context": 12, "dtype": "float32", "random_weights": False}
    assert [len(p["parts"]) > 3 for p in document["phases"].values()] == [True, True] and document["phases"]["decode"]["planned"]
    loaded = api.session.registry["pellucid/capitals"]
    bill = api.session.bench.bill(loaded, 12, 2)
    assert bill.setting.context == 12
    device = last_measured.parsed({"schema": 1, **document["limits"]}).device
    for phase, measured in document["phases"].items():
        bounds = {p.path: p.seconds for p in timing.parts(bill, phase, device)}
        assert {p["path"]: p["bound"] for p in measured["parts"] if p["bound"]} == pytest.approx({k: v for k, v in bounds.items() if v})
        assert all(p["ratio"] == p["seconds"] / p["bound"] for p in measured["parts"] if p["bound"])
    after = judge(api.client.get("/api/bench").json(), "bench")
    assert after["running"] is None and after["latest"]["pellucid/capitals"] == document


def test_an_encoder_has_one_phase(api: Served) -> None:
    assert list(post(api, model="pellucid/capitals-bert", context=8).json()["phases"]) == ["prefill"]


NAME = "pellucid/capitals"
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "pellucid/capitals-t5"}, 400, "bench.encoder"), ({"model": "gpt2-small"}, 404, "server.model"),
    ({"model": NAME, "context": 100_000}, 400, "server.field"), ({"model": NAME, "new": 0}, 400, "server.field"),
    ({"model": NAME, "context": 60, "new": 32}, 400, "bench.context"), ({"model": NAME, "x": 1}, 400, "server.unknown"),
    ({"model": NAME, "context": True}, 400, "server.field"), ({"model": "../x"}, 404, "server.model"), ({}, 400, "server.field"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "code"), REFUSED)
def test_what_cannot_be_measured_is_one_line(api: Served, body: dict[str, Any], status: int, code: str) -> None:
    reply = post(api, **body)
    error = judge(reply.json(), "error")["error"]
    assert (reply.status_code, error["code"]) == (status, code) and "\n" not in error["message"]
    assert api.client.get("/api/bench").json()["running"] is None


def test_a_model_without_weights_is_not_measured() -> None:
    with served("gpt2-small") as api:
        assert judge(post(api, model="gpt2-small").json(), "error")["error"]["code"] == "server.weightless"


def test_the_context_is_what_is_quick() -> None:
    """The default context is halved until one prefill is within the limit; a requested one beyond it is refused."""
    with served(limits=Limits(bench_work=40_000_000)) as api:
        loaded = api.session.registry["pellucid/capitals"]
        most = timing.WARM + 4
        context = Bench(LIMITS).bill(loaded, 0, 4).setting.context
        assert context == loaded.config.positions - most
        bill = api.session.bench.bill(loaded, 0, 4)
        assert bill.setting.context < context and int(bill["flops.prefill"]) <= 40_000_000
        assert int(api.session.bench.bill(loaded, bill.setting.context, 4)["flops.prefill"]) <= 40_000_000
        with pytest.raises(RequestError) as refused:
            api.session.bench.bill(loaded, context, 4)
        assert (refused.value.key, refused.value.status) == ("server.bench.work", 413)


def test_this_machine_is_a_device_where_it_was_measured(api: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [d["id"] for d in api.get("/api/catalog", "catalog")["devices"]] == list(catalog.devices())
    last_measured.keep(machine_limits.Gauge(1, 1 << 20).measure(1).limits)
    own = api.get("/api/catalog", "catalog")["devices"][0]
    device = last_measured.kept().device
    assert (own["id"], own["name"], own["bandwidth"], own["peak"]) == ("cpu", device.name, device.bandwidth, dict(device.peak))
    document = api.client.get("/api/count", params={"model": "gpt2-small", "device": "cpu", "context": 64}).json()
    assert document["bounds"]["decode"]["seconds"] == seconds(pellucid.count("gpt2-small", context=64, device="cpu"), "decode", device)


def test_one_goes_at_a_time(api: Served) -> None:
    bench = Bench(LIMITS)
    with bench.taken("a"):
        bench.progress(3, 7)
        assert bench.document()["running"] == {"model": "a", "done": 3, "of": 7}
        with pytest.raises(RequestError) as busy, bench.taken("b"):
            pass
        assert busy.value.status == 429 and bench.running is not None and bench.running["model"] == "a"
    assert bench.running is None
    with pytest.raises(KeyError), bench.taken("a"):
        raise KeyError
    assert bench.running is None
    api.session.bench.running = {"model": "x", "done": 0, "of": 1}
    try:
        assert judge(post(api, model="pellucid/capitals").json(), "error")["error"]["code"] == "server.measuring"
    finally:
        api.session.bench.running = None


def test_it_ends_when_its_asker_goes(api: Served) -> None:
    """A stopped measurement ends at the next reading of its clock and leaves no hook; the next one may begin."""
    bench, stop = Bench(LIMITS), Stop()
    loaded, progress = api.session.registry["pellucid/capitals"], list[tuple[int, int]]()

    def record(done: int, total: int) -> None:
        progress.append((done, total))
        if done >= 100:  # the machine is measured, the model's turn comes
            stop.set()

    bench.progress = record  # type: ignore[method-assign]
    with pytest.raises(RequestError) as ended:
        bench.run(loaded, 12, 2, stop)
    assert ended.value.key == "server.stopped" and progress[-1][0] == 100 and not bench.latest
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in loaded.module.modules())
    assert torch.get_num_threads() == 1


def test_its_place_is_given_back_when_the_browser_is_closed(api: Served) -> None:
    """Through the worker, a client that disconnects frees the measurement's place."""

    class Gone:
        async def receive(self) -> dict[str, str]:
            await asyncio.sleep(0.05)
            return {"type": "http.disconnect"}

    async def scene() -> None:
        def run(stop: Stop) -> None:
            while True:
                time.sleep(0.002)
                stop.check()

        with pytest.raises(RequestError), api.session.bench.taken("pellucid/capitals"):
            await api.api.worker.run(Gone(), run)  # type: ignore[arg-type]

    asyncio.run(scene())
    assert api.session.bench.running is None and post(api, model="pellucid/capitals", context=4, new=1).status_code == 200
