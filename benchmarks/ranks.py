"""Processes of one thread beside one process of as many threads: steps of training, and tokens of a text, in alternating turns.

    python benchmarks/ranks.py [--processes 2] [--pairs 5] [--quick]

A Llama of 6 layers, 256 wide, with random weights in float32. A ratio is the time of several processes over that of one, the median over
pairs of adjacent turns; below 1 several are faster. Writes benchmarks/results/ranks.json.
--quick: small shapes, to see that it runs; writes nothing.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from meta import commit

from pellucid import __version__
from pellucid.bench.machine import cpu
from pellucid.config import Attention, Config, Layer, Mlp, Rope
from pellucid.distributed import join
from pellucid.engine.generation import generate
from pellucid.engine.requests import Request
from pellucid.launched import number
from pellucid.nn.transformer import build
from pellucid.sharding import split
from pellucid.training.loop import initialise

HERE = Path(__file__).parent


class Load(NamedTuple):
    """What is timed. rows, length: of a step's tokens.  steps: timed ones.  prompt, new: tokens of a text."""

    config: Config
    rows: int
    length: int
    steps: int
    prompt: int
    new: int


FULL = Load(Config(4096, 256, (Layer(Attention(8, 4, 32, Rope(32)), Mlp(768)),) * 6), 8, 256, 6, 32, 64)
QUICK = Load(Config(128, 32, (Layer(Attention(4, 2, 8, Rope(8)), Mlp(64)),) * 2), 4, 16, 1, 4, 4)


def timed(work: Any, times: int) -> float:
    """Return the median seconds of `times` calls, after one that warms up."""
    work()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure(load: Load, data: int, tensor: int) -> dict[str, float]:
    """Return the seconds of a step of training and of a token, on this grid."""
    ranks = join(data, tensor)
    model = build(load.config)
    initialise(model, len(load.config.layers), 0.02, 1)
    sharding = split(model, ranks)
    tokens = torch.randint(0, load.config.vocab, (load.rows, load.length + 1), generator=torch.Generator().manual_seed(1))
    mine = tokens.chunk(ranks.data)[ranks.data_rank]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = model(mine[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten(), reduction="sum") / tokens[:, 1:].numel()
        loss.backward()
        sharding.sum_gradients(dict(model.named_parameters()))
        sharding.clip(model, 1.0)
        optimizer.step()

    def text() -> None:
        for _ in generate(model, [Request(tuple(tokens[0, : load.prompt].tolist()), load.new)]):
            pass

    return {"step": timed(step, load.steps), "token": timed(text, 3) / load.new}


def turn(processes: int, threads: int, grid: str, quick: bool) -> dict[str, float]:
    """Run this script on a number of processes, and return what the first of them measured."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
        command = [sys.executable, *launch, __file__, "--grid", grid, "--out", str(out), *["--quick"] * quick]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, check=True)
        measured: dict[str, float] = json.loads(out.read_text())
        return measured


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--grid")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.grid:
        measured = measure(QUICK if given.quick else FULL, *map(int, given.grid.split("x")))
        if number() == 0:
            given.out.write_text(json.dumps(measured))
        return
    n = given.processes
    pairs: dict[str, list[dict[str, dict[str, float]]]] = {f"{n}x1": [], f"1x{n}": []}
    for _ in range(given.pairs):
        for grid, turns in pairs.items():
            turns.append({"one": turn(1, n, "1x1", given.quick), "several": turn(n, 1, grid, given.quick)})
    ratios = {
        grid: {what: statistics.median(t["several"][what] / t["one"][what] for t in turns) for what in ("step", "token")}
        for grid, turns in pairs.items()
    }
    result = {
        "schema": 1,
        "benchmark": "ranks",
        "version": __version__,
        "commit": commit(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": cpu(), "torch": torch.__version__, "system": platform.platform(), "processes": n},
        "ratios": ratios,
        "seconds": pairs,
    }
    if not given.quick:
        (HERE / "results" / "ranks.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(ratios, indent=1))


if __name__ == "__main__":
    main()
