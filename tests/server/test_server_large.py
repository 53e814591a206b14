"""Large things of the page: deferred tables of scores, tensors measured on request, ids without a piece, formulas of numbers."""

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from typing import Any

import pytest

import pellucid
from pellucid.documents import count, count_formulas
from pellucid.documents.cell import cell_of
from pellucid.runs import execute, kept_run
from pellucid.runs.limits import Limits
from pellucid.runs.stats import stats_of
from pellucid.runs.worker import Stop
from pellucid.server.session import Session
from pellucid.watching.tap import DeferredReference
from served import Served, judge, raw, served
from tiny import swapped

attend = import_module("pellucid.ops.attend")
CAPITAL = "The capital of France is"
SMALL = Limits(tables=0, measured=100)  # every table is listed, and hardly a tensor is measured with the run


@pytest.fixture(scope="module")
def api() -> Iterator[Served]:
    with served(limits=SMALL) as server:
        yield server


def tensors(api: Served, run: dict[str, Any]) -> list[dict[str, Any]]:
    return [t for k in range(len(run["steps"])) for t in api.get(f"/api/runs/{run['run']}/steps/{k}", "step")["tensors"]]


@pytest.mark.parametrize("name", ["pellucid/capitals", "pellucid/capitals-deepseek", "pellucid/capitals-t5", "pellucid/capitals-bert"])
@pytest.mark.quick(4)
def test_a_deferred_table_is_the_one_of_a_small_run(name: str, api: Served) -> None:
    """A deferred table has the values, statistics, difference and terms of the recorded one."""
    row = next(r for r in api.get("/api/models", "models")["models"] if r["name"] == name)
    new = 1 if row["kind"] == "encoder" else 2
    with served(name) as other:
        small, run = (own.run(name, row["prompt"], new=new) for own in (other, api))
        assert run["steps"] == small["steps"] and run["new"] == small["new"]
        deferred = 0
        for mine, its in zip(tensors(api, run), tensors(other, small), strict=True):
            measured = {"min", "mean", "max"}  # of the stats
            same = mine.keys() - {"stats", "kept", "error"} - measured
            assert {k: mine[k] for k in same} == {k: its[k] for k in same}
            measures = api.get(f"/api/runs/{run['run']}/tensors/{mine['n']}/stats", "stats")
            assert measures["stats"] == its["stats"] and (measures["error"], measures["path"]) == (its["error"], its["path"])
            little = mine["kept"] and mine["bytes"] <= 4 * SMALL.measured
            assert mine["stats"] == (its["stats"] if little else None)
            assert {k: mine[k] for k in measured} == {k: its[k] if little else None for k in measured}
            if mine["kept"]:
                continue
            deferred += 1
            assert its["kept"] and mine["source"] in ("executed", "recomputed")
            assert raw(api.tensor(run["run"], mine["n"])[0]) == raw(other.tensor(small["run"], its["n"])[0])
            cell = ",".join(str(n - 1) for n in mine["shape"])
            seen = other.session.runs[small["run"]].trace.seen[its["n"]]
            if seen.terms is not None:
                terms = api.get(f"/api/runs/{run['run']}/tensors/{mine['n']}/terms", "terms", cell=cell)
                assert terms["summands"] == cell_of(seen, cell).terms.summands.tolist()
        assert deferred >= 2 * row["layers"]


def references(api: Served) -> tuple[int, int]:
    """Return how often tables were made for a run, by the reference or the kernel, and then for a part of one pattern."""
    calls = [0]

    def counted(make: Any) -> Any:
        def made(*given: Any, **more: Any) -> Any:
            calls[0] += 1
            return make(*given, **more)

        return made

    makers = "attend_reference", "tap_tables"
    with ExitStack() as both:
        for name in makers:
            both.enter_context(swapped(attend, name, counted(getattr(attend, name))))
        run = api.run("pellucid/capitals", CAPITAL)
        before = calls[0]
        n = next(t["n"] for t in run["tensors"] if t["path"] == "layers.2.attn.pattern")
        for head in range(3):
            api.tensor(run["run"], n, at=f"0,{head},:,:")
    return before, calls[0] - before


def test_a_table_is_computed_once_when_asked_for(api: Served) -> None:
    assert references(api) == (0, 1)
    with served() as other:  # the mutant: tables of a small run are recorded
        assert references(other)[0] > 0


@contextmanager
def occupied(api: Served) -> Iterator[None]:
    """Keep the thread of models busy."""
    over = threading.Event()
    api.api.worker.jobs.put((over.wait, Stop(), Future()))
    try:
        yield
    finally:
        over.set()


def test_a_table_waits_for_no_model(api: Served) -> None:
    """A deferred table's values, statistics and terms come while another run's model runs; a dropped value waits for it."""
    run = api.run("pellucid/capitals", CAPITAL)
    at = f"/api/runs/{run['run']}/tensors/{next(t['n'] for t in run['tensors'] if t['path'] == 'layers.1.attn.pattern')}"
    places = [at, f"{at}/stats", f"{at}/terms?cell=0,1,4,2"]

    def status(place: str) -> int:
        return api.client.get(place).status_code

    with ThreadPoolExecutor() as pool:
        for place in places:
            api.session.runs[run["run"]].again.clear()
            with occupied(api):
                assert pool.submit(status, place).result(60) == 200
        api.session.runs[run["run"]].again.clear()
        with swapped(Session, "ready", lambda *given: False), occupied(api):  # the mutant: in its turn
            late = pool.submit(status, at)
            with pytest.raises(TimeoutError):
                late.result(0.3)
        assert late.result(60) == 200


def together(api: Served, path: str) -> int:
    """Return how often a table is made when all its heads are requested at once."""
    calls, outer = list[int](), DeferredReference.record

    def slow(*given: Any, **more: Any) -> Any:
        calls.append(1)
        time.sleep(0.1)
        return outer(*given, **more)

    with swapped(DeferredReference, "record", slow), ThreadPoolExecutor() as pool:
        run = api.run("pellucid/capitals", CAPITAL)
        n = next(t["n"] for t in run["tensors"] if t["path"] == path)
        shapes = list(pool.map(lambda head: api.tensor(run["run"], n, at=f"0,{head},:,:")[0].shape, range(4)))
    assert shapes == [(5, 5)] * 4
    return len(calls)


def test_heads_asked_for_at_once_are_computed_once(api: Served) -> None:
    assert together(api, "layers.2.attn.pattern") == 1
    with swapped(execute, "TABLE", nullcontext()):  # the mutant: each by itself
        assert together(api, "layers.2.attn.pattern") > 1


def test_cells_of_a_deferred_table_need_no_model(api: Served) -> None:
    """Terms come from what the run keeps; a tensor whose operands were dropped has them recomputed."""
    run = api.run("pellucid/capitals", CAPITAL)
    seen = api.session.runs[run["run"]].trace.seen
    for path in ("layers.1.attn.q", "layers.1.attn.z", "layers.1.mid", "logits"):
        n = next(n for n, s in enumerate(seen) if s.path == path)
        assert api.session.ready(api.session.runs[run["run"]], n, True)
    with served(limits=Limits(value=400, tables=0)) as tight:
        run = tight.run("pellucid/capitals", CAPITAL)
        seen = tight.session.runs[run["run"]].trace.seen
        assert all(s.terms is None for s in seen if s.path == "layers.1.attn.q")


def test_a_table_that_is_too_large_is_refused() -> None:
    with served(limits=Limits(tables=0, table=399)) as api:  # 4 x 5 x 5 float32 are 400 bytes
        run = api.run("pellucid/capitals", CAPITAL)
        n = next(t["n"] for t in run["tensors"] if t["path"] == "layers.0.attn.scores")
        for more in ("", "/stats"):
            assert "400" in api.wrong(f"/api/runs/{run['run']}/tensors/{n}{more}", 413, "server.table")["message"]
        shorter = api.run("pellucid/capitals", "The capital")
        assert api.tensor(shorter["run"], n)[0].shape[-1] == 2


def test_large_tensors_are_measured_once(api: Served) -> None:
    run = api.run("pellucid/capitals", CAPITAL)["run"]
    calls = [0]

    def counted(x: Any) -> Any:
        calls[0] += 1
        return stats_of(x)

    with swapped(kept_run, "stats_of", counted):
        first, again = (api.get(f"/api/runs/{run}/tensors/3/stats", "stats") for _ in range(2))
    assert first == again and calls == [1]
    api.wrong(f"/api/runs/{run}/tensors/99999/stats", 404, "server.tensor")
    api.wrong(f"/api/runs/{run}/tensors/3/stats", 400, "server.unknown", at="0")


def test_an_id_without_a_piece_is_empty(api: Served) -> None:
    """An embedding that is padded beyond the vocabulary gives ids with empty pieces."""
    tokenizer = api.session.registry["pellucid/capitals"].model.tokenizer
    piece, spelled = tokenizer._pieces.pop(17), tokenizer._spelled.pop(17)
    try:
        run = api.run("pellucid/capitals", CAPITAL, new=2, sampling={"bias": {"17": 1000}})
        assert run["new"] == [17, 17] and run["new_pieces"] == ["", ""] and run["text"] == ""
        assert api.run("pellucid/capitals", [17, 5])["pieces"][0] == ""
        assert api.get(f"/api/runs/{run['run']}", "run")["steps"][0]["answers"][0]["picked"]["piece"] == ""
    finally:
        tokenizer._pieces[17], tokenizer._spelled[17] = piece, spelled
    assert api.run("pellucid/capitals", CAPITAL, sampling={"bias": {"17": 1000}})["text"] == tokenizer.decode([17]) != ""


SHOWN = {
    "parameters.total", "parameters.active", "bytes.total", "cache.bytes_per_token", "cache.bytes", "flops.prefill", "flops.decode",
    "bounds.devices", "bounds.largest_batch", "bounds.longest_context", "bounds.prefill.seconds", "bounds.decode.seconds",
}  # fmt: skip


def ends(document: dict[str, Any], formulas: dict[str, str]) -> list[str]:
    """Return the paths of the document's numbers whose formula does not end in them."""
    wrong = []
    for path in SHOWN:
        value: Any = document
        for word in path.split("."):
            value = value[word]
        (last,) = re.findall(r"[=→] ([0-9.,e+-]+)(?: s)?$", formulas[path]) or [""]
        figure = f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
        wrong += [] if last == figure else [path]
    return wrong


def test_formulas_end_in_the_numbers(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, how in [
        ("gpt-oss-120b", {"device": "h200", "context": "4096", "batch": "2"}),
        ("llama-2-7b", {"device": "h200", "dtype": "int8"}),
    ]:
        reply = api.client.get("/api/count", params={"model": name, **how}).json()
        formulas = judge(reply["formulas"], "formulas")
        assert ends(reply, formulas) == [] and all("=" in formulas[path] or "→" in formulas[path] for path in SHOWN)
    bill = pellucid.count("llama-2-7b", device="h200")
    assert ends(count.document(bill), count_formulas.formulas(bill)) == []
    monkeypatch.setattr(count_formulas, "devices", lambda bill, device: 77)  # the mutant: another number than the document's
    assert ends(count.document(bill), count_formulas.formulas(bill)) == ["bounds.devices"]
