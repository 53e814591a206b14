"""What recipes that tune or distil are worth: right answers before and after, and of a student with and without its teacher.

    python benchmarks/tuning.py [--only reward prefer half alone] [--jobs 2] [--out FILE]

reward, prefer   recipes/continents-*.toml: prompts about continents that were held out, answered by the specimen and after the run
half             recipes/capitals-half.toml: the mean of the quiz's twelve accuracies
alone            the same student, tokenizer and steps by the sentences themselves, without a teacher

Quality is measured, and no time. Writes benchmarks/results/tuning.json.
"""

import argparse
import json
import os
import platform
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from meta import commit

import pellucid
from pellucid import __version__
from pellucid.bench.machine import cpu
from pellucid.ops import native
from pellucid.training import run_recipe
from pellucid.training.replay import Replay
from pellucid.training.reward import prompt_and_answer
from pellucid.training.text_objective import TaughtText

HERE = Path(__file__).parent
RECIPES = HERE.parent / "recipes"
SPECIMEN = "pellucid/capitals"


def run(name: str, text: str, folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Train by a recipe's text, and return what it made and what it showed."""
    shutil.copytree(RECIPES / "chats", folder / "chats")
    (folder / "r.toml").write_text(text, encoding="utf-8")
    shown = list[dict[str, Any]]()
    return run_recipe(folder / "r.toml", folder / name, False, 1, shown.append), shown


def continents(name: str) -> dict[str, Any]:
    """Return the shares of held-out prompts that are answered right before and after a run."""
    with tempfile.TemporaryDirectory() as folder:
        text = (RECIPES / f"continents-{name}.toml").read_text(encoding="utf-8")
        made, _ = run(name, text, Path(folder))
        before = pellucid.load(SPECIMEN, dtype="float32")
        after = pellucid.load(made, dtype="float32") if made.name == "model" else pellucid.load(SPECIMEN, dtype="float32", adapter=made)
        replay = Replay(made.parent)
        objective = replay.objective
        assert isinstance(objective, TaughtText)
        prompts = {objective.tokenizer.decode(prompt_and_answer(d)[0]).strip() for d in objective.rows_of(replay.recipe.train.seed)[1]}
        lines = (RECIPES / "chats" / "continents.jsonl").read_text(encoding="utf-8").splitlines()
        entries = [e for e in map(json.loads, lines) if e["prompt"] in prompts]
        return {"held_out": len(entries), "before": right(before, entries), "after": right(after, entries)}


def right(model: pellucid.Model, entries: list[dict[str, str]]) -> float:
    """Return the share of prompts whose likeliest answer is the right one."""
    written = model.generate([model.tokenizer.encode(e["prompt"]) for e in entries], 8)
    return sum(model.tokenizer.decode(ids[:-1]) == e["chosen"] for ids, e in zip(written, entries, strict=True)) / len(entries)


def quiz(name: str) -> dict[str, Any]:
    """Return the accuracies of a student after its run, with its teacher or alone."""
    text = (RECIPES / "capitals-half.toml").read_text(encoding="utf-8")
    if name == "alone":
        text = text.replace('objective = "distil"', 'objective = "causal"').replace("[distil]", "[tokenizer]")
        text = text.replace('teacher = "pellucid/capitals"\ntemperature = 1.0', "size = 4480")
    with tempfile.TemporaryDirectory() as folder:
        scores: dict[str, float] = run(name, text, Path(folder))[1][-1]["scores"]
    return {"mean": sum(scores.values()) / len(scores), "scores": scores}


CASES = {"reward": continents, "prefer": continents, "half": quiz, "alone": quiz}


def case(name: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    got = {"case": name, **CASES[name](name)}
    print({key: value for key, value in got.items() if key != "scores"}, flush=True)
    return got


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "tuning.json")
    a = parser.parse_args()
    with ProcessPoolExecutor(a.jobs, get_context("spawn")) as pool:
        cases = list(pool.map(case, a.only))
    about = {"schema": 1, "time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(), "pellucid": __version__,
             "torch": torch.__version__, "cpu": cpu(), "instructions": native.instructions(), "system": platform.platform(),
             "cores": os.cpu_count()}  # fmt: skip
    a.out.write_text(json.dumps({**about, "cases": cases}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
