"""One request among many is recorded or changed: its tensors are those of its lone run, and no other request's bits change."""

import io
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from openai_served import OpenAiServed, openai_served
from pellucid.api.change_values import changes
from pellucid.api.model import Model, load
from pellucid.api.trace import trace
from pellucid.engine import engine as engine_module
from pellucid.engine.engine import Engine
from pellucid.engine.engine_thread import EngineThread
from pellucid.engine.memory import Memory
from pellucid.engine.requests import Output, Request, Sequence
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.engine.watched_text import Allowance, WatchedText
from pellucid.errors import UseError
from pellucid.ops.sampling.settings import Sampling
from pellucid.server.openai.answering import GeneratedAnswer
from pellucid.tracing import load_trace
from pellucid.watching.records import Seen
from tiny import swapped

MODEL = "pellucid/capitals-llama"
PROMPT = "The capital of France is"
PROMPTS = [tuple(1 + (i * 7 + j * 13) % 90 for j in range(5 + i * 3)) for i in range(5)]
NEW, WATCHED = 6, 2
Spoil = Callable[[Mapping[Sequence, int]], None]


@pytest.fixture(scope="module")
def model() -> Model:
    return load(MODEL)


@pytest.fixture(scope="module")
def double() -> Model:
    return load(MODEL, dtype="float64")


def watch_of(model: Model, only: list[str], edit: list[str], most: int = 1 << 24) -> WatchedText:
    return WatchedText(model.module, only, changes(model, edit), most, Allowance(1 << 26))


def requests(*watches: WatchedText | None) -> list[Request]:
    """Return the requests, the one at WATCHED with the given watch."""
    return [
        Request(p, NEW, Sampling(1.0, seed=i), logprobs=3, watched=watches[0] if watches and i == WATCHED else None)
        for i, p in enumerate(PROMPTS)
    ]


def answers(model: Model, given: list[Request], spoil: Spoil = lambda chunks: None, deterministic: bool = True, tokens: int = 400) -> Any:
    """Return the tokens of each request with their log-probabilities, and how it ended, from an engine with pages of 4 rows."""
    engine = Engine.of(model.module, tokens, SchedulerLimits(32), 4, deterministic=deterministic)
    forward, outputs, changed = engine.run, list[Output](), threading.Condition()

    def run(chunks: Mapping[Sequence, int]) -> dict[Sequence, Tensor]:
        spoil(chunks)
        return forward(chunks)

    def receive(new: list[Output]) -> None:
        with changed:
            outputs.extend(new)
            changed.notify_all()

    engine.run = run
    thread = EngineThread(engine, receive)
    for request in given:
        thread.submit(request)
    with changed:
        assert changed.wait_for(lambda: sum(o.ended is not None for o in outputs) >= len(given), 60)
    assert thread.close() and not thread.watches.texts
    storage: Any = engine.storage
    assert not storage.pages.holders() and storage.cache.sound()
    rows: dict[int, list[Any]] = {n: [] for n in range(len(given))}
    for o in outputs:
        rows[o.request].append((o.token, o.ended, None if o.error is None else o.error.key))
    return list(rows.values())


@pytest.fixture(scope="module")
def plain(model: Model) -> Any:
    return answers(model, requests())


def records(watched: WatchedText) -> dict[tuple[str, int, int], Seen]:
    return {(s.path, s.step, s.call): s for s in watched.seen}


def test_the_records_are_those_of_the_lone_run(model: Model, double: Model, plain: Any) -> None:
    """To the bit where the engine is deterministic; and at 1e-10 those of `trace`, in float64."""
    among, alone = watch_of(model, ["*"], []), watch_of(model, ["*"], [])
    assert answers(model, requests(among)) == plain
    assert answers(model, [requests(alone)[WATCHED]]) == [plain[WATCHED]]
    assert among.steps == NEW and among.left_out == 0 and among.size > 0 == among.allowance.used
    mine, other = records(among), records(alone)
    assert list(mine) == list(other) and len(mine) > 400
    assert all(torch.equal(mine[key].value, other[key].value) and mine[key].dims == other[key].dims for key in mine)
    watched = watch_of(double, ["*"], [])
    answers(double, requests(watched), deterministic=False)
    tokens = iter(watched.new)
    wanted = {(s.path, s.step): s for s in trace(double, PROMPTS[WATCHED], NEW, choose=lambda logits: next(tokens))}
    compared = {(s.path, s.step): s for s in watched.seen if not s.path.startswith("sample")}
    assert list(compared) == list(wanted)
    for key, s in compared.items():
        assert s.dims == wanted[key].dims and torch.allclose(s.value, wanted[key].value, rtol=0, atol=1e-10), key


@pytest.mark.parametrize("edit", ["layers.1.attn.z[H=1] = 0", "layers.1.attn.pattern[H=1, T=2:] *= 0.5", "sample.logits[V=14] += 9"])
def test_a_change_is_of_one_request_alone(model: Model, plain: Any, edit: str) -> None:
    changed, alone = watch_of(model, ["layers.2.out"], [edit]), watch_of(model, ["layers.2.out"], [edit])
    assert changed_faults(model, plain, changed) == []
    assert answers(model, [requests(alone)[WATCHED]])[0] == answers(model, requests(watch_of(model, [], [edit])))[WATCHED]
    mine, other = records(changed), records(alone)
    assert mine.keys() == other.keys() and all(torch.equal(mine[key].value, other[key].value) for key in mine)


def changed_faults(model: Model, plain: Any, watched: WatchedText) -> list[int]:
    """Return the requests whose answers are not as expected: the watched one's another than without its change, all others the same."""
    got = answers(model, requests(watched))
    return [n for n in range(len(PROMPTS)) if (got[n] == plain[n]) == (n == WATCHED)]


def test_mutants(model: Model, plain: Any) -> None:
    """A watch without its request's name changes all; one that never opens changes none."""
    edit = ["layers.1.attn.z[H=1] = 0"]
    opening = WatchedText.open
    with swapped(WatchedText, "open", lambda self, key: opening(self, None)):
        assert changed_faults(model, plain, watch_of(model, [], edit)) == [0, 1, 3, 4]
    with swapped(WatchedText, "open", lambda self, key: None):
        assert answers(model, requests(watch_of(model, [], edit)))[WATCHED][-1][1:] == ("error", "edit.unmet")
        with swapped(WatchedText, "without_effect", lambda self: None):
            assert changed_faults(model, plain, watch_of(model, [], edit)) == [WATCHED]


def cache_faults(model: Model) -> list[str]:
    """Return which of three requests of one prompt, one after the other, are not as they are alone: plain, changed, plain."""
    prompt = PROMPTS[4] * 2

    def request(changed: bool) -> Request:
        return Request(prompt, 3, logprobs=2, watched=watch_of(model, [], ["layers.0.attn.z[H=1] = 0"]) if changed else None)

    lone = {changed: answers(model, [request(changed)])[0] for changed in (False, True)}
    out = []
    for order in ((False, True), (True, False)):
        engine = Engine.of(model.module, 400, SchedulerLimits(64), 4, deterministic=True)
        thread = EngineThread(engine, delivered := Delivered())
        for changed in order:
            got = delivered.answer(thread.submit(request(changed)))
            out += [] if got == lone[changed] else [f"{order}: {changed}"]
        assert thread.close()
    return out


class Delivered:
    """The outputs of a thread, by request."""

    def __init__(self) -> None:
        self.outputs, self.changed = list[Output](), threading.Condition()

    def __call__(self, outputs: list[Output]) -> None:
        with self.changed:
            self.outputs += outputs
            self.changed.notify_all()

    def answer(self, number: int) -> list[Any]:
        """Wait until a request has ended. Returns its tokens."""
        with self.changed:
            assert self.changed.wait_for(lambda: any(o.request == number and o.ended for o in self.outputs), 60)
        return [(o.token, o.ended, None) for o in self.outputs if o.request == number]


def test_a_changed_request_and_the_prefix_cache(model: Model) -> None:
    """It reads no rows of others, and leaves none for them."""
    assert cache_faults(model) == []
    with swapped(engine_module, "edits", lambda key: False):  # its pages are then shared both ways
        assert cache_faults(model) == ["(False, True): True", "(True, False): False"]
    opening = Memory.open

    def reads(self: Memory, sequence: Sequence) -> int:
        watched, request = sequence.request.watched, sequence.request
        object.__setattr__(request, "watched", None)
        try:
            return opening(self, sequence)
        finally:
            object.__setattr__(request, "watched", watched)

    with swapped(Memory, "open", reads):
        assert cache_faults(model) == ["(False, True): True"]


def test_a_step_that_fails_leaves_no_records(model: Model, plain: Any) -> None:
    """Also when memory is short, so that the text is preempted and begins again: every token has its step once."""
    alone, failed = watch_of(model, ["layers.*.out"], []), [0]
    answers(model, [requests(alone)[WATCHED]])

    def spoil(chunks: Mapping[Sequence, int]) -> None:
        together = len(chunks) > 2
        failed[0] += together
        if together and failed[0] in (2, 4):
            raise RuntimeError

    for how in ({"spoil": spoil}, {"tokens": 72}):
        watched = watch_of(model, ["layers.*.out"], [])
        assert answers(model, requests(watched), **how) == plain  # type: ignore[arg-type]
        mine, other = records(watched), records(alone)
        assert mine.keys() == other.keys() and watched.new == alone.new
        assert all(torch.equal(mine[key].value[:, -1], other[key].value[:, -1]) for key in mine)
    assert failed[0] > 4


def test_a_change_that_fails_ends_its_request_alone(model: Model, plain: Any) -> None:
    for edit, key in (("layers.1.attn.z[Q=1] = 0", "change.letter"), ("layers.1.attn.z[T=99] = 0", "change.nowhere")):
        got = answers(model, requests(watch_of(model, [], [edit])))
        assert [row for n, row in enumerate(got) if n != WATCHED] == [row for n, row in enumerate(plain) if n != WATCHED]
        assert got[WATCHED][-1][1:] == ("error", key)


def test_records_stay_within_their_bytes(model: Model) -> None:
    """A trace that grows beyond the limit is cut after whole tensors, and says how many are missing."""
    full, cut = watch_of(model, ["*"], []), watch_of(model, ["*"], [], most=20_000)
    answers(model, requests(full))
    answers(model, requests(cut))
    assert cut.size <= 20_000 and len(cut.seen) + cut.left_out == len(full.seen)
    assert [s.path for s in cut.seen] == [s.path for s in full.seen[: len(cut.seen)]]


@pytest.fixture(scope="module")
def server(model: Model) -> Iterator[OpenAiServed]:
    with openai_served(model, runs=3, trace=1_500_000) as served:
        yield served


def test_an_answer_is_opened_afterwards(server: OpenAiServed, model: Model, tmp_path: Path) -> None:
    """The id in an answer leads to its tensors: as JSON, as the page's run with its sums, and as a folder that `open` reads."""
    wish = {"watch": ["layers.*.attn.pattern", "logits"], "edit": ["layers.0.attn.z[H=0] = 0"]}
    answer = server.complete(PROMPT, max_tokens=3, pellucid=wish)
    noted, id = answer["pellucid"], answer["pellucid"]["trace"]
    document = server.client.get(f"/api/traces/{id}").json()
    lone = trace(model, PROMPT, document["steps"], edit=changes(model, wish["edit"]))
    assert document["new"] == lone.new and document["edit"] == wish["edit"] and document["watch"] == wish["watch"]
    assert noted | {"trace": id} == {"trace": id} | {k: document[k] for k in ("page", "steps", "tensors", "bytes", "left_out")}
    assert {r["path"] for r in document["records"]} == {*(f"layers.{i}.attn.pattern" for i in range(4)), "logits"}
    shown = server.client.get(f"{noted['page']}api/models").json()
    assert shown["run"] == id and shown["current"] == MODEL and server.client.get(noted["page"]).text.startswith("<!doctype html>")
    run = server.client.get(f"{noted['page']}api/runs/{id}").json()
    assert run["new"] == lone.new and run["edited"] == ["layers.0.attn.z"] and run["next"]["id"] == lone.new[0]
    n = next(r["n"] for r in document["records"] if r["path"] == "layers.1.attn.pattern")
    terms = server.client.get(f"/api/runs/{id}/tensors/{n}/terms?cell=0,1,2,1").json()
    assert abs(terms["value"] - float(lone.all("layers.1.attn.pattern")[0].value[0, 1, 2, 1])) < 1e-5
    with tarfile.open(fileobj=io.BytesIO(server.client.get(f"/api/traces/{id}.tar").content)) as tar:
        tar.extractall(tmp_path, filter="data")
    opened = load_trace(tmp_path / id)
    assert opened.new == lone.new and opened.ids == lone.ids
    assert torch.allclose(opened.all("logits")[0].value, lone.all("logits")[0].value, atol=1e-4)
    assert server.client.delete(f"/api/traces/{id}").status_code == 204
    assert server.client.get(f"/api/traces/{id}").status_code == server.client.get(f"/api/traces/{id}.tar").status_code == 404


def test_traces_are_few(server: OpenAiServed) -> None:
    """The latest three are kept, and each has its limit of bytes."""
    ids = [server.complete(PROMPT, max_tokens=2, pellucid={"watch": "layers.0.out"})["pellucid"]["trace"] for _ in range(5)]
    document = server.client.get("/api/traces").json()
    assert [t["id"] for t in document["traces"]] == ids[:1:-1] and document["limits"]["count"] == 3
    assert server.client.get(f"/api/traces/{ids[0]}").status_code == 404
    noted = server.complete(PROMPT, max_tokens=20, ignore_eos=True, pellucid={"watch": "*"})["pellucid"]
    assert noted["bytes"] <= 1_500_000 and noted["left_out"] > 0


def test_header_stream_and_stop(server: OpenAiServed) -> None:
    reply = server.client.post("/v1/completions", json={"prompt": PROMPT, "temperature": 0}, headers={"pellucid": '{"watch": "embed"}'})
    assert reply.headers["pellucid-trace"] == reply.json()["pellucid"]["trace"]
    last = server.stream("/v1/completions", prompt=PROMPT, max_tokens=3, pellucid={"watch": "embed"})[-1]
    assert server.client.get(f"/api/traces/{last['pellucid']['trace']}").status_code == 200
    stopped = server.complete(PROMPT, max_tokens=9, stop="ris", ignore_eos=True, pellucid={"watch": "embed"})
    document = server.client.get(f"/api/traces/{stopped['pellucid']['trace']}").json()
    assert len(document["new"]) == document["steps"] >= stopped["usage"]["completion_tokens"] == 1
    assert "pellucid" not in server.complete(PROMPT, max_tokens=1, pellucid={"edit": ["layers.0.out *= 1"]})


WRONG: list[tuple[Any, str | None]] = [
    (3, "pellucid"),
    ({"see": 1}, "pellucid.see"),
    ({"watch": 3}, "pellucid.watch"),
    ({"watch": ["", "a"]}, "pellucid.watch"),
    ({"watch": "layers.9.*"}, "pellucid.watch"),
    ({"edit": [5]}, "pellucid.edit[0]"),
    ({"edit": ["rubbish"]}, None),
    ({"edit": ["layers.1.attn.z = secret.safetensors"]}, "pellucid.edit[0]"),
    ({"edit": ["layers.1.attn.z[Q=1] = 0"]}, None),
    ({"edit": ["layers.1.attn.z[H=9] = 0"]}, None),
    ({"edit": ["nothing = 0"]}, "pellucid.edit"),
]


@pytest.mark.parametrize(("field", "param"), WRONG)
def test_a_wrong_field_is_named(server: OpenAiServed, field: Any, param: str | None) -> None:
    error = server.wrong("/v1/completions", 400, param, prompt=PROMPT, max_tokens=2, pellucid=field)
    assert "\n" not in error["message"]


SPOILT = ["layers.1.attn.q = -inf"], ["layers.2.out *= 1e300"], ["layers.0.ffn[T=1] = -inf"], ["layers.3.ffn[T=5] = -inf"]


def spoilt(server: OpenAiServed, model: Model, edit: list[str]) -> None:
    """Compare the error for a change that leaves no number, of an answer, a chat's stream and a trace of `edit`."""
    with pytest.raises(UseError) as refused:
        trace(model, PROMPT, 3, edit=changes(model, edit))
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "ignore_eos": True, "pellucid": {"edit": edit}}
    error = server.wrong("/v1/completions", 400, None, **body)
    assert (error["code"], error["message"]) == ("page.change.nan", str(refused.value))
    lines = server.client.post("/v1/completions", json=body | {"stream": True}).text
    assert '"code": "page.change.nan"' in lines.replace('":"', '": "')


@pytest.mark.parametrize("edit", SPOILT, ids=lambda edit: edit[0])
def test_a_change_that_leaves_no_number_is_the_callers(server: OpenAiServed, model: Model, edit: list[str]) -> None:
    """The error is Python's, with the first NaN, in whichever step it is; without the second run it is the server's own."""
    spoilt(server, model, edit)
    with swapped(GeneratedAnswer, "judge_changes", lambda self: None):
        server.wrong("/v1/completions", 500, None, prompt=PROMPT, max_tokens=3, ignore_eos=True, temperature=0, pellucid={"edit": edit})


def test_several_texts_are_refused(server: OpenAiServed) -> None:
    for body in ({"prompt": PROMPT, "n": 2}, {"prompt": [PROMPT, PROMPT]}):
        server.wrong("/v1/completions", 400, "pellucid", max_tokens=2, pellucid={"watch": "*"}, **body)
    long = {"prompt": PROMPT, "max_tokens": 2, "pellucid": {"watch": "logits"}}
    assert server.post("/v1/completions", 200, **long)


def test_without_the_page_nothing_is_watched(model: Model) -> None:
    with openai_served(model, page=False) as server:
        server.wrong("/v1/completions", 400, "pellucid", prompt=PROMPT, pellucid={"watch": "*"})
        assert server.client.get("/").status_code == server.client.get("/api/traces").status_code == 404
