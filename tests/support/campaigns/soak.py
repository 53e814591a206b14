"""Requests by the ten thousand through one engine over a real tiny model, 64 texts at once: some cancelled, some that cannot be answered.

    PYTHONPATH=tests python -m campaigns.soak [--requests 10000] [--seed 1]

Every text that ends must be what it is alone, by full forwards without any cache, and one that was cancelled the beginning of it. At the
end no page, no text, no thread and no open file may be left over. Requests are drawn from a few hundred, so that each is run alone once.
Pages are too few for all, so texts are put off, and begin alike, so the cache serves. A full run goes to benchmarks/results/soak.json.
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
CANCELLED, MALFORMED = 0.48, 0.05  # of those that are to be cancelled some end before
WRONG = [
    {"prompt": ()}, {"prompt": (V,)}, {"prompt": (3, -1)}, {"prompt": (1,) * TOKENS}, {"new": -1}, {"n": 0}, {"n": AT_ONCE + 1},
    {"logprobs": -1}, {"sampling": Sampling(bias={V: 1.0})},
]  # fmt: skip


@dataclass
class Soak:
    """One engine, what was asked of it, and what came out."""

    kind: str
    draw: random.Random
    asked: dict[tuple[int, int], int] = field(default_factory=dict)  # by text that has not ended, which of the pool
    got: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    late: dict[int, list[int]] = field(default_factory=dict)  # by step, the requests to cancel then
    told: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.module = tiny(self.kind, KINDS[self.kind])
        self.engine = Engine.of(self.module, TOKENS, SchedulerLimits(rows=256, running=AT_ONCE, waiting=2 * AT_ONCE), size=4)
        self.pool = [drawn(self.draw) for _ in range(DISTINCT)]
        self.texts: dict[tuple[int, int], list[int]] = {}

    def live(self, requests: int) -> "Soak":
        """Submit `requests` requests, and step until all have ended."""
        while requests or not self.engine.idle:
            while requests and len(self.engine.queue.running) + self.engine.waiting < AT_ONCE + 8:
                requests -= 1
                self.submit()
            for number in self.late.pop(self.told["steps"], []):
                self.engine.cancel(number)
            running = set(self.engine.queue.running)
            for news in self.engine.step():
                self.note(news)
            self.told["steps"] += 1
            self.told["put_off"] += len(running.intersection(self.engine.queue.waiting))
        self.faults += [f"{number}.{index} never ended" for number, index in self.asked]
        return self

    def submit(self) -> None:
        """One more request, or one that must be refused and leave nothing behind."""
        before = self.engine.count, self.engine.waiting
        wrong = self.draw.random() < MALFORMED
        which = self.draw.randrange(DISTINCT)
        try:
            asked = self.pool[which] if not wrong else Request(**{"prompt": (1, 2), **self.draw.choice(WRONG)})  # type: ignore[arg-type]
            number = self.engine.submit(asked)
        except UseError as error:
            self.told["refused"] += 1
            if not wrong or "\n" in str(error) or before != (self.engine.count, self.engine.waiting):
                self.faults.append(f"refused: {error}")
            return
        if wrong:
            self.faults.append(f"not refused: {asked}")
        self.told["requests"] += 1
        self.asked |= {(number, index): which for index in range(asked.n)}
        if self.draw.random() < CANCELLED:
            self.late.setdefault(self.told["steps"] + self.draw.randint(0, 10), []).append(number)

    def note(self, news: Output) -> None:
        """Compare a text, once it has ended, with what it is alone."""
        key = news.request, news.index
        if key not in self.asked:
            self.faults.append(f"{key}: news after its end")
            return
        text = self.got.setdefault(key, [])
        if news.token is not None:
            text.append(news.token.id)
            self.told["tokens"] += 1
        if news.ended is None:
            return
        whole = self.alone(self.asked.pop(key), news.index)
        right = text == whole[: len(text)] if news.ended == "cancelled" else text == whole and news.ended in ("stop", "length")
        if not right and len(self.faults) < 20:
            self.faults.append(f"{news.request}.{news.index} {news.ended}: {text} is not {whole}")
        self.told["cancelled" if news.ended == "cancelled" else "finished"] += 1
        del self.got[key]

    def alone(self, which: int, index: int) -> list[int]:
        """A text of the pool when it runs alone and nothing is cached."""
        if (which, index) not in self.texts:
            asked, out = self.pool[which], list[int]()
            while len(out) < asked.new and not (out and out[-1] in asked.stops):
                with torch.no_grad():
                    logits = self.module(torch.tensor([[*asked.prompt, *out]]))[0, -1]
                out.append(choose(logits, asked.sampling, asked.prompt, out, index))
            self.texts[which, index] = out
        return self.texts[which, index]

    def left(self) -> dict[str, int]:
        """What is still held once all have ended and the cache was told to forget: pages, texts, entries of their tables."""
        storage = self.engine.storage
        storage.forget()
        pages = storage.pages  # type: ignore[attr-defined]
        gc.collect()
        tables = [pages.length, pages.together, pages.memory, *(t for g in pages.groups.values() for t in (g.tables, g.allocated, g.first))]
        return {
            "pages": pages.count - pages.free_pages,
            "texts": sum(type(o) is Sequence for o in gc.get_objects()) + len(self.got) + len(self.engine.cancelled),
            "entries": sum(map(len, tables)),
        }


def drawn(draw: random.Random) -> Request:
    """A request whose prompt often begins as others do."""
    start = ids(24, seed=draw.randrange(3)).tolist()[: draw.choice([0, 5, 12, 24])]
    sampling = Sampling() if draw.random() < 0.5 else Sampling(temperature=1.0, seed=draw.randrange(99))
    stops = frozenset(draw.sample(range(V), 8)) if draw.random() < 0.5 else frozenset[int]()
    prompt = (*start, *(draw.randrange(V) for _ in range(draw.randint(1, 9))))
    return Request(prompt, draw.randint(1, 14), sampling, stops, draw.choice([1, 1, 1, 1, 2]))


def held() -> dict[str, int]:
    """What this process holds of the system: threads, Python's and all, and open files."""
    return {"threads": threading.active_count(), "tasks": len(os.listdir("/proc/self/task")), "files": len(os.listdir("/proc/self/fd"))}


def campaign(kind: str, requests: int, seed: int) -> dict[str, Any]:
    """One kind of model's soak."""
    Soak(kind, random.Random(f"warm:{seed}")).live(40)  # threads that live as long as the process
    gc.collect()
    before = held()
    soak = Soak(kind, random.Random(f"soak:{seed}")).live(requests)
    cache = soak.engine.storage.cache  # type: ignore[attr-defined]
    hits, left = cache.hits, soak.left()
    left |= {name: n - before[name] for name, n in held().items()}
    return {**soak.told, "tokens_from_cache": hits, "left": left, "faults": soak.faults}


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
    told = {"schema": 1, "campaign": "soak", "seed": a.seed, "at_once": AT_ONCE, "kinds": kinds}
    told |= {"seconds": round(time.time() - began, 1), "python": sys.version.split()[0], "torch": torch.__version__}
    if a.requests >= FULL:
        RESULTS.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(told, indent=2))
    return int(any(k["faults"] or any(k["left"].values()) for k in kinds.values()))


if __name__ == "__main__":
    sys.exit(main())
