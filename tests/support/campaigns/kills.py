"""Runs of training that are killed at random times, some of them several times, and go on: each must end in the same bits.

Half of the signals are SIGKILL, the others SIGTERM. The run prepares texts or facts, takes steps in micro-batches, records some, asks
questions and saves, one recipe beside its steps. No state may be lost once there is one.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from campaigns import Attempt
from pellucid.errors import StoppedError
from pellucid.training import run_recipe
from pellucid.training.saves import newest
from text_runs import write_texts
from training import corpus_of, silent
from watched_runs import RECIPE

DEATHS = 3  # of one run at most
AGAIN = 40  # starts of one run
NOT_COMPARED = {"lock", "aside", "meter.json"}


def prepare(folder: Path) -> Attempt:
    """Make the recipes, and what each ends in if nothing interrupts it. This process itself never trains: its forks could not then."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    few_forms(corpus_of(folder / "corpus", "France", "Spain") / "forms.json")
    (folder / "film.toml").write_text(
        RECIPE.replace("save_every = 4", "save_every = 2").replace("batch = 4", "batch = 4\nmicro = 2\nsave_beside = true")
    )
    write_texts(folder)
    texts = RECIPE.replace('folder = "corpus"', 'files = ["text/*.txt", "b.jsonl"]\nlength = 32\nheld_out = 0.1').replace("quiz = 10\n", "")
    (folder / "texts.toml").write_text(texts.replace('"film"', '"texts"').replace("save_every = 4", "save_every = 3"), encoding="utf-8")
    recipes = [folder / "film.toml", folder / "texts.toml"]
    references, lasted = dict[Path, dict[str, bytes]](), dict[Path, float]()
    for recipe in recipes:
        began = time.monotonic()
        status = ended(started(recipe, out := folder / f"whole-{recipe.stem}", 1), None)
        assert status == 0, f"{recipe.name} ended with {status}"
        references[recipe], lasted[recipe] = kept(out), time.monotonic() - began

    def attempt(draw: random.Random) -> str:
        recipe, out = draw.choice(recipes), folder / "run"
        shutil.rmtree(out, ignore_errors=True)
        threshold, had = draw.randint(1, DEATHS), False
        for start in range(AGAIN):
            at = draw.uniform(0, lasted[recipe]) if start < threshold else None
            status = ended(started(recipe, out, start), at, draw.choice((signal.SIGKILL, signal.SIGTERM)))
            if status not in (0, 75, 130, -signal.SIGKILL, -signal.SIGTERM):
                return f"start {start} ended with {status}"
            state, _ = newest(out / "saves")
            if had and state is None:
                return f"start {start} left no whole state"
            had = state is not None
            if status == 0:
                break
        own, reference = kept(out), references[recipe]
        other = {name for name, raw in reference.items() if own.get(name) != raw}
        other |= {name for name in own.keys() - reference.keys() if not name.startswith("saves/")}  # a stop saves at its own step
        return f"other than uninterrupted: {', '.join(sorted(other))}" if other else ""

    return attempt


def few_forms(path: Path) -> None:
    """Leave three forms of each relation to train on and one to ask: answers to all of them took nine tenths of a run."""
    forms = json.loads(path.read_text(encoding="utf-8"))
    for relation in forms["relations"].values():
        for one in relation.values():
            one["trained"], one["held_out"] = one["trained"][:3], one["held_out"][:1]
    path.write_text(json.dumps(forms), encoding="utf-8")


def started(recipe: Path, out: Path, start: int) -> int:
    """Start a fork that trains, from the newest state if there may be one. Returns its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        for kind in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(kind, signal.SIG_IGN)
        torch.set_num_threads(1)
        run_recipe(recipe, out, start > 0, 1, silent)
        status = 0
    except StoppedError as stopped:
        status = stopped.exit_code
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def ended(child: int, after: float | None, by: int = signal.SIGKILL) -> int:
    """Send a process a signal after some seconds, unless None, and return its exit status once it has ended."""
    if after is not None:
        time.sleep(after)
        os.kill(child, by)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kept(out: Path) -> dict[str, bytes]:
    """Return what a finished run has, without the clock of its log."""
    files = {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
    files = {name: raw for name, raw in files.items() if name.split("/")[0] not in NOT_COMPARED}
    for name in [name for name in files if name == "log.jsonl" or name.endswith("step.json")]:
        files[name] = b"\n".join(line.partition(b', "seconds"')[0] for line in files[name].split(b"\n"))
    return files
