"""`pellucid serve` over HTTP: what HTTP and JSON cost beside the engine alone, and what clients wait, beside llama-server in the same run.

    python benchmarks/serve_http.py [--clients 16] [--pairs 3] [--threads 2] [--quick] [--out FILE]

Every client streams one mixed request (`bench/batch_load.py`) with ids for a prompt, all at once. Turns alternate: the engine alone, in
this process; the server, in this process too, whose clients are another one; llama-server, if it is on the path. Useful tokens a second,
and over all turns the seconds to the first token (p50, p99) and between two tokens (p99). Random weights at Qwen2.5-0.5B's shape in
bfloat16, the same for all; --quick: a small shape, to see that it runs. Writes benchmarks/results/serve_http.json.

`http_over_engine` is the time that clients see, and they count in it: on two cores they take a part of what the engine has alone. What
HTTP and JSON cost by themselves is `http_share`: the processor time of the server's loop, in which everything but the engine runs, over
the turn's time. The goal, 3%, is of that.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from decode import machine
from llama_server import serving
from serve import Small, our_turn
from shapes import Qwen2, gguf_file
from tokenizers.pre_tokenizers import ByteLevel

from pellucid.api.model import Model
from pellucid.bench.batch_load import mixed
from pellucid.engine.requests import Request
from pellucid.families import family
from pellucid.nn.transformer import Decoder
from pellucid.server.listen import configured, taken
from pellucid.server.openai.operation import Operation
from pellucid.server.openai.routes import application
from pellucid.server.openai.served_model import ServedModel
from pellucid.server.openai.serving import SERVE_LIMITS, DrainingServer
from pellucid.tokenizer.tokenizer import Tokenizer

HERE, SEED, GOAL = Path(__file__).parent, 3, 0.03
Times = list[list[float]]  # of each request, the seconds from its beginning to each token


async def client(port: int, path: str, body: dict[str, Any]) -> list[float]:
    """Stream one request. Returns the seconds to each event with a token."""
    began, out, raw = time.perf_counter(), list[float](), json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
    async for line in reader:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if event.get("tokens") or any(choice.get("token_ids") for choice in event.get("choices", ())):
                out.append(time.perf_counter() - began)
    writer.close()
    return out


def clients(port: int, path: str, bodies: list[dict[str, Any]]) -> tuple[float, Times]:
    """Send all requests at once. Returns the seconds until the last has ended, and each one's times."""

    async def all_of_them() -> Times:
        return await asyncio.gather(*(client(port, path, body) for body in bodies))

    began = time.perf_counter()
    times = asyncio.run(all_of_them())
    return time.perf_counter() - began, times


def from_elsewhere(port: int, path: str, bodies: Sequence[dict[str, Any]]) -> tuple[float, Times]:
    """Let another process be the clients."""
    given = json.dumps([port, path, list(bodies)])
    done = subprocess.run([sys.executable, __file__, "--as-clients"], input=given, stdout=subprocess.PIPE, text=True, check=True)
    seconds, times = json.loads(done.stdout.splitlines()[-1])
    return seconds, times


def vocabulary(size: int) -> Tokenizer:
    """Return a byte-level tokenizer in which each of `size` ids has a text."""
    pieces = [*sorted(ByteLevel.alphabet()), *(f"Ġ{i}" for i in range(size))][:size]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    model = {"type": "BPE", "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": []}
    return Tokenizer({"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": model}, "shape")


@contextmanager
def served(module: Decoder, asked: Sequence[Request]) -> Iterator[tuple[int, Callable[[], float]]]:
    """Serve the model in a thread of this process. Yields the port, and what returns the processor time of the server's loop so far."""
    model = Model("shape", module, family("qwen2"), {}, vocabulary(module.config.vocab))
    operation, own = Operation("0"), taken(0)
    one = ServedModel("shape", model, 64 * sum(-(-r.budget // 64) for r in asked), len(asked), "0")
    operation.loaded.set_result({"shape": one})
    port = int(own.getsockname()[1])
    server = DrainingServer(configured(application(operation, SERVE_LIMITS, port, quiet=True, page=False), SERVE_LIMITS), operation)
    thread = threading.Thread(target=server.run, args=([own],))
    thread.start()
    try:
        assert thread.ident is not None
        clock = time.pthread_getcpuclockid(thread.ident)
        yield port, lambda: time.clock_gettime(clock)
    finally:
        server.should_exit = True
        thread.join()
        own.close()
        one.close()


def another(bodies: Sequence[dict[str, Any]], turn: int) -> list[dict[str, Any]]:
    """Return the bodies with another first token in each turn, so that no turn finds an earlier one's prompts cached."""
    return [{**body, "prompt": [(body["prompt"][0] + turn) % 1000, *body["prompt"][1:]]} for body in bodies]


def waits(turns: Sequence[Times]) -> dict[str, float]:
    """Return quantiles of what clients wait, in seconds."""
    first = sorted(times[0] for turn in turns for times in turn)
    between = sorted(b - a for turn in turns for times in turn for a, b in pairwise(times))

    def at(values: list[float], share: float) -> float:
        return values[min(len(values) - 1, int(share * len(values)))]

    return {"first_p50": at(first, 0.5), "first_p99": at(first, 0.99), "between_p50": at(between, 0.5), "between_p99": at(between, 0.99)}


def measured(module: Decoder, asked: list[Request], pairs: int, file: Path | None, threads: int) -> dict[str, Any]:
    """Run the turns. file: of llama-server's model."""
    ours = [
        {"model": "shape", "prompt": list(r.prompt), "max_tokens": r.new, "temperature": 0, "ignore_eos": True, "stream": True}
        | {"return_token_ids": True} for r in asked
    ]  # fmt: skip
    theirs = [
        {"prompt": list(r.prompt), "n_predict": r.new, "temperature": 0, "ignore_eos": True, "cache_prompt": False, "stream": True}
        | {"return_tokens": True} for r in asked
    ]  # fmt: skip
    alone, written = our_turn(module, asked, 512), sum(r.new for r in asked)
    seconds: dict[str, list[float]] = {}
    turns: dict[str, list[Times]] = {}
    loop = list[float]()  # processor time of the server's loop, of each turn
    with ExitStack() as opened:
        port, loop_time = opened.enter_context(served(module, asked))
        ways = {"pellucid serve": (port, "/v1/completions", ours)}
        if file is not None:
            llama = opened.enter_context(serving(file, threads, len(asked), sum(r.budget for r in asked) + 256 * len(asked)))
            ways["llama-server"] = llama.port, "/completion", theirs
        for i in range(pairs + 1):  # the first records plans
            for name in ("engine", *ways) if i % 2 == 0 else (*list(ways)[::-1], "engine"):
                if name == "engine":
                    took = alone()[0]
                else:
                    port, path, bodies = ways[name]
                    before = loop_time()
                    took, times = from_elsewhere(port, path, another(bodies, i))
                    loop += [loop_time() - before] if name == "pellucid serve" and i else []
                    assert [len(t) for t in times] == [r.new for r in asked], [(len(t), r.new) for t, r in zip(times, asked, strict=True)]
                    turns.setdefault(name, []).extend([times] if i else [])
                seconds.setdefault(name, []).extend([took] if i else [])
    rates = {name: written / statistics.median(s) for name, s in seconds.items()}
    shares = [own / took for own, took in zip(loop, seconds["pellucid serve"], strict=True)]
    over = [a / b - 1 for a, b in zip(seconds["pellucid serve"], seconds["engine"], strict=True)]
    return {
        "requests": len(asked), "read": sum(len(r.prompt) for r in asked), "written": written, "seconds": seconds,
        "useful_tokens_per_second": rates, "http_over_engine": {"per_pair": over, "median": statistics.median(over)},
        "http_share": {"per_turn": shares, "median": statistics.median(shares), "goal": GOAL},
        "http_microseconds_per_token": 1e6 * statistics.median(loop) / written,
        "waits": {name: waits(times) for name, times in turns.items()},
    }  # fmt: skip


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--clients", type=int, default=16)
    ask.add_argument("--pairs", type=int, default=3)
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--quick", action="store_true")
    ask.add_argument("--out", type=Path, default=HERE / "results" / "serve_http.json")
    ask.add_argument("--as-clients", action="store_true", help=argparse.SUPPRESS)
    a = ask.parse_args()
    if a.as_clients:
        print(json.dumps(clients(*json.loads(sys.stdin.read()))))
        return
    torch.set_num_threads(a.threads)
    transformers.logging.set_verbosity_error()
    shape = Small() if a.quick else Qwen2()
    net = shape.theirs(torch.bfloat16)
    module = shape.ours(net, torch.bfloat16)
    del net
    asked = mixed(a.clients, shape.vocab, *((20 * a.clients, 10 * a.clients) if a.quick else (144 * a.clients, 72 * a.clients)), SEED)
    report: dict[str, Any] = {"schema": 1, "benchmark": "serve_http", "shape": shape.name, "dtype": "bfloat16", "quick": a.quick}
    with tempfile.TemporaryDirectory() as folder:
        file: Path | None = Path(folder) / "model.gguf"
        try:
            gguf_file(shape, module, "bfloat16", file)
            report |= measured(module, asked, a.pairs, file, a.threads)
        except (ImportError, FileNotFoundError) as missing:
            report |= {"missing": str(missing)} | measured(module, asked, a.pairs, None, a.threads)
    report["machine"] = machine(a.threads)
    a.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print({name: report[name] for name in ("useful_tokens_per_second", "http_over_engine", "http_share", "waits")}, a.out)


if __name__ == "__main__":
    main()
