"""How soon `pellucid serve` answers curl: seconds from the process's beginning, and from the moment at which its model has been read.

    python benchmarks/serve_ready.py [--model MODEL] [--times 3] [--out FILE]

MODEL is what `pellucid serve` takes, or a model of the catalogue, which is written as a folder of random bfloat16 weights first. curl asks
for one token, again and again while the server loads. Writes benchmarks/results/serve_ready.json. The goal: 2 s after the model is read.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from meta import commit

from pellucid import catalog
from pellucid.api.model import Model, load
from pellucid.bench.benched_model import random_weights
from pellucid.bench.machine import cpu
from pellucid.families import family, understand

HERE = Path(__file__).parent
GOAL = 2.0
# `pellucid serve` as it is, but for a line with the time at which the model has been read.
SERVE = """
import json, sys, time
from pellucid.commands import main, options
read = options.loaded
def timed(*given, **how):
    out = read(*given, **how)
    print(json.dumps({"read": time.time()}), flush=True)
    return out
options.loaded = timed
sys.exit(main(["serve", *sys.argv[1:], "--json"]))
"""


@contextmanager
def folder_of(name: str) -> Any:
    """Yield the model's name, or a folder of random weights in its shape."""
    entry = None if Path(name).exists() else catalog.find(catalog.models(), name)
    if entry is None or "config" not in entry:
        yield name
        return
    kind, cfg = understand(entry["config"])
    specimen = load("pellucid/capitals")
    with tempfile.TemporaryDirectory() as folder:
        made = Model(name, random_weights(name, cfg, torch.bfloat16), family(kind.name), entry["config"], specimen.tokenizer)
        made.files = specimen.files
        made.save(Path(folder) / "model")
        yield str(Path(folder) / "model")


def free_port() -> int:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


def answered(port: int, body: str) -> bool:
    """True if curl gets an answer with one choice."""
    command = ["curl", "-sf", f"http://127.0.0.1:{port}/v1/completions", "-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0 and len(json.loads(done.stdout)["choices"]) == 1


def turn(model: str) -> dict[str, float]:
    """Start the server, ask until it answers, and end it."""
    port, body, began = free_port(), json.dumps({"prompt": [1, 2, 3], "max_tokens": 1}), time.time()
    process = subprocess.Popen([sys.executable, "-c", SERVE, model, "--port", str(port)], stdout=subprocess.PIPE, text=True)
    try:
        while not answered(port, body):
            if process.poll() is not None:
                raise SystemExit(f"pellucid serve {model} ended with {process.returncode}")
        ended = time.time()
        assert process.stdout is not None
        read = json.loads(process.stdout.readline())["read"]
    finally:
        process.terminate()
        process.wait()
    return {"read": read - began, "answered": ended - began, "after_reading": ended - read}


def main() -> int:
    ask = argparse.ArgumentParser()
    ask.add_argument("--model", default="qwen2.5-0.5b")
    ask.add_argument("--times", type=int, default=3)
    ask.add_argument("--out", type=Path, default=HERE / "results" / "serve_ready.json")
    a = ask.parse_args()
    with folder_of(a.model) as place:
        turns = [turn(place) for _ in range(a.times)]
    middle = {name: statistics.median(t[name] for t in turns) for name in turns[0]}
    report = {
        "schema": 1, "benchmark": "serve_ready", "model": a.model, "goal": GOAL, "holds": max(t["after_reading"] for t in turns) < GOAL,
        "seconds": middle, "turns": turns, "commit": commit(), "cpu": cpu(),
    }  # fmt: skip
    a.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(middle), "holds" if report["holds"] else "does not hold", a.out)
    return int(not report["holds"])


if __name__ == "__main__":
    sys.exit(main())
