"""/v1/completions: every answer is its lone run on the engine, streamed or not, and fields mean what OpenAI's and vLLM's clients expect."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from openai_served import OpenAiServed, long_folder, openai_served
from pellucid.api.model import Model, load
from pellucid.engine import bursts, engine
from pellucid.engine.prefix_cache import PrefixCache
from pellucid.engine.requests import Output, Token
from pellucid.ops import native
from pellucid.ops.sampling.settings import Sampling
from pellucid.server.openai.choice import Choice
from pellucid.server.openai.shapes import prompt_starts
from pellucid.tokenizer.pieces import Stream
from pellucid.tokenizer.tokenizer import Tokenizer
from small_tokenizers import byte_level
from spaced import spaced_folder
from test_bursts import counted
from tiny import swapped

MODEL = "pellucid/capitals-llama"
PATH = "/v1/completions"
PROMPT = "The capital of France is"
TEXTS = [PROMPT, "法国的首都是", "The capital of Japan is", "Where is"]


@pytest.fixture(scope="module")
def model() -> Model:
    return load(MODEL)


@pytest.fixture(scope="module")
def server(model: Model) -> Iterator[OpenAiServed]:
    with openai_served(model) as served:
        yield served


def lone(model: Model, prompt: str, new: int, how: Sampling, n: int = 1, stops: tuple[int, ...] | None = None) -> list[list[int]]:
    """Return the ids of a prompt's texts from an engine of their own."""
    out: list[list[int]] = [[] for _ in range(n)]
    ids = model.tokenizer.encode(prompt)
    for output in model.stream([ids], new, how, model.stops if stops is None else stops, n=n):
        out[output.index] += [] if output.token is None else [output.token.id]
    return out


def text_of(model: Model, ids: list[int]) -> str:
    return model.tokenizer.decode([i for i in ids if i not in model.stops], skip_special=True)


@pytest.mark.parametrize("prompt", TEXTS)
@pytest.mark.parametrize("how", [{"temperature": 0}, {"temperature": 1.3, "seed": 5, "top_p": 0.9, "top_k": 50, "min_p": 0.01}])
def test_an_answer_is_its_lone_run(server: OpenAiServed, model: Model, prompt: str, how: dict[str, Any]) -> None:
    (ids,) = lone(model, prompt, 12, Sampling.of(how))
    answer = server.complete(prompt, max_tokens=12, return_token_ids=True, **how)
    (choice,) = answer["choices"]
    assert choice["token_ids"] == ids and choice["text"] == text_of(model, ids)
    assert choice["finish_reason"] == ("stop" if ids[-1] in model.stops else "length")
    assert answer["usage"]["completion_tokens"] == len(ids)
    assert answer["prompt_token_ids"] == model.tokenizer.encode(prompt)
    chunks = server.stream(PATH, prompt=prompt, model=MODEL, max_tokens=12, stream_options={"include_usage": True}, **how)
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == choice["text"]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]][-1] == choice["finish_reason"]
    assert chunks[-1]["choices"] == [] and all(c["usage"] is None for c in chunks[:-1])
    assert chunks[-1]["usage"]["completion_tokens"] == len(ids)
    assert len({c["id"] for c in chunks}) == 1 and {c["object"] for c in chunks} == {"text_completion"}


def test_several_prompts_and_texts(server: OpenAiServed, model: Model) -> None:
    """Choices come prompt by prompt; each prompt has the same seed, and each text its own draws from it."""
    how = {"temperature": 1.5, "seed": 3}
    answer = server.complete(TEXTS[:3], n=3, max_tokens=6, **how)
    texts = [text_of(model, ids) for prompt in TEXTS[:3] for ids in lone(model, prompt, 6, Sampling.of(how), 3)]
    assert [c["text"] for c in answer["choices"]] == texts and len(set(texts)) > 3
    assert [c["index"] for c in answer["choices"]] == list(range(9))
    ids = [model.tokenizer.encode(p) for p in TEXTS[:3]]
    assert [c["text"] for c in server.complete(ids, n=3, max_tokens=6, **how)["choices"]] == texts
    given = server.complete(TEXTS[:3], n=3, max_tokens=6, return_token_ids=True, **how)
    assert [c["prompt_token_ids"] for c in given["choices"]] == [one for one in ids for _ in range(3)]
    assert "prompt_token_ids" not in given  # which would be one prompt's of three
    streamed = dict.fromkeys(range(9), "")
    for chunk in server.stream(PATH, model=MODEL, prompt=ids, n=3, max_tokens=6, **how):
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert list(streamed.values()) == texts


def stop_faults(server: OpenAiServed, model: Model) -> list[str]:
    """Return the stop strings whose answers, streamed or not, are not the lone text up to them."""
    (ids,) = lone(model, PROMPT, 12, Sampling(), stops=())
    text, faults = model.tokenizer.decode(ids, skip_special=True), []
    for stop in (text[3], text[2:7], text[-3:], "no such text"):
        how: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "stop": stop, "ignore_eos": True}
        right = (text[: text.find(stop)], "stop") if stop in text else (text, "length")
        (choice,) = server.post(PATH, **how)["choices"]
        chunks = [c["choices"][0] for c in server.stream(PATH, **how)]
        streamed = "".join(c["text"] for c in chunks), chunks[-1]["finish_reason"]
        if (choice["text"], choice["finish_reason"]) != right or streamed != right:
            faults.append(stop)
    return faults


def test_stop_strings(server: OpenAiServed, model: Model) -> None:
    assert stop_faults(server, model) == []
    (choice,) = server.complete(PROMPT, stop=["Par", "is"], max_tokens=8)["choices"]
    assert choice["stop_reason"] in ("Par", "is")


@pytest.mark.skipif(not native.available(), reason="no kernels here")
def test_stop_strings_take_single_steps(server: OpenAiServed) -> None:
    """A reader may end such a text at any token, so that none is computed behind it; other texts take bursts."""
    steps = list[int]()
    with counted(steps):
        server.complete(PROMPT, stop="no such text", max_tokens=12, ignore_eos=True)
        assert not steps
        server.complete(PROMPT, max_tokens=12, ignore_eos=True)
    assert steps


@pytest.mark.skipif(not native.available(), reason="no kernels here")
def test_an_answer_that_is_not_streamed_takes_long_bursts(server: OpenAiServed) -> None:
    """Its tokens are sent at its end; those of a stream come as they are chosen."""
    steps = list[int]()
    with swapped(bursts, "STREAMED", 0.0), counted(steps):
        server.complete(PROMPT, max_tokens=24, ignore_eos=True)
        longest, steps[:] = max(steps), []
        server.stream(PATH, prompt=PROMPT, max_tokens=24, ignore_eos=True)
    assert longest > 1 and max(steps) == 1


def test_stop_strings_mutant(server: OpenAiServed, model: Model) -> None:
    """A text that is shown before a possible stop string is complete is seen."""

    def hasty(self: Choice, output: Any, feed: Any = Choice.feed) -> Any:
        delta = feed(self, output)
        delta.text, self.text.withheld = delta.text + self.text.withheld, ""
        return delta

    with swapped(Choice, "feed", hasty):
        assert stop_faults(server, model)


def half_faults(model: Model) -> list[str]:
    """Return the deltas with half a character, of a text whose tokens are bytes of characters."""
    text = "é日本🎉 Ω"
    ids = model.tokenizer.encode(text, special=False)
    assert len(ids) > len(text)
    choice = Choice(model.tokenizer.stream(skip_special=True), [], 0)
    deltas = [choice.feed(Output(0, 0, Token(i), "length" if at == len(ids) - 1 else None)).text for at, i in enumerate(ids)]
    return [d for d in deltas if "\ufffd" in d] + ([] if "".join(deltas) == text else deltas)


def test_no_half_character(model: Model) -> None:
    assert half_faults(model) == []

    def bytewise(self: Stream, id: int) -> str:
        return (self._spoken(id, False) or b"").decode("utf-8", "replace")

    with swapped(Stream, "feed", bytewise):
        assert half_faults(model)


@pytest.mark.parametrize("k", [0, 1, 3])
def test_echo_with_logprobs(server: OpenAiServed, model: Model, k: int) -> None:
    """Log-probabilities of a prompt given as ids, and of the next token, are the model's own; the first is null."""
    assert score_faults(server, model, k) == []


def score_faults(server: OpenAiServed, model: Model, k: int) -> list[str]:
    ids = model.tokenizer.encode("The capital of France is Paris.")
    answer = server.complete(ids, max_tokens=1, logprobs=k, echo=True, seed=1)
    (choice,) = answer["choices"]
    got = choice["logprobs"]
    table = model(torch.tensor([ids]))[0].log_softmax(-1)
    faults = [] if got["token_logprobs"][0] is None and got["top_logprobs"][0] is None else ["first"]
    for at, id in enumerate(ids[1:], 1):
        row = table[at - 1]
        name = got["tokens"][at]
        best = sorted(row.tolist(), reverse=True)[:k]
        top = got["top_logprobs"][at]
        if abs(got["token_logprobs"][at] - float(row[id])) > 1e-4 or abs(top[name] - float(row[id])) > 1e-4:
            faults.append(name)
        if any(abs(a - b) > 1e-4 for a, b in zip(sorted(top.values(), reverse=True), best, strict=False)):
            faults.append(f"{name}: top")
    if len(got["tokens"]) != len(ids) + 1 or "".join(got["tokens"][: len(ids)]) != "The capital of France is Paris.":
        faults.append("tokens")
    starts = [sum(len(t) for t in got["tokens"][:i]) for i in range(len(ids) + 1)]
    return faults + ([] if got["text_offset"] == starts else ["offsets"])


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAiServed]:
    """A server of a model whose tokenizer begins a prompt with a token, and writes a space before it, as Llama's first ones."""
    folder = spaced_folder(tmp_path_factory.mktemp("spaced"))
    with openai_served(load(folder)) as served:
        yield served


def test_offsets_are_places_in_the_text(server: OpenAiServed, spaced: OpenAiServed) -> None:
    """Of bytes, of a token that a prompt begins with, and of a stop string, which is no part of the text."""
    ids = next(iter(spaced.models.values())).tokenizer.encode("The cap")
    of = next(iter(spaced.models.values())).tokenizer.id_of("of")
    prompt_alone: dict[str, Any] = {"echo": True, "max_tokens": 0}
    cases: list[tuple[OpenAiServed, dict[str, Any], str, list[int]]] = [
        (server, {"prompt": "法国的首都是 é。", **prompt_alone}, "法国的首都是 é。", [0, 2, 3, 5, 6, 7, 7, 8]),
        (server, {"prompt": "The", "structured_outputs": {"regex": "éü"}}, "éü", [0, 0, 1, 1, 2]),
        (spaced, {"prompt": "The cap é", **prompt_alone}, "The cap é", [0, 0, 0, 1, 2, 3, 5, 6, 7, 8, 8]),
        (spaced, {"prompt": ids, **prompt_alone}, "<s> The cap", [0, 3, 4, 5, 6, 7, 9, 10]),
        (spaced, {"prompt": "cap", "logit_bias": {str(of): 100}, "stop": "fo"}, "o", [0, 1]),
    ]
    for served, body, text, starts in cases:
        how = {"model": next(iter(served.models)), "temperature": 0, "logprobs": 0, **body}
        (choice,) = served.post(PATH, **how)["choices"]
        assert (choice["text"], choice["logprobs"]["text_offset"]) == (text, starts)
        chunks = [c["choices"][0]["logprobs"] for c in served.stream(PATH, **how)]
        assert [start for c in chunks for start in c["text_offset"]] == starts


def test_a_text_goes_on_from_its_prompt(spaced: OpenAiServed) -> None:
    """The space before its first word stays where the tokenizer's decoder drops one before a text; without a prompt a text begins."""
    tokenizer = next(iter(spaced.models.values())).tokenizer
    how = {"max_tokens": 2, "logit_bias": {str(tokenizer.id_of("▁the")): 100}}
    assert spaced.complete("The cap", **how)["choices"][0]["text"] == " the the"
    assert spaced.complete("The cap", echo=True, **how)["choices"][0]["text"] == "The cap the the"
    assert spaced.complete([tokenizer.id_of("<s>")], **how)["choices"][0]["text"] == "the the"
    chunks = spaced.stream(PATH, model=next(iter(spaced.models)), prompt="The cap", temperature=0, **how)
    assert "".join(c["choices"][0]["text"] for c in chunks) == " the the"


def test_offsets_in_a_text_that_is_normalized(tmp_path: Path) -> None:
    """The tokens behind a character that was composed are in their places."""
    byte_level("qwen2").save(str(tmp_path / "tokenizer.json"))
    tokenizer, text = Tokenizer.from_file(tmp_path / "tokenizer.json"), "cafe\u0301 is the cat"
    ids = tokenizer.encode(text)
    starts = dict(zip(prompt_starts(tokenizer, ids, text), (p.text for p in tokenizer.pieces(ids)), strict=True))
    assert tokenizer.decode(ids) != text and [text[at:].startswith(piece) for at, piece in starts.items()].count(False) <= 2
    assert starts[text.index(" is")] == " is"


def test_echo_without_new_tokens(server: OpenAiServed, model: Model) -> None:
    answer = server.complete("The capital", max_tokens=0, echo=True, logprobs=1)
    (choice,) = answer["choices"]
    assert choice["text"] == "The capital" and len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 0


def least_faults(server: OpenAiServed, model: Model) -> list[int]:
    """Return the least numbers of tokens before which a text stopped."""
    out = []
    for least in (0, 9, 14):
        answer = server.complete(PROMPT, max_tokens=20, min_tokens=least, seed=0, temperature=0.7, logit_bias={"0": 30})
        out += [least] if answer["usage"]["completion_tokens"] < least + 1 else []
    return out


def test_min_tokens(server: OpenAiServed, model: Model) -> None:
    assert least_faults(server, model) == []
    with swapped(engine, "allowed", lambda *a: None):
        assert least_faults(server, model)


def test_ignore_eos_and_stop_ids(server: OpenAiServed, model: Model) -> None:
    (ids,) = lone(model, PROMPT, 20, Sampling(), stops=())
    assert server.complete(PROMPT, max_tokens=20, ignore_eos=True, return_token_ids=True)["choices"][0]["token_ids"] == ids
    (choice,) = server.complete(PROMPT, max_tokens=20, stop_token_ids=[ids[1]])["choices"]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == ids[1]
    assert choice["text"] == model.tokenizer.decode(ids[:1], skip_special=True)


def cached_faults(folder: Path) -> list[int]:
    """Return the prompts whose cached tokens are not the full pages that an earlier prompt shares with them, or whose text is another."""
    with openai_served(load(long_folder(folder))) as server:
        ids = [3 + i % 90 for i in range(150)]
        prompts = [(ids, 0), (ids, 128), ([*ids[:100], 7, *ids[:60]], 64), (ids[1:], 0)]
        first, out = None, list[int]()
        for at, (prompt, cached) in enumerate(prompts):
            answer = server.complete(prompt, max_tokens=4, ignore_eos=True)
            first = answer["choices"] if first is None else first
            same = at != 1 or answer["choices"] == first
            out += [] if answer["usage"]["prompt_tokens_details"] == {"cached_tokens": cached} and same else [at]
        scored = server.complete(ids, max_tokens=1, echo=True, logprobs=1)  # all rows of a scored prompt run
        return out if scored["usage"]["prompt_tokens_details"] == {"cached_tokens": 0} else [*out, len(prompts)]


def test_cached_tokens(tmp_path: Path) -> None:
    assert cached_faults(tmp_path / "a") == []
    with swapped(PrefixCache, "start", lambda self, request, key, tokens: self.pages.begin(request, {}, 0) or 0):
        assert cached_faults(tmp_path / "b") == [1, 2]


def test_equal_requests_have_one_fingerprint(server: OpenAiServed) -> None:
    a, b = (server.complete(PROMPT, max_tokens=3, temperature=1, seed=9) for _ in range(2))
    assert a["system_fingerprint"] == b["system_fingerprint"] and a["choices"] == b["choices"] and a["id"] != b["id"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt[0]"),
    ({"prompt": [[1, 99999]]}, "prompt[1]"),
    ({"prompt": [True]}, "prompt"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": True}, "n"),
    ({"logprobs": 21}, "logprobs"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "x"}, "suffix"),
    ({"stop": 5}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["a", 1]}, "stop[1]"),
    ({"stop": "x" * 99_999}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop_token_ids": [99999]}, "stop_token_ids[0]"),
    ({"min_tokens": 99}, "min_tokens"),
    ({"seed": 2**70}, "seed"),
    ({"presence_penalty": 3}, "presence_penalty"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_a_wrong_value_is_named(server: OpenAiServed, fields: dict[str, Any], param: str) -> None:
    error = server.wrong(PATH, 400, param, **{"model": MODEL, "prompt": PROMPT, **fields})
    assert error["type"] == "invalid_request_error" and param in error["message"]


def test_errors_have_their_codes(server: OpenAiServed) -> None:
    error = server.wrong(PATH, 404, "model", model="gpt-9", prompt="a")
    assert error["code"] == "model_not_found" and MODEL in error["message"]
    assert server.wrong(PATH, 400, "prompt", model=MODEL, prompt="a", max_tokens=64)["code"] == "context_length_exceeded"
    reply = server.client.post(PATH, content=b"{", headers={"content-type": "application/json"})
    assert reply.status_code == 400 and "error" in reply.json()
    for path, code in (("/v1/nothing", 404), (PATH, 405)):
        english, chinese = (server.client.get(path, params={"lang": lang}) for lang in ("en", "zh"))
        assert english.status_code == chinese.status_code == code
        assert english.text.isascii() and not chinese.json()["error"]["message"].isascii()


def test_an_unknown_field_has_one_line(server: OpenAiServed, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        server.complete(PROMPT, max_tokens=1, some_new_field=3, user="me")
    assert capfd.readouterr().err.count("some_new_field") == 1


def test_bare_routes(server: OpenAiServed, model: Model) -> None:
    client = server.client
    assert client.get("/health").status_code == 200 and client.get("/health").content == b""
    (entry,) = client.get("/v1/models").json()["data"]
    assert entry["id"] == MODEL and entry["max_model_len"] == 64 and client.get(f"/v1/models/{MODEL}").json() == entry
    assert client.get("/v1/models/nothing").status_code == 404
    ids = model.tokenizer.encode(PROMPT)
    assert server.post("/tokenize", prompt=PROMPT) == {"tokens": ids, "count": len(ids), "max_model_len": 64}
    assert server.post("/detokenize", tokens=ids) == {"prompt": PROMPT}
    info = client.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|endoftext|>" and {"bos_token", "pad_token", "chat_template"} <= set(info)
    assert client.get("/version").json()["version"]
