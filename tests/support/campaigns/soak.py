"""Ten thousand requests through one engine over a real tiny model, 64 texts at once: some cancelled, some malformed.

    PYTHONPATH=tests/support python -m campaigns.soak [--requests 10000] [--seed 1]

Every text that ends must be what it is alone, by full forwards without any cache, and one that was cancelled the beginning of it. At the
end no page, no text, no thread and no open file may be left over. Requests are drawn from a few hundred, so that each is run alone once.
Pages are too few for all, so texts are preempted, and begin alike, so the cache serves. A full run goes to benchmarks/results/soak.json.
"""

import argparse
import gc
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pellucid.engine.engine import Engine
from pellucid.engine.requests import Output, Request, Sequence
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import choose
from tiny import V, ids, tiny

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "soak.json"
FULL = 10_000
KINDS = {"llama": torch.float32, "gpt_oss": torch.float64, "deepseek_v3": torch.float64}  # plans and forwards; windows; latents
AT_ONCE = 64
DISTINCT, TOKENS = 300, 560  # requests to draw from, and what the pages hold
CANCELLED, MALFORMED = 0.48, 0.05  # some of those to be cancelled end before
WRONG = [
    {"prompt": ()}, {"prompt": (V,)}, {"prompt": (3, -1)}, {"prompt": (1,) * TOKENS}, {"new": -1}, {"n": 0}, {"n": AT_ONCE + 1},
    {"logprobs": -1}, {"sampling": Sampling(bias={V: 1.0})},
]  # fmt: skip


@dataclass
class Soak:
    """One engine, its requests, its outputs, and its faults."""

    kind: str
    draw: random.Random
    unfinished: dict[tuple[int, int], int] = field(default_factory=dict)  # by text, which of the pool
    got: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    late: dict[int, list[int]] = field(default_factory=dict)  # by step, the requests to cancel then
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.module = tiny(self.kind, KINDS[self.kind])
        self.engine = Engine.of(self.module, TOKENS, SchedulerLimits(rows=256, running=AT_ONCE, waiting=2 * AT_ONCE), size=4)
        self.pool = [drawn(self.draw) for _ in range(DISTINCT)]
        self.texts: dict[tuple[int, int], list[int]] = {}

    def run(self, requests: int) -> "Soak":
        """Submit `requests` requests, and step until all have ended."""
        while requests or not self.engine.idle:
            while requests and len(self.engine.queue.running) + self.engine.waiting < AT_ONCE + 8:
                requests -= 1
                self.submit()
            for number in self.late.pop(self.counts["steps"], []):
                self.engine.cancel(number)
            running = set(self.engine.queue.running)
            for output in self.engine.step():
                self.note(output)
            self.counts["steps"] += 1
            self.counts["put_off"] += len(running.intersection(self.engine.queue.waiting))
        self.faults += [f"{number}.{index} never ended" for number, index in self.unfinished]
        return self

    def submit(self) -> None:
        """Submit one more request, or one that must be refused and leave nothing behind."""
        before = self.engine.count, self.engine.waiting
        wrong = self.draw.random() < MALFORMED
        which = self.draw.randrange(DISTINCT)
        try:
            request = self.pool[which] if not wrong else Request(**{"prompt": (1, 2), **self.draw.choice(WRONG)})  # type: ignore[arg-type]
            number = self.engine.submit(request)
        except UseError as error:
            self.counts["refused"] += 1
            if not wrong or "\n" in str(error) or before != (self.engine.count, self.engine.waiting):
                self.faults.append(f"refused: {error}")
            return
        if wrong:
            self.faults.append(f"not refused: {request}")
        self.counts["requests"] += 1
        self.unfinished |= {(number, index): which for index in range(request.n)}
        if self.draw.random() < CANCELLED:
            self.late.setdefault(self.counts["steps"] + self.draw.randint(0, 10), []).append(number)

    def note(self, output: Output) -> None:
        """Store an output; compare its text, once it has ended, with the text alone."""
        key = output.request, output.index
        if key not in self.unfinished:
            self.faults.append(f"{key}: an output after its end")
            return
        text = self.got.setdefault(key, [])
        if output.token is not None:
            text.append(output.token.id)
            self.counts["tokens"] += 1
        if output.ended is None:
            return
        expected = self.alone(self.unfinished.pop(key), output.index)
        right = text == expected[: len(text)] if output.ended == "cancelled" else text == expected and output.ended in ("stop", "length")
        if not right and len(self.faults) < 20:
            self.faults.append(f"{output.request}.{output.index} {output.ended}: {text} is not {expected}")
        self.counts["cancelled" if output.ended == "cancelled" else "finished"] += 1
        del self.got[key]

    def alone(self, which: int, index: int) -> list[int]:
        """Return a text of the pool when it runs alone and nothing is cached."""
        if (which, index) not in self.texts:
            request, out = self.pool[which], list[int]()
            while len(out) < request.new and not (out and out[-1] in request.stops):
                with torch.no_grad():
                    logits = self.module(torch.tensor([[*request.prompt, *out]]))[0, -1]
                out.append(choose(logits, request.sampling, request.prompt, out, index))
            self.texts[which, index] = out
        return self.texts[which, index]

    def left(self) -> dict[str, int]:
        """Return the number of pages, texts and entries of tables that are left once all have ended and the cache is empty."""
        storage = self.engine.storage
        storage.forget()
        pages = storage.pages  # type: ignore[attr-defined]
        gc.collect()
        tables = [
            pages.length,
            pages.angle_length,
            pages.memory,
            *(t for g in pages.allocators.values() for t in (g.tables, g.allocated, g.first)),
        ]
        return {
            "pages": pages.count - pages.free_pages,
            "texts": sum(type(o) is Sequence for o in gc.get_objects()) + len(self.got) + len(self.engine.cancelled),
            "entries": sum(map(len, tables)),
        }


def drawn(draw: random.Random) -> Request:
    """Return a request whose prompt often begins as others do."""
    start = ids(24, seed=draw.randrange(3)).tolist()[: draw.choice([0, 5, 12, 24])]
    sampling = Sampling() if draw.random() < 0.5 else Sampling(temperature=1.0, seed=draw.randrange(99))
    stops = frozenset(draw.sample(range(V), 8)) if draw.random() < 0.5 else frozenset[int]()
    prompt = (*start, *(draw.randrange(V) for _ in range(draw.randint(1, 9))))
    return Request(prompt, draw.randint(1, 14), sampling, stops, draw.choice([1, 1, 1, 1, 2]))


def resources() -> dict[str, int]:
    """Return the number of this process's threads, Python's and all, and of its open files."""
    return {"threads": threading.active_count(), "tasks": len(os.listdir("/proc/self/task")), "files": len(os.listdir("/proc/self/fd"))}


@cache
def warm(kind: str, seed: int) -> None:
    """Run a short soak, which starts the threads that live as long as the process."""
    Soak(kind, random.Random(f"warm:{seed}")).run(40)


def campaign(kind: str, requests: int, seed: int) -> dict[str, Any]:
    """Run the soak of one kind of model. Returns its counts, its faults, and the resources that are left."""
    warm(kind, seed)
    gc.collect()
    before = resources()
    soak = Soak(kind, random.Random(f"soak:{seed}")).run(requests)
    cache = soak.engine.storage.cache  # type: ignore[attr-defined]
    hits, left = cache.hits, soak.left()
    left |= {name: n - before[name] for name, n in resources().items()}
    return {**soak.counts, "tokens_from_cache": hits, "left": left, "faults": soak.faults}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=FULL)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    began = time.time()
    kinds = {}
    for kind in KINDS:
        kinds[kind] = campaign(kind, a.requests, a.seed)
        print(kind, kinds[kind], file=sys.stderr, flush=True)
    report = {"schema": 1, "campaign": "soak", "seed": a.seed, "at_once": AT_ONCE, "kinds": kinds}
    report |= {"seconds": round(time.time() - began, 1), "python": sys.version.split()[0], "torch": torch.__version__}
    if a.requests >= FULL:
        RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))
    return int(any(k["faults"] or any(k["left"].values()) for k in kinds.values()))


if __name__ == "__main__":
    sys.exit(main())
