"""Draws by the million: of 30 settings, each against probabilities that are worked out here a second time, token by token.

    PYTHONPATH=tests/support python -m campaigns.sampling [--draws 1000000] [--seed 1]

Three chi-squares a setting: how often each token came over the steps of one seed, over the first steps of as many seeds, and which
came after which. Bins hold 5 expected draws or more, the rest is pooled. A setting fails at p < 1e-4 after Holm's correction over all
(Scand. J. Statist. 6, 1979), or by one token that could not come. The outcome of a full run goes to benchmarks/results/sampling.json.
"""

import argparse
import importlib
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.ops.sampling.settings import Sampling

sample = importlib.import_module("pellucid.ops.sampling.stages")  # as one: a mutant of it is a mutant here
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "sampling.json"
FULL = 1_000_000
LEVEL = 1e-4
PROMPT, OUTPUT = (0, 5, 3, 9, 3, 40, 11), (7, 3, 7, 7, 12)
ALONE = 200  # draws of a setting that go through `choose` itself, one by one
PARTS = 8  # groups of tokens whose order is looked at

KINDS = {"peaked": 500, "flat": 200, "ties": 300, "holes": 400, "long": 50_000}
HOWS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6, "top_k": 40},
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05, "repetition": 1.3},
    {"temperature": 2.0, "top_k": 50, "top_p": 0.8, "min_p": 0.02},
    {
        "temperature": 0.9, "bias": {3: 2.0, 7: -1.5}, "repetition": 1.2, "presence": 0.4, "frequency": 0.3, "top_k": 100, "top_p": 0.95,
        "min_p": 0.001,
    },
]  # fmt: skip
SETTINGS = [(kind, how) for kind in KINDS for how in HOWS]


def logits(kind: str) -> Tensor:
    """Return logits [V] of a kind: few stand out, all alike, many equal, half of them impossible, or as frequencies of words (Zipf)."""
    size = KINDS[kind]
    x = torch.randn(size, generator=torch.Generator().manual_seed(size))
    if kind == "holes":
        return (x * 2).masked_fill(torch.arange(size) % 2 == 1, -math.inf)
    if kind == "long":
        return x * 0.3 - 1.3 * torch.arange(1.0, size + 1).log()
    return {"peaked": x * 4, "flat": x * 0.1, "ties": (x * 1.5).round()}[kind]


def expected(x: Tensor, how: Sampling) -> list[float]:
    """Return the probabilities of a draw: the settings' meaning in plain Python, on lists."""
    counts, seen = Counter(OUTPUT), {*PROMPT, *OUTPUT}
    l = [v + how.bias.get(i, 0.0) for i, v in enumerate(x.tolist())]
    l = [(v / how.repetition if v > 0 else v * how.repetition) if i in seen else v for i, v in enumerate(l)]
    l = [v - how.presence * (i in counts) - how.frequency * counts[i] for i, v in enumerate(l)]
    l = [v / how.temperature for v in l]
    ranked = sorted(range(len(l)), key=lambda i: (-l[i], i))
    kept = [i for i in ranked[: how.top_k or None] if l[i] > -math.inf]
    e = {i: math.exp(l[i] - l[ranked[0]]) for i in kept}
    total, before, nucleus = math.fsum(e.values()), 0.0, list[int]()
    for i in kept:
        if before < how.top_p * total or not nucleus:
            nucleus.append(i)
        before += e[i]
    likely = {i: e[i] for i in nucleus if e[i] >= how.min_p}
    total = math.fsum(likely.values())
    return [likely.get(i, 0.0) / total for i in range(len(l))]


def p_value(counts: Tensor, shares: Tensor) -> float:
    """Return the probability of counts [bins] at least as far from shares · their sum. Bins of fewer than 5 expected are pooled."""
    n = counts.sum()
    few = shares * n < 5
    observed, wanted = counts[~few].double(), shares[~few] * n
    if bool(few.any()):
        observed, wanted = torch.cat([observed, counts[few].sum()[None]]), torch.cat([wanted, (shares[few].sum() * n)[None]])
    kept = wanted > 0
    observed, wanted = observed[kept], wanted[kept]
    if len(wanted) < 2:
        return 1.0
    chi = ((observed - wanted) ** 2 / wanted).sum()
    return float(torch.special.gammaincc(torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64), chi / 2))


def grouped(shares: Tensor) -> Tensor:
    """Return a group for each token, such that all groups are about as likely: [V] of 0 to PARTS - 1."""
    order = torch.randperm(len(shares), generator=torch.Generator().manual_seed(1))
    place = torch.empty_like(order)
    place[order] = (shares[order].cumsum(0) * PARTS).clamp(max=PARTS - 1e-9).long()
    return place


def judged(number: int, draws: int, seed: int) -> dict[str, Any]:
    """Draw with one setting. Returns its counts and p-values."""
    kind, setting = SETTINGS[number]
    own = seed * 1000 + number
    how = Sampling(**setting, seed=own)
    x = logits(kind)
    shares = torch.tensor(expected(x, how), dtype=torch.float64)
    *_, last = sample.run(x, how, sample.History(PROMPT, OUTPUT))
    ids = torch.arange(len(x)) if last.ids is None else last.ids

    def drawn(uniforms: Iterable[float]) -> Tensor:
        return ids[sample.draw(last.values, torch.tensor([*uniforms], dtype=torch.float64))]

    steps = drawn(sample.uniform(own, i) for i in range(draws))
    seeds = drawn(sample.uniform(own * 2**32 + i, 0) for i in range(draws))
    groups = grouped(shares)
    pairs = groups[steps[:-1:2]] * PARTS + groups[steps[1::2]]
    mass = torch.zeros(PARTS, dtype=torch.float64).index_add(0, groups, shares)
    counts = torch.bincount(steps, minlength=len(x)), torch.bincount(seeds, minlength=len(x))
    return {
        "logits": kind, **setting, "support": int((shares > 0).sum()),
        "outside": sum(int(c[shares == 0].sum()) for c in counts),
        "p": {
            "steps": p_value(counts[0], shares), "seeds": p_value(counts[1], shares),
            "pairs": p_value(torch.bincount(pairs, minlength=PARTS**2), torch.outer(mass, mass).flatten()),
        },
        "alone": alone(x, how, steps),
    }  # fmt: skip


def alone(x: Tensor, how: Sampling, steps: Tensor) -> int:
    """Return the number of the first draws that `choose` gives otherwise. With penalties only the draw after `OUTPUT` is compared."""
    plain = Sampling(how.temperature, how.top_k, how.top_p, how.min_p, bias=how.bias, seed=how.seed)
    if plain != how:  # its probabilities follow the output: the one step that has this output
        return int(sample.choose(x, how, PROMPT, OUTPUT) != steps[len(OUTPUT)])
    return sum(sample.choose(x, how, PROMPT, [0] * i) != int(steps[i]) for i in range(min(ALONE, len(steps) // 100)))


def rejected(values: list[float]) -> list[int]:
    """Return the hypotheses that fall by Holm's rule: the smallest p below LEVEL / n, the next below LEVEL / (n - 1), until one stands."""
    out = []
    for rank, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        if values[i] >= LEVEL / (len(values) - rank):
            break
        out.append(i)
    return out


def campaign(numbers: Iterable[int], draws: int, seed: int, log: Any = lambda line: None) -> dict[str, Any]:
    """Judge these settings together. faults in the result: the settings that fell, by their place in `settings`."""
    settings = []
    for i in numbers:
        settings.append(judged(i, draws, seed))
        log(f"{i + 1} of {len(SETTINGS)}  {settings[-1]}")
    fallen = rejected([p for s in settings for p in s["p"].values()])
    faults = {i // 3 for i in fallen} | {i for i, s in enumerate(settings) if s["outside"] or s["alone"]}
    least = min(p for s in settings for p in s["p"].values())
    return {
        "schema": 1, "campaign": "sampling", "seed": seed, "draws": draws, "level": LEVEL, "least": least, "faults": sorted(faults),
        "settings": settings,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=FULL)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    began = time.time()
    report = campaign(range(len(SETTINGS)), a.draws, a.seed, lambda line: print(line, file=sys.stderr, flush=True))
    report |= {"seconds": round(time.time() - began, 1), "python": sys.version.split()[0], "torch": torch.__version__}
    if a.draws >= FULL:
        RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in report.items() if k != "settings"}, indent=2))
    return int(bool(report["faults"]))


if __name__ == "__main__":
    sys.exit(main())
