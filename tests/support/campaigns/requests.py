"""Mutated requests to `pellucid serve`: bodies bent in their structure or blindly, and wrong methods, paths, headers and queries.

Each is answered with a status that is not the server's own fault, by JSON in OpenAI's shape of errors, whose message is one line, or by
a stream of events that ends; and every so often a plain request must still get its own answer, and no page may be left over.
"""

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from campaigns import Attempt
from campaigns.mutate import bent, mangled, text
from openai_served import sound
from pellucid.api.model import load
from pellucid.errors import UseError
from pellucid.runs.limits import LIMITS
from pellucid.server.openai.operation import Operation
from pellucid.server.openai.routes import application
from pellucid.server.openai.served_model import ServedModel
from tool_templates import tool_model

PORT, EVERY = 8000, 200
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA}}
SAMPLED = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": 3, "repetition_penalty": 1.1, "presence_penalty": 0.1}
MODEL = {"model": "tools"}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "The capital", "max_tokens": 3, "stop": ["a", "b"], "logit_bias": {"5": -1}, **MODEL, **SAMPLED}),
    ("/v1/completions", {"prompt": [[5, 6, 7], [8]], "max_tokens": 2, "echo": True, "logprobs": 2, "n": 2, "seed": 1, **MODEL}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
                         "return_token_ids": True, "priority": 1, "stop_token_ids": [9], **MODEL}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 9, "seed": 2, "structured_outputs": {"regex": "[ab]{2}"}, **MODEL}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 2, "temperature": 0, **MODEL,
                         "pellucid": {"watch": ["layers.*.out"], "edit": ["layers.0.out = 0"]}}),
    ("/v1/chat/completions", {"messages": ASK, "max_tokens": 4, "logprobs": True, "top_logprobs": 3,
                              "chat_template_kwargs": {"enable_thinking": False}, **MODEL, **SAMPLED}),
    ("/v1/chat/completions", {"messages": ASK, "max_completion_tokens": 9, "tools": [TOOL], "tool_choice": "required",
                              "parallel_tool_calls": False, "stream": True, **MODEL}),
    ("/v1/chat/completions", {"messages": ASK, "max_tokens": 9, "seed": 4, **MODEL,
                              "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}),
    ("/v1/responses", {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], "stream": True,
                       "instructions": "Be brief.", "max_output_tokens": 4, "tools": [{"type": "function", "name": "f"}], **MODEL}),
    ("/v1/embeddings", {"model": "pellucid/capitals-bert", "input": ["a", "b"], "encoding_format": "base64"}),
    ("/tokenize", {"messages": ASK, "add_generation_prompt": True, "return_token_strs": True, "tools": [TOOL], **MODEL}),
    ("/tokenize", {"prompt": "a b", "add_special_tokens": False, **MODEL}),
    ("/detokenize", {"tokens": [5, 6], **MODEL}),
]  # fmt: skip
FIELDS: dict[str, list[Any]] = {
    "temperature": [0, 2], "n": [3], "stream": [True, False], "stop": ["e"], "seed": [2**40], "max_tokens": [0, 20], "top_k": [1],
    "logit_bias": [{"7": 100}], "ignore_eos": [True], "priority": [-5], "prompt": ["\U0001f600 \x00"], "guided_choice": [["aa", "b"]],
    "echo": [True], "skip_special_tokens": [False], "tool_choice": ["none"], "continue_final_message": [False], "user": ["x"],
    "x": [{"y": []}], "pellucid": [{"watch": "layers.*.attn.pattern"}], "response_format": [{"type": "json_object"}], "min_tokens": [2],
}  # fmt: skip
PATHS = (
    "/v1/models", "/v1/models/tools", "/health", "/metrics", "/version", "/tokenizer_info", "/api/traces", "/api/traces/1.tar", "/", "/v1",
    "/api/models",
)  # fmt: skip
HOSTS = (f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}", "evil.com", "", "127.0.0.1:8000\x00", "a" * 5000)
CODES = {400, 401, 403, 404, 405, 408, 409, 411, 413, 415, 422, 429, 501}
LONGEST = 30.0  # seconds of an answer


def prepare(folder: Path) -> Attempt:
    """Serve a tiny model with tools, and an encoder; return the attempt that sends one mutant."""
    model = tool_model(folder / "tools", "hermes", max_position_embeddings=160)
    model.name = "tools"
    operation, served = Operation("0"), dict[str, ServedModel]()
    for one in (model, load("pellucid/capitals-bert")):
        served[one.name] = ServedModel(one.name, one, 2048, 32, "0")
    operation.loaded.set_result(served)
    app = application(operation, replace(LIMITS, body=1 << 20), PORT, quiet=True)
    loop, counts = asyncio.new_event_loop(), [0]
    right = [ask(app, loop, *plain(*one)) for one in BODIES if not one[1].get("stream")]
    assert all(status == 200 for status, *_ in right), right

    def attempt(draw: random.Random) -> str:
        counts[0] += 1
        if counts[0] % EVERY == 0 and (fault := unlike(app, loop, served, right)):
            return fault
        sent = mutant(draw)
        status, headers, body = ask(app, loop, *sent)
        fault = judged(sent, status, headers, body)
        if not fault and status >= 400:
            raise UseError("generate.encoder")  # any refusal: the body has been judged
        return fault

    return attempt


def plain(path: str, body: dict[str, Any]) -> tuple[str, str, bytes, list[tuple[bytes, bytes]], bytes]:
    """Return a request as it should be."""
    return "POST", path, b"", [(b"host", HOSTS[0].encode()), (b"content-type", b"application/json")], text(body)


def mutant(draw: random.Random) -> tuple[str, str, bytes, list[tuple[bytes, bytes]], bytes]:
    """Return a request in which something is wrong, most often in the body; some have fields that fit."""
    path, body = draw.choice(BODIES)
    method, path, query, headers, raw = plain(path, body)
    kind = draw.random()
    if kind < 0.2:
        raw = text(body | {name: draw.choice(FIELDS[name]) for name in draw.sample(sorted(FIELDS), draw.randint(1, 3))})
    elif kind < 0.6:
        raw = text(bent(body, draw))
    elif kind < 0.8:
        raw = mangled(raw, draw)
    elif kind < 0.9:
        method, path = draw.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "x" * 20)), draw.choice((*PATHS, path))
        query = draw.choice((b"", b"model=tools", b"a=1&a=2", b"%ff=\xff", b"x" * 3000))
        path = draw.choice((path, path, path + "/", path.upper(), path + "%00", path + "/../x", path + "é", path + "/" + "a" * 3000))
    else:
        kinds = (b"application/json", b"text/plain", b"", b"\xff")
        headers = [(b"host", draw.choice(HOSTS).encode()), (b"content-type", draw.choice(kinds))]
        names = (b"origin", b"authorization", b"content-length", b"accept-language", b"sec-fetch-site", b"pellucid", b"cookie", b"expect")
        values = (b"", b"evil", b"Bearer x", b"-1", b"zh", b"zh;q=nan,en;q=1e999", b"{", b'{"watch": "x"}', b"\xff\xfe", b"a" * 9000)
        headers += [(draw.choice(names), draw.choice(values)) for _ in range(draw.randint(0, 3))]
    return method, path, query, headers, raw


def ask(app: Any, loop: asyncio.AbstractEventLoop, *sent: Any) -> tuple[int, dict[bytes, bytes], bytes]:
    """Return the status, the headers and the body of the answer to a request."""
    return loop.run_until_complete(asyncio.wait_for(asgi(app, *sent), LONGEST))


async def asgi(
    app: Any, method: str, path: str, query: bytes, headers: list[tuple[bytes, bytes]], raw: bytes
) -> tuple[int, dict[bytes, bytes], bytes]:
    messages, answers, over = [{"type": "http.request", "body": raw, "more_body": False}], list[dict[str, Any]](), asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        answers.append(message)

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http", "path": path}
    scope |= {"raw_path": path.encode(), "query_string": query, "root_path": "", "headers": headers}
    scope |= {"client": ("127.0.0.1", 9), "server": ("127.0.0.1", PORT)}
    await app(scope, receive, send)
    over.set()
    start = next(m for m in answers if m["type"] == "http.response.start")
    return start["status"], dict(start["headers"]), b"".join(m.get("body", b"") for m in answers if m["type"] == "http.response.body")


def judged(sent: tuple[Any, ...], status: int, headers: dict[bytes, bytes], body: bytes) -> str:
    """Return what is wrong with an answer, "" if nothing is."""
    kind, about = headers.get(b"content-type", b""), f"{status} {body[:300]!r} to {sent!r:.1500}"
    if status not in (200, 204, 206, 304, *CODES):
        return f"a status: {about}"
    if any(name.startswith(b"access-control") for name in headers):
        return f"CORS: {about}"
    if status == 405 and b"allow" not in headers:
        return f"no methods: {about}"
    if status >= 400 and sent[0] != "HEAD":
        error = json.loads(body)["error"]
        if set(error) != {"message", "type", "param", "code"} or "\n" in error["message"] or len(error["message"]) > 2000:
            return f"an error's shape: {about}"
    elif kind.startswith(b"application/json") and sent[0] != "HEAD":
        json.loads(body, parse_constant=lambda name: 1 / 0)
    elif kind.startswith(b"text/event-stream") and b"[DONE]" not in body[-20:] and b"response." not in body and b'"error"' not in body:
        return f"a stream without an end: {about}"
    return ""


def unlike(app: Any, loop: asyncio.AbstractEventLoop, served: dict[str, ServedModel], right: list[tuple[int, Any, bytes]]) -> str:
    """Return what plain requests find wrong of a server that has seen mutants."""
    for one, (status, _, body) in zip([b for b in BODIES if not b[1].get("stream")], right, strict=True):
        now = ask(app, loop, *plain(*one))
        if (now[0], answer_of(now[2])) != (status, answer_of(body)):
            return f"another answer: {now[2][:300]!r} is not {body[:300]!r}"
    if not all(sound(s) for s in served.values() if s.thread is not None):
        return "pages or texts are left over"
    return ""


def answer_of(body: bytes) -> Any:
    """Return what two answers to one request have in common."""
    document = json.loads(body)
    return [document.get(name) for name in ("object", "tokens", "count", "prompt")], [
        {k: v for k, v in one.items() if k != "message"} | {"content": (one.get("message") or {}).get("content")}
        for one in document.get("choices", [])
    ]
