"""The memory and the work of a recipe of texts, pairs, rewards or a teacher, before it runs, are what its steps take."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from pellucid import huge_pages
from pellucid.api.count import billed
from pellucid.counting.training_memory import training
from pellucid.documents.recipe_bill import RecipeBill, recipe_bill
from pellucid.training import run_recipe
from pellucid.training.distillation import Distillation
from pellucid.training.loop import TrainingRun
from pellucid.training.pair_rows import PairRows
from pellucid.training.pipeline import criterion_of, examples, fresh, prepare
from pellucid.training.preference import TOGETHER, logprobs_of
from pellucid.training.recipe import read_recipe
from pellucid.training.reward import Reward
from pellucid.training.shards import load_tokenizer
from test_step_memory import measured, most_of
from text_runs import recipe_of
from tiny import swapped
from training import silent

LENGTH = 48
WITHIN = 0.1
MODEL = {
    "model_type": '"llama"', "n_embd": None, "n_layer": None, "n_head": None, "n_positions": None, "size": "800",
    "model__hidden_size": "64", "model__intermediate_size": "192", "model__num_hidden_layers": "4", "model__num_attention_heads": "4",
    "model__num_key_value_heads": "2", "model__max_position_embeddings": "128",
}  # fmt: skip
WORDS = "Ann has a red ball and gives it to Ben, who likes the small boat of Cho, and an old map, and his hat. " * 4
TABLES = {
    "causal": "",
    "prefer": "",
    "ipo": '[prefer]\nloss = "ipo"\n',
    "reward": "[reward]\ngroup = 4\nnew = 16\n",
    "hot": "[reward]\ngroup = 4\nnew = 16\ntemperature = 2.0\n",
    "distil": '[distil]\nteacher = "base"\n',
    "top": '[distil]\nteacher = "base"\ntop = 16\ntemperature = 2.0\n',
    "vast": '[distil]\nteacher = "base"\ntop = 100000\n',
}
WAYS = {
    "plain": ("", ""),
    "recompute": ("recompute = true", ""),
    "micro": ("micro = 1", ""),
    "adapter": ("", "[adapter]\nrank = 4\n"),
}
DTYPES = "float32", "bfloat16", "float64"
OBJECTIVE = {"ipo": "prefer", "hot": "reward", "top": "distil", "vast": "distil"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, and lines whose texts are longer than a row."""
    place = tmp_path_factory.mktemp("aims")
    run_recipe(recipe_of(place, steps="1", **MODEL), place / "out", False, 1, silent).rename(place / "base")
    lines = [{"text": f"{i} {WORDS}", "prompt": f"{i} Ann", "chosen": f" {WORDS}", "rejected": f" no {WORDS}"} for i in range(8)]
    (place / "t.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    tokenizer = load_tokenizer(place / "base" / "tokenizer.json")
    prompts = [tokenizer.decode(tokenizer.encode(f"{i} {WORDS}").ids[: LENGTH - 1]) for i in range(8)]
    (place / "p.jsonl").write_text("\n".join(json.dumps({"prompt": p, "completion": "."}) for p in prompts), encoding="utf-8")
    return place


def aimed(folder: Path, name: str, data: str = "", train: str = "", adapter: str = "") -> Path:
    """Write a recipe of one kind that starts from the folder's model."""
    kind = OBJECTIVE.get(name, name)
    files = "p.jsonl" if kind == "reward" else "t.jsonl"
    path = folder / f"{name}.toml"
    path.write_text(
        f'name = "r"\nobjective = "{kind}"\n[model]\nfrom = "base"\n{adapter}{TABLES[name]}'
        f'[data]\nfiles = ["{files}"]\nlength = {LENGTH}\nlong = "cut"\nheld_out = 0\n{data}\n'
        f"[train]\nseed = 1\nsteps = 9\nbatch = 4\nlearning_rate = 1e-3\n{train}\n",
        encoding="utf-8",
    )
    return path


def run_of(path: Path, folder: Path) -> TrainingRun:
    """Return the run of a recipe before its first step. No answer that it draws stops before it is full."""
    recipe = read_recipe(path)
    folder.mkdir()
    objective = prepare(recipe, folder)
    start, documents = fresh(recipe, objective), examples(recipe, objective)
    criterion = criterion_of(recipe, start, objective, documents, folder)
    if isinstance(criterion, Reward):
        criterion.stops = frozenset()
    return TrainingRun(start.model, objective, documents[0], recipe.train, folder, None, {}, criterion)


def both(folder: Path, out: Path, name: str, **how: str) -> tuple[RecipeBill, int]:
    """Return the bill of a recipe, and the bytes that its second step takes at most."""
    path = aimed(folder, name, **how)
    run = run_of(path, out / "run")
    took = measured(run, list(range(8 if OBJECTIVE.get(name, name) == "prefer" else 4)))
    teacher = run.criterion.teacher.parameters() if isinstance(run.criterion, Distillation) else ()
    return recipe_bill(path), took + sum(p.numel() * p.element_size() for p in teacher)


@pytest.mark.quick(45)
@pytest.mark.parametrize(("name", "dtype", "way"), [(n, d, w) for n in TABLES for d in DTYPES for w in WAYS])
def test_the_bill_is_what_is_taken(folder: Path, tmp_path: Path, name: str, dtype: str, way: str) -> None:
    """Of rows that are full: what torch's allocator hands out, with a teacher's weights, in every way to train."""
    bill, took = both(folder, tmp_path, name, train=f'dtype = "{dtype}"\n{WAYS[way][0]}', adapter=WAYS[way][1])
    assert abs(int(training(bill.bill, bill.way)["memory.total"]) / took - 1) < WITHIN, (name, took)


def handed_out(work: Callable[[], object]) -> int:
    """Return the bytes that torch's allocator hands out at most at once, while `work` runs; a cache's too, in pages of its kind."""
    with swapped(huge_pages, "ADVICE", 0), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    return most_of(profiled)


def numbers_of(bill: RecipeBill) -> dict[str, int]:
    return {name: int(n) for name, n in training(bill.bill, bill.way).items()}


def test_a_teacher_s_forward(folder: Path, tmp_path: Path) -> None:
    """Its weights lie there all the time, its work is that of the student's forward, and its forward takes what the moment says."""
    bill, run = recipe_bill(aimed(folder, "distil")), run_of(aimed(folder, "distil"), tmp_path / "run")
    n, (batch,) = numbers_of(bill), run.batches(list(range(4)))
    assert isinstance(run.criterion, Distillation)
    teacher = run.criterion.teacher
    assert n["memory.teacher"] == n["memory.weights"] == 4 * sum(p.numel() for p in teacher.parameters())
    assert n["flops.teacher"] == n["flops.forward"] and n["flops.total"] == n["flops.backward"] + 2 * n["flops.forward"]
    with torch.no_grad():
        took = handed_out(lambda: teacher(*batch.inputs))
    always = sum(n[f"memory.{name}"] for name in ("weights", "moments", "teacher"))
    assert abs((n["memory.at_teacher"] - always) / took - 1) < WITHIN


def test_the_first_weights_log_probabilities(folder: Path, tmp_path: Path) -> None:
    n, run = numbers_of(recipe_bill(aimed(folder, "prefer"))), run_of(aimed(folder, "prefer"), tmp_path / "run")
    rows = run.documents
    assert isinstance(rows, PairRows) and len(rows) >= TOGETHER
    took = handed_out(lambda: logprobs_of(run.model, rows))
    assert abs((n["memory.at_reference"] - n["memory.weights"]) / took - 1) < WITHIN


def test_the_draws(folder: Path, tmp_path: Path) -> None:
    """The keys and values of all answers, and the forward that reads the prompts; their work is that of each token of each answer."""
    path = aimed(folder, "reward")
    bill, run = recipe_bill(path), run_of(path, tmp_path / "run")
    n = numbers_of(bill)
    took = handed_out(lambda: run.batches(list(range(4))))
    always = sum(n[f"memory.{name}"] for name in ("weights", "moments"))
    assert abs((n["memory.at_draws"] - always) / took - 1) < WITHIN, (n["memory.at_draws"] - always, took)

    def decode(context: int) -> int:
        b = bill.bill
        return int(billed(b.config, b.family, "r", context, 16, "float32", "float32", plain="float32")["flops.decode"])

    reading = int(billed(bill.bill.config, bill.bill.family, "r", LENGTH, 4, "float32", "float32", plain="float32")["flops.prefill"])
    assert abs(n["flops.draws"] / (reading + sum(decode(LENGTH + i) for i in range(15))) - 1) < 0.01
    assert bill.bill.setting.context == LENGTH + 16 - 1


@pytest.mark.parametrize(("name", "missing"), [("distil", "lasting"), ("distil", "tables"), ("reward", "tables"), ("prefer", "tables")])
@pytest.mark.quick(2)
def test_each_part_counts(folder: Path, tmp_path: Path, name: str, missing: str) -> None:
    """Of a plain step the bill is within 2%, and without one part it is not (mutants)."""
    bill, took = both(folder, tmp_path, name)
    without = replace(bill.way, extra=replace(bill.way.extra, **{missing: () if missing == "lasting" else 0}))
    totals = [int(training(bill.bill, way)["memory.total"]) for way in (bill.way, without)]
    assert abs(totals[0] / took - 1) < 0.02 < 1 - totals[1] / took, (totals, took)


@pytest.mark.parametrize("name", ["causal", "prefer"])
def test_packed_activations_to_the_byte(folder: Path, tmp_path: Path, name: str) -> None:
    """Texts that share a row keep what autograd keeps of the run's own batch; without their joined results it is less (a mutant)."""
    path = aimed(folder, name)
    bill, run = recipe_bill(path), run_of(path, tmp_path / "run")
    (batch,) = run.batches(list(range(8 if name == "prefer" else 4)))
    own = {p.untyped_storage()._cdata for p in run.model.parameters()} | {t.untyped_storage()._cdata for t in (batch.inputs[0],)}
    seen, alive = dict[int, int](), list[torch.Tensor]()

    def pack(t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        if storage._cdata not in own:
            alive.append(t)
            seen[storage._cdata] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run.model(*batch.inputs)
    counted = [int(training(bill.bill, replace(bill.way, packed=packed))["memory.activations"]) for packed in (True, False)]
    assert counted[0] == sum(seen.values()) + batch.inputs[0].untyped_storage().nbytes() > counted[1]
