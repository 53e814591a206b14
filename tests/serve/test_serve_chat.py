"""/v1/chat/completions: the template's prompt, an answer that is its lone run, chunks as OpenAI's clients read them."""

from collections.abc import Iterator
from typing import Any

import pytest

from openai_served import OpenAiServed, chat_folder, openai_served
from pellucid.api.model import Model, load
from pellucid.ops.sampling.settings import Sampling
from pellucid.tokenizer import tokenizer
from tiny import swapped

PATH = "/v1/chat/completions"
TURNS = [{"role": "user", "content": "The capital of Japan"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(chat_folder(tmp_path_factory.mktemp("chat") / "chatty"))


@pytest.fixture(scope="module")
def server(model: Model) -> Iterator[OpenAiServed]:
    with openai_served(model) as served:
        yield served


def lone(model: Model, messages: list[dict[str, Any]], new: int, **how: Any) -> str:
    """Return the reply to messages from an engine of its own."""
    ids = model.tokenizer.chat(messages, **how)
    out = [o.token.id for o in model.stream([ids], new, Sampling(), model.stops) if o.token is not None]
    return model.tokenizer.decode([i for i in out if i not in model.stops], skip_special=True)


def test_a_reply_is_its_lone_run(server: OpenAiServed, model: Model) -> None:
    how: dict[str, Any] = {"messages": TURNS, "temperature": 0, "max_completion_tokens": 8}
    answer = server.post(PATH, **how)
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": lone(model, TURNS, 8), "refusal": None}
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    assert answer["usage"]["prompt_tokens"] == len(model.tokenizer.chat(TURNS))
    chunks = server.stream(PATH, **how)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["delta"] == {} and chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks[:-1])
    assert all("usage" not in c and c["object"] == "chat.completion.chunk" for c in chunks)


def test_a_reply_may_fill_the_window(server: OpenAiServed, model: Model) -> None:
    """Without a number of tokens a reply goes on to the model's length."""
    answer = server.post(PATH, messages=TURNS, ignore_eos=True, temperature=0)
    assert answer["usage"]["total_tokens"] == 64 and answer["choices"][0]["finish_reason"] == "length"


def continued_faults(server: OpenAiServed, model: Model) -> list[str]:
    """Return the beginnings of a reply that are not continued where they end."""
    out = []
    for begun in ("The capital", "The capital of "):
        messages = [*TURNS, {"role": "assistant", "content": begun}]
        rendered = model.tokenizer.render(messages, add_generation_prompt=False).text
        ids = server.post("/tokenize", messages=messages, continue_final_message=True, add_generation_prompt=False)["tokens"]
        text = model.tokenizer.decode(ids)
        out += [] if text == rendered[: rendered.rindex(begun) + len(begun)] else [text]
    return out


def test_a_final_message_is_continued(server: OpenAiServed, model: Model) -> None:
    assert continued_faults(server, model) == []
    with swapped(tokenizer, "ended_after", lambda rendered, message: rendered):
        assert len(continued_faults(server, model)) == 2
    messages = [*TURNS, {"role": "assistant", "content": "Tok"}]
    server.post(PATH, messages=messages, continue_final_message=True, max_tokens=2)
    both = {"messages": messages, "continue_final_message": True, "add_generation_prompt": True}
    server.wrong(PATH, 400, "add_generation_prompt", **both)


def test_logprobs(server: OpenAiServed, model: Model) -> None:
    answer = server.post(PATH, messages=TURNS, logprobs=True, top_logprobs=3, max_tokens=4, temperature=0)
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"]
    for entry in content:
        assert len(entry["top_logprobs"]) == 3 and entry["top_logprobs"][0]["logprob"] == entry["logprob"]
        assert bytes(entry["bytes"]).decode("utf-8", "replace") and entry["token"] == entry["top_logprobs"][0]["token"]
    streamed = server.stream(PATH, messages=TURNS, logprobs=True, top_logprobs=3, max_tokens=4, temperature=0)
    assert [e for c in streamed for e in (c["choices"][0]["logprobs"] or {"content": []})["content"]] == content


def test_parts_of_text_are_joined(server: OpenAiServed, model: Model) -> None:
    parts = [{"type": "text", "text": "The capital"}, {"type": "text", "text": " of Japan"}]
    body = {"messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": 4}
    assert server.post(PATH, **body)["choices"][0]["message"]["content"] == lone(model, TURNS, 4)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
    ({"max_tokens": 65}, "messages"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_a_wrong_value_is_named(server: OpenAiServed, fields: dict[str, Any], param: str) -> None:
    server.wrong(PATH, 400, param, **{"messages": TURNS, **fields})


def test_a_model_without_a_template_says_so() -> None:
    """By its name: a file of the server is nothing for its clients."""
    model = load("pellucid/capitals-llama")
    with openai_served(model) as server:
        reply = server.client.post(PATH, json={"messages": TURNS})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "messages", "serve.template")
    assert "/v1/completions" in error["message"] and "tokenizer.json" not in error["message"] and "\n" not in error["message"]
