"""Patching and attribution patching on GPT-2 small's shape, beside TransformerLens and nnsight, in alternating pairs of one run.

    python benchmarks/experiments.py [--transformer-lens PYTHON]... [--nnsight PYTHON] [--pairs 3] [--rows ROW...] [--threads 2] [--tiny]

heads: each head at each position of a 15-token prompt (2,160 trials).  residual: each block's output at each position (180).
attribution: the gradient of the metric times the difference of two runs, for each head at each position of a 300-token prompt.
Random weights in one folder, read by all; each library in a process of its own, by its own loop: one forward a trial, and for
TransformerLens also 64 trials as rows of one forward. The metric is the difference of two logits; all numbers must agree at 1e-5. Memory
is the largest resident size during a turn, less the size before it. Writes benchmarks/results/experiments.json.
"""

import argparse
import ctypes
import gc
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).parent
TASKS = ("heads", "residual", "attribution")
BATCH = 64
CHEAPEST_FIRST = ("attribution", f"residual, {BATCH} together", "residual", f"heads, {BATCH} together", "heads")
AGREE = 1e-5
Turn = Callable[[Tensor, Tensor], Tensor]  # clean and corrupted ids [1 T] -> the numbers of all trials


def shape(tiny: bool) -> dict[str, Any]:
    """Return the fields of transformers' GPT2Config, and the lengths of the prompts."""
    small = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 500}
    return {"config": small if tiny else {}, "tokens": {"heads": 6, "residual": 6, "attribution": 12} if tiny else {
        "heads": 15, "residual": 15, "attribution": 300}}  # fmt: skip


def metric(logits: Tensor) -> Tensor:
    """Return the difference of two logits of the last row of logits [n T V]: [n]."""
    return logits[:, -1, 7] - logits[:, -1, 11]


# Contestants


def ours(folder: str) -> dict[str, Turn]:
    import pellucid

    model = pellucid.load(folder, dtype="float32")
    model.module.requires_grad_(False)

    def patched(over: str, by: str) -> Turn:
        def turn(clean: Tensor, corrupted: Tensor) -> Tensor:
            return pellucid.patch(model, clean[0].tolist(), corrupted[0].tolist(), over, by, lambda x: metric(x[:, None])).values

        return turn

    def attributed(clean: Tensor, corrupted: Tensor) -> Tensor:
        with torch.no_grad(), pellucid.watch(model, only="layers.*.attn.z") as right:
            model(clean, rows=-1)
        with pellucid.watch(model, only="layers.*.attn.z", grad=True) as seen:
            metric(model(corrupted, rows=-1)).sum().backward()
        pairs = zip(right, seen, strict=True)
        return torch.stack([((a.value - b.value.detach()) * b.grad).sum(-1)[0].T for a, b in pairs])

    return {"heads": patched("layers.*.attn.z", "H T"), "residual": patched("layers.*.out", "T"), "attribution": attributed}


def network(folder: str) -> Any:
    """Return transformers' model of the folder, with the attention that lets heads be seen."""
    transformers = import_module("transformers")
    net = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return net.eval().requires_grad_(False)


def lens(folder: str) -> dict[str, Turn]:
    """TransformerLens: a hook a trial, as its patching module runs them."""
    net = network(folder)
    builder = import_module("transformer_lens.model_bridge.sources._bridge_builder")
    model = builder.build_bridge_from_module(net, architecture="GPT2LMHeadModel", hf_config=net.config, dtype=torch.float32)
    layers, heads, width = net.config.n_layer, net.config.n_head, net.config.n_embd // net.config.n_head
    names = {"heads": "blocks.{}.attn.hook_z", "residual": "blocks.{}.hook_resid_post"}

    def by_head(x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], heads, width)

    def patched(task: str, together: int) -> Turn:
        def turn(clean: Tensor, corrupted: Tensor) -> Tensor:
            point = names[task]
            with torch.no_grad():
                _, kept = model.run_with_cache(clean, names_filter=[point.format(i) for i in range(layers)])
                out = []
                for layer in range(layers):
                    source = kept[point.format(layer)]
                    places = list(itertools.product(*([range(heads)] if task == "heads" else []), range(clean.shape[1])))
                    for first in range(0, len(places), together):
                        group = places[first : first + together]

                        def put(x: Tensor, hook: Any, group: Any = group, source: Tensor = source) -> Tensor:
                            x = x.clone()
                            for row, at in enumerate(group):
                                if task == "heads":
                                    by_head(x)[row, at[1], at[0]] = by_head(source)[0, at[1], at[0]]
                                else:
                                    x[row, at[0]] = source[0, at[0]]
                            return x

                        tokens = corrupted.expand(len(group), -1)
                        out.append(metric(model.run_with_hooks(tokens, fwd_hooks=[(point.format(layer), put)])))
            return torch.cat(out)

        return turn

    def attributed(clean: Tensor, corrupted: Tensor) -> Tensor:
        points = [names["heads"].format(i) for i in range(layers)]
        with torch.no_grad():
            _, kept = model.run_with_cache(clean, names_filter=points)
        seen: dict[str, Tensor] = {}

        def see(point: str, x: Tensor, hook: Any) -> Tensor:
            seen[point] = x = x if x.requires_grad else x.detach().requires_grad_()
            x.retain_grad()
            return x

        metric(model.run_with_hooks(corrupted, fwd_hooks=[(point, partial(see, point)) for point in points])).sum().backward()
        gaps = [(kept[p] - seen[p].detach()) * seen[p].grad for p in points]
        return torch.stack([by_head(gap).sum(-1)[0].T for gap in gaps])

    turns = {task: patched(task, 1) for task in names} | {f"{task}, {BATCH} together": patched(task, BATCH) for task in names}
    return turns | {"attribution": attributed}


def nnsight(folder: str) -> dict[str, Turn]:
    """nnsight: an intervention a trial, around transformers' modules."""
    net = network(folder)
    model = import_module("nnsight").NNsight(net)
    layers, heads, width = net.config.n_layer, net.config.n_head, net.config.n_embd // net.config.n_head

    def sources(ids: Tensor, task: str) -> list[Tensor]:
        kept = []
        with torch.no_grad(), model.trace(ids, use_cache=False):
            saved = [].save()
            for block in model.transformer.h:
                saved.append(block.attn.c_proj.input if task == "heads" else output(block))
        kept += saved
        return kept

    def output(block: Any) -> Any:
        return block.output[0] if isinstance(block.output, tuple) else block.output

    def patched(task: str) -> Turn:
        def turn(clean: Tensor, corrupted: Tensor) -> Tensor:
            source, out = sources(clean, task), []
            for layer in range(layers):
                for h, t in itertools.product(range(heads if task == "heads" else 1), range(clean.shape[1])):
                    cut = slice(h * width, (h + 1) * width) if task == "heads" else slice(None)
                    with torch.no_grad(), model.trace(corrupted, use_cache=False):
                        block = model.transformer.h[layer]
                        x = block.attn.c_proj.input if task == "heads" else output(block)
                        x[0, t, cut] = source[layer][0, t, cut]
                        number = metric(model.lm_head.output).save()
                    out.append(number)
            return torch.cat(out)

        return turn

    def attributed(clean: Tensor, corrupted: Tensor) -> Tensor:
        source = sources(clean, "heads")
        with model.trace(corrupted, use_cache=False):
            seen, grads = [].save(), [].save()
            for block in model.transformer.h:
                x = block.attn.c_proj.input
                x.requires_grad_() if not x.requires_grad else None
                seen.append(x)
            with metric(model.lm_head.output).sum().backward():
                for x in seen[::-1]:
                    grads.append(x.grad)
        gaps = [(a - b.detach()) * g for a, b, g in zip(source, seen, grads[::-1], strict=True)]
        return torch.stack([gap.unflatten(-1, (heads, width)).sum(-1)[0].T for gap in gaps])

    return {"heads": patched("heads"), "residual": patched("residual"), "attribution": attributed}


# The run


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
    turns, sizes = {"pellucid": ours, "transformer-lens": lens, "nnsight": nnsight}[kind](folder), shape(tiny)
    versions = {name: version(name) for name in ("torch", "transformers", *([kind] if kind != "pellucid" else []))}
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
    assert gap < AGREE < spread / 100, (peer.name, name, gap, spread)
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
        options = [
            *(("transformer-lens", python) for python in given.transformer_lens),
            *([("nnsight", given.nnsight)] if given.nnsight else []),
        ]
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
