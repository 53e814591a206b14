"""The application of `pellucid serve` without a port, under a client, and the lone run that each answer must equal."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from starlette.testclient import TestClient

from chats import NAMED, chat_spec
from pellucid.api.model import Model, load, make
from pellucid.runs.limits import LIMITS
from pellucid.server.listen import configured, taken
from pellucid.server.openai.operation import Operation
from pellucid.server.openai.routes import application
from pellucid.server.openai.served_model import ServedModel
from pellucid.server.openai.serving import SERVE_LIMITS, DrainingServer

PORT = 8000
TEMPLATE = "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@dataclass
class OpenAiServed:
    """A client, the served models by name, and the state of the server."""

    client: TestClient
    models: dict[str, ServedModel]
    operation: Operation

    def post(self, path: str, status: int = 200, /, **body: Any) -> dict[str, Any]:
        """Return the answer to a body. Fails if its status is another."""
        reply = self.client.post(path, json=body)
        assert reply.status_code == status, reply.text
        document: dict[str, Any] = reply.json()
        return document

    def complete(self, prompt: Any, /, **body: Any) -> dict[str, Any]:
        """Return the answer of /v1/completions, greedy unless the body says otherwise."""
        return self.post("/v1/completions", prompt=prompt, **{"temperature": 0, "model": next(iter(self.models)), **body})

    def stream(self, path: str, /, **body: Any) -> list[dict[str, Any]]:
        """Return the chunks of a stream. Fails if it does not end with [DONE]."""
        with self.client.stream("POST", path, json={"stream": True, **body}) as reply:
            assert reply.status_code == 200
            assert reply.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in reply.iter_lines() if line]
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    def wrong(self, path: str, status: int, param: str | None, /, **body: Any) -> dict[str, Any]:
        """Return the error of a body. Fails unless it has OpenAI's shape, this status and this field."""
        error: dict[str, Any] = self.post(path, status, **body)["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["param"] == param, error
        return error


@contextmanager
def openai_served(
    *models: Model,
    tokens: int = 4096,
    waiting: int = 64,
    key: str | None = None,
    deterministic: bool = False,
    page: bool = True,
    draft: Model | None = None,
    **limits: int,
) -> Iterator[OpenAiServed]:
    """Yield the application of these models, with a client."""
    operation = Operation("0")
    how: dict[str, Any] = {"deterministic": deterministic, "speculate": draft is not None, "draft": draft}
    served = {m.name: ServedModel(m.name, m, tokens, waiting, "0", **how) for m in models}
    operation.loaded.set_result(served)
    app = application(operation, replace(LIMITS, body=1 << 24, **limits), PORT, key, quiet=True, page=page)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        with TestClient(app, f"http://127.0.0.1:{PORT}", headers=headers) as client:
            yield OpenAiServed(client, served, operation)
    finally:
        operation.close()
        for one in served.values():
            assert one.close()


@contextmanager
def on_a_socket(
    *models: Model,
    tokens: int = 4096,
    waiting: int = 64,
    key: str | None = None,
    deterministic: bool = False,
    names: frozenset[str] = frozenset(),
    **limits: int,
) -> Iterator[tuple[str, dict[str, ServedModel]]]:
    """Yield the address of a server on a real port, in a thread, and its models. names: more hosts that it is called by."""
    operation, own, own_limits = Operation("0"), taken(0), replace(SERVE_LIMITS, **limits)
    served = {m.name: ServedModel(m.name, m, tokens, waiting, "0", deterministic) for m in models}
    operation.loaded.set_result(served)
    port = int(own.getsockname()[1])
    app = application(operation, own_limits, port, key, names=names, quiet=True)
    server = DrainingServer(configured(app, own_limits), operation)
    thread = threading.Thread(target=server.run, args=([own],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}", served
    finally:
        server.should_exit = True
        thread.join()
        own.close()
        operation.close()
        for one in served.values():
            assert one.close() and (one.thread is None or sound(one))


def long_folder(path: Path) -> Path:
    """Write a random Llama of bytes with 32768 positions and a chat template. Returns its folder."""
    spec = chat_spec()
    vocab = 1 + max(token["id"] for token in spec["added_tokens"])
    hf = {
        "model_type": "llama", "vocab_size": vocab, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }  # fmt: skip
    model, draw = make(hf, dtype=torch.float32), torch.Generator().manual_seed(5)
    for name, p in model.module.named_parameters():
        p.data = torch.randn(p.shape, generator=draw) * 0.3 + (p.ndim == 1 and "norm" in name)
    model.save(path)
    (path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": NAMED["bos"], "eos_token": NAMED["eos"]}), encoding="utf-8")
    (path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return path


def chat_folder(path: Path, specimen: str = "pellucid/capitals-llama") -> Path:
    """Save a specimen as a folder with a chat template. Returns the folder."""
    load(specimen).save(path)
    (path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return path


def sound(served: ServedModel) -> bool:
    """True if the engine has no request and no page left but the prefix cache's."""
    assert served.thread is not None
    engine = served.thread.engine
    storage: Any = engine.storage
    return engine.idle and not storage.pages.holders() and bool(storage.cache is None or storage.cache.sound())
