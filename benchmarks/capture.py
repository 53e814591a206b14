"""What watching costs on GPT-2's shape, beside transformers and TransformerLens, in alternating rounds of one run.

    python benchmarks/capture.py [--rounds 7] [--threads 2] [--tokens 64 512] [--transformer-lens PYTHON [PYTHON ...]]

Random float32 weights, the same for all. Every turn keeps what it captured until the clock has stopped, and drops it then. The bound
comes first: bytes that a capture keeps over what memory takes, and products over what the processor gives.
Each TransformerLens runs in an interpreter of its own: version 3 as a HookedTransformer, its own GPT-2; from version 4 as a bridge
around transformers'. Writes benchmarks/results/capture.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).parent
LAYERS, WIDTH, HEADS, HEAD, VOCAB = 12, 768, 12, 64, 50257
OUTSIDE = ("embed", "positions", "start", "norm", "logits", "*.attn", "*.ffn", *(f"layers.*.{x}" for x in (
    "attn.[qkvz]", "mid", "out", "ffn.up", "ffn.neurons", "attn_norm", "ffn_norm")))  # fmt: skip
CACHED = ", run_with_cache"
Turn = Callable[[Tensor], Any]  # token ids [1 T] -> whatever it captured


def tensors(x: Any) -> Iterator[Tensor]:
    """Every tensor in nested outputs and caches."""
    if isinstance(x, Tensor):
        yield x
    elif hasattr(x, "seen"):
        yield from (s.value for s in x.seen)
    elif hasattr(x, "values"):
        yield from (t for v in x.values() for t in tensors(v))
    elif isinstance(x, Iterable) and not isinstance(x, str):
        yield from (t for v in x for t in tensors(v))


def held(x: Any) -> dict[str, float]:
    """How many tensors a capture holds, and MiB of memory, each storage once."""
    found = list(tensors(x))
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in found}
    return {"tensors": len(found), "mib": sum(storages.values()) / 2**20}


def timed(turn: Turn, ids: Tensor) -> dict[str, float]:
    """Milliseconds of one turn, and what it held when the clock stopped."""
    began = time.perf_counter()
    captured = turn(ids)
    ended = time.perf_counter()
    return {"ms": (ended - began) * 1e3, **held(captured)}


def prompt(tokens: int) -> Tensor:
    return torch.randint(VOCAB, (1, tokens), generator=torch.Generator().manual_seed(tokens))


# Contestants


def watched(model: torch.nn.Module, **how: Any) -> Turn:
    from pellucid.watching.watch import watch

    def turn(ids: Tensor) -> Any:
        with watch(model, **how) as seen:
            model(ids)
        return seen

    return turn


def in_process() -> dict[str, Turn]:
    """Ours and transformers', with the same numbers."""
    from shapes import Gpt2

    eager = Gpt2().theirs(torch.float32)
    eager.set_attn_implementation("eager")
    model = Gpt2().ours(eager, torch.float32)
    ids = prompt(64)
    gap = float((model(ids) - eager(ids).logits).abs().max())
    assert gap < 1e-2, gap
    return {
        "pellucid": model,
        "pellucid, outside attention": watched(model, only=OUTSIDE),
        "pellucid, everything": watched(model),
        "transformers": lambda ids: eager(ids, use_cache=False).logits,
        "transformers, attentions and hidden states": lambda ids: eager(
            ids, use_cache=False, output_attentions=True, output_hidden_states=True
        ),
    }


def lens() -> dict[str, Turn]:
    """GPT-2 as this interpreter's TransformerLens has it, with the numbers of transformers'."""
    import transformers

    torch.manual_seed(0)
    net = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval().requires_grad_(False)
    net.set_attn_implementation("eager")
    found = version("transformer-lens")
    model = hooked(net) if int(found.split(".")[0]) < 4 else bridged(net)
    ids = prompt(64)
    wanted = net(ids).logits
    gap = float((model(ids) - wanted).abs().max())
    assert gap < 1e-3 < 0.1 < float(wanted.std()), gap
    name = f"TransformerLens {found}"
    return {name: model, f"{name}{CACHED}": lambda ids: model.run_with_cache(ids)[1]}


def bridged(net: Any) -> Any:
    """TransformerLens 4: hooks around transformers' own modules."""
    builder = import_module("transformer_lens.model_bridge.sources._bridge_builder")
    return builder.build_bridge_from_module(net, architecture="GPT2LMHeadModel", hf_config=net.config, dtype=torch.float32)


def hooked(net: Any) -> Any:
    """TransformerLens 3: a transformer of its own, whose attention is always eager; its weights come as GPT-2's, nothing folded."""
    lib = import_module("transformer_lens")
    cfg = lib.HookedTransformerConfig(
        n_layers=LAYERS, d_model=WIDTH, n_heads=HEADS, d_head=HEAD, d_mlp=4 * WIDTH, n_ctx=1024, d_vocab=VOCAB, act_fn="gelu_new",
        normalization_type="LN", init_weights=False, dtype=torch.float32, device="cpu",
    )  # fmt: skip
    model = lib.HookedTransformer(cfg).eval().requires_grad_(False)
    weights = import_module("transformer_lens.pretrained.weight_conversions").convert_gpt2_weights(net, cfg)
    left = model.load_state_dict({"unembed.b_U": torch.zeros(VOCAB), **weights}, strict=False)
    assert not left.unexpected_keys and all(k.endswith((".mask", ".IGNORE")) for k in left.missing_keys), left
    return model


def off(used: bool) -> dict[str, Turn]:
    """Our forward where nothing is watched: in a process that has never watched, and in one that has."""
    from shapes import Gpt2

    model = Gpt2().ours(Gpt2().theirs(torch.float32), torch.float32)
    if used:
        watched(model)(prompt(64))
    elif "pellucid.watching.watch" in sys.modules:
        raise RuntimeError("this process has imported pellucid.watching")
    return {"off": model}


class Worker:
    """Contestants in a process of their own, which takes its turns as they are asked for."""

    def __init__(self, python: str, kind: str, threads: int) -> None:
        command = [python, __file__, "--worker", kind, "--threads", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hello: dict[str, Any] = json.loads(self.line())

    def line(self) -> str:
        """The next line that is meant for us; libraries greet on stdout too."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return line
        raise RuntimeError(f"the worker ended: {self.process.wait()}")

    def ask(self, name: str, tokens: int) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, tokens]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.line())  # type: ignore[no-any-return]

    def close(self) -> None:
        self.process.communicate()


def work(kind: str) -> None:
    """The other side of a Worker."""
    turns = {"lens": lens, "never": lambda: off(False), "used": lambda: off(True)}[kind]()
    names = ("torch", "transformers", *(["transformer-lens"] if kind == "lens" else []))
    versions = {name: version(name) for name in names}
    print(json.dumps({"names": list(turns), "versions": versions}), flush=True)
    for line in sys.stdin:
        name, tokens = json.loads(line)
        ids = prompt(tokens)
        print(json.dumps(timed(turns[name], ids)), flush=True)


# The bound


def limits() -> dict[str, float]:
    """The best of GB/s written into memory at hand, and into memory fresh from the system; and GFLOP/s of a product of GPT-2's shape."""
    held_gb, fresh_gb, product = [], [], []
    block, a, b = torch.empty(64 << 20), torch.randn(512, WIDTH), torch.randn(WIDTH, 4 * WIDTH)

    def rate(amount: float, f: Callable[[], object]) -> float:
        began = time.perf_counter()
        f()
        return amount / (time.perf_counter() - began) / 1e9

    for _ in range(7):
        held_gb.append(rate(block.nbytes, lambda: block.fill_(1.0)))
        fresh_gb.append(rate(block.nbytes, lambda: torch.empty(64 << 20).fill_(1.0)))
        product.append(rate(20 * a.shape[0] * b.numel(), lambda: [a @ b for _ in range(10)]))
    return {"write_gb_s": max(held_gb), "write_fresh_gb_s": max(fresh_gb), "gflop_s": max(product)}


def bounds(plain_ms: float, tokens: int, mib: dict[str, float], measured: dict[str, float]) -> dict[str, float]:
    """The least that capturing costs, as a ratio to the plain forward: what it keeps, written once, and the two products of every score."""
    outside, everything = (mib[k] * 2**20 / measured["write_gb_s"] / 1e6 for k in ("pellucid, outside attention", "pellucid, everything"))
    products = 2 * 2 * LAYERS * HEADS * HEAD * tokens**2 / measured["gflop_s"] / 1e6
    return {"outside attention": 1 + outside / plain_ms, "everything": 1 + (everything + products) / plain_ms}


# The run


def case(tokens: int, rounds: int, turns: dict[str, Turn], peers: list[Worker]) -> dict[str, Any]:
    ids = prompt(tokens)
    one: dict[str, Callable[[], dict[str, float]]] = {name: partial(timed, turn, ids) for name, turn in turns.items()}
    one |= {name: partial(peer.ask, name, tokens) for peer in peers for name in peer.hello["names"]}
    names = list(one)
    kept = {name: {k: v for k, v in run().items() if k != "ms"} for name, run in one.items()}
    seen: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds):
        for name in names if i % 2 == 0 else names[::-1]:
            seen[name].append(one[name]()["ms"])
    ratios = {name: [b / a for a, b in zip(seen["pellucid"], seen[name], strict=True)] for name in names[1:]}
    for name in [n for n in names if n.endswith(CACHED)]:
        ratios[f"pellucid, everything / {name}"] = [a / b for a, b in zip(seen["pellucid, everything"], seen[name], strict=True)]
    measured = limits()
    plain = statistics.median(seen["pellucid"])
    return {
        "tokens": tokens,
        "captured": kept,
        "ms": seen,
        "median_ms": {name: statistics.median(x) for name, x in seen.items()},
        "ratio_to_pellucid_per_round": ratios,
        "median_ratio": {name: statistics.median(x) for name, x in ratios.items()},
        "limits": measured,
        "bound_ratio": bounds(plain, tokens, {name: k["mib"] for name, k in kept.items()}, measured),
    }


def watching_off(pairs: int, threads: int, tokens: int) -> dict[str, Any]:
    """The plain forward after a watch has been used, over that of a process that never watched; pairs in alternating order."""
    never, used = Worker(sys.executable, "never", threads), Worker(sys.executable, "used", threads)
    ratios = []
    pairs = max(pairs, 2)  # and two to warm up
    for i in range(pairs + 2):
        order = (never, used) if i % 2 == 0 else (used, never)
        ms = {id(w): w.ask("off", tokens)["ms"] for w in order}
        ratios.append(ms[id(used)] / ms[id(never)])
    never.close()
    used.close()
    ratios = ratios[2:]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"tokens": tokens, "pairs": pairs, "ratio_per_pair": ratios, "median": middle, "quartiles": [low, high]}


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--rounds", type=int, default=7)
    ask.add_argument("--pairs", type=int, default=30, help="of processes, for the cost of watching while off")
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--tokens", type=int, nargs="+", default=[64, 512])
    ask.add_argument("--transformer-lens", metavar="PYTHON", nargs="+", default=[], help="interpreters, each with its TransformerLens")
    ask.add_argument("--out", type=Path, default=HERE / "results" / "capture.json")
    ask.add_argument("--worker", choices=["lens", "never", "used"], help=argparse.SUPPRESS)
    a = ask.parse_args()
    torch.set_num_threads(a.threads)
    torch.set_grad_enabled(False)
    if a.worker:
        work(a.worker)
        return
    from decode import machine

    report: dict[str, Any] = {"schema": 1, "benchmark": "capture", "machine": machine(a.threads), "dtype": "float32"}
    report["shape"] = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "vocab": VOCAB}
    if a.pairs:
        report["watching_off"] = watching_off(a.pairs, a.threads, 64)
        print("watching off", round(report["watching_off"]["median"], 3), flush=True)
    peers = [Worker(python, "lens", a.threads) for python in a.transformer_lens]
    report["peer_versions"] = [peer.hello["versions"] for peer in peers]
    turns, report["cases"] = in_process(), []
    for tokens in a.tokens:
        result = case(tokens, a.rounds, turns, peers)
        report["cases"].append(result)
        print(tokens, "tokens; bound", {k: round(v, 3) for k, v in result["bound_ratio"].items()})
        for name, ms in result["median_ms"].items():
            print(f"    {name:45} {ms:9.1f} ms  {result['median_ratio'].get(name, 1.0):.3f}", flush=True)
    for peer in peers:
        peer.close()
    a.out.parent.mkdir(parents=True, exist_ok=True)
    a.out.write_text(json.dumps(report, indent=1) + "\n")
    print(a.out)


if __name__ == "__main__":
    main()
