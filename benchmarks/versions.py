"""Two versions of this project beside one another: a model's phases, two commands and the page, in alternating processes.

    python benchmarks/versions.py --before TREE --after TREE [--pairs 5] [--threads 2]

Each tree is a checkout with its kernels built. Only public names are called, so any two versions can be compared. GPT-2's shape with
random weights, float32 and bfloat16, the same folder for both; the page is the specimen's, in Chromium. A ratio is after / before, the
median over pairs of adjacent turns; below 1 is faster. Writes benchmarks/results/versions.json.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROMPT = [[(7 * i) % 5000 + 3 for i in range(32)]]
LONG = [[(11 * i) % 5000 + 3 for i in range(512)]]
MIXED = [[(5 * i + n) % 5000 + 3 for i in range(8 + 12 * n)] for n in range(8)]
NEW, TOKENS = 96, 64


def timed(work: Callable[[], object], times: int) -> float:
    """Return the least seconds of `times` calls of `work`, after one that warms it up."""
    work()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure(folder: str, dtype: str, threads: int) -> dict[str, float]:
    """Return the seconds of each part, of the version that this process imports."""
    import torch

    import pellucid

    torch.set_num_threads(threads)
    model: Any = pellucid.load(folder, dtype=dtype)
    long, short = torch.tensor(LONG), torch.tensor([LONG[0][:TOKENS]])

    def captured() -> object:
        with pellucid.watch(model) as seen:
            model(short)
        return len(list(seen))

    return {
        "decode": timed(lambda: model.generate(PROMPT, max_new_tokens=NEW, eos=None), 3),
        "prefill": timed(lambda: model(long), 3),
        "capture": timed(captured, 5),
        "batch": timed(lambda: model.generate(MIXED, max_new_tokens=32, eos=None), 2),
    }


def commands(python: str) -> dict[str, float]:
    """Return the seconds of two commands, each a process of its own."""

    def run(*words: str) -> None:
        subprocess.run([python, "-m", "pellucid", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    return {
        "count": timed(lambda: run("count", "deepseek-v3", "--device", "h200"), 2),
        "explain": timed(lambda: run("explain", "The capital of France is", "--json"), 2),
    }


def page(python: str) -> dict[str, float]:
    """Return the seconds until `pellucid open` prints its address, and until a browser has drawn the first tensor, the least of five."""
    from playwright.sync_api import sync_playwright

    words = [python, "-m", "pellucid", "open", "--no-browser"]
    start = time.perf_counter()
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert server.stdout is not None
    address = next(word for word in server.stdout.readline().split() if word.startswith("http"))
    served, drawn = time.perf_counter() - start, list[float]()
    try:
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for _ in range(6):
                tab = browser.new_context().new_page()
                start = time.perf_counter()
                tab.goto(address)
                tab.wait_for_selector("[data-drawn]", state="attached")
                drawn.append(time.perf_counter() - start)
                tab.context.close()
    finally:
        server.terminate()
        server.wait(10)
    return {"open": served, "drawn": min(drawn[1:])}


def turn(tree: Path, folder: str, dtype: str, threads: int) -> dict[str, float]:
    """Run one turn of a tree in a process of its own, and return its seconds."""
    words = [sys.executable, __file__, "--worker", folder, dtype, "--threads", str(threads)]
    where = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(words, env=where, check=True, capture_output=True, text=True)
    return {name: float(seconds) for name, seconds in json.loads(done.stdout.splitlines()[-1]).items()}


def commit(tree: Path) -> str:
    """Return the commit that a tree has checked out."""
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


def made(folder: Path) -> None:
    """Write a folder of GPT-2's shape with random weights."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--before", type=Path)
    ask.add_argument("--after", type=Path)
    ask.add_argument("--pairs", type=int, default=5)
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--out", type=Path, default=HERE / "results" / "versions.json")
    ask.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = ask.parse_args()
    if given.worker:
        folder, dtype = given.worker
        apart = {"commands": commands, "page": page}
        print(json.dumps(apart[dtype](sys.executable) if dtype in apart else measure(folder, dtype, given.threads)))
        return
    import torch

    from pellucid.bench.machine import cpu  # here: a turn's process may import a version that has it elsewhere

    trees = {"before": given.before.resolve(), "after": given.after.resolve()}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        made(Path(place))
        for dtype in ("float32", "bfloat16", "commands", "page"):
            pairs = []
            for n in range(given.pairs):
                order = ("before", "after") if n % 2 == 0 else ("after", "before")
                pairs.append({name: turn(trees[name], place, dtype, given.threads) for name in order})
            for part in pairs[0]["before"]:
                ratios = sorted(pair["after"][part] / pair["before"][part] for pair in pairs)
                rows.append({
                    "part": part, "dtype": dtype, "ratio": round(statistics.median(ratios), 4),
                    "ratios": [round(r, 4) for r in ratios],
                    "before": min(pair["before"][part] for pair in pairs), "after": min(pair["after"][part] for pair in pairs),
                })  # fmt: skip
                print(f"{part:8} {dtype:9} after/before {rows[-1]['ratio']:.3f}  {rows[-1]['ratios']}", flush=True)
    document = {
        "schema": 1, "machine": cpu(), "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "commits": {name: commit(tree) for name, tree in trees.items()}, "threads": given.threads, "pairs": given.pairs, "rows": rows,
    }  # fmt: skip
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
