"""OpenAI's own client against a real port: plain and streamed, sync and async, log-probabilities, embeddings, errors, timeouts, cancels."""

import asyncio
import time
from collections.abc import Iterator
from typing import Literal

import openai
import pydantic
import pytest

from openai_served import chat_folder, long_folder, on_a_socket, sound
from pellucid.api.model import load
from pellucid.server.openai.served_model import ServedModel

LONG, CHAT, PLAIN, BERT = "long", "chatty", "pellucid/capitals-llama", "pellucid/capitals-bert"
KEY = "sk-clients"
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, ServedModel]]]:
    path = tmp_path_factory.mktemp("clients")
    chat, long = load(chat_folder(path / CHAT)), load(long_folder(path / LONG))
    chat.name, long.name = CHAT, LONG
    with on_a_socket(load(PLAIN), load(BERT), chat, long, tokens=40_000, waiting=4, key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: tuple[str, dict[str, ServedModel]]) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server[0]}/v1", api_key=KEY, max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert {m.id for m in client.models.list()} == {PLAIN, BERT, CHAT, LONG}
    assert client.models.retrieve(PLAIN).owned_by == "pellucid"


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=PLAIN, prompt=PROMPT, temperature=0, max_tokens=2, logprobs=2, echo=True)
    (choice,) = answer.choices
    assert choice.text == PROMPT + " Paris." and choice.logprobs is not None and choice.logprobs.token_logprobs is not None
    assert choice.logprobs.tokens is not None and len(choice.logprobs.tokens) == 7 and choice.logprobs.token_logprobs[0] is None
    stream = client.completions.create(model=PLAIN, prompt=PROMPT, temperature=0, max_tokens=2, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == " Paris."


def test_chat(client: openai.OpenAI) -> None:
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": PROMPT}]
    answer = client.chat.completions.create(model=CHAT, messages=messages, temperature=0, max_tokens=6, logprobs=True, top_logprobs=2)
    text, logprobs = answer.choices[0].message.content, answer.choices[0].logprobs
    assert answer.usage is not None and logprobs is not None and logprobs.content is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    stream = client.chat.completions.create(
        model=CHAT, messages=messages, temperature=0, max_tokens=6, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    with client.chat.completions.stream(model=CHAT, messages=messages, temperature=0, max_tokens=40) as events:
        for _ in events:
            pass
        assert (events.get_final_completion().choices[0].message.content or "").startswith((text or "")[:3])
    extra = client.chat.completions.create(
        model=CHAT, messages=messages, extra_body={"top_k": 1, "min_tokens": 2}, temperature=1, max_tokens=6
    )
    assert extra.choices[0].message.content is not None


class City(pydantic.BaseModel):
    name: Literal["Paris", "Tokyo"]
    days: int = pydantic.Field(ge=1, le=9)


def test_answers_as_objects(client: openai.OpenAI) -> None:
    """`parse` sends a pydantic class as a strict schema, and makes an object of the answer, on both routes."""
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": PROMPT}]
    chat = client.chat.completions.parse(model=LONG, messages=messages, response_format=City, max_tokens=400, temperature=0)
    made = chat.choices[0].message.parsed
    assert isinstance(made, City) and 1 <= made.days <= 9
    response = client.responses.parse(model=LONG, input=PROMPT, text_format=City, max_output_tokens=400, temperature=0)
    assert isinstance(response.output_parsed, City)


def test_async_clients_together(server: tuple[str, dict[str, ServedModel]]) -> None:
    """Twenty clients at once get what each gets alone."""

    async def ask(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.completions.create(
            model=LONG, prompt=f"text {seed % 5}", temperature=1, seed=seed, max_tokens=20, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def both() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{server[0]}/v1", api_key=KEY, max_retries=9) as client:
            alone = [await ask(client, seed) for seed in range(20)]
            return alone, await asyncio.gather(*(ask(client, seed) for seed in range(20)))

    alone, together = asyncio.run(both())
    assert alone == together and len(set(alone)) > 10


def test_embeddings(client: openai.OpenAI) -> None:
    """The client asks for base64 by default, and reads numbers out of it."""
    coded = client.embeddings.create(model=BERT, input=[PROMPT, "Tokyo"])
    plain = client.embeddings.create(model=BERT, input=[PROMPT, "Tokyo"], encoding_format="float")
    assert [d.embedding for d in coded.data] == [d.embedding for d in plain.data] and len(coded.data[0].embedding) > 8


def test_errors(server: tuple[str, dict[str, ServedModel]], client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-9", prompt="a")
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=PLAIN, prompt="a", max_tokens=1000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=PLAIN, prompt="a", temperature=9)
    with pytest.raises(openai.BadRequestError, match="tools: the chat template"):
        client.chat.completions.create(
            model=CHAT, messages=[{"role": "user", "content": "a"}], tools=[{"type": "function", "function": {"name": "f"}}]
        )
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server[0]}/v1", api_key="sk-wrong", max_retries=0).models.list()


def ended(served: ServedModel) -> bool:
    """True once the engine has no request left; waits up to a minute."""
    ends = time.monotonic() + 60
    while not sound(served) and time.monotonic() < ends:
        time.sleep(0.01)
    return sound(served)


def test_a_client_that_leaves_frees_its_pages(server: tuple[str, dict[str, ServedModel]], client: openai.OpenAI) -> None:
    """A stream that is closed, and a call whose time is over, end in the engine long before their tokens do."""
    served = server[1][LONG]
    stream = client.completions.create(
        model=LONG, prompt="a", max_tokens=30_000, temperature=1, seed=1, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert ended(served)
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model=LONG, prompt="a", max_tokens=30_000, timeout=0.5, extra_body={"ignore_eos": True})
    assert ended(served)


def test_a_full_queue_says_so(server: tuple[str, dict[str, ServedModel]], client: openai.OpenAI) -> None:
    served = server[1][LONG]
    assert served.thread is not None
    limits, served.thread.engine.limits = served.thread.engine.limits, type(served.thread.engine.limits)(running=1, waiting=1)

    def ask() -> openai.Stream[openai.types.Completion]:
        fields = {"ignore_eos": True}
        return client.completions.create(model=LONG, prompt="a", max_tokens=20_000, stream=True, temperature=1, extra_body=fields)

    try:
        streams = [ask()]
        next(iter(streams[0]))  # it runs, so that the next one waits
        streams.append(ask())
        with pytest.raises(openai.RateLimitError) as full:
            ask()
        assert full.value.response.headers["retry-after"] == "1" and full.value.code == "queue_full"
        for stream in streams:
            stream.close()
        assert ended(served)
    finally:
        served.thread.engine.limits = limits
