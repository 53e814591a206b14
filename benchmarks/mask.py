"""What a JSON schema costs a token: texts with and without it, in alternating pairs; the grammar's masks are part of the step.

    python benchmarks/mask.py [--model qwen2.5-0.5b] [--dtype bfloat16] [--texts 1 16] [--new 64] [--pairs 5] [--threads 2] [--out FILE]

Random weights, and a vocabulary of as many random pieces as the model has ids, all bytes among them, which llguidance reads as any other.
The schema is an array of objects that is longer than the text. Writes benchmarks/results/mask.json. The goal: at most 10%.
"""

import argparse
import json
import random
import statistics
import string
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from meta import commit

from pellucid.api.count import count
from pellucid.bench.benched_model import random_weights
from pellucid.bench.machine import cpu
from pellucid.bench.machine_limits import threaded
from pellucid.engine.engine import Engine
from pellucid.engine.grammar import GrammarCompiler, GrammarConstraint
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.tokenizer.pieces import Piece

HERE, GOAL, PROMPT = Path(__file__).parent, 0.1, 64
ITEM = {
    "type": "object", "required": ["name", "kind", "size", "tags"], "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 40}, "kind": {"enum": ["file", "folder", "link"]}, "size": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,12}$"}, "maxItems": 4},
    },
}  # fmt: skip
SCHEMA = {"type": "array", "items": ITEM, "minItems": 100_000}


class Vocabulary:
    """A tokenizer's pieces: every byte, then random words, with a space before most of them."""

    def __init__(self, size: int) -> None:
        draw = random.Random(0)
        raw = {bytes([i]): None for i in range(256)}
        while len(raw) < size - 1:
            word = "".join(draw.choices(string.ascii_letters + string.digits + '",:{}[] ', k=draw.randint(2, 8)))
            raw[(" " * (draw.random() < 0.6) + word).encode()] = None
        self.all = [Piece(i, text.decode("utf-8", "replace"), text, False) for i, text in enumerate(raw)]
        self.all.append(Piece(size - 1, "<|end|>", b"<|end|>", True))

    def pieces(self, ids: Iterable[int]) -> list[Piece]:
        return [self.all[i] for i in ids]

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(text.encode())


def seconds_a_token(engine: Engine, texts: int, new: int, constraint: GrammarConstraint | None) -> float:
    """Return the seconds in which each text gets a token; texts without a schema get several in one step."""
    for i in range(texts):
        own = None if constraint is None else constraint.copy()
        engine.submit(Request(tuple(range(i, i + PROMPT)), new, constraint=own))
    engine.step()
    while any(s.pending > 1 for s in engine.queue.running):
        engine.step()
    start, tokens = time.perf_counter(), 0
    while not engine.idle:
        tokens += sum(output.token is not None for output in engine.step())
    return (time.perf_counter() - start) * texts / tokens


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--model", default="qwen2.5-0.5b")
    ask.add_argument("--dtype", default="bfloat16")
    ask.add_argument("--texts", type=int, nargs="+", default=[1, 16])
    ask.add_argument("--new", type=int, default=64)
    ask.add_argument("--pairs", type=int, default=5)
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--out", type=Path, default=HERE / "results" / "mask.json")
    a = ask.parse_args()
    quant = a.dtype if a.dtype in ("int8", "int4") else None
    config = count(a.model, PROMPT).config
    model = random_weights(a.model, config, torch.float32 if quant else getattr(torch, a.dtype), quant)
    vocabulary: Any = Vocabulary(config.vocab)
    start = time.perf_counter()
    compiler = GrammarCompiler(vocabulary, config.vocab, [config.vocab - 1])
    read = time.perf_counter()
    constraint = compiler.compile("json", SCHEMA)
    made = {"vocabulary": read - start, "schema": time.perf_counter() - read}
    cases = []
    with threaded(a.threads):
        for texts in a.texts:
            engine = Engine.of(model, texts * (PROMPT + a.new + 64), SchedulerLimits(running=texts), prefix_cache=False)
            pairs = [[seconds_a_token(engine, texts, a.new, c) for c in (None, constraint)] for _ in range(a.pairs + 1)][1:]
            over = statistics.median(masked / plain - 1 for plain, masked in pairs)
            plain, masked = (statistics.median(one) for one in zip(*pairs, strict=True))
            cases.append({"texts": texts, "plain": plain, "masked": masked, "over": over, "pairs": pairs})
            print(f"{texts} texts: {1e3 * plain:.2f} ms a token, {1e3 * masked:.2f} with the schema: {100 * over:+.1f}%", flush=True)
    report = {
        "schema": 1, "benchmark": "mask", "model": a.model, "dtype": a.dtype, "new": a.new, "threads": a.threads, "goal": GOAL,
        "seconds_to_compile": made, "cases": cases, "cpu": cpu(), "commit": commit(),
    }  # fmt: skip
    a.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(a.out)


if __name__ == "__main__":
    main()
