"""Tokens a second of one request on GPT-2's shapes, beside transformers and llama.cpp, in alternating pairs of one run.

    python benchmarks/decode.py [--pairs 5] [--threads 2] [--dtype bfloat16 float32] [--new 128]

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
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from pellucid import config as c
from pellucid.engine.decode import Decode
from pellucid.measuring.machine import cpu
from pellucid.models import Decoder
from pellucid.ops import native

HERE = Path(__file__).parent
SHAPE = {"vocab": 50257, "layers": 12, "width": 768, "heads": 12, "positions": 1024}
PROMPT = 32
Turn = Callable[[], tuple[list[int], float, float]]  # tokens, seconds in all, seconds after the first token


def theirs(dtype: torch.dtype) -> Any:
    """transformers' GPT-2 with random weights, no bias and no norm at its starting value."""
    torch.manual_seed(0)
    net = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval().requires_grad_(False)
    for p in net.parameters():
        if p.ndim == 1:
            p.add_(torch.randn_like(p) * 0.1)
        p.data = p.data.bfloat16().to(dtype)
    net.generation_config.eos_token_id = None
    net.generation_config.pad_token_id = 0
    return net


def ours(net: Any, dtype: torch.dtype) -> Decoder:
    """The same numbers as our model."""
    attn, mlp = c.Attention(12, 12, 64, bias=True, out_bias=True), c.Mlp(3072, "gelu_tanh", gated=False, bias=True)
    model = Decoder(c.Config(SHAPE["vocab"], SHAPE["width"], (c.Layer(attn, mlp),) * SHAPE["layers"], True, norm="layer", positions=1024))
    w = net.transformer
    state = {"embed.weight": w.wte.weight, "positions.weight": w.wpe.weight, "norm.weight": w.ln_f.weight, "norm.bias": w.ln_f.bias}
    for i, h in enumerate(w.h):
        for kind in ("weight", "bias"):
            parts = {
                "attn_norm": h.ln_1, "ffn_norm": h.ln_2, "attn.o": h.attn.c_proj, "ffn.up": h.mlp.c_fc, "ffn.down": h.mlp.c_proj,
            }  # fmt: skip
            for name, part in parts.items():
                state[f"layers.{i}.{name}.{kind}"] = getattr(part, kind)
            for name, third in zip("qkv", getattr(h.attn.c_attn, kind).chunk(3, -1), strict=True):
                state[f"layers.{i}.attn.{name}.{kind}"] = third
    state = {k: (t.T if t.ndim == 2 and k.startswith("layers") else t).contiguous().clone() for k, t in state.items()}
    model.load_state_dict({**state, "head.weight": state["embed.weight"]}, assign=True)
    model.head.weight = model.embed.weight
    return model.requires_grad_(False)


def bytes_per_token(model: Decoder, length: int) -> dict[str, int]:
    """What a step at this length must read: every weight once but the table of positions, and the keys and values."""
    weights = sum(p.numel() * p.element_size() for name, p in model.named_parameters() if name != "positions.weight")
    return {"weights": weights, "cache": 2 * length * SHAPE["width"] * SHAPE["layers"] * model.embed.weight.element_size()}


def our_turn(decode: Decode, ids: list[int], new: int) -> Turn:
    def turn() -> tuple[list[int], float, float]:
        began = time.perf_counter()
        decode.start(ids)
        out, first = [int(decode.best)], time.perf_counter()
        while len(out) < new:
            decode.step(out[-1])
            out.append(int(decode.best))
        ended = time.perf_counter()
        return out, ended - began, ended - first

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


def gguf_file(model: Any, dtype: torch.dtype, path: Path) -> None:
    """The same numbers as llama.cpp reads them: matrices in dtype, norms and biases in float32, no vocabulary."""
    import gguf

    w = gguf.GGUFWriter(path, "gpt2")
    w.add_context_length(1024)
    w.add_embedding_length(SHAPE["width"])
    w.add_block_count(SHAPE["layers"])
    w.add_feed_forward_length(4 * SHAPE["width"])
    w.add_head_count(SHAPE["heads"])
    w.add_layer_norm_eps(1e-5)
    w.add_vocab_size(SHAPE["vocab"])
    w.add_tokenizer_model("no_vocab")
    kind = gguf.GGMLQuantizationType.BF16 if dtype is torch.bfloat16 else gguf.GGMLQuantizationType.F32

    def put(name: str, t: torch.Tensor) -> None:
        x = t.detach().float().numpy()
        if t.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
            w.add_tensor(name, x)
        else:
            w.add_tensor(name, gguf.quants.quantize(x, kind), raw_dtype=kind)

    put("token_embd.weight", model.embed.weight)
    w.add_tensor("position_embd.weight", model.positions.weight.detach().float().numpy())
    for i, layer in enumerate(model.layers):
        attn: Any = layer.attn
        for kind_ in ("weight", "bias"):
            put(f"blk.{i}.attn_qkv.{kind_}", torch.cat([getattr(getattr(attn, n), kind_) for n in "qkv"]))
            for name, part in {
                "attn_norm": layer.attn_norm, "ffn_norm": layer.ffn_norm, "attn_output": attn.o, "ffn_up": layer.ffn.up,
                "ffn_down": layer.ffn.down,
            }.items():  # fmt: skip
                put(f"blk.{i}.{name}.{kind_}", getattr(part, kind_))
    put("output_norm.weight", model.norm.weight)
    put("output_norm.bias", model.norm.bias)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama_turn(path: Path, threads: int, ids: list[int], new: int) -> Turn:
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
        logits = np.ctypeslib.as_array(lc.llama_get_logits_ith(context, -1), (SHAPE["vocab"],))
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


def case(dtype: torch.dtype, pairs: int, threads: int, new: int, folder: Path) -> dict[str, Any]:
    from pellucid.measuring.limits import reading  # here: capture.py imports this file, and one of its processes must never have watched

    net = theirs(dtype)
    model = ours(net, dtype)
    ids = torch.randint(0, SHAPE["vocab"], (PROMPT,), generator=torch.Generator().manual_seed(7)).tolist()
    decode, block = Decode(model, PROMPT + new), torch.ones(64 << 20)
    turns = {"pellucid": our_turn(decode, ids, new), "transformers": their_turn(net, ids, new)}
    missing = None
    try:
        path = folder / f"gpt2-{str(dtype)[6:]}.gguf"
        gguf_file(model, dtype, path)
        turns["llama.cpp"] = llama_turn(path, threads, ids, new)
    except (ImportError, RuntimeError) as error:
        missing = f"{type(error).__name__}: {error}"
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
    return {
        "dtype": str(dtype)[6:],
        "tokens_per_second": seen,
        "median": middle,
        "ratio_per_pair_median": ratios,
        "bandwidth_gb_s": {"each": given, "median": statistics.median(given), "best": max(given)},
        "bytes_per_token": moved,
        "bound_tokens_per_second": bound,
        "share_of_bound": middle["pellucid"]["decode"] / bound,
        "planned": decode.plan is not None,
        "calls_in_plan": len(decode.plan.lines) if decode.plan else 0,
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
    ask.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    ask.add_argument("--out", type=Path, default=HERE / "results")
    a = ask.parse_args()
    torch.set_num_threads(a.threads)
    report: dict[str, Any] = {"schema": 1, "benchmark": "decode", "shape": SHAPE, "prompt": PROMPT, "new": a.new, "cases": []}
    report["machine"] = machine(a.threads)
    with tempfile.TemporaryDirectory() as folder:
        for name in a.dtype:
            result = case(getattr(torch, name), a.pairs, a.threads, a.new, Path(folder))
            report["cases"].append(result)
            line = {k: round(v["decode"], 1) for k, v in result["median"].items()}
            print(name, line, "bound", round(result["bound_tokens_per_second"], 1), "share", round(result["share_of_bound"], 2), flush=True)
    a.out.mkdir(parents=True, exist_ok=True)
    path = a.out / f"decode-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
