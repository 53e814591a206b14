"""The page's chat: what the model reads of a conversation, each token with its probability, what the prefix cache had, and its end."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from openai_served import long_folder, openai_served, sound
from pellucid.api.model import SPECIMENS, load
from pellucid.errors import UseError
from pellucid.runs.chat_prompt import plain
from served import Served, judge, served

FRANCE = [{"role": "user", "content": "The capital of France is"}]
MARKS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def api() -> Iterator[Served]:
    with served() as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy a specimen without a limit of positions, and give it a chat template."""
    made = tmp_path_factory.mktemp("chat") / "llama"
    shutil.copytree(SPECIMENS / "capitals-llama", made)
    (made / "chat_template.jinja").write_text(MARKS)
    return made


def answer(api: Served, model: str, messages: list[dict[str, str]], **how: Any) -> list[dict[str, Any]]:
    """Ask for an answer. Returns its events, each judged by its schema."""
    reply = api.client.post("/api/chats", json={"model": model, "messages": messages, **how})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in reply.text.split("\n") if line]
    return [judge(json.loads(line.removeprefix("data: ")), "chat") for line in lines]


def text(events: list[dict[str, Any]]) -> str:
    return "".join(part["text"] for event in events for name, part in event.items() if name in ("token", "end"))


def tokens(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["token"] for event in events if "token" in event]


def test_a_model_without_a_template_reads_one_text(api: Served) -> None:
    turns = [{"role": "system", "content": "A."}, *FRANCE, {"role": "assistant", "content": " Paris."}, {"role": "user", "content": "B"}]
    assert plain(turns) == "A.\nThe capital of France is Paris.\nB"
    events = answer(api, "pellucid/capitals", FRANCE)
    prompt = events[0]["prompt"]
    assert (prompt["rule"], prompt["text"]) == ("joined", "The capital of France is")
    assert prompt["ids"] == load("pellucid/capitals").ids(prompt["text"]) and len(prompt["pieces"]) == len(prompt["ids"])
    assert text(events) == " Paris." and events[-1] == {"end": {"ended": "stop", "text": ""}}
    assert answer(api, "pellucid/capitals-t5", turns)[0]["prompt"] | {"ids": 0, "pieces": 0} == {
        "model": "pellucid/capitals-t5", "rule": "last", "text": "B", "ids": 0, "pieces": 0, "page": 64,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["capitals", "capitals-llama", "capitals-deepseek", "capitals-prefix", "capitals-t5", "reader"])
@pytest.mark.quick(4)
def test_the_numbers_are_those_of_a_run(api: Served, name: str) -> None:
    """The engine's tokens and probabilities are those that a run of the same ids has at the same steps, which every view shows."""
    for sampling in ({}, {"temperature": 1.5, "top_k": 40, "seed": 3}):
        events = answer(api, f"pellucid/{name}", FRANCE, new=6, sampling=sampling)
        drawn = tokens(events)
        run = api.run(f"pellucid/{name}", events[0]["prompt"]["ids"], new=len(drawn), sampling=sampling)
        assert run["new"] == [t["answer"]["picked"]["id"] for t in drawn]
        for step, token in zip(run["steps"], drawn, strict=True):
            ours, theirs = token["answer"], step["answers"][0]
            assert ours["picked"]["piece"] == theirs["picked"]["piece"]
            assert ours["picked"]["probability"] == pytest.approx(theirs["picked"]["probability"], rel=1e-4, abs=1e-9)
            assert [c["id"] for c in ours["candidates"][:3]] == [c["id"] for c in theirs["candidates"][:3]]


def test_a_template_is_read_and_pages_are_read_again(folder: Path) -> None:
    with served(str(folder)) as api:
        turns = [{"role": "system", "content": "The capital of France is " * 12}, *FRANCE]
        first = answer(api, str(folder), turns)
        prompt = first[0]["prompt"]
        tokenizer = load(str(folder)).tokenizer
        assert prompt["rule"] == "template" and prompt["text"].endswith("<user>The capital of France is</user><assistant>")
        assert prompt["ids"] == tokenizer.chat(turns) and tokens(first)[0]["reused"] == 0
        turns += [{"role": "assistant", "content": text(first)}, {"role": "user", "content": "And of Japan?"}]
        second = answer(api, str(folder), turns)
        pairs = zip(prompt["ids"], second[0]["prompt"]["ids"], strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        assert same >= prompt["page"] and tokens(second)[0]["reused"] == same // prompt["page"] * prompt["page"]
        assert [t["seconds"] for t in tokens(second)] == sorted(t["seconds"] for t in tokens(second))
        branch = answer(api, str(folder), [turns[0], {"role": "user", "content": "Tokyo"}])
        assert tokens(branch)[0]["reused"] >= prompt["page"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"messages": []}, 400, "chat.empty"),
        ({"messages": [{"role": "poet", "content": "x"}]}, 400, "chat.role"),
        ({"messages": FRANCE, "model": "/etc"}, 404, "server.model"),
        ({"messages": FRANCE, "stream": True}, 400, "server.unknown"),
        ({"messages": FRANCE, "new": 0}, 400, "server.field"),
        ({"messages": FRANCE, "new": 257}, 400, "server.field"),
        ({"messages": [{"role": "user", "content": ""}]}, 400, "generate.empty"),
        ({"messages": [{"role": "user", "content": "France " * 100}]}, 400, "generate.context"),
        ({"messages": [{"role": "user", "content": "x" * 300_000}]}, 400, "server.tokens"),
        ({"messages": FRANCE, "model": "pellucid/capitals-bert"}, 400, "generate.encoder"),
        ({"messages": FRANCE, "sampling": {"temperature": -1}}, 400, "sampling.number"),
        ({"messages": FRANCE, "with": ["nonsense=1"]}, 400, "variant.field"),
    ],
)
def test_what_cannot_be_read_is_refused_before_a_token(api: Served, body: dict[str, Any], status: int, code: str) -> None:
    reply = api.client.post("/api/chats", json={"model": "pellucid/capitals", **body})
    error = judge(reply.json(), "error")["error"]
    assert (reply.status_code, error["code"]) == (status, code), error
    assert "\n" not in error["message"]


def test_a_failure_ends_the_stream_with_its_line(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails behind the first token is the last event, and the next answer comes."""

    def failing(*_: Any) -> Iterator[Any]:
        yield {"end": {"ended": "stop", "text": "x"}}
        raise UseError("generate.encoder")

    with monkeypatch.context() as patch:
        patch.setattr("pellucid.documents.chat_answer.chat_events", failing)
        events = answer(api, "pellucid/capitals", FRANCE)
    assert [[*event] for event in events] == [["prompt"], ["end"], ["error"]] and "\n" not in events[-1]["error"]["message"]
    assert text(answer(api, "pellucid/capitals", FRANCE)) == " Paris."


def test_switches_are_the_answers_too(api: Served) -> None:
    plain_one, switched = (answer(api, "pellucid/capitals", FRANCE, **how) for how in ({}, {"with": ["norm=none"]}))
    ids = [[t["answer"]["picked"]["id"] for t in tokens(events)] for events in (plain_one, switched)]
    run = api.run("pellucid/capitals", "The capital of France is", new=len(ids[1]), **{"with": ["norm=none"]})
    assert ids[1] == run["new"] and ids[0] != ids[1]


def test_a_client_that_goes_ends_the_drawing(api: Served) -> None:
    """Of 256 tokens few are drawn once the client has gone, and the engine takes the next answer."""

    async def scene() -> int:
        body = json.dumps({"model": "pellucid/capitals-llama", "messages": FRANCE, "new": 256, "sampling": {"temperature": 3}}).encode()
        got, sent, gone = 0, False, asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal got
            got += message.get("body", b"").count(b'"token"')
            if got >= 2:
                gone.set()

        headers = [(b"host", b"127.0.0.1:8000"), (b"authorization", f"Bearer {api.client.headers['authorization'][7:]}".encode())]
        scope: dict[str, Any] = {
            "type": "http", "method": "POST", "path": "/api/chats", "raw_path": b"/api/chats", "query_string": b"", "root_path": "",
            "headers": [*headers, (b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http", "client": None,
            "server": ("127.0.0.1", 8000), "state": {},
        }  # fmt: skip
        await asyncio.wait_for(api.client.app(scope, receive, send), 30)
        return got

    assert 2 <= asyncio.run(scene()) < 200
    assert api.api.chats.worker.waiting == 0 and not api.api.chats.worker.stops
    assert text(answer(api, "pellucid/capitals-llama", FRANCE)) == " Paris."


def test_the_page_of_serve_gives_the_answer_of_its_api(folder: Path) -> None:
    """One template and one engine's rules: /v1/chat/completions reads as many tokens, and answers the same. A wrong key is refused."""
    model = load(str(folder))
    body = {"model": model.name, "messages": [{"role": "system", "content": "Hm."}, *FRANCE]}
    with openai_served(model, key="sk-page") as server:
        reply = server.client.post("/api/chats", json=body)
        events = [judge(json.loads(line.removeprefix("data: ")), "chat") for line in reply.text.split("\n") if line]
        given = server.post("/v1/chat/completions", 200, **body, temperature=0)
        assert given["choices"][0]["message"]["content"] == text(events)
        assert given["usage"]["prompt_tokens"] == len(events[0]["prompt"]["ids"])
        assert given["usage"]["completion_tokens"] == len(tokens(events))
        assert server.client.post("/api/chats", json=body, headers={"authorization": "Bearer x"}).status_code == 401
    with openai_served(model, page=False) as server:
        assert server.client.post("/api/chats", json=body).status_code == 404


def test_the_page_and_its_clients_share_an_engine(tmp_path: Path) -> None:
    """What a client's request has stored is reused by the page's chat, and proposals of a draft are counted; nothing is left over."""
    model = load(long_folder(tmp_path / "long"))
    messages = [{"role": "system", "content": "The capital of France is Paris. " * 9}, *FRANCE]
    body = {"model": model.name, "messages": messages}
    with openai_served(model, draft=load(tmp_path / "long")) as server:
        given = server.post("/v1/chat/completions", 200, **body, temperature=0, max_tokens=12)
        reply = server.client.post("/api/chats", json={**body, "new": 12})
        events = [judge(json.loads(line.removeprefix("data: ")), "chat") for line in reply.text.split("\n") if line]
        read, reused = len(events[0]["prompt"]["ids"]), tokens(events)[0]["reused"]
        assert reused == (read - 1) // 64 * 64 > 0
        assert text(events) == given["choices"][0]["message"]["content"]
        end = events[-1]["end"]
        assert end["proposed"] >= end["accepted"] > 0
        assert model.engines == [] and sound(server.models[model.name])
        served = server.models[model.name]
        served.thread.engine.limits = replace(served.thread.engine.limits, waiting=0)  # type: ignore[union-attr]
        assert server.client.post("/api/chats", json=body).status_code in (400, 429)
