"""Deterministic mode: a thousand texts alone and in twenty random batches each, log-probabilities compared bit for bit; and its price.

    PYTHONPATH=tests/support python -m campaigns.deterministic [--prompts 1000] [--mixes 20] [--seed 1] [--pairs 5]

A mix has its own rows a step (1 to 64), rows a page, order and moments of arrival, cache or none, and pages that may be too few, so that
texts are preempted. Nothing is run twice. The outcome goes to benchmarks/results/deterministic.json.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pellucid import config as c
from pellucid.bench.machine import cpu
from pellucid.engine.engine import Engine
from pellucid.engine.requests import Output, Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.nn.transformer import Decoder, build
from pellucid.ops import native
from tiny import tiny

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "deterministic.json"
CASES = [(family, dtype) for family in ("llama", "gpt_oss", "deepseek_v3") for dtype in (torch.float32, torch.bfloat16)]
Answer = list[Any]  # the outputs of a text: tokens, log-probabilities, the likeliest


def random_request(draw: random.Random) -> Request:
    """Return a request, often with another's beginning. Half of them want their prompts scored, which no cache may spare."""
    start = [draw.randrange(3)] * draw.choice([0, 0, 16, 40])
    prompt = (*start, *(draw.randrange(97) for _ in range(draw.randint(1, 40))))
    return Request(prompt, draw.randint(1, 4), logprobs=2, scored=draw.random() < 0.5)


def run_requests(engine: Engine, requests: list[Request], arrive: Callable[[], int] = lambda: 1000) -> list[Answer]:
    """Return the answer of each request. arrive: the number of requests that are submitted before a step."""
    got: dict[int, Answer] = {}
    numbers, waiting = list[int](), list(requests)

    def note(outputs: list[Output]) -> None:
        for out in outputs:
            assert out.error is None and out.token is not None
            got.setdefault(out.request, []).append((out.token, out.scores))

    while waiting or not engine.idle:
        n = arrive()
        numbers += [engine.submit(r) for r in waiting[:n]]
        waiting = waiting[n:]
        note(engine.step())
    return [got[n] for n in numbers]


def mixed(model: Decoder, requests: list[Request], draw: random.Random, kv: str | None = None) -> list[Answer]:
    """Return the answers of the same requests in one random batch, in the order of the requests. kv: see Engine.of."""
    size, running = draw.choice([1, 2, 5, 16, 64]), draw.choice([30, 64])
    tokens = draw.choice([100, 200, 2000])
    limits, cached = SchedulerLimits(draw.randint(1, 64), running), draw.random() < 0.5
    engine = Engine.of(model, tokens, limits, size, prefix_cache=cached, deterministic=True, kv=kv)
    order = draw.sample(range(len(requests)), len(requests))
    answers = run_requests(engine, [requests[i] for i in order], lambda: draw.choice([0, 1, 3, 20]))
    back = {at: i for i, at in enumerate(order)}
    return [answers[back[i]] for i in range(len(requests))]


def alone(model: Decoder, requests: list[Request], kv: str | None = None) -> list[Answer]:
    """Return the answer of each request by itself, its prompt in one step, nothing cached."""
    engine = Engine.of(model, 200, SchedulerLimits(200), 200, prefix_cache=False, deterministic=True, kv=kv)
    return [run_requests(engine, [r])[0] for r in requests]


def campaign(prompts: int, mixes: int, seed: int, log: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Run `prompts` texts, shared out among the cases. Returns the number of answers that differed, by case and in all."""
    cases, began = [], time.perf_counter()
    for k, (family, dtype) in enumerate(CASES):
        draw = random.Random(f"{seed}:{k}")
        model = tiny(family, dtype)
        requests = [random_request(draw) for _ in range(len(range(k, prompts, len(CASES))))]
        lone = alone(model, requests)
        batches = [mixed(model, requests, draw) for _ in range(mixes)]
        wrong = sum(a != b for mix in batches for a, b in zip(lone, mix, strict=True))
        cases.append({"family": family, "dtype": str(dtype)[6:], "prompts": len(requests), "mixes": mixes, "differ": wrong})
        log(f"{cases[-1]}, {time.perf_counter() - began:.0f} s")
    return {"seed": seed, "prompts": prompts, "mixes": mixes, "differ": sum(case["differ"] for case in cases), "cases": cases}


LAYERS = 3  # of the shapes that are timed
SHAPES = {
    "GPT-2": c.Config(
        50257, 768, (c.Layer(c.Attention(12, 12, 64, bias=True, out_bias=True), c.Mlp(3072, "gelu_tanh", False, True)),) * LAYERS,
        True, 1e-5, "layer", 1024,
    ),
    "Qwen2.5-0.5B": c.Config(
        151936, 896, (c.Layer(c.Attention(14, 2, 64, c.Rope(64, 1e6), bias=True), c.Mlp(4864)),) * LAYERS, True, 1e-6
    ),
    "DeepSeek-V2-Lite, dense": c.Config(
        102400, 2048, (c.Layer(c.Latent(16, None, 512, 128, 128, c.Rope(64, 1e4)), c.Mlp(10944)),) * LAYERS, False, 1e-6
    ),
}  # fmt: skip
LOADS = {
    "prefill of 512": [(512, 1)], "prefill of 1000": [(1000, 1)], "16 of 64 + 16": [(64, 16)] * 16, "one of 16 + 32": [(16, 32)],
}  # fmt: skip


def price(pairs: int, log: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
    """Return seconds in deterministic and in normal mode, in alternating pairs, and the median ratio of a pair."""
    out = []
    for shape, cfg in SHAPES.items():
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            model: Any = build(cfg).eval().requires_grad_(False)
            for name, p in model.named_parameters():
                nn.init.normal_(p, std=0.02)
                p.data = (p.data + (p.ndim == 1 and "norm" in name)).to(dtype)
            for load, texts in LOADS.items():
                requests = [Request(tuple((i * 7919 + j * 104729) % 50257 for j in range(n)), new) for i, (n, new) in enumerate(texts)]
                engines = {
                    mode: Engine.of(model, 4096, SchedulerLimits(512), prefix_cache=False, deterministic=mode) for mode in (False, True)
                }
                seconds: dict[bool, list[float]] = {False: [], True: []}
                for pair in range(pairs + 1):
                    for mode in (False, True) if pair % 2 else (True, False):
                        began = time.perf_counter()
                        run_requests(engines[mode], requests)
                        seconds[mode].append(time.perf_counter() - began)
                ratios = [a / b for a, b in zip(seconds[True][1:], seconds[False][1:], strict=True)]  # the first one records
                out.append({
                    "shape": shape, "layers": LAYERS, "dtype": str(dtype)[6:], "load": load, "ratio": statistics.median(ratios),
                    "ratios": ratios, "normal": seconds[False][1:], "deterministic": seconds[True][1:],
                })  # fmt: skip
                log(f"{shape} {str(dtype)[6:]}, {load}: {out[-1]['ratio']:.2f}")
    return out


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--mixes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)

    def log(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    began, load = time.perf_counter(), os.getloadavg()
    report = {"schema": 1, "campaign": "deterministic", **campaign(a.prompts, a.mixes, a.seed, log), "price": price(a.pairs, log)}
    report |= {"seconds": round(time.perf_counter() - began, 1), "cpu": cpu(), "kernels": native.instructions(), "threads": a.threads}
    report |= {"torch": torch.__version__, "load_before": load}
    if a.prompts >= 1000 and a.mixes >= 20:
        RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in report.items() if k != "price"}, indent=1))
    return int(bool(report["differ"]))


if __name__ == "__main__":
    sys.exit(main())
