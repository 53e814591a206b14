"""Patching, attribution, induction and tracing on GPT-2 small's shape, beside other libraries, in alternating pairs of one run.

    python benchmarks/experiments.py [--transformer-lens PYTHON]... [--nnsight PYTHON] [--transformers PYTHON]
        [--pairs 3] [--rows ROW...] [--threads 2] [--tiny]

heads: each head at each position of a 15-token prompt (2,160 trials).  residual: each block's output at each position (180).
whole heads: each head at all positions (144).  attribution: the gradient of the metric times the difference of two runs, for each head
at each position of a 300-token prompt.  induction: each head's weight on what came after the same token, 8 texts of 20 tokens read twice.
tracing: causal tracing as ROME's script does it (arXiv 2202.05262): the subject's embeddings under ten draws of noise, and the clean
output of each block, or of ten blocks' attention or feed-forward part, put back at each position; a forward a cell, of one clean row and
ten noisy ones.

Random weights in one folder, read by all; each library in a process of its own, by its own loop (experiment_loops.py): one forward a
trial, and for TransformerLens also 64 trials as rows of one forward. The metric is the difference of two logits; all numbers must agree
at 1e-5. Memory is the largest resident size during a turn, less the size before it. Writes benchmarks/results/experiments.json.
"""

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from experiment_loops import BATCH, LOOPS, Turn

HERE = Path(__file__).parent
CHEAPEST_FIRST = (
    "induction", "attribution", f"whole heads, {BATCH} together", f"residual, {BATCH} together", "whole heads", "residual", "tracing",
    f"heads, {BATCH} together", "heads",
)  # fmt: skip
AGREE = 1e-5


def shape(tiny: bool) -> dict[str, Any]:
    """Return the fields of transformers' GPT2Config, and the lengths of the prompts."""
    small = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 500}
    short, long = (6, 12) if tiny else (15, 300)
    tokens = dict.fromkeys(("heads", "whole heads", "residual", "tracing", "induction"), short) | {"attribution": long}
    return {"config": small if tiny else {}, "tokens": tokens}


def resident(field: str) -> int:
    """Return a size of this process in bytes: VmRSS now, VmHWM at its largest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def timed(turn: Turn, tokens: int, vocab: int) -> dict[str, Any]:
    """Return the seconds of one turn, the memory that it took at most, and its numbers."""
    g = torch.Generator().manual_seed(tokens)
    clean, corrupted = torch.randint(vocab, (2, 1, tokens), generator=g)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what an earlier turn freed and the process still has would hide what this one takes
    Path("/proc/self/clear_refs").write_text("5")  # the largest size counts from here
    before, began = resident("VmRSS"), time.perf_counter()
    numbers = turn(clean, corrupted)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "bytes": resident("VmHWM") - before, "numbers": numbers.double().flatten().tolist()}


class Worker:
    """A contestant in a process of its own, which takes its turns as they are asked for."""

    def __init__(self, python: str, kind: str, folder: str, threads: int, tiny: bool) -> None:
        command = [python, __file__, "--worker", kind, folder, "--threads", str(threads), *(["--tiny"] if tiny else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.kind, self.hello = kind, self.answer()
        self.name = f"{kind} {self.hello['versions'][kind]}" if kind in self.hello["versions"] else kind

    def answer(self) -> dict[str, Any]:
        """Return the next line that is meant for us; libraries greet on stdout too."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)  # type: ignore[no-any-return]
        raise RuntimeError(f"the worker {self.kind} ended: {self.process.wait()}")

    def ask(self, name: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return self.answer()


def work(kind: str, folder: str, tiny: bool) -> None:
    """Answer the turns that are asked for on stdin."""
    turns, sizes = LOOPS[kind](folder), shape(tiny)
    versions = {name: version(name) for name in {"torch", "transformers", kind} - {"pellucid"}}
    print(json.dumps({"names": list(turns), "versions": versions}), flush=True)
    for line in sys.stdin:
        name = line.strip()
        tokens = sizes["tokens"][name.split(",")[0]]
        print(json.dumps(timed(turns[name], tokens, sizes["config"].get("vocab_size", 50257))), flush=True)


def made(folder: str, tiny: bool) -> None:
    """Write a folder of GPT-2's shape with random weights, large enough that each trial moves the metric."""
    transformers = import_module("transformers")
    torch.manual_seed(0)
    net = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape(tiny)["config"]))
    with torch.no_grad():
        for name, p in net.named_parameters():
            p *= 3.0 if name.startswith("transformer.h.") and p.ndim == 2 else 1.0
    net.save_pretrained(folder)


def compared(mine: Worker, peer: Worker, name: str, pairs: int) -> dict[str, Any]:
    """Run one task of a peer and ours in alternating pairs, after one turn of each; the numbers of all must agree."""
    task, one, two = name.split(",")[0], list[dict[str, Any]](), list[dict[str, Any]]()
    for n in range(pairs):
        order = [(mine, task, one), (peer, name, two)]
        for worker, asked, turns in order if n % 2 == 0 else order[::-1]:
            turns.append(worker.ask(asked))
    gap = max(abs(x - y) for a, b in zip(one, two, strict=True) for x, y in zip(a["numbers"], b["numbers"], strict=True))
    spread = statistics.stdev(one[0]["numbers"])
    assert gap < min(AGREE, spread / 100), (peer.name, name, gap, spread)
    ratios = sorted(b["seconds"] / a["seconds"] for a, b in zip(one, two, strict=True))
    return {
        "task": name, "peer": peer.name, "trials": len(one[0]["numbers"]), "largest_difference": gap, "spread": spread,
        "seconds": {"pellucid": [a["seconds"] for a in one], peer.name: [b["seconds"] for b in two]},
        "mib": {"pellucid": max(a["bytes"] for a in one) / 2**20, peer.name: max(b["bytes"] for b in two) / 2**20},
        "times_faster_per_pair": ratios, "median_times_faster": statistics.median(ratios),
    }  # fmt: skip


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument(
        "--transformer-lens",
        metavar="PYTHON",
        action="append",
        default=[],
        help="an interpreter that has TransformerLens; one for each version",
    )
    ask.add_argument("--nnsight", metavar="PYTHON", help="an interpreter that has nnsight")
    ask.add_argument("--transformers", metavar="PYTHON", help="an interpreter that has transformers, for ROME's script")
    ask.add_argument("--pairs", type=int, default=3)
    ask.add_argument("--rows", nargs="+", choices=CHEAPEST_FIRST, default=CHEAPEST_FIRST, help="only these rows")
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--tiny", action="store_true", help="a tiny shape, to see that everything runs")
    ask.add_argument("--out", type=Path, default=HERE / "results" / "experiments.json")
    ask.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = ask.parse_args()
    torch.set_num_threads(given.threads)
    if given.worker:
        work(*given.worker, given.tiny)
        return
    from decode import machine

    report: dict[str, Any] = {"schema": 1, "benchmark": "experiments", "machine": machine(given.threads), "dtype": "float32"}
    report |= {"shape": shape(given.tiny), "pairs": given.pairs, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        made(folder, given.tiny)
        mine = Worker(sys.executable, "pellucid", folder, given.threads, given.tiny)
        single = {"nnsight": given.nnsight, "transformers": given.transformers}
        options = [("transformer-lens", python) for python in given.transformer_lens]
        options += [(kind, python) for kind, python in single.items() if python]
        peers = [Worker(python, kind, folder, given.threads, given.tiny) for kind, python in options]
        report["versions"] = {worker.name: worker.hello["versions"] for worker in (mine, *peers)}
        pairs = [(peer, name) for name in given.rows for peer in peers if name in peer.hello["names"]]
        for peer, name in pairs:
            report["rows"].append(row := compared(mine, peer, name, given.pairs))
            write(report, given.out)
            mib = {kind: round(size) for kind, size in row["mib"].items()}
            print(f"{peer.name:22} {name:22} {row['median_times_faster']:7.2f}x  {mib} MiB  {row['largest_difference']:.1e}", flush=True)
        for worker in (mine, *peers):
            worker.process.communicate()
    print(given.out)


def write(report: dict[str, Any], out: Path) -> None:
    """Write what has been measured so far, so that a run that is stopped leaves its rows."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
