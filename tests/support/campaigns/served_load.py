"""Ten thousand requests to a server on a real port, 64 at a time: streams, schemas, adapters, watched ones, and clients of every bad kind.

    PYTHONPATH=tests/support python -m campaigns.served_load [--requests 10000] [--seed 1]

Three of ten clients leave at a random moment. Beside them are readers that read nothing, heads and bodies that stop half-way, bodies cut
short, and prompts at which the forward raises. In deterministic mode every answer that comes must be that of its lone run, to the bit, a
prompt that raises must fail alone and by an error in OpenAI's shape, and no page, text, thread, task or open file may be left over. In the
second half the memory in use may not grow.
A full run goes to benchmarks/results/served_load.json.
"""

import argparse
import asyncio
import ctypes
import gc
import json
import random
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from campaigns.soak import resources
from openai_served import long_folder, on_a_socket, sound
from pellucid.api.model import load
from pellucid.engine.grammar import executor
from pellucid.server.openai.adapters import adapted
from pellucid.server.openai.served_model import ServedModel

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "served_load.json"
FULL, AT_ONCE, DISTINCT = 10_000, 64, 160
LEFT, CUT, POISONED = 0.3, 0.02, 0.02  # shares of clients that leave, of bodies cut short, and of prompts at which the forward raises
POISON = [7, 7, 7, 7]
WORDS = ["the", "capital", "of", "France", "is", "Paris", "and", "of", "Japan", "Tokyo", "once", "upon", "a", "time", "there", "was"]
PROPERTIES = {"a": {"enum": ["x", "yy"]}, "b": {"type": "integer"}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["a"], "additionalProperties": False}
SLOW = {"prompt": "a", "max_tokens": 1200, "stream": True, "logprobs": 20, "temperature": 0, "ignore_eos": True, "model": "base"}
POOL = 40  # threads, anyio's own limit
TENTHS = 10
TRACES = 8  # that the server keeps between two measurements, before which they are deleted
GROWTH = {"in_use_mib": 16.0, "python_objects": 100_000}  # that a full run may take between its middle and its end
PATIENCE, ENDS = 600.0, 30.0  # seconds: of an answer, and for all to end


def drawn(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request."""
    text = " ".join(WORDS[: draw.choice([0, 8, 14])] + draw.choices(WORDS, k=draw.randint(1, 12)))
    body: dict[str, Any] = {"model": draw.choice(["base", "base", "tuned"]), "max_tokens": draw.choice([1, 8, 20, 40])}
    body |= {"temperature": 0} if draw.random() < 0.4 else {"temperature": 1, "seed": draw.randrange(99), "top_p": draw.choice([1, 0.9])}
    kind = draw.randrange(7)
    if kind == 0:
        body |= {"n": 2, "stop": ["e "], "logprobs": 3}
    elif kind == 1:
        body |= {"echo": True, "logprobs": 1}
    elif kind == 2:
        body |= {"max_tokens": 60, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}
    elif kind == 3:
        body |= {"guided_regex": "[a-c]{2,9}( [d-f]+)?"}
    elif kind == 4:
        body |= {"max_tokens": 6, "pellucid": {"watch": ["layers.*.attn.pattern", "sample.logits"]}}
    chat = draw.random() < 0.3 and kind > 2
    body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    return "/v1/chat/completions" if chat else "/v1/completions", body | ({"stream": True} if draw.random() < 0.5 and kind != 1 else {})


def adapter_folder(path: Path) -> Path:
    """Write a random LoRA adapter of the long Llama, in PEFT's format."""
    path.mkdir()
    draw, place = torch.Generator().manual_seed(1), "base_model.model.model.layers.{}.mlp.up_proj.lora_{}.weight"
    shapes = {place.format(i, ab): shape for i in range(2) for ab, shape in {"A": (4, 32), "B": (48, 4)}.items()}
    save_file({name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["up_proj"], "lora_dropout": 0.0, "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def poisoned(served: ServedModel) -> None:
    """Let the forward of a model raise where a prompt is POISON."""
    assert served.thread is not None
    forward = served.thread.forward

    def run(chunks: Mapping[Any, int]) -> dict[Any, Tensor]:
        if any(list(s.request.prompt) == POISON for s in chunks):
            raise RuntimeError("poison")
        return forward(chunks)

    served.thread.forward = run


@contextmanager
def serving() -> Iterator[tuple[int, dict[str, ServedModel]]]:
    """Serve the model and its adapter, deterministically, with few pages. Yields the port and the models."""
    with tempfile.TemporaryDirectory() as folder:
        base = load(long_folder(Path(folder) / "base"))
        base.name = "base"
        tuned = adapted(base, str(adapter_folder(Path(folder) / "adapter")), "tuned")
        with on_a_socket(base, tuned, tokens=5120, waiting=256, deterministic=True, runs=TRACES) as (address, models):
            for served in models.values():
                poisoned(served)
            yield int(address.rpartition(":")[2]), models


def request(port: int, path: str, raw: bytes, length: int | None = None) -> bytes:
    """Return a request of HTTP. length: what it says of its body's, None for the truth."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(raw) if length is None else length}\r\n\r\n".encode() + raw


async def ask(port: int, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """Return the status and the body of an answer. A ConnectionError if it ends early."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request(port, path, json.dumps(body).encode()))
        raw = await reader.read()
    finally:
        writer.transport.abort()
    head, _, rest = raw.partition(b"\r\n\r\n")
    if not rest:
        raise ConnectionError(head)
    status = int(head.split()[1])
    if b"transfer-encoding: chunked" not in head.lower():
        return status, rest
    out = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size, 16):
            return status, out
        out, rest = out + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    raise ConnectionError(head)


def essence(status: int, raw: bytes) -> Any:
    """Return what an answer and that of its lone run have in common: of each choice the text, the log-probabilities and the end."""
    if status != 200:
        error = json.loads(raw)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return status, error["code"]
    if not raw.startswith(b"data: "):
        document = json.loads(raw)
        usage = {name: document["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
        return document["choices"], usage, (document.get("pellucid") or {}).get("steps")
    lines = [line for line in raw.decode().split("\n\n") if line]
    choices: dict[int, list[Any]] = {}
    if '"error"' in lines[-1]:  # which ends a stream that fails
        return 500, json.loads(lines[-1].removeprefix("data: "))["error"]["code"]
    assert lines.pop() == "data: [DONE]", raw[-300:]
    for chunk in (json.loads(line.removeprefix("data: ")) for line in lines):
        for choice in chunk["choices"]:
            choices.setdefault(choice.pop("index"), []).append(choice)
    return choices


@dataclass
class Load:
    """The clients of one run. pool: requests and what each gives alone.  idle: true if no request runs."""

    port: int
    draw: random.Random
    idle: Callable[[], bool]
    pool: list[tuple[str, dict[str, Any], Any]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    async def alone(self, distinct: int) -> None:
        """Fill the pool: each request runs alone."""
        while len(self.pool) < distinct:
            path, body = drawn(self.draw)
            status, raw = await ask(self.port, path, body)
            assert status == 200, (body, raw)
            self.pool.append((path, body, essence(status, raw)))

    async def client(self) -> None:
        """Send one request of some kind, and judge its answer."""
        kind = self.draw.random()
        if kind < LEFT:
            await self.leave()
        elif kind < LEFT + CUT:
            await self.cut()
        elif kind < LEFT + CUT + POISONED:
            stream = self.draw.random() < 0.5
            got = essence(*await ask(self.port, "/v1/completions", {"prompt": POISON, "model": "base", "stream": stream}))
            self.note("failed", got, (500, "engine.step"))
        else:
            path, body, right = self.draw.choice(self.pool)
            self.note("answered", essence(*await ask(self.port, path, body)), right)

    def note(self, kind: str, got: Any, right: Any) -> None:
        """Count an answer, and keep the first that differ."""
        self.counts[kind] += 1
        if got != right:
            self.counts["different"] += 1
            self.faults += [f"{kind}: {got} is not {right}"[:1500]] if len(self.faults) < 10 else []

    async def leave(self) -> None:
        """Send a request and leave, after a moment or some bytes."""
        path, body, _ = self.draw.choice(self.pool)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request(self.port, path, json.dumps(body | {"max_tokens": 400}).encode()))
        if self.draw.random() < 0.5:
            await asyncio.sleep(self.draw.random() * 0.2)
        else:
            await reader.read(self.draw.choice([1, 300, 3000]))
        writer.transport.abort()
        self.counts["gone"] += 1

    async def cut(self) -> None:
        """Send a body that is shorter than its head says, and close."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        raw = json.dumps(self.draw.choice(self.pool)[1]).encode()
        writer.write(request(self.port, "/v1/completions", raw[: self.draw.randrange(len(raw))], len(raw)))
        await writer.drain()
        writer.close()
        self.counts["cut"] += 1

    async def run(self, requests: int) -> list[dict[str, float]]:
        """Send all requests, AT_ONCE at a time. Returns the memory after each tenth, when none runs."""
        measured, sent = list[dict[str, float]](), 0

        async def clients(left: Iterator[int]) -> None:
            for _ in left:
                try:
                    await asyncio.wait_for(self.client(), PATIENCE)
                except (TimeoutError, AssertionError, ConnectionError, ValueError) as fault:
                    self.note("broken", f"{type(fault).__name__}: {fault}", None)

        for tenth in range(1, TENTHS + 1):
            left = iter(range(sent, sent := requests * tenth // TENTHS))
            await asyncio.gather(*(clients(left) for _ in range(AT_ONCE)))
            ends = time.monotonic() + ENDS
            while not self.idle() and time.monotonic() < ends:
                await asyncio.sleep(0.05)
            await asyncio.to_thread(delete_traces, self.port)
            measured.append(memory())
        return measured


def delete_traces(port: int) -> None:
    """Delete the traces of watched requests, as a client does."""
    address = f"http://127.0.0.1:{port}/api/traces"
    with urllib.request.urlopen(address, timeout=PATIENCE) as reply:
        traces = json.load(reply)["traces"]
    for trace in traces:
        urllib.request.urlopen(urllib.request.Request(f"{address}/{trace['id']}", method="DELETE"), timeout=PATIENCE).close()


class Heap(ctypes.Structure):
    """What glibc says of its heaps, in bytes. uordblks: in use.  hblkhd: in blocks of their own."""

    names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in names]
    uordblks: int
    hblkhd: int


def memory() -> dict[str, float]:
    """Return this process's resident memory, the count of Python's objects, and what of the heap is in use; glibc keeps the rest."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    out = {"resident_mib": round(pages * 4096 / 2**20, 1), "python_objects": float(sys.getallocatedblocks())}
    if (ask := getattr(ctypes.CDLL(None), "mallinfo2", None)) is not None:
        ask.restype = Heap
        heap = ask()
        out["in_use_mib"] = round((heap.uordblks + heap.hblkhd) / 2**20, 1)
    return out


@contextmanager
def bad_clients(port: int) -> Iterator[None]:
    """Hold connections that never go on: two readers that read nothing, two halves of a head, two halves of a body."""
    raw = json.dumps(SLOW).encode()
    sent = [request(port, "/v1/completions", raw)] * 2 + [b"POST /v1/completions HTTP/1.1\r\nHost: 127"] * 2
    sent += [request(port, "/v1/completions", raw[:20], len(raw))] * 2
    sockets = []
    for text in sent:
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        own.connect(("127.0.0.1", port))
        own.sendall(text)
        sockets.append(own)
    try:
        yield
    finally:
        for own in sockets:
            own.close()


def left_over(models: dict[str, ServedModel]) -> dict[str, int]:
    """Return what engines and the server's loop hold once all clients have gone; waits for what is about to end."""
    ends, out = time.monotonic() + ENDS, {"unsound": 1}
    threads = [served.thread for served in models.values() if served.thread is not None]
    loop = next(served.loop for served in models.values() if served.loop is not None)
    while any(out.values()) and time.monotonic() < ends:
        time.sleep(0.05)
        out = {"unsound": sum(not sound(served) for served in models.values()), "queues": sum(len(s.queues) for s in models.values())}
        out |= {"began": sum(len(thread.began) for thread in threads), "coroutines": max(0, len(asyncio.all_tasks(loop)) - 1)}
    out["pages"] = 0
    for thread in threads:
        storage: Any = thread.engine.storage
        storage.forget()
        out["pages"] += storage.pages.count - storage.pages.free_pages
    return out


def counted() -> dict[str, int]:
    """Return this process's resources without the pool of threads for requests, which grows to POOL and shrinks by itself."""
    pool = sum(thread.name.startswith("AnyIO") for thread in threading.enumerate())
    out = resources()
    return {"threads": out["threads"] - min(pool, POOL), "tasks": out["tasks"] - min(pool, POOL), "files": out["files"]}


def campaign(requests: int, seed: int, distinct: int = DISTINCT) -> dict[str, Any]:
    """Run the campaign. Returns its counts, its faults and what is left over."""
    with serving() as (port, models):
        threads = [served.thread for served in models.values() if served.thread is not None]
        load = Load(port, random.Random(f"load:{seed}"), lambda: all(thread.engine.idle for thread in threads))
        asyncio.run(load.alone(distinct))
        executor(torch.get_num_threads())  # starts the threads of masks, which live as long as the process
        before, began = counted(), time.monotonic()
        with bad_clients(port):
            measured = asyncio.run(load.run(requests))
        seconds = time.monotonic() - began
        left = left_over(models)
        left |= {name: max(0, n - before[name]) for name, n in counted().items()}
        engines = [thread.engine for thread in threads]
        about: dict[str, Any] = {"preempted": sum(e.queue.preempted for e in engines), "seconds": round(seconds, 1)}
        about |= {name: [m[name] for m in measured] for name in measured[0]}
        for name, most in GROWTH.items() if requests >= FULL else ():
            if name in about and (grown := about[name][-1] - about[name][TENTHS // 2 - 1]) > most:
                load.faults.append(f"{name}: {grown} more at the end than in the middle")
        return {**load.counts, **about, "left": left, "faults": load.faults}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=FULL)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    report = {"schema": 1, "campaign": "served_load", "seed": a.seed, "at_once": AT_ONCE, **campaign(a.requests, a.seed)}
    if a.requests >= FULL:
        RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))
    return int(bool(report["faults"] or any(report["left"].values())))


if __name__ == "__main__":
    sys.exit(main())
