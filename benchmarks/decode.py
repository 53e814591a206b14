"""Tokens a second of one request on GPT-2's and Qwen2.5-0.5B's shapes, beside transformers and llama.cpp, in alternating pairs of one run.

    python benchmarks/decode.py [--shape gpt2 qwen2] [--held bfloat16 float32 int8 int4] [--pairs 5] [--threads 2] [--new 128]

Random weights, the same numbers for all; 32 tokens in, greedy. The bound comes first: bytes that a token must move over what the
memory gives, measured before and after each of our turns. Writes benchmarks/results/decode-<time>.json.
"""

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from shapes import GGUF, SHAPES, Held, gguf_file

from pellucid.engine.engine import Engine
from pellucid.engine.forward import Forward
from pellucid.engine.requests import Request
from pellucid.measuring.machine import cpu
from pellucid.models import Decoder
from pellucid.ops import native
from pellucid.ops.blocks import Blocks

HERE = Path(__file__).parent
PROMPT = 32
Turn = Callable[[], tuple[list[int], float, float]]  # tokens, seconds in all, seconds after the first token


theirs, ours = SHAPES["gpt2"].theirs, SHAPES["gpt2"].ours


def bytes_per_token(model: Decoder, length: int) -> dict[str, int]:
    """What a step at this length must read: every weight once but the table of positions, and the keys and values."""
    held = {name: p.bytes if isinstance(p, Blocks) else p.nbytes for name, p in model.named_parameters() if name != "positions.weight"}
    attn: Any = model.config.layers[0].attn
    row = 2 * attn.kv_heads * attn.width * len(model.config.layers) * model.embed.weight.element_size()
    return {"weights": sum(held.values()), "cache": length * row}


def our_turn(engine: Engine, ids: list[int], new: int) -> Turn:
    def turn() -> tuple[list[int], float, float]:
        began = time.perf_counter()
        engine.submit(Request(tuple(ids), new))
        out, first = engine.step(), time.perf_counter()
        out += engine.outputs()
        ended = time.perf_counter()
        return [news.token.id for news in out if news.token], ended - began, ended - first

    return turn


def their_turn(net: Any, ids: list[int], new: int) -> Turn:
    stamps: list[float] = []

    class Clock(transformers.StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            stamps.append(time.perf_counter())
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    def turn() -> tuple[list[int], float, float]:
        stamps.clear()
        began, x = time.perf_counter(), torch.tensor([ids])
        clocks = transformers.StoppingCriteriaList([Clock()])
        with torch.no_grad():
            y = net.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=new, do_sample=False, stopping_criteria=clocks)
        ended = time.perf_counter()
        return y[0, len(ids) :].tolist(), ended - began, stamps[-1] - stamps[0]

    return turn


def llama_turn(path: Path, threads: int, vocab: int, ids: list[int], new: int) -> Turn:
    """llama.cpp through its C interface, so that no Python stands between its steps but the choice of a token."""
    import llama_cpp as lc

    lc.llama_backend_init()
    quiet = lc.llama_log_callback(lambda *_: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    model = lc.llama_model_load_from_file(str(path).encode(), lc.llama_model_default_params())
    if not model:
        raise RuntimeError(f"llama.cpp does not load {path}")
    params = lc.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_threads, params.n_threads_batch = 512, 512, threads, threads
    context = lc.llama_init_from_model(model, params)

    def feed(tokens: list[int]) -> int:
        array = (lc.llama_token * len(tokens))(*tokens)
        if lc.llama_decode(context, lc.llama_batch_get_one(array, len(tokens))):
            raise RuntimeError("llama_decode failed")
        logits = np.ctypeslib.as_array(lc.llama_get_logits_ith(context, -1), (vocab,))
        return int(logits.argmax())

    def turn(keep: Any = quiet) -> tuple[list[int], float, float]:
        lc.llama_memory_clear(lc.llama_get_memory(context), True)
        began = time.perf_counter()
        out = [feed(ids)]
        first = time.perf_counter()
        while len(out) < new:
            out.append(feed(out[-1:]))
        ended = time.perf_counter()
        return out, ended - began, ended - first

    return turn


def agree(a: list[int], b: list[int]) -> int:
    """How many tokens two texts begin with in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def case(shape: Any, held: Held, pairs: int, threads: int, new: int, folder: Path) -> dict[str, Any]:
    from pellucid.measuring.limits import reading  # here: capture.py imports this file, and one of its processes must never have watched

    net = shape.theirs(held.dtype)
    model = shape.ours(net, held.dtype)
    ids = torch.randint(0, shape.vocab, (PROMPT,), generator=torch.Generator().manual_seed(7)).tolist()
    missing, llama = None, None
    try:
        path = folder / f"{shape.name}-{held.name}.gguf"
        gguf_file(shape, model, held.name, path)
        llama = llama_turn(path, threads, shape.vocab, ids, new)
    except (ImportError, RuntimeError) as error:
        missing = f"{type(error).__name__}: {error}"
    engine, block = Engine.of(held.packed(model), PROMPT + new, cached=False), torch.ones(64 << 20)
    turns = {"pellucid": our_turn(engine, ids, new)}
    if held.name in ("float32", "bfloat16"):  # transformers has no int8 or int4 of its own
        turns["transformers"] = their_turn(net, ids, new)
    else:
        del net
    if llama is not None:
        turns["llama.cpp"] = llama
    texts = {name: turn()[0] for name, turn in turns.items()}  # warm, and record the plan
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in turns}
    given: list[float] = []
    for i in range(pairs):
        for name in list(turns) if i % 2 == 0 else list(turns)[::-1]:
            if name == "pellucid":
                given.append(reading(block) / 1e9)
            _, whole, after = turns[name]()
            seen[name].append({"whole": new / whole, "decode": (new - 1) / after})
            if name == "pellucid":
                given.append(reading(block) / 1e9)
    moved = bytes_per_token(model, PROMPT + new // 2)
    middle = {name: {k: statistics.median(r[k] for r in rows) for k in ("whole", "decode")} for name, rows in seen.items()}
    ratios = {
        name: {k: statistics.median(a[k] / b[k] for a, b in zip(seen["pellucid"], seen[name], strict=True)) for k in ("whole", "decode")}
        for name in turns
        if name != "pellucid"
    }
    bound = statistics.median(given) * 1e9 / sum(moved.values())
    plan = cast(Forward, engine.run).plans.places[1].plan
    return {
        "shape": shape.name,
        "held": held.name,
        "tokens_per_second": seen,
        "median": middle,
        "ratio_per_pair_median": ratios,
        "bandwidth_gb_s": {"each": given, "median": statistics.median(given), "best": max(given)},
        "bytes_per_token": moved,
        "bound_tokens_per_second": bound,
        "share_of_bound": middle["pellucid"]["decode"] / bound,
        "planned": plan is not None,
        "calls_in_plan": len(plan.lines) if plan else 0,
        "first_tokens_alike": {name: agree(texts["pellucid"], text) for name, text in texts.items() if name != "pellucid"},
        "llama_cpp_missing": missing,
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


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--pairs", type=int, default=5)
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--new", type=int, default=128)
    ask.add_argument("--shape", nargs="+", default=[*SHAPES], choices=SHAPES)
    ask.add_argument("--held", nargs="+", default=[*GGUF], choices=GGUF)
    ask.add_argument("--out", type=Path, default=HERE / "results")
    a = ask.parse_args()
    torch.set_num_threads(a.threads)
    report: dict[str, Any] = {"schema": 1, "benchmark": "decode", "prompt": PROMPT, "new": a.new, "cases": []}
    report["machine"] = machine(a.threads)
    with tempfile.TemporaryDirectory() as folder:
        for shape, name in product(a.shape, a.held):
            result = case(SHAPES[shape], Held(name), a.pairs, a.threads, a.new, Path(folder))
            report["cases"].append(result)
            line = {k: round(v["decode"], 1) for k, v in result["median"].items()}
            ratios = {k: round(v["decode"], 2) for k, v in result["ratio_per_pair_median"].items()}
            bound, share = round(result["bound_tokens_per_second"], 1), round(result["share_of_bound"], 2)
            print(shape, name, line, "ratios", ratios, "bound", bound, "share", share, result["llama_cpp_missing"] or "", flush=True)
    a.out.mkdir(parents=True, exist_ok=True)
    path = a.out / f"decode-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
