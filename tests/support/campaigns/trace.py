"""Mutants of a recorded trace, its index, line by line, and its shards: opened as the page opens them."""

import json
import random
import shutil
from pathlib import Path

import pellucid
from campaigns import Attempt, named
from campaigns.mutate import bent, mangled, text
from pellucid.documents.run import run_document, step_document
from pellucid.runs.execute import recorded
from pellucid.runs.limits import LIMITS
from pellucid.tracing import load_trace


def prepare(folder: Path) -> Attempt:
    model = pellucid.load("pellucid/capitals", dtype="float32")
    good, bad = folder / "good", folder / "bad"
    pellucid.trace(model, "The capital of France is", steps=2, only=("layers.0.*", "logits")).save(good)
    names = sorted(p.name for p in good.iterdir())

    def attempt(draw: random.Random) -> str:
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        file = bad / draw.choice(names)
        if file.suffix == ".jsonl" and draw.random() < 0.7:
            lines = file.read_bytes().splitlines()
            at = draw.randrange(len(lines))
            lines[at] = text(bent(json.loads(lines[at]), draw))
            file.write_bytes(b"\n".join(lines) + b"\n")
        elif draw.random() < 0.1:
            file.unlink()
        else:
            file.write_bytes(mangled(file.read_bytes(), draw))

        def load() -> None:
            run = recorded(None, load_trace(bad), LIMITS, bad)
            documents = [run_document(run), *(step_document(run, k) for k in range(run.trace.steps)[:3])]
            json.dumps(documents, allow_nan=False)

        return named(load, "bad")

    return attempt
