"""GET /openapi.json: a sound document with every route and every field that a route reads."""

from collections.abc import Iterator

import jsonschema
import pytest

from openai_served import OpenAiServed, openai_served
from pellucid.api.model import load
from pellucid.runs.limits import LIMITS
from pellucid.server.openai.jobs import CHAT, COMPLETION, TOKENIZE
from pellucid.server.openai.openapi import CHAT_ONLY, FIELDS, openapi
from pellucid.server.openai.operation import Operation
from pellucid.server.openai.response_input import KEPT_ELSEWHERE, OWN
from pellucid.server.openai.routes import OpenAiApi

DOCUMENT = openapi("1", ["pellucid/capitals"])


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAiServed]:
    with openai_served(load("pellucid/capitals")) as served:
        yield served


def fields(path: str) -> set[str]:
    schema = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    return set(schema["properties"])


def test_it_has_every_route_and_field() -> None:
    routes = {(r.path.replace(":path}", "}"), m.lower()) for r in OpenAiApi(Operation("0"), LIMITS).routes() for m in r.methods or ()}
    described = {(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == {(path, method) for path, method in routes if method != "head"}
    assert fields("/v1/completions") == COMPLETION and fields("/v1/chat/completions") == CHAT and fields("/tokenize") == TOKENIZE
    assert fields("/v1/responses") == (CHAT | OWN) - {*KEPT_ELSEWHERE} - CHAT_ONLY
    used = set().union(*(fields(path) for path, methods in DOCUMENT["paths"].items() if "requestBody" in methods.get("post", {})))
    assert FIELDS.keys() - used == set()


def test_a_server_names_its_models(server: OpenAiServed) -> None:
    document = server.client.get("/openapi.json").json()
    assert document == openapi("0", ["pellucid/capitals"])
    assert document["paths"]["/tokenizer_info"]["get"]["parameters"][0]["schema"]["enum"] == ["pellucid/capitals"]


def test_what_the_campaigns_found(server: OpenAiServed) -> None:
    """Values of any kind where a text is expected, a Host that makes no URL, and a slash behind a path are refused in OpenAI's shape."""
    wrong = {"type": "message", "role": {"a": 1}, "content": "x"}
    assert server.wrong("/v1/responses", 400, "input[0].role", input=[wrong])["code"] == "server.field"
    server.wrong("/v1/responses", 400, "input[0].call_id", input=[{"type": "function_call_output", "call_id": [], "output": "x"}])
    server.wrong("/tokenize", 400, "tools", messages=[{"role": "user", "content": "a"}], tools=False)
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [{"role": "user", "content": "a"}]
    server.wrong("/v1/chat/completions", 400, "tool_choice.function.name", messages=messages, tools=tools, tool_choice={"name": []})
    for path, status in (("/v1/completions/", 404), ("/v1/models/", 404), ("/v1/completions", 405)):
        reply = server.client.get(path, follow_redirects=False)
        assert reply.status_code == status and set(reply.json()["error"]) == {"message", "type", "param", "code"}
        assert status != 405 or reply.headers["allow"] == "POST"
    assert server.client.request("TRACE", "/health").headers["allow"] == "DELETE, GET, HEAD, POST"
