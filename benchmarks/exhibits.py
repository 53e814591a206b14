"""What a page waits for, and what a sweep holds and tells: the anchors of experiments and exhibits that have no peer.

    python benchmarks/exhibits.py [--turns 5] [--threads 2] [--quick] [--out FILE]

map: the 80-cell map of the specimen, asked of the server as the page does, seconds each. exhibit: seconds to each exhibit's answer, and of
the whole gallery in one process. memory: the largest resident size above the weights of a patch of every head at every position in
Qwen2.5-0.5B's shape, bfloat16, 15 tokens. screen: attribution patching of every head and position in that shape, 300 tokens in float32, by
two forwards and a backward; and, over 15 tokens, the rank correlation of its numbers with the patches themselves. Random weights.
--quick: a tiny shape and one turn, to see that everything runs. Writes benchmarks/results/exhibits.json.
"""

import argparse
import ctypes
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from decode import machine
from experiment_loops import metric
from experiments import resident
from torch import Tensor

import pellucid
from pellucid.exhibits import find, names
from pellucid.exhibits.exhibit import Opened, run_exhibit

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))  # a server without a port, as the tests have it

from served import served  # noqa: E402

CLEAN, CHANGED = "The capital of France is", "The capital of Japan is"
MAP = {"model": "pellucid/capitals", "clean": CLEAN, "changed": CHANGED, "over": "layers.*.attn.z", "by": "H,T"}
QWEN = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
}  # fmt: skip
TINY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def maps(turns: int) -> list[float]:
    """Return the seconds of each answer to the page's request for the 80-cell map."""
    with served("pellucid/capitals") as api:

        def ask() -> None:
            reply = api.client.post("/api/sweeps", json=MAP)
            assert reply.status_code == 200 and len(reply.json()["values"]) == 80, reply.text

        ask()
        return [seconds(ask) for _ in range(turns)]


def gallery() -> dict[str, float]:
    """Return the seconds of each exhibit on its specimen, all in one process."""
    opened = Opened()
    return {name: seconds(lambda name=name: run_exhibit(find(name), open_model=opened)) for name in names()}  # type: ignore[misc]


def folder_of(shape: dict[str, Any], folder: str) -> None:
    """Write a folder of a shape with random weights in bfloat16, large enough that each trial moves the metric."""
    from pellucid.api.model import make

    made = make(shape | {"bos_token_id": 0, "eos_token_id": 0}, dtype=torch.bfloat16)
    draw = torch.Generator().manual_seed(0)
    for name, p in made.module.named_parameters():
        p.data = (torch.randn(p.shape, generator=draw) * 0.06 + (p.ndim == 1 and "norm" in name)).bfloat16()
    made.save(Path(folder))


def pairs(vocab: int, tokens: int) -> Iterator[list[int]]:
    """Yield a clean and a corrupted prompt."""
    yield from torch.randint(vocab, (2, tokens), generator=torch.Generator().manual_seed(tokens)).tolist()


def patched(model: Any, tokens: int) -> Tensor:
    clean, corrupted = pairs(model.config.vocab, tokens)
    swept = pellucid.patch(model, clean, corrupted, "layers.*.attn.z", "H T", lambda x: metric(x[:, None]))
    return swept.values - swept.base


def attributed(model: Any, tokens: int) -> Tensor:
    """Return the gradient of the metric times the difference of both runs, of every head at every position."""
    clean, corrupted = (torch.tensor([ids]) for ids in pairs(model.config.vocab, tokens))
    with torch.no_grad(), pellucid.watch(model, only="layers.*.attn.z") as right:
        model(clean, rows=-1)
    with pellucid.watch(model, only="layers.*.attn.z", grad=True) as seen:
        metric(model(corrupted, rows=-1)).sum().backward()
    return torch.stack([((a.value - b.value.detach()) * b.grad).sum(-1)[0].T for a, b in zip(right, seen, strict=True)])


def held(run: Callable[[], object]) -> int:
    """Return the most bytes that a run held beyond what the process had before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else the run uses freed memory that still counts as the process', and seems to hold nothing
    Path("/proc/self/clear_refs").write_text("5")  # the largest size counts from here
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def memory(model: Any, tokens: int) -> int:
    """Return the most bytes that a patch of every head at every position held."""
    return held(lambda: patched(model, tokens))


def ranks(x: Tensor) -> Tensor:
    return x.flatten().double().argsort().argsort().double()


def large(quick: bool) -> dict[str, Any]:
    """Return what a patch of every head and position holds, and what attribution patching costs and tells."""
    shape, tokens, long = QWEN | (TINY if quick else {}), 6 if quick else 15, 30 if quick else 300
    with tempfile.TemporaryDirectory() as folder:
        folder_of(shape, folder)
        bytes_held = memory(pellucid.load(folder, dtype="bfloat16"), tokens)
        model = pellucid.load(folder, dtype="float32")
        model.module.requires_grad_(False)
        screen = {"seconds": seconds(lambda: attributed(model, long)), "mib": held(lambda: attributed(model, long)) / 2**20}
        both = torch.stack([ranks(attributed(model, tokens)), ranks(patched(model, tokens))])
    trials = both.shape[1]
    correlation = float(torch.corrcoef(both)[0, 1])
    return {
        "memory": {"trials": trials, "tokens": tokens, "mib_above_the_weights": bytes_held / 2**20},
        "screen": screen | {"tokens": long, "rank_correlation": correlation, "of_trials": trials},
    }


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--turns", type=int, default=5)
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--quick", action="store_true", help="a tiny shape and one turn")
    ask.add_argument("--out", type=Path, default=HERE / "results" / "exhibits.json")
    given = ask.parse_args()
    torch.set_num_threads(given.threads)
    report: dict[str, Any] = {"schema": 1, "benchmark": "exhibits", "machine": machine(given.threads)}
    report["map_seconds"] = maps(1 if given.quick else given.turns)
    report |= large(given.quick)
    report["exhibit_seconds"] = each = gallery()
    report["gallery_seconds"] = sum(each.values())
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({k: v for k, v in report.items() if k not in ("machine", "exhibit_seconds")}, indent=1))


if __name__ == "__main__":
    main()
