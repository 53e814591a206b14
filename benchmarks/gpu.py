"""Tokens a second on a GPU, in bf16, of an 8B and of a 30B-A3B shape, at batches of 1 and 64, beside transformers' generate.

    python benchmarks/gpu.py [--shape llama-3.1-8b qwen3-30b-a3b] [--batch 1 64] [--new 128] [--pairs 3] [--alone]
    python benchmarks/gpu.py --tune            # products of one row by the kernel's settings, beside torch's; a minute

Random weights, the same for both where the card holds them. The bound comes first: the bytes of weights that a step must read, over what a
copy moves on this card. Writes benchmarks/results/gpu-<time>.json. Without a GPU it says so in one line.
"""

import argparse
import gc
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from pellucid import catalog
from pellucid.api.model import make
from pellucid.engine.engine import Engine
from pellucid.engine.forward import Forward
from pellucid.engine.graphs import GraphBuffers
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.nn.transformer import Decoder
from pellucid.ops import gpu

HERE = Path(__file__).parent
PROMPT = 128
NAMES = {
    "model.embed_tokens": "embed", "model.norm": "norm", "lm_head": "head", "model.layers": "layers", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.": "attn.", "mlp.": "ffn.", "_proj.": ".",
}  # fmt: skip


def seconds(run: Callable[[], object], times: int = 20) -> float:
    """The median time of a call by the card's clock."""
    run()
    out = []
    for _ in range(times):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        run()
        ended.record()
        torch.cuda.synchronize()
        out.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(out)


def copy_bandwidth() -> float:
    """Bytes a second that a copy on the card reads and writes."""
    a, b = (torch.empty(2 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    a.random_()
    return 2 * a.numel() / seconds(lambda: b.copy_(a))


def shape_of(name: str) -> dict[str, Any]:
    return dict(catalog.models()[name]["config"])


def ours(name: str) -> Decoder:
    """Our model of a shape on the card, in bf16, with random weights."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = cast(Decoder, make(shape_of(name), device="cuda").module)
    finally:
        torch.set_default_dtype(torch.float32)
    draw = torch.Generator("cuda").manual_seed(0)
    for p in model.parameters():
        p.data.normal_(0, 0.02, generator=draw) if p.ndim > 1 else p.data.fill_(1.0)
    return model.to(torch.bfloat16).eval().requires_grad_(False)


def theirs(name: str, weights: Decoder | None) -> Any:
    """transformers' model of a shape, with our weights in the same memory, or with random ones."""
    import transformers

    fields = shape_of(name)
    config = transformers.AutoConfig.for_model(**fields)
    with torch.device("meta" if weights is not None else "cuda"):
        net = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    if weights is not None:
        own = dict(weights.named_parameters())
        state = {}
        for key in net.state_dict():
            new = key
            for a, b in NAMES.items():
                new = new.replace(a, b)
            state[key] = own[new].data
        net.load_state_dict(state, assign=True)
        net.model.rotary_emb = type(net.model.rotary_emb)(config=config, device="cuda")
    return net.requires_grad_(False)


def read_a_step(model: Decoder, batch: int) -> int:
    """The bytes of weights that a step reads: all but the embedding, of experts those that a batch can choose at least."""
    total = 0
    for name, p in model.named_parameters():
        if name == "embed.weight" and model.head.weight is not p:
            continue
        if p.ndim == 3:
            moe = model.get_submodule(name.rpartition(".")[0])
            total += p.nbytes // p.shape[0] * min(p.shape[0], moe.spec.chosen)  # type: ignore[operator, union-attr]
        else:
            total += p.nbytes
    return total


def our_turn(engine: Engine, prompts: list[list[int]], new: int) -> Callable[[], tuple[list[list[int]], float]]:
    """A turn of our engine: the texts, and the seconds after every text's first token."""

    def turn() -> tuple[list[list[int]], float]:
        texts: dict[int, list[int]] = {engine.submit(Request(tuple(ids), new)): [] for ids in prompts}
        began = 0.0
        while not engine.idle:
            for out in engine.step():
                assert out.error is None, out.error
                if out.token is not None:
                    texts[out.request].append(out.token.id)
            if not began and all(texts.values()):
                began, early = time.perf_counter(), sum(map(len, texts.values()))
        took = time.perf_counter() - began
        return list(texts.values()), took * len(prompts) * (new - 1) / (len(prompts) * new - early)

    return turn


def their_turn(net: Any, prompts: list[list[int]], new: int) -> Callable[[], tuple[list[list[int]], float]]:
    """A turn of transformers' generate, without its prompt, which a turn of one token takes."""
    import transformers

    net.generation_config = transformers.GenerationConfig(pad_token_id=0, eos_token_id=None)
    x = torch.tensor(prompts, device="cuda")

    def run(count: int) -> tuple[Tensor, float]:
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.no_grad():
            y = net.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=count, do_sample=False)
        torch.cuda.synchronize()
        return y[:, x.shape[1] :], time.perf_counter() - began

    def turn() -> tuple[list[list[int]], float]:
        first = run(1)[1]
        y, took = run(new)
        return y.tolist(), took - first

    return turn


def case(name: str, batch: int, new: int, pairs: int, alone: bool, bandwidth: float, model: Decoder) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(batch)
    prompts = torch.randint(0, model.config.vocab, (batch, PROMPT), generator=draw).tolist()
    limits = SchedulerLimits(rows=2048, running=batch)
    engine = Engine.of(model, batch * (PROMPT + new + 16), limits, prefix_cache=False)
    turns = {"pellucid": our_turn(engine, prompts, new)}
    mixed = any(p.ndim == 3 for p in model.parameters())  # transformers joins two of its tensors: it has random weights of its own
    free = torch.cuda.mem_get_info()[0]
    alone = alone or (mixed and free < 1.1 * sum(p.nbytes for p in model.parameters()))
    if not alone:
        turns["transformers"] = their_turn(theirs(name, None if mixed else model), prompts, new)
    texts, took = {}, {n: list[float]() for n in turns}
    for n, turn in turns.items():
        texts[n], first = turn()
        print(f"  {n}: warm {first:.2f} s", flush=True)
    for i in range(pairs):
        for n in list(turns)[:: 1 if i % 2 == 0 else -1]:
            took[n].append(turns[n]()[1])
    buffers = cast(GraphBuffers, cast(Forward, engine.run).plans.buffers[batch])
    assert buffers.plan is not None, buffers.refused
    buffers.positions.fill_(PROMPT + new // 2)
    step = seconds(buffers.plan.replay)
    moved = read_a_step(model, batch)
    rates = {n: batch * (new - 1) / statistics.median(t) for n, t in took.items()}
    bound = batch * bandwidth / moved
    pair = zip(*texts.values(), strict=True) if len(texts) == 2 else []
    same = [next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), new) for x, y in pair]
    others = {n: t for n, t in took.items() if n != "pellucid"}
    faster = {n: statistics.median(b / a for a, b in zip(took["pellucid"], t, strict=True)) for n, t in others.items()}
    report = {
        "shape": name, "batch": batch, "dtype": "bfloat16", "prompt": PROMPT, "new": new, "seconds": took, "tokens_per_second": rates,
        "ratio_per_pair_median": faster, "graph_seconds": step, "bytes_read_a_step": moved,
        "bound_tokens_per_second": bound if batch == 1 else None, "share_of_bound": rates["pellucid"] / bound if batch == 1 else None,
        "share_of_bound_in_the_graph": moved / bandwidth / step if batch == 1 else None, "first_tokens_alike": same,
    }  # fmt: skip
    print(name, batch, {n: round(r, 1) for n, r in rates.items()}, f"of the bound {rates['pellucid'] / bound:.3f}", flush=True)
    print(f"  graph {step * 1e3:.3f} ms, ratios", {n: round(r, 2) for n, r in faster.items()}, "alike", sorted(same)[:4], flush=True)
    return report


KINDS = {"gate, up": (28672, 4096), "q, k, v": (6144, 4096), "o": (4096, 4096), "down": (4096, 14336), "head": (128256, 4096)}


def tune(name: str) -> list[dict[str, Any]]:
    """Time the step of one row by the settings of its products, one product after another, the best of each kept."""
    from pellucid.ops.gpu import gpu_twins as twins

    model, out, ids = ours(name), list[dict[str, Any]](), list(range(3, 40))
    chosen: dict[tuple[int, int], Any] = dict.fromkeys(KINDS.values(), (4, 512, 4))
    real, fits, ahead = twins.shape_of, gpu.fits_linear, twins.AHEAD
    twins.shape_of = lambda outer, inner, rows: chosen.get((outer, inner), (4, 1024, 4))  # type: ignore[assignment]
    gpu.fits_linear = lambda x, w, b: chosen.get(tuple(w.shape), 1) is not None and fits(x, w, b)  # type: ignore[assignment, arg-type, call-overload]

    def measured() -> float:
        engine = Engine.of(model, 256, prefix_cache=False)
        engine.submit(Request(tuple(ids), 4))
        list(engine.outputs())
        plan = cast(Forward, engine.run).plans.buffers[1].plan
        assert plan is not None
        return seconds(plan.replay, 15) * 1e3

    for kind, shape in KINDS.items():
        rates: dict[Any, float] = {}
        options: list[Any] = [
            (4, 512, 4),
            (2, 512, 2),
            (4, 512, 2),
            (2, 1024, 4),
            (4, 1024, 4),
            (8, 512, 4),
            (8, 512, 8),
            (2, 2048, 8),
            (1, 4096, 8),
            (16, 256, 8),
        ]
        for option in [*options, *([None] if kind in ("o", "down", "head") else [])]:
            chosen[shape] = option
            try:
                rates[option] = measured()
            except Exception as error:
                print(kind, option, str(error)[:200], flush=True)
        chosen[shape] = min(rates, key=rates.__getitem__)
        print(kind, {str(k): round(v, 3) for k, v in sorted(rates.items(), key=lambda x: x[1])}, flush=True)
        out.append({"kind": kind, "milliseconds": {str(k): v for k, v in rates.items()}})
    for twins.AHEAD in (0, 2, 4, 8, 16):
        print("lines asked for early", twins.AHEAD, round(measured(), 3), flush=True)
    twins.shape_of, gpu.fits_linear, twins.AHEAD = real, fits, ahead  # type: ignore[assignment]
    return out


def machine() -> dict[str, Any]:
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False)
    device = torch.cuda.get_device_properties(0)
    return {"gpu": device.name, "memory": device.total_memory, "torch": torch.__version__, "python": platform.python_version(),
            "triton": gpu.available(), "commit": git.stdout.strip(), "time": time.strftime("%Y-%m-%dT%H:%M:%S")}  # fmt: skip


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--shape", nargs="+", default=["llama-3.1-8b", "qwen3-30b-a3b"])
    ask.add_argument("--batch", nargs="+", type=int, default=[1, 64])
    ask.add_argument("--new", type=int, default=128)
    ask.add_argument("--pairs", type=int, default=3)
    ask.add_argument("--alone", action="store_true")
    ask.add_argument("--tune", action="store_true")
    ask.add_argument("--out", type=Path, default=HERE / "results")
    a = ask.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: torch.cuda.is_available() is False")
        return
    bandwidth = copy_bandwidth()
    report: dict[str, Any] = {"schema": 1, "benchmark": "gpu", "machine": machine(), "copy_bytes_per_second": bandwidth, "cases": []}
    print(report["machine"]["gpu"], f"copy {bandwidth / 1e12:.2f} TB/s", flush=True)
    if a.tune:
        report["products"] = tune(a.shape[0])
    a.out.mkdir(parents=True, exist_ok=True)
    path = a.out / f"gpu-{time.strftime('%Y%m%d-%H%M%S')}.json"
    for name in [] if a.tune else a.shape:
        model = ours(name)
        for batch in a.batch:
            report["cases"].append(case(name, batch, a.new, a.pairs, a.alone, bandwidth, model))
            path.write_text(json.dumps(report, indent=1) + "\n")
            gc.collect()
            torch.cuda.empty_cache()
        del model
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
