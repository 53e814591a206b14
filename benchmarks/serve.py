"""Many requests at once at Qwen2.5-0.5B's shape in bf16, beside transformers; a shared beginning; and what watching one of many costs.

    python benchmarks/serve.py [--requests 16] [--pairs 5] [--threads 2] [--only crowd|arrival|prefix|watching] [--quick] [--out FILE]

16 mixed requests, 2,297 tokens in and 1,145 out, their lengths drawn from a seed: our engine, transformers' generate over a padded batch,
its continuous batching and llama.cpp's server, in alternating turns of one run; --requests 64 has four times as many. Then a prompt of
2,048 tokens that arrives while four texts decode: what they wait for their tokens, with the limit of `pellucid serve` and without one.
Then 1,024 tokens that the prefix cache knows and 16 new ones, beside a bare forward of 16 rows at that context. Then a crowd's step while
one of it is watched, and 30 pairs of steps that nobody watches. Random weights, the same numbers for all; the bound comes first.
--quick: small shapes, to see that it runs.
Writes benchmarks/results/serve.json after each of the four; --only measures one anew and keeps what the file tells of the others.
"""

import argparse
import copy
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from decode import machine
from llama_server import Server, serving
from shapes import Qwen2, gguf_file

from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.step import Step
from pellucid.bench.batch_load import first, mixed
from pellucid.bench.machine_limits import Gauge, timed
from pellucid.engine.engine import Engine
from pellucid.engine.memory import PAGE
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.nn.transformer import Decoder
from pellucid.server.openai.served_model import STALL

HERE = Path(__file__).parent
PARTS = ["crowd", "arrival", "prefix", "watching"]
SEED = 3
Texts = list[list[int]]
Turn = Callable[[], tuple[float, Texts]]  # seconds, and what each request got


class Small(Qwen2):
    """The same with few numbers."""

    name, vocab, width, ffn, layers, heads, kv_heads = "small", 1009, 64, 160, 2, 4, 2


def our_turn(model: Decoder, asked: Sequence[Request], rows: int) -> Turn:
    engine = Engine.of(model, sum(-(-r.budget // PAGE) * PAGE for r in asked), SchedulerLimits(rows, len(asked), len(asked)))

    def turn() -> tuple[float, Texts]:
        engine.storage.forget()
        began = time.perf_counter()
        numbers = [engine.submit(r) for r in asked]
        got = dict[int, list[int]]()
        for output in engine.outputs():
            if output.token is not None:
                got.setdefault(output.request, []).append(output.token.id)
        return time.perf_counter() - began, [got[n] for n in numbers]

    return turn


def padded_turn(net: Any, asked: Sequence[Request]) -> Turn:
    """Padded on the left, and as long as the longest."""
    width, new = max(len(r.prompt) for r in asked), max(r.new for r in asked)
    ids = torch.tensor([[0] * (width - len(r.prompt)) + list(r.prompt) for r in asked])
    mask = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in asked])

    def turn() -> tuple[float, Texts]:
        began = time.perf_counter()
        with torch.no_grad():
            out = net.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False)
        return time.perf_counter() - began, [row[width : width + r.new].tolist() for row, r in zip(out, asked, strict=True)]

    return turn


def continuous_turn(net: Any, asked: Sequence[Request]) -> Turn:
    """A manager that was started before; its first turn warms it up."""
    how = transformers.GenerationConfig(do_sample=False, max_new_tokens=max(r.new for r in asked), pad_token_id=0, eos_token_id=-1)
    blocks = sum(-(-r.budget // 256) for r in asked) + len(asked)
    batching = transformers.generation.configuration_utils.ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=512)
    manager = net.init_continuous_batching(generation_config=how, continuous_batching_config=batching)
    manager.start()

    def turn() -> tuple[float, Texts]:
        began, got = time.perf_counter(), dict[str, list[int]]()
        names = [manager.add_request(list(r.prompt), max_new_tokens=r.new) for r in asked]
        while len(got) < len(asked):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                if result.error is not None:
                    raise RuntimeError(result.error)
                got[result.request_id] = list(result.generated_tokens)
            elif result is None and not manager.is_running():
                raise RuntimeError("transformers' continuous batching has stopped")
        return time.perf_counter() - began, [got[name] for name in names]

    turn.stop = lambda: manager.stop(block=True)  # type: ignore[attr-defined]
    return turn


def bound(model: Decoder, asked: Sequence[Request], gauge: Gauge) -> dict[str, float]:
    """Below which no engine can go: all weights for each token of the longest, each text's past for each of its tokens, the products.

    At the best rates that the gauge has met; and what the same takes at the medians, which is all that a busy host gives.
    """
    cfg, held = model.config, next(model.parameters())
    weights = sum(p.nbytes for p in model.parameters())
    row = sum(2 * layer.attn.kv_heads * layer.attn.width for layer in cfg.layers) * held.element_size()  # type: ignore[union-attr]
    cache = sum(row * (len(r.prompt) + i) for r in asked for i in range(r.new))
    flops = 2 * sum(p.numel() for n, p in model.named_parameters() if n.startswith("layers.")) * sum(r.budget for r in asked)
    limits, moved = gauge.limits, weights * max(r.new for r in asked) + cache
    seconds = moved / limits.device.bandwidth + flops / limits.device.peak["bfloat16"]
    usual = moved / max(rate.median for rate in limits.read.values()) + flops / limits.product["bfloat16"].median
    return {
        "weights": weights,
        "past": cache,
        "flops": flops,
        "seconds": seconds,
        "seconds_at_median_rates": usual,
        "tokens_per_second": sum(r.new for r in asked) / seconds,
    }


def alternating(turns: dict[str, Turn], pairs: int, gauge: Gauge) -> dict[str, list[float]]:
    """Seconds of each, in turn, every other time backwards; the gauge measures before and after ours."""
    seen: dict[str, list[float]] = {name: [] for name in turns}
    for i in range(pairs):
        for name in list(turns) if i % 2 == 0 else list(turns)[::-1]:
            if name == "pellucid":
                gauge.measure()
            seen[name].append(turns[name]()[0])
            if name == "pellucid":
                gauge.measure()
    return seen


def per_pair(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How many times as fast we are, the median of the pairs."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def crowd(model: Decoder, net: Any, llama: Server | None, asked: list[Request], pairs: int, gauge: Gauge) -> dict[str, Any]:
    """Mixed requests."""
    missing: dict[str, str] = {}
    turns = {"pellucid": our_turn(model, asked, 512), "transformers, padded": padded_turn(net, asked)}
    try:
        turns["transformers, continuous"] = continuous_turn(copy.deepcopy(net), asked)
    except Exception as error:
        missing["transformers, continuous"] = f"{type(error).__name__}: {error}"
    if llama is not None:
        turns["llama-server"] = lambda: llama.crowd(asked)
    texts = {}
    for name in list(turns):  # warm, and record the plans
        try:
            texts[name] = turns[name]()[1]
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"
            del turns[name]
    seen = alternating(turns, pairs, gauge)
    if (stop := getattr(turns.get("transformers, continuous"), "stop", None)) is not None:
        stop()
    written = sum(r.new for r in asked)
    return {
        "seed": SEED, "read": [len(r.prompt) for r in asked], "written": [r.new for r in asked],
        "seconds": seen, "useful_tokens_per_second": {n: written / statistics.median(s) for n, s in seen.items()},
        "ratio_per_pair_median": {n: per_pair(seen["pellucid"], s) for n, s in seen.items() if n != "pellucid"},
        "texts_alike": {n: sum(a == b for a, b in zip(t, texts["pellucid"], strict=True)) for n, t in texts.items() if n != "pellucid"},
        "missing": missing,
    }  # fmt: skip


def arrival(model: Decoder, long: int, texts: int, new: int, pairs: int) -> dict[str, Any]:
    """Seconds between the moments in which a text gets tokens, before and while a prompt of `long` tokens is read; and to its first."""
    ways: dict[str, float | None] = {"stall 2": STALL, "no limit": None}
    out: dict[str, Any] = {"prompt": long, "texts": texts, "pairs": pairs, "turns": {name: [] for name in ways}}
    draw = torch.Generator().manual_seed(2)

    def turn(stall: float | None) -> dict[str, Any]:
        limits = SchedulerLimits(512, texts + 1, texts + 1, stall=stall)
        engine = Engine.of(model, (texts + 1) * (long + new), limits, prefix_cache=False)
        for ids in torch.randint(model.config.vocab, (texts, PAGE), generator=draw).tolist():
            engine.submit(Request(tuple(ids), new))
        number, waits, asked, first = -1, {False: list[float](), True: list[float]()}, 0.0, 0.0
        last: dict[int, float] = {}
        while not first and not engine.idle:
            if len(waits[False]) >= 32 * texts and number < 0:
                number = engine.submit(Request(tuple(torch.randint(model.config.vocab, (long,), generator=draw).tolist()), 1))
                asked = time.perf_counter()
            got = {output.request for output in engine.step() if output.token is not None}
            now = time.perf_counter()
            first = now - asked if number in got else 0.0
            for r in got - {number}:
                if r in last:
                    waits[number >= 0].append(now - last[r])
                last[r] = now
        before, during = (statistics.median(some) for some in waits.values())
        p99 = statistics.quantiles(waits[True], n=100)[-1]
        return {"before": before, "median": during, "p99": p99, "first": first, "waits": len(waits[True]), "p99_over_before": p99 / before}

    for i in range(pairs + 1):
        for name in list(ways) if i % 2 == 0 else list(ways)[::-1]:
            out["turns"][name].append(turn(ways[name]))
    for name, turns in out["turns"].items():
        del turns[0]  # it warms up
        out[name] = {what: statistics.median(t[what] for t in turns) for what in turns[0]}
    return out


def prefix(model: Decoder, net: Any, llama: Server | None, known: int, new: int, pairs: int) -> dict[str, Any]:
    """The first token after a long beginning and a few new tokens: cold, warm, and a bare forward of the new rows at that context."""
    ours = first(model, known + new, runs=pairs)
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(model.config.vocab, (1, known + new), generator=draw)
    pages = PagedCache(-(-(known + new) // PAGE), PAGE)
    with torch.no_grad():
        step = Step.paged(pages, {0: known})
        step.wanted = torch.tensor([known - 1])
        model(ids[:, :known], step)
        step.advance()
        step = Step.paged(pages, {0: new})
        step.wanted = torch.tensor([new - 1])
        bare = [timed(lambda: model(ids[:, known:], step)) for _ in range(pairs + 1)][1:]
        cache = net(ids[:, :known], logits_to_keep=1).past_key_values
        theirs: dict[str, list[float]] = {"cold": [], "warm": []}
        served: dict[str, list[float]] = {"cold": [], "warm": []}
        other = torch.randint(model.config.vocab, (pairs, new), generator=draw).tolist()  # a warm turn must not know its last rows
        for i in range(pairs):
            theirs["cold"].append(timed(lambda: net(ids, logits_to_keep=1)))
            again = copy.deepcopy(cache)
            theirs["warm"].append(timed(lambda again=again: net(ids[:, known:], past_key_values=again, logits_to_keep=1)))  # type: ignore[misc]
            if llama is not None:
                begin = ids[0, :known].tolist()
                served["cold"].append(llama.first(begin + other[i], known=False))
                served["warm"].append(llama.first(begin + other[i][::-1], known=True))
    middle = {name: statistics.median(s) for name, s in (("cold", ours.cold), ("warm", ours.warm), ("bare", bare))}
    return {
        "known": known, "new": new, "cached": ours.cached,
        "seconds": {"cold": ours.cold, "warm": ours.warm, "bare": bare, "transformers": theirs, "llama-server": served},
        "median": middle, "warm_over_bare": middle["warm"] / middle["bare"], "cold_over_warm": middle["cold"] / middle["warm"],
        "against_transformers": {k: statistics.median(theirs[k]) / middle[k] for k in theirs},
        "against_llama_server": {k: statistics.median(s) / middle[k] for k, s in served.items() if s},
    }  # fmt: skip


def watching(model: Decoder, count: int, known: int, pairs: int) -> dict[str, Any]:
    """Steps of a crowd: nobody watched twice over, then one of it watched and nobody in turn; and whether the texts are the same."""
    asked = [replace(r, new=8 * pairs + 9) for r in mixed(count, model.config.vocab, known * count, count, SEED)]
    tokens = sum(-(-r.budget // PAGE) * PAGE for r in asked)
    out: dict[str, Any] = {"requests": count, "pairs": pairs}

    def began(watched: bool = False) -> Engine:
        engine = Engine.of(model, tokens, SchedulerLimits(2048, count, count, burst=1), prefix_cache=False)
        for r in asked:
            engine.submit(r)
        for _ in range(4):
            engine.step()
        if watched:
            with engine.watch(1):
                engine.step()
        return engine

    def seconds(engine: Engine, texts: dict[int, list[int]]) -> float:
        def step() -> None:
            for output in engine.step():
                if output.token is not None:
                    texts.setdefault(output.request, []).append(output.token.id)

        return timed(step)

    a, b, ours, theirs = began(), began(watched=True), [], []
    a.step()
    for _ in range(pairs):
        ours.append(seconds(a, {}))
        theirs.append(seconds(b, {}))
    out["watched_before_over_never"] = 1 / per_pair(theirs, ours)
    del a, b
    for name, how in {"every tensor": {}, "layers.*.out": {"only": "layers.*.out"}}.items():
        engine, plain = began(), began()
        on: list[float] = []
        off: list[float] = []
        texts: dict[int, list[int]] = {}
        truth: dict[int, list[int]] = {}
        for i in range(2 * pairs):
            with engine.watch(1, **how) if i % 2 else nullcontext():  # type: ignore[arg-type]
                (on if i % 2 else off).append(seconds(engine, texts))
            seconds(plain, truth)
        out[name] = {
            "watched": on,
            "unwatched": off,
            "watched_over_unwatched": per_pair(off, on),
            "texts_changed": sum(texts[n] != truth[n] for n in truth),
        }
    return out


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--requests", type=int, default=16)
    ask.add_argument("--pairs", type=int, default=5)
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--only", choices=PARTS)
    ask.add_argument("--quick", action="store_true")
    ask.add_argument("--out", type=Path, default=HERE / "results" / "serve.json")
    a = ask.parse_args()
    torch.set_num_threads(a.threads)
    transformers.logging.set_verbosity_error()
    shape = Small() if a.quick else Qwen2()
    count, read, written, known, watched = (6, 120, 60, 128, 3) if a.quick else (a.requests, 2297, 1145, 1024, 30)
    read, written = (n if a.quick else n * count // 16 for n in (read, written))
    wanted = [a.only] if a.only else PARTS
    report: dict[str, Any] = json.loads(a.out.read_text()) if a.only and a.out.exists() else {}
    report |= {"schema": 2, "benchmark": "serve", "shape": shape.name, "dtype": "bfloat16", "quick": a.quick}

    def write(part: str, found: dict[str, Any]) -> None:
        report[part] = found | {"machine": machine(a.threads)}
        a.out.parent.mkdir(parents=True, exist_ok=True)
        a.out.write_text(json.dumps(report, indent=1) + "\n")

    net = shape.theirs(torch.bfloat16)
    model = shape.ours(net, torch.bfloat16)
    asked = mixed(count, shape.vocab, read, written, SEED)
    gauge = Gauge(a.threads, sum(p.nbytes for p in model.parameters()))
    with ExitStack() as open_until:
        llama, absent = None, {}
        try:
            file = Path(open_until.enter_context(tempfile.TemporaryDirectory())) / "model.gguf"
            gguf_file(shape, model, "bfloat16", file)
            room = max(sum(r.budget for r in asked), known + 64)
            llama = open_until.enter_context(serving(file, a.threads, count, room + 256 * count))
        except (ImportError, OSError, RuntimeError) as error:
            absent = {"llama-server": f"{type(error).__name__}: {error}"}
        if "crowd" in wanted:
            found = crowd(model, net, llama, asked, a.pairs, gauge)
            found["missing"] |= absent
            found["bound"] = bound(model, asked, gauge)
            ours = statistics.median(found["seconds"]["pellucid"])
            found["share_of_bound"] = found["bound"]["seconds"] / ours
            found["share_of_bound_at_median_rates"] = found["bound"]["seconds_at_median_rates"] / ours
            write("crowd", found)
            told(report, "crowd", "bound", "useful_tokens_per_second", "ratio_per_pair_median", "texts_alike", "missing")
            told(report, "crowd", "share_of_bound", "share_of_bound_at_median_rates")
        if "arrival" in wanted:
            write("arrival", arrival(model, 2 * known, 4, 6 * known, a.pairs))
            told(report, "arrival", "stall 2", "no limit")
        if "prefix" in wanted:
            write("prefix", prefix(model, net, llama, known, 16, a.pairs))
            told(report, "prefix", "median", "warm_over_bare", "cold_over_warm", "against_transformers", "against_llama_server")
    del net
    gc.collect()
    if "watching" in wanted:
        write("watching", watching(model, count, known // 8, watched))
        told(report, "watching", "watched_before_over_never")
        for name in ("every tensor", "layers.*.out"):
            print(f"  {name}", report["watching"][name]["watched_over_unwatched"], report["watching"][name]["texts_changed"], flush=True)
    print(a.out)


def told(report: dict[str, Any], part: str, *names: str) -> None:
    print(part, {n: report[part][n] for n in names}, flush=True)


if __name__ == "__main__":
    main()
