"""Mutants of a recorded trace: its index, line by line, and its shards."""

import json
import random
import shutil
from pathlib import Path

import pellucid
from campaigns import Attempt, named
from campaigns.mutate import bent, mangled, text
from pellucid.tracing import load_trace


def prepare(folder: Path) -> Attempt:
    model = pellucid.load("pellucid/capitals", dtype="float32")
    good, bad = folder / "good", folder / "bad"
    pellucid.trace(model, "The capital of France is", steps=2, only="layers.0.attn.*").save(good)
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
            for s in load_trace(bad):
                assert s.value is None or s.value.numel() >= 0

        return named(load, "bad")

    return attempt
