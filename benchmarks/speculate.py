"""What proposed tokens save: decoding with and without them, in alternating pairs, on texts that repeat their prompt or do not.

    python benchmarks/speculate.py [--model gpt2-small qwen2.5-0.5b] [--dtype float32 bfloat16 int8 int4] [--new 128] [--pairs 5]
                                   [--draft NAME] [--threads 2] [--out FILE]

Random weights write no text, so a constraint says each token: `copy` writes the prompt again, where every proposal is right; `fresh` writes
pairs of tokens that did not occur, where none is made; `broken` writes the prompt again with each fourth token another one, where
proposals end early; `misled` repeats a pair of tokens, each time with another behind it, so that all proposals are
wrong. The work of a step is that of a text which the model writes itself. Writes benchmarks/results/speculate.json.

--draft lets a model of that shape, with the ids of the other, propose instead. It reads the same constraint, so that its guesses are right:
what is measured is what a draft costs, and the most that it gives. On `fresh` and `misled` each of its guesses is made wrong. The first
text of a draft that is always wrong pays for reading its prompt, and warms up here: later ones are what is told.

The bound of `copy`: eight tokens a step, if a step of eight rows took as long as one of one row.
"""

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from meta import commit

from pellucid import __version__
from pellucid.api.count import count
from pellucid.bench.benched_model import random_weights
from pellucid.bench.machine import cpu
from pellucid.bench.machine_limits import threaded
from pellucid.engine.engine import Engine
from pellucid.engine.requests import Request
from pellucid.ops import native
from pellucid.ops.sampling.token_mask import TokenMask

HERE = Path(__file__).parent
PROMPT = 256


@dataclass
class Dictated:
    """A constraint to one text. masks: by token, made before the time is taken."""

    text: Sequence[int]
    masks: dict[int, TokenMask]

    def allowed(self, written: Sequence[int], index: int) -> TokenMask:
        return self.masks[self.text[len(written)]]

    def admits(self, written: Sequence[int], index: int, token: int) -> bool:
        return self.text[len(written)] == token


def dictations(vocab: int, new: int) -> dict[str, tuple[list[int], list[int]]]:
    """Return prompts and texts of each kind."""
    draw = random.Random(0)
    prompt = draw.sample(range(vocab), PROMPT)
    copy = (prompt * (1 + new // PROMPT))[:new]
    broken = [draw.randrange(vocab) if i % 4 == 3 else token for i, token in enumerate(copy)]
    fresh = draw.sample(range(vocab), new)
    misled = [token if i % 3 == 2 else prompt[i % 3] for i, token in enumerate(fresh)]
    return {"copy": (prompt, copy), "fresh": (prompt, fresh), "broken": (prompt, broken), "misled": (prompt, misled)}


def timed(engine: Engine, prompt: list[int], text: list[int], vocab: int, speculate: bool) -> tuple[float, int]:
    """Return the seconds of a text after its first token, and the count of accepted proposals."""
    masks = {token: TokenMask.of(torch.zeros(vocab, dtype=torch.bool).index_fill_(0, torch.tensor([token]), True)) for token in set(text)}
    before = engine.queue.accepted
    engine.submit(Request(tuple(prompt), len(text), constraint=Dictated(text, masks), speculate=speculate))
    outputs = engine.outputs()
    next(outputs)
    start = time.perf_counter()
    got = [text[0], *(o.token.id for o in outputs if o.token is not None)]
    assert got == text
    return time.perf_counter() - start, engine.queue.accepted - before


def draft_of(name: str, vocab: int, like: Any) -> Any:
    """Return a random model of another shape with the same ids, as the other is held."""
    held = next(like.parameters()).dtype
    return random_weights(name, replace(count(name, PROMPT).config, vocab=vocab), held if held.is_floating_point else torch.float32, None)


def mistaken(extend: Any, vocab: int) -> Any:
    """Return what makes each guess of a draft a wrong one."""

    def wrong(s: Any, out: list[int], *row: Any) -> bool:
        goes_on = bool(extend(s, out, *row))
        out[-1] = (out[-1] + 1) % vocab
        return goes_on

    return wrong


def cases(name: str, dtype: str, a: argparse.Namespace) -> list[dict[str, Any]]:
    """One model in one format, every kind of text."""
    bill = count(name, PROMPT, dtype=dtype)
    quant = dtype if dtype in ("int8", "int4") else None
    model = random_weights(name, bill.config, torch.float32 if quant else getattr(torch, dtype), quant)
    small = None if a.draft is None else draft_of(a.draft, bill.config.vocab, model)
    engine, out = Engine.of(model, 2 * (PROMPT + a.new) + 128, prefix_cache=False, draft=small), []
    right = None if engine.draft is None else engine.draft.extend
    with threaded(a.threads):
        for kind, (prompt, text) in dictations(bill.config.vocab, a.new).items():
            pairs, accepted = [], 0
            if engine.draft is not None and right is not None:
                engine.draft.extend = mistaken(right, bill.config.vocab) if kind in ("fresh", "misled") else right  # type: ignore[method-assign]
            for _ in range(a.pairs + 1):  # the first records the plans
                plain, _ = timed(engine, prompt, text, bill.config.vocab, False)
                given, accepted = timed(engine, prompt, text, bill.config.vocab, True)
                pairs.append((plain, given))
            ratios = [plain / given for plain, given in pairs[1:]]
            rates = [(a.new - 1) / statistics.median(one) for one in zip(*pairs[1:], strict=True)]
            out.append({"model": name, "dtype": dtype, "text": kind, "new": a.new, "accepted": accepted, "ratio": statistics.median(ratios),
                        "ratios": ratios, "tokens_per_second": rates[1], "without": rates[0]})  # fmt: skip
            print(name, dtype, kind, f"{statistics.median(ratios):.2f}", f"{rates[0]:.1f} -> {rates[1]:.1f} tokens/s", flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", nargs="+", default=["gpt2-small", "qwen2.5-0.5b"])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16", "int8", "int4"])
    parser.add_argument("--draft", help="the shape of a draft, such as gpt2-small")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "speculate.json")
    a = parser.parse_args()
    found = [case for name in a.model for dtype in a.dtype for case in cases(name, dtype, a)]
    about = {"schema": 1, "time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(), "pellucid": __version__,
             "torch": torch.__version__, "cpu": cpu(), "instructions": native.instructions(), "system": platform.platform(),
             "threads": a.threads, "cores": os.cpu_count(), "load": os.getloadavg()}  # fmt: skip
    a.out.write_text(json.dumps({**about, "draft": a.draft, "cases": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
