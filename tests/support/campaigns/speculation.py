"""A thousand prompts under three settings, with proposed tokens and without: every text is the same.

    PYTHONPATH=tests/support python -m campaigns.speculation [--prompts 1000] [--seed 1]

The prompts go round all families of decoders and repeat themselves; among the requests of each three, one has two texts and one stops at
some tokens. Texts propose for themselves, and a draft proposes, the model itself with noise on its weights. In float64 ids and ends must be
equal, and log-probabilities to 1e-9. A full run goes to benchmarks/results/speculation.json; it takes about twenty minutes of one core.
"""

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import tiny
from pellucid.engine.engine import Engine
from pellucid.engine.requests import Output, Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.ops.sampling.settings import Sampling

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "speculation.json"
FULL = 1000
SETTINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(0.7, seed=5),
    "penalised": Sampling(0.3, top_k=2, repetition=0.5, seed=7),  # which repeats itself
}


def requests(seed: int, sampling: Sampling, new: int = 16) -> list[Request]:
    """Return requests whose prompts repeat themselves; one has two texts, one stops at some tokens."""
    draw = torch.Generator().manual_seed(seed)
    out = []
    for n in (4, 7, 11):
        part = torch.randint(tiny.V, (n,), generator=draw).tolist()
        out.append(Request((*part, *part, *part[: n // 2]), new, sampling, logprobs=2))
    return [
        out[0],
        replace(out[1], n=2, sampling=replace(sampling, seed=3)),
        replace(out[2], stops=frozenset(range(0, tiny.V, 9)), least=3),
    ]


def texts(module: Any, wanted: list[Request], speculate: bool, **how: Any) -> tuple[list[list[Output]], int]:
    """Return the outputs of each text, without the number of rows that were stored already, and the count of accepted proposals."""
    limits = SchedulerLimits(how.pop("rows", 64), how.pop("running", 8))
    engine = Engine.of(module, how.pop("tokens", 400), limits, how.pop("size", 4), **how)
    for request in wanted:
        engine.submit(replace(request, speculate=speculate))
    out: dict[tuple[int, int], list[Output]] = {}
    for o in engine.outputs():
        out.setdefault((o.request, o.index), []).append(replace(o, cached=0))
    storage: Any = engine.storage
    assert storage.pages.sound({w: list(g.cached) for w, g in storage.pages.allocators.items()})
    assert engine.queue.accepted == sum(o.same_step for text in out.values() for o in text) <= engine.queue.proposed
    return [out[key] for key in sorted(out)], engine.queue.accepted


def ids(outputs: list[list[Output]]) -> list[list[int]]:
    """Return the tokens of each text."""
    return [[o.token.id for o in text if o.token is not None] for text in outputs]


def difference(given: list[list[Output]], plain: list[list[Output]]) -> str | None:
    """Return what texts with proposals and without have not in common, None if nothing."""
    if ids(given) != ids(plain):
        return f"{ids(given)} is not {ids(plain)}"
    for a, b in zip(itertools.chain(*given), itertools.chain(*plain), strict=True):
        far = 0.0 if a.token is None or b.token is None else abs((a.token.logprob or 0) - (b.token.logprob or 0))
        if a.ended != b.ended or not far < 1e-9:
            return f"{a} is not {b}"
    return None


def near(family: str, dtype: torch.dtype = torch.float64) -> Any:
    """Return the tiny model of a family with noise on its weights, whose guesses are often right."""
    module, draw = tiny.tiny(family, dtype), torch.Generator().manual_seed(1)
    for p in module.parameters():
        p.data += 0.005 * torch.randn(p.shape, generator=draw, dtype=torch.float64).to(dtype)
    return module


def campaign(prompts: int, seed: int, families: list[str] | None = None) -> dict[str, Any]:
    """Compare at least `prompts` prompts. Returns counts by family, and what differs."""
    faults, counts = list[str](), Counter[str]()
    by_family: dict[str, Counter[str]] = {name: Counter() for name in families or tiny.DECODERS}
    models = {name: (tiny.tiny(name), near(name)) for name in by_family}
    rounds = itertools.count(seed)
    while counts["prompts"] < prompts:
        number = next(rounds)
        for family, (module, draft) in models.items():
            if counts["prompts"] >= prompts:
                break
            for name, sampling in SETTINGS.items():
                wanted = requests(number, sampling)
                plain, _ = texts(module, wanted, False)
                for way, how in (("lookup", {}), ("draft", {"draft": draft})):
                    given, accepted = texts(module, wanted, True, **how)
                    by_family[family][way] += accepted
                    counts["texts"] += len(plain)
                    if (fault := difference(given, plain)) is not None and len(faults) < 10:
                        faults.append(f"{family} {number} {name} {way}: {fault}")
            counts["prompts"] += len(wanted)
    accepted_by = {name: dict(of) for name, of in by_family.items() if of}
    return {**counts, "settings": list(SETTINGS), "accepted": accepted_by, "faults": faults}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=FULL)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    began = time.time()
    report = {"schema": 1, "campaign": "speculation", "seed": a.seed, **campaign(a.prompts, a.seed)}
    report |= {"seconds": round(time.time() - began, 1), "torch": torch.__version__}
    if a.prompts >= FULL:
        RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))
    return int(bool(report["faults"]))


if __name__ == "__main__":
    sys.exit(main())
