"""Tokens a second of one request on the shapes of GPT-2, Qwen2.5-0.5B and Qwen3.5-0.8B, beside transformers and llama.cpp, in pairs.
Beside ik_llama.cpp too, if its `llama-bench` is given (built from its repository: cmake, `make llama-bench`).

    python benchmarks/decode.py [--shape gpt2 qwen2 qwen3_5] [--held bfloat16 float32 int8 int4] [--pairs 5] [--threads 2] [--new 128]
    python benchmarks/decode.py --ik llama-bench
    python benchmarks/decode.py --outside       # only what a token takes outside the kernels, in single steps and in bursts; a minute
    python benchmarks/decode.py --busy          # only steps beside a busy process for each thread, on all threads and on those chosen
    python benchmarks/decode.py --kv 4096       # only steps after that many tokens, keys and values in int8 beside plain ones, in pairs

Random weights, the same numbers for all; 32 tokens in, greedy; then prompts of 512. The bound comes first: bytes that a token must move
over the most that the memory gives, measured before and after each of our turns. Writes benchmarks/results/decode-<time>.json.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
import transformers
from shapes import GGUF, SHAPES, WeightFormat, gguf_file

from pellucid import config as c
from pellucid import huge_pages
from pellucid.bench.machine import cpu
from pellucid.bench.machine_limits import reading
from pellucid.bench.peers import Turn, llama_turn, our_turn, their_turn
from pellucid.engine.engine import Engine
from pellucid.engine.forward import Forward
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder
from pellucid.ops import native
from pellucid.ops.blocks import Blocks
from pellucid.ops.sampling.settings import Sampling

HERE = Path(__file__).parent
PROMPT, PREFILL = 32, 512
CHOICES = {"greedy": Sampling(), "sampled": Sampling(0.7, top_k=40, top_p=0.95, seed=1), "any token": Sampling(1.0, seed=1)}


def bytes_per_token(model: Decoder, length: int) -> dict[str, int]:
    """What a step at this length must move: every weight once but the table of positions, keys and values, and states both ways."""
    held = {name: p.bytes if isinstance(p, Blocks) else p.nbytes for name, p in model.named_parameters() if name != "positions.weight"}
    specs = [layer.attn for layer in model.config.layers]
    row = sum(2 * a.kv_heads * a.width for a in specs if isinstance(a, c.Attention)) * model.embed.weight.element_size()
    return {"weights": sum(held.values()), "cache": length * row, "states": sum(8 * a.state for a in specs)}


def ik_turn(program: Path, path: Path, threads: int, more: tuple[str, ...], ids: list[int], new: int) -> tuple[str, Turn]:
    """Return a turn of ik_llama.cpp's own benchmark on random tokens, its second one of two: the first finds memory untouched."""
    after = ("-gp", f"{len(ids)},{new - 1}") if new > 1 else ()
    words = ["-m", path, "-t", threads, "-r", 2, "-o", "json", "-p", len(ids), "-n", 0, *after]

    def turn() -> tuple[list[int], float, float]:
        done = subprocess.run([program, *map(str, words), *more], capture_output=True, text=True, check=True)
        prompt, *rest = (test["samples_ns"][-1] / 1e9 for test in json.loads(done.stdout))
        return [], prompt + sum(rest), sum(rest)

    return f"ik_llama.cpp{', repacked' if more else ''}", turn


def agree(a: list[int], b: list[int]) -> int:
    """How many tokens two texts begin with in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def alternating(turns: dict[str, Turn], pairs: int, around: Callable[[], None] = lambda: None) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each turn, in all and after the first token, every other time backwards. around: called before and after ours."""
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
    for i in range(pairs):
        for name in list(turns) if i % 2 == 0 else list(turns)[::-1]:
            if name == "pellucid":
                around()
            seen[name].append(turns[name]()[1:])
            if name == "pellucid":
                around()
    return seen


def ratios(seen: dict[str, list[tuple[float, float]]], part: int) -> dict[str, float]:
    """How many times as fast we are, the median of the pairs. part: 0 of the whole, 1 after the first token."""
    others = {name: rows for name, rows in seen.items() if name != "pellucid"}
    return {n: statistics.median(b[part] / a[part] for a, b in zip(seen["pellucid"], rows, strict=True)) for n, rows in others.items()}


def outside(engine: Engine, ids: list[int], new: int) -> dict[str, dict[str, float]]:
    """Seconds of a token beside its kernels, by the way to choose it and to run steps."""
    most = SchedulerLimits().burst
    ways = {"single": (1, False), "streamed burst": (most, True), "burst": (most, False)}
    return {choice: {way: beside(engine, ids, new, s, *how) for way, how in ways.items()} for choice, s in CHOICES.items()}


def beside(engine: Engine, ids: list[int], new: int, sampling: Sampling, burst: int, streamed: bool) -> float:
    """Seconds of a token beside the native call that replays its plan, the median. A burst's call chooses tokens too; see Request."""
    limits, engine.limits = engine.limits, replace(engine.limits, burst=burst)
    engine.submit(Request(tuple(ids), new, sampling, streamed=streamed))
    seconds, inside = list[float](), list[float]()

    def within(call: Any) -> Any:
        def run(self: native.Plan, *given: Any) -> Any:
            began = time.perf_counter()
            out = call(self, *given)
            inside.append(time.perf_counter() - began)
            return out

        return run

    for _ in range(3):  # the prompt, and a step that records a plan if there is none yet
        engine.step()
    with patch.object(native.Plan, "replay", within(native.Plan.replay)), patch.object(native.Plan, "burst", within(native.Plan.burst)):
        while not engine.idle:
            inside.clear()
            began = time.perf_counter()
            tokens = len(engine.step())
            whole = time.perf_counter() - began
            if inside and not engine.idle:  # the last one also gives pages back
                seconds.append((whole - sum(inside)) / tokens)
    engine.limits = limits
    return statistics.median(seconds) if seconds else math.nan


def outside_alone(shape: Any, held: WeightFormat, new: int) -> dict[str, Any]:
    """What a token takes outside the kernels, and nothing else."""
    model = shape.ours(shape.theirs(held.dtype), held.dtype)
    draw = torch.Generator().manual_seed(7)
    ids = torch.randint(0, shape.vocab, (PROMPT,), generator=draw).tolist()
    engine = Engine.of(held.packed(model), PROMPT + new, prefix_cache=False)
    list(our_turn(engine, ids, 4)())
    return {"shape": shape.name, "held": held.name, "seconds_outside_kernels": outside(engine, ids, new)}


def case(shape: Any, held: WeightFormat, pairs: int, threads: int, new: int, folder: Path, ik: Path | None) -> dict[str, Any]:
    net = shape.theirs(held.dtype)
    model = shape.ours(net, held.dtype)
    draw, missing = torch.Generator().manual_seed(7), None
    ids, prompt = (torch.randint(0, shape.vocab, (n,), generator=draw).tolist() for n in (PROMPT, PREFILL))
    path = folder / f"{shape.name}-{held.name}.gguf"
    peers: list[Callable[[list[int], int], tuple[str, Turn]]] = []
    if held.name in ("float32", "bfloat16"):  # transformers has no int8 or int4 of its own
        peers.append(lambda ids, new: ("transformers", their_turn(net, ids, new)))
    try:
        gguf_file(shape, model, held.name, path)
        if ik is not None and shape is not SHAPES["gpt2"]:  # which it does not run: no tied head, no epsilon of a LayerNorm
            peers += [partial(ik_turn, ik, path, threads, more) for more in ((), ("-rtr", "1"))]
        llama_turn(path, threads, shape.vocab, ids, new)
        peers.append(lambda ids, new: ("llama.cpp", llama_turn(path, threads, shape.vocab, ids, new)))
    except (ImportError, RuntimeError, UseError) as error:
        missing = f"{type(error).__name__}: {error}"
    block, given = huge_pages.empty((64 << 20,), torch.float32).fill_(1.0), list[float]()
    engine = Engine.of(held.packed(model), PREFILL + new, prefix_cache=False)
    turns: dict[str, Turn] = {"pellucid": our_turn(engine, ids, new), **dict(peer(ids, new) for peer in peers)}
    texts = {name: turn()[0] for name, turn in turns.items()}  # warm, and record the plan
    seen = alternating(turns, pairs, lambda: given.append(reading(block) / 1e9))
    turns = {"pellucid": our_turn(engine, prompt, 1), **dict(peer(prompt, 1) for peer in peers)}
    for turn in turns.values():
        turn()
    read = alternating(turns, pairs)
    moved = bytes_per_token(model, PROMPT + new // 2)
    rate = {
        n: {"whole": new / statistics.median(w for w, _ in s), "decode": (new - 1) / statistics.median(a for _, a in s)}
        for n, s in seen.items()
    }
    bound = max(given) * 1e9 / sum(moved.values())
    plan = cast(Forward, engine.run).plans.buffers[1].plan
    return {
        "shape": shape.name,
        "held": held.name,
        "seconds": seen,
        "tokens_per_second": rate,
        "ratio_per_pair_median": {"whole": ratios(seen, 0), "decode": ratios(seen, 1)},
        "prefill": {
            "tokens": PREFILL,
            "seconds": {name: [whole for whole, _ in s] for name, s in read.items()},
            "tokens_per_second": {name: PREFILL / statistics.median(whole for whole, _ in s) for name, s in read.items()},
            "ratio_per_pair_median": ratios(read, 0),
        },
        "bandwidth_gb_s": {"each": given, "median": statistics.median(given), "best": max(given)},
        "bytes_per_token": moved,
        "bound_tokens_per_second": bound,
        "share_of_bound": rate["pellucid"]["decode"] / bound,
        "bound_over_peer": {name: bound / r["decode"] for name, r in rate.items() if name != "pellucid"},
        "seconds_outside_kernels": outside(engine, ids, new),
        "calls_in_plan": len(plan.calls) if plan else 0,
        "first_tokens_alike": {name: agree(texts["pellucid"], text) for name, text in texts.items() if text and name != "pellucid"},
        "llama_cpp_missing": missing,
    }


def in_two_formats(shape: Any, held: WeightFormat, context: int, new: int, pairs: int) -> dict[str, Any]:
    """Seconds of a token after `context` others, with keys and values plain and in int8, in pairs; and the bytes of their rows."""
    model = held.packed(shape.ours(shape.theirs(held.dtype), held.dtype))
    ids = torch.randint(0, shape.vocab, (context,), generator=torch.Generator().manual_seed(7)).tolist()
    engines = {kv: Engine.of(model, context + new, prefix_cache=False, kv=kv) for kv in (None, "int8")}
    turns = {kv: our_turn(engine, ids, new) for kv, engine in engines.items()}
    for turn in turns.values():
        turn()
    seen: dict[str, list[float]] = {str(kv): [] for kv in turns}
    for i in range(pairs):
        for kv in list(turns)[:: 1 if i % 2 == 0 else -1]:
            seen[str(kv)].append(turns[kv]()[2] / (new - 1))
    return {
        "shape": shape.name,
        "held": held.name,
        "context": context,
        "seconds_a_token": seen,
        "bytes_a_row": {str(kv): e.storage.pages.bytes_per_token() for kv, e in engines.items()},  # type: ignore[attr-defined]
        "int8_over_plain": statistics.median(b / a for a, b in zip(seen["None"], seen["int8"], strict=True)),
    }


def among_others(shape: Any, held: WeightFormat, threads: int, new: int, pairs: int) -> dict[str, Any]:
    """Seconds of a token alone, and with a busy process for each thread: on all threads, and on as many as the engine chooses, in pairs.

    A fair share of the processors would take twice the time of the token alone.
    """
    model = held.packed(shape.ours(shape.theirs(held.dtype), held.dtype))
    ids = torch.randint(0, shape.vocab, (PROMPT,), generator=torch.Generator().manual_seed(7)).tolist()
    engine, chosen = Engine.of(model, PROMPT + new, prefix_cache=False), list[int]()
    choice = cast(Forward, engine.run).threads
    turn, number = our_turn(engine, ids, new), choice.number
    turn()

    def seconds(all_of_them: bool) -> float:
        choice.number = (lambda rows: threads) if all_of_them else number  # type: ignore[method-assign]
        took = turn()[2] / (new - 1)
        chosen.append(number(0))
        return took

    alone = [seconds(True) for _ in range(pairs)]
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(threads)]
    try:
        seconds(False)  # the engine looks about
        each = [(seconds(True), seconds(False)) for _ in range(pairs)]
    finally:
        for other in others:
            other.kill()
    return {
        "shape": shape.name,
        "held": held.name,
        "alone": alone,
        "all_threads": [a for a, _ in each],
        "chosen_threads": [b for _, b in each],
        "numbers": chosen[pairs:],
        "over_a_fair_share": statistics.median(b for _, b in each) / (2 * statistics.median(alone)),
        "chosen_over_all": statistics.median(b / a for a, b in each),
    }


def machine(threads: int) -> dict[str, Any]:
    """Where this ran, and with what."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    try:
        import llama_cpp

        versions["llama-cpp-python"] = llama_cpp.__version__
    except ImportError:
        versions["llama-cpp-python"] = "-"
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False)
    return {
        "cpu": cpu(), "torch_sees": torch.backends.cpu.get_cpu_capability(), "kernels": native.instructions(), "threads": threads,
        "versions": versions, "commit": git.stdout.strip(), "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "load_before": os.getloadavg(),
    }  # fmt: skip


def told(case: dict[str, Any]) -> None:
    """One line of what was measured."""
    rates = {name: round(r["decode"], 1) for name, r in case["tokens_per_second"].items()}
    faster, read = (
        {n: round(r, 2) for n, r in x.items()} for x in (case["ratio_per_pair_median"]["decode"], case["prefill"]["ratio_per_pair_median"])
    )
    print(case["shape"], case["held"], rates, "ratios", faster, "prefill", read, case["llama_cpp_missing"] or "")
    print(f"  bound {case['bound_tokens_per_second']:.1f}, share {case['share_of_bound']:.2f}", flush=True)
    told_outside(case["seconds_outside_kernels"])


def told_outside(seconds: dict[str, dict[str, float]]) -> None:
    """One line of what a token takes outside the kernels."""
    ways = (f"{choice} {way} {s * 1e6:.0f}" for choice, by_way in seconds.items() for way, s in by_way.items())
    print("  outside the kernels, microseconds a token:", ", ".join(ways), flush=True)


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--pairs", type=int, default=5)
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--new", type=int, default=128)
    ask.add_argument("--shape", nargs="+", default=[*SHAPES], choices=SHAPES)
    ask.add_argument("--held", nargs="+", default=[*GGUF], choices=GGUF)
    ask.add_argument("--ik", type=Path, metavar="LLAMA_BENCH", help="ik_llama.cpp's own benchmark, to run beside us")
    ask.add_argument("--outside", action="store_true")
    ask.add_argument("--busy", action="store_true")
    ask.add_argument("--kv", type=int, metavar="CONTEXT")
    ask.add_argument("--out", type=Path, default=HERE / "results")
    a = ask.parse_args()
    torch.set_num_threads(a.threads)
    report: dict[str, Any] = {"schema": 1, "benchmark": "decode", "prompt": PROMPT, "new": a.new, "cases": []}
    report["machine"] = machine(a.threads)
    with tempfile.TemporaryDirectory() as folder:
        for shape, name in product(a.shape, a.held):
            if a.outside:
                result = outside_alone(SHAPES[shape], WeightFormat(name), a.new)
                print(shape, name)
                told_outside(result["seconds_outside_kernels"])
            elif a.busy:
                result = among_others(SHAPES[shape], WeightFormat(name), a.threads, a.new, a.pairs)
                print(shape, name, f"{result['over_a_fair_share']:.2f} of a fair share's time, threads {result['numbers']}", flush=True)
            elif a.kv is not None:
                result = in_two_formats(SHAPES[shape], WeightFormat(name), a.kv, a.new, a.pairs)
                print(shape, name, f"int8 over plain {result['int8_over_plain']:.2f}", result["bytes_a_row"], flush=True)
            else:
                result = case(SHAPES[shape], WeightFormat(name), a.pairs, a.threads, a.new, Path(folder), a.ik)
                told(result)
            report["cases"].append(result)
    a.out.mkdir(parents=True, exist_ok=True)
    path = a.out / f"decode-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
