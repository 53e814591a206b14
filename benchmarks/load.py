"""Seconds and peak memory of loading a sharded folder of bfloat16 weights, beside safetensors alone, in alternating processes of one run.

    python benchmarks/load.py --folder /somewhere/with/room [--gb 5] [--pairs 5] [--threads 1]

Our own writer makes the folder, of Llama's shape. Each turn is a process of its own: ours returns a model that runs; safetensors' opens
every shard and clones every tensor, so that its pages are touched and it owns what it holds; the bound reads the shards' bytes into
fresh memory. The files are in the page cache, for they were written just before. Writes benchmarks/results/load.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SHAPE = {"vocab_size": 8192, "hidden_size": 2560, "intermediate_size": 6912, "num_attention_heads": 20, "num_key_value_heads": 20}
SHARDS = 4
KINDS = ("pellucid", "safetensors", "bound")
Tensors = dict[str, Any]  # whatever a turn has read, by name on disk


def make(folder: Path, gb: float) -> None:
    """A Llama of about so many gigabytes, its weights a random block over and over."""
    import torch

    from pellucid.api.model import make

    width, inner, vocab = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["vocab_size"]
    layers = max(1, round((gb * 1e9 / 2 - 2 * vocab * width) / (4 * width**2 + 3 * width * inner)))
    model = make({"model_type": "llama", "num_hidden_layers": layers, **SHAPE}, dtype=torch.bfloat16)
    block = torch.randn(1 << 22, generator=torch.Generator().manual_seed(0)).bfloat16()
    for p in model.module.parameters():
        p.data = block.repeat(-(-p.numel() // len(block)))[: p.numel()].view(p.shape)
    size = sum(p.nbytes for p in model.module.parameters())
    model.save(folder, shard_bytes=-(-size // SHARDS))
    print(json.dumps({"layers": layers, "bytes": size, "largest": max(p.nbytes for p in model.module.parameters())}), flush=True)


def ours(folder: Path) -> Callable[[], Tensors]:
    from pellucid.api.model import load

    return lambda: load(folder).tensors()


def theirs(folder: Path) -> Callable[[], Tensors]:
    from safetensors import safe_open

    def read() -> Tensors:
        held = {}
        for shard in sorted(folder.glob("*.safetensors")):
            with safe_open(shard, "pt") as file:
                held.update({name: file.get_tensor(name).clone() for name in file.keys()})  # noqa: SIM118
        return held

    return read


def bound(folder: Path) -> Callable[[], Tensors]:
    import torch

    from pellucid.checkpoint.disk import read_at, regular

    def read() -> Tensors:
        held = {}
        for shard in sorted(folder.glob("*.safetensors")):
            held[shard.name] = torch.empty(shard.stat().st_size, dtype=torch.uint8)
            with regular(shard) as fd:
                read_at(fd, held[shard.name].numpy().data, 0, shard)
        return held

    return read


def turn(kind: str, folder: Path, threads: int) -> None:
    """One reading in this process: seconds, bytes at most and before, and a number by which two readings are seen to agree."""
    import torch

    from pellucid.training.meter import resident

    torch.set_num_threads(threads)
    read = {"pellucid": ours, "safetensors": theirs, "bound": bound}[kind](folder)
    before, began = resident(), time.perf_counter()
    held = read()
    seconds, most = time.perf_counter() - began, resident()
    seen = sum(int(t.view(torch.uint8).long().sum()) for t in list(held.values())[:3]) if kind == "bound" else 0
    seen = seen or sum(int(held[n].view(torch.int16)[0].long().sum()) for n in sorted(held))
    print(json.dumps({"seconds": seconds, "peak_bytes": most, "peak_bytes_before": before, "seen": seen}), flush=True)


def told(*words: str | Path) -> dict[str, Any]:
    """The JSON that this script prints in another process."""
    done = subprocess.run([sys.executable, __file__, *map(str, words)], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def measure(folder: Path, pairs: int, threads: int) -> dict[str, list[dict[str, Any]]]:
    """Every turn of every kind, in an order that alternates; one turn each to warm up."""
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for i in range(pairs + 1):
        for kind in KINDS if i % 2 == 0 else KINDS[::-1]:
            found = told("--folder", folder, "--turn", kind, "--threads", str(threads))
            if i:
                runs[kind].append(found)
                print(kind, round(found["seconds"], 3), "s", round(found["peak_bytes"] / 1e9, 3), "GB", flush=True)
    assert len({r["seen"] for kind in KINDS[:2] for r in runs[kind]}) == 1
    return runs


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--folder", type=Path, required=True, help="where the weights are written, and removed again")
    ask.add_argument("--gb", type=float, default=5.0)
    ask.add_argument("--pairs", type=int, default=5)
    ask.add_argument("--threads", type=int, default=1)
    ask.add_argument("--out", type=Path, default=HERE / "results" / "load.json")
    ask.add_argument("--turn", choices=["make", *KINDS], help=argparse.SUPPRESS)
    a = ask.parse_args()
    if a.turn:
        make(a.folder, a.gb) if a.turn == "make" else turn(a.turn, a.folder, a.threads)
        return
    with tempfile.TemporaryDirectory(dir=a.folder) as place:
        made = told("--folder", place, "--turn", "make", "--gb", str(a.gb))
        runs = measure(Path(place), a.pairs, a.threads)
    from decode import machine

    report: dict[str, Any] = {"schema": 1, "benchmark": "load", "machine": machine(a.threads), "shape": SHAPE, "weights": made}
    report |= {"dtype": "bfloat16", "shards": SHARDS, "cache": "warm", "runs": runs}
    seconds = {kind: [r["seconds"] for r in rows] for kind, rows in runs.items()}
    report["median_seconds"] = {kind: statistics.median(s) for kind, s in seconds.items()}
    for peer in KINDS[1:]:
        ratios = [x / y for x, y in zip(seconds["pellucid"], seconds[peer], strict=True)]
        report[f"ratio_to_{peer}"] = {"per_pair": ratios, "median": statistics.median(ratios)}
    most = {kind: max(r["peak_bytes"] for r in rows) for kind, rows in runs.items()}
    added = max(r["peak_bytes"] - r["peak_bytes_before"] for r in runs["pellucid"])
    report["peak_bytes"] = most
    report["peak_over_weights"] = {"pellucid": added / made["bytes"], "allowed": 1.05 + made["largest"] / made["bytes"]}
    a.out.parent.mkdir(parents=True, exist_ok=True)
    a.out.write_text(json.dumps(report, indent=1) + "\n")
    print({k: round(report[f"ratio_to_{k}"]["median"], 3) for k in KINDS[1:]}, report["peak_over_weights"], a.out)


if __name__ == "__main__":
    main()
