"""The bill of a recipe of facts is what its run takes: steps, tokens and products exactly, memory within a tenth."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid.counting.training_memory import memory
from pellucid.documents import facts_bill
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.errors import TrainError
from pellucid.training import run_recipe
from pellucid.training.aim import criterion_of
from pellucid.training.criterion import targets_in
from pellucid.training.distillation import Distillation
from pellucid.training.loop import TrainingRun, feed
from pellucid.training.pipeline import examples, prepare
from pellucid.training.recipe import read_recipe
from pellucid.training.run_length import with_steps
from pellucid.training.start import fresh
from pellucid.watching.watch import watch
from test_step_memory import WITHIN, measured
from tiny import swapped
from training import ROOT, corpus_of

KINDS = ("capitals", "capitals-prefix", "capitals-t5", "capitals-bert", "capitals-half")
FOLDER = '[data]\nfolder = "{}"'


def recipe_of(folder: Path, name: str, **changed: Any) -> Path:
    """Write a recipe that ships, of two countries and few steps, with these fields of [train] changed."""
    corpus_of(folder / "corpus", "France", "Spain")
    text = (
        (ROOT / "recipes" / f"{name}.toml").read_text(encoding="utf-8").replace(FOLDER.format("pellucid/capitals"), FOLDER.format("corpus"))
    )
    for field, value in {"steps": 3, "batch": 24, "pool": 2, **changed}.items():
        text = re.sub(rf"(?m)^{field} = .*\n", "", text).replace("[train]\n", f"[train]\n{field} = {value}\n")
    path = folder / "r.toml"
    path.write_text(text, encoding="utf-8")
    return path


def run_of(path: Path) -> TrainingRun:
    """Return the run of a recipe before its first step, made by the run's own functions."""
    recipe = read_recipe(path)
    objective = prepare(recipe, path.parent)
    both = examples(recipe, objective)
    recipe = with_steps(recipe, objective, both[0])
    start = fresh(recipe, objective)
    (path.parent / "run").mkdir()
    criterion = criterion_of(recipe, start, objective, both, path.parent)
    return TrainingRun(start.model.train(), objective, both[0], recipe.train, path.parent / "run", criterion=criterion)


def steps_of(run: TrainingRun) -> Iterator[list[int]]:
    return islice(feed(run.documents, run.s, 0), run.s.steps)


def taken(run: TrainingRun) -> tuple[int, int, int]:
    """Return the steps, the tokens that carry loss and the products of a run: of a forward three times, of a teacher's once."""
    tokens = flops = 0
    for numbers in steps_of(run):
        for batch in run.batches(numbers):
            tokens += targets_in(batch)
            models = [(run.model, 3), *([(run.criterion.teacher, 1)] if isinstance(run.criterion, Distillation) else [])]
            for model, times in models:
                with torch.no_grad(), watch(model, keep=lambda x: None) as seen:
                    model(*batch.inputs)
                flops += times * sum(seen.flops.values())
    return run.s.steps, tokens, flops


def billed(path: Path) -> tuple[int, int, int]:
    facts = recipe_bill(path).facts
    assert facts is not None
    return facts.steps, facts.tokens, facts.flops


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.quick(4)
def test_a_run_of_facts_is_counted(name: str, tmp_path: Path) -> None:
    """Each objective, with micro-batches of which the last is smaller."""
    path = recipe_of(tmp_path, name, batch=20, micro=10, pool=1)
    assert billed(path) == taken(run_of(path))


def test_mutants(tmp_path: Path) -> None:
    """Full batches alone, rows of another length, and targets that carry no loss are seen."""
    path = recipe_of(tmp_path, "capitals-prefix", batch=20, micro=10)
    right = taken(run_of(path))
    shape = facts_bill.shape_of
    mutants = {
        "shape_of": lambda objective, documents: shape(objective, documents)._replace(rows=1 + shape(objective, documents).rows),
        "targets_of": lambda objective, documents: [objective.rows(d) for d in documents],
        "micro_batches": lambda numbers, micro: [numbers],
    }
    for name, mutant in mutants.items():
        with swapped(facts_bill, name, mutant):
            assert billed(path) != right, name


@pytest.mark.quick(4)
@pytest.mark.parametrize(("name", "dtype", "micro"), [*((name, "float32", 24) for name in KINDS), ("capitals", "bfloat16", 24)])
def test_its_memory_is_what_a_step_takes(name: str, dtype: str, micro: int, tmp_path: Path) -> None:
    """Of the step with the longest rows, a teacher's weights with it; a bill of the shortest is too small."""
    path = recipe_of(tmp_path, name, dtype=f'"{dtype}"', micro=micro, pool=16)
    run = run_of(path)
    longest = max(steps_of(run), key=lambda numbers: max(run.objective.rows(run.documents[i]) for i in numbers))
    teacher = run.criterion.teacher.parameters() if isinstance(run.criterion, Distillation) else []
    took = measured(run, longest) + sum(p.numel() * p.element_size() for p in teacher)

    def predicted() -> int:
        bill = recipe_bill(path)
        return int(memory(bill.bill, bill.way)["memory.total"])

    assert abs(predicted() / took - 1) < WITHIN
    with swapped(facts_bill, "largest", lambda shapes: [min(shapes, key=facts_bill.sizes)]):
        assert predicted() / took < 1 - WITHIN


def test_what_the_run_refuses_is_refused(tmp_path: Path) -> None:
    """A model of another kind, and documents that are longer than it has positions, in the words of the run."""
    path = recipe_of(tmp_path, "capitals")
    text = path.read_text(encoding="utf-8")
    for wrong in (text.replace('name = "capitals"', 'name = "capitals"\nobjective = "translation"'), text.replace("= 64", "= 4")):
        path.write_text(wrong, encoding="utf-8")
        with pytest.raises(TrainError) as billed:
            recipe_bill(path)
        with pytest.raises(TrainError) as run:
            run_recipe(path, tmp_path / "run", True, 1, lambda entry: None)
        assert str(billed.value) == str(run.value)
