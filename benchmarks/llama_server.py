"""llama.cpp's own server, driven over HTTP with token ids: 16 requests at once, and a beginning that its cache knows.

Found on the path; built from the sources that llama-cpp-python brings (vendor/llama.cpp, target llama-server).
"""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pellucid.engine.requests import Request

START = 120  # seconds to load a model
TURN = 1800


class Server:
    """A server that answers."""

    def __init__(self, port: int) -> None:
        self.port = port

    def post(self, prompt: Sequence[int], new: int, known: bool = False) -> list[int]:
        """The likeliest tokens after a prompt. known: its stored beginning may serve."""
        how = {"temperature": 0, "ignore_eos": True, "cache_prompt": known, "return_tokens": True}
        return list(self.ask("/completion", json.dumps({"prompt": list(prompt), "n_predict": new, **how}).encode())["tokens"])

    def ask(self, path: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TURN) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"llama-server: {error}: {error.read().decode()}") from error

    def crowd(self, asked: Sequence[Request]) -> tuple[float, list[list[int]]]:
        """All requests at once: seconds until the last has ended, and what each got."""
        with ThreadPoolExecutor(len(asked)) as clients:
            began = time.perf_counter()
            texts = list(clients.map(lambda r: self.post(r.prompt, r.new), asked))
            return time.perf_counter() - began, texts

    def first(self, prompt: Sequence[int], known: bool) -> float:
        """Seconds to the first token."""
        began = time.perf_counter()
        self.post(prompt, 1, known)
        return time.perf_counter() - began


@contextmanager
def serving(model: Path, threads: int, slots: int, tokens: int) -> Iterator[Server]:
    """A server of a GGUF file. slots: requests at once, which share room for so many tokens."""
    program = shutil.which("llama-server")
    if program is None:
        raise FileNotFoundError("llama-server is not on the path")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    words = ["-m", model, "--port", port, "-t", threads, "-tb", threads, "-np", slots, "-c", tokens, "-kvu"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([program, *map(str, words)], stdin=quiet, stdout=quiet, stderr=quiet)
    server = Server(port)
    try:
        for _ in range(START * 10):
            try:
                server.ask("/health")
                break
            except (OSError, RuntimeError):
                if process.poll() is not None:
                    raise RuntimeError(f"llama-server ended with {process.returncode}") from None
                time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(30)
