"""Distillation: the divergence by its formula, steps by hand, a run that stops and goes on, and what is refused."""

import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from covering import FULL
from pellucid.errors import TrainError
from pellucid.training import corpus, distillation, run_recipe
from pellucid.training.card import card
from pellucid.training.distillation import Distillation, divergence
from pellucid.training.objectives import IGNORED
from pellucid.training.recipe_tables import DistilSettings
from pellucid.training.replay import Replay
from pellucid.training.stretches import verify_stretches
from pellucid.watching.watch import watch
from test_tuning import ADAPTER, recipe, refused
from text_runs import recipe_of, write_texts
from tiny import swapped
from training import ROOT, corpus_of, moved_as_said, silent, stopped_after_each_step, unmeasured

STUDENT = """
name = "half"
objective = "distil"

[model]
{model}

{distil}

[data]
{data}

[train]
seed = 1
steps = 6
batch = 2
learning_rate = 1e-2
warmup = 1
save_every = 2
keep = "all"
log_every = 1

[eval]
every = 3
"""
NEW = 'model_type = "gpt2"\nn_embd = 16\nn_layer = 1\nn_head = 2\nn_positions = 64'
FILES = 'files = ["text/*.txt", "b.jsonl"]\nlength = 32\nheld_out = 0.1'
TAUGHT = '[distil]\nteacher = "base"\ntemperature = 2.0\ntop = 40'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, and a tiny model that is the teacher."""
    place = tmp_path_factory.mktemp("distillation")
    shutil.move(run_recipe(recipe_of(place, steps="4"), place / "out", False, 1, silent), place / "base")
    return place


def distilling(folder: Path, name: str = "d.toml", model: str = NEW, distil: str = TAUGHT, data: str = FILES) -> Path:
    """Write a recipe that distils."""
    (folder / name).write_text(STUDENT.format(model=model, distil=distil, data=data), encoding="utf-8")
    return folder / name


@pytest.fixture(scope="module")
def finished(folder: Path) -> Path:
    """The folder of a finished run."""
    return run_recipe(distilling(folder), folder / "run", False, 1, silent).parent


def by_hand(teacher: Tensor, student: Tensor, temperature: float, top: int) -> list[float]:
    """Return the divergence of each row, an id at a time."""
    out = []
    for row in range(len(teacher)):
        p, q = (torch.exp(x[row].double() / temperature) for x in (teacher, student))
        best = sorted(range(len(p)), key=lambda i: -float(p[i]))[:top]
        total = sum(float(p[i]) for i in best)
        parts = [float(p[i]) / total * (float(torch.log(p[i] / total)) - float(torch.log(q[i] / q.sum()))) for i in best]
        out.append(temperature**2 * sum(parts))
    return out


@pytest.mark.parametrize("top", [1, 5, 23])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_divergence_by_hand(top: int, temperature: float) -> None:
    draw = torch.Generator().manual_seed(3)
    teacher, student = (torch.randn(7, 23, generator=draw, dtype=torch.float64) for _ in range(2))
    own = divergence(teacher, student, temperature, top if top < 23 else None)
    wanted = torch.tensor(by_hand(teacher, student, temperature, top), dtype=torch.float64)
    assert float((own - wanted).abs().max()) < 1e-12
    assert float(divergence(teacher, teacher, temperature).abs().max()) < 1e-12
    for wrong in (divergence(student, teacher, temperature, top), own * temperature if temperature > 1 else own + 1e-6):
        assert float((wrong - wanted).abs().max()) > 1e-7


def test_steps_by_hand(folder: Path, finished: Path) -> None:
    """The loss of each step is the mean divergence of the model before it from the teacher; the teacher stays as it was."""
    run, teacher = pellucid.Run(finished), pellucid.load(folder / "base", dtype="float32")
    for step in (1, 4, 6):
        batch = run.objective.batch([run.built[0].documents[i] for i in run.numbers(step)])
        real, student = batch.targets.flatten() != IGNORED, run.model(step - 1)
        with torch.no_grad():
            logits = [m.module(*batch.inputs).flatten(0, 1)[real] for m in (teacher, student)]
        wanted = by_hand(*logits, 2.0, 40)
        entry = run.log[step - 1]
        assert abs(entry["loss"] - sum(wanted) / len(wanted)) < 1e-5
        assert abs(entry["agreed"] - float((logits[0].argmax(-1) == logits[1].argmax(-1)).double().mean())) < 1e-6
    assert {"held_out", "held_out_nats", "held_out_agreed"} <= run.log[2].keys()
    card = (finished / "model" / "README.md").read_text(encoding="utf-8")
    assert "diverges from the teacher's" in card and "KL 散度" in card and "what `base` gives" in card and "`base` 对每个" in card


def test_resumed_and_taken_again(folder: Path, finished: Path, tmp_path: Path) -> None:
    """A run that is stopped after each step ends in the same bits; its stretches verify; a weight says why it moved."""
    again = stopped_after_each_step(folder / "d.toml", tmp_path / "out", 6)
    assert (again / "model.safetensors").read_bytes() == (finished / "model" / "model.safetensors").read_bytes()
    run = pellucid.Run(finished)
    assert [s.fault for s in verify_stretches(run, 2, 1)] == [None, None]
    moved_as_said(run, "layers.0.ffn.down.weight", (3, 5), 4)
    assert {s.value.shape[-1] for s in run.replay(4).all("layers.0.mid")} == {16}  # the teacher's width is another


def test_without_the_guard_the_teacher_would_be_watched(folder: Path) -> None:
    """The mutant of the line that keeps a watch from the teacher: its records stand beside the student's."""
    teacher, student = (pellucid.load(folder / "base", dtype="float32").module for _ in range(2))
    objective = Replay(folder / "run").objective
    batch = objective.batch([Replay(folder / "run").built[0].documents[0]])
    counts = []
    for guard in (distillation.seen_by, nullcontext):
        with swapped(distillation, "seen_by", guard), watch(student) as seen:
            Distillation(DistilSettings("base"), student if guard is nullcontext else teacher).judge(student, batch)
        counts.append(len(list(seen)))
    assert counts[1] == 2 * counts[0] > 0


def test_a_student_with_an_adapter(folder: Path, tmp_path: Path) -> None:
    """A folder's model learns from another by an adapter alone; of the same weights there is nothing to learn at first."""
    path = distilling(folder, "own.toml", model=f'from = "base"\n\n{ADAPTER}', distil='[distil]\nteacher = "base"')
    made = run_recipe(path, tmp_path / "run", False, 1, silent)
    assert made.name == "adapter" and pellucid.Run(made.parent).log[0]["loss"] < 1e-7  # float32 has 1.2e-7


def test_another_teacher_is_refused(folder: Path, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "there")
    other = run_recipe(recipe_of(tmp_path / "other", steps="3"), tmp_path / "other" / "run", False, 1, silent)
    shutil.copy(other / "model.safetensors", tmp_path / "there" / "base" / "model.safetensors")
    with pytest.raises(TrainError, match=r"differs in: teacher$"):
        run_recipe(tmp_path / "there" / "d.toml", tmp_path / "there" / "run", True, 1, silent)


REFUSED: list[tuple[dict[str, str], str]] = [
    ({"distil": "[distil]"}, "distil.teacher"),
    ({"distil": ""}, "distil.teacher"),
    ({"distil": f"{TAUGHT}\ntemp = 1"}, "distil.temp"),
    ({"distil": '[distil]\nteacher = "base"\ntemperature = 0'}, "distil.temperature"),
    ({"distil": '[distil]\nteacher = "base"\ntop = 0'}, "distil.top"),
    ({"distil": f"{TAUGHT}\n[tokenizer]\nsize = 300"}, "distil.teacher, tokenizer"),
    ({"distil": '[distil]\nteacher = "nowhere"'}, "nowhere"),
    ({"model": NEW, "distil": '[distil]\nteacher = "pellucid/capitals-t5"'}, "model_type is t5"),
    ({"model": 'from = "base"', "distil": '[distil]\nteacher = "pellucid/capitals"'}, "same tokenizer.json"),
    ({"model": NEW.replace("64", "16")}, "the model has 16"),
]


@pytest.mark.parametrize(("changed", "part"), REFUSED)
@pytest.mark.quick(4)
def test_recipes_refused(changed: dict[str, str], part: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert part in refused(distilling(folder, "bad.toml", **changed), tmp_path / "run", capsys, ("zh", "en"))


def test_a_longer_row_than_the_teacher_reads(folder: Path, tmp_path: Path) -> None:
    write_texts(tmp_path)
    shutil.copytree(folder / "base", tmp_path / "base")
    positions = pellucid.load(folder / "base").config.positions
    assert positions is not None
    model, data = NEW.replace("64", "256"), FILES.replace("32", str(positions + 1))
    with pytest.raises(TrainError, match=f"the model has {positions}"):
        run_recipe(distilling(tmp_path, model=model, data=data), tmp_path / "run", False, 1, silent)


@pytest.mark.timeout(3600 if FULL else 300)  # all of its steps take 14 minutes beside other tests
def test_the_recipe_of_a_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The specimen's half learns from facts with the specimen's own tokenizer. In full, it knows nearly all of them; else it has two."""
    text = (ROOT / "recipes" / "capitals-half.toml").read_text(encoding="utf-8")
    if not FULL:
        text = re.sub(r"(?m)^(steps|batch|n_layer|warmup) = .*$", lambda m: f"{m[1]} = {'1' if m[1] == 'n_layer' else '4'}", text)
        corpus_of(tmp_path / "corpora" / "capitals", "France", "Japan")
        monkeypatch.setattr(corpus, "CORPORA", tmp_path / "corpora")
    (tmp_path / "r.toml").write_text(text, encoding="utf-8")
    notes: list[dict[str, Any]] = []
    with nullcontext() if FULL else unmeasured():
        run_recipe(tmp_path / "r.toml", tmp_path / "run", False, 1, notes.append)
    model, teacher = pellucid.Run(tmp_path / "run").model(), pellucid.load("pellucid/capitals", dtype="float32")
    half = sum(p.numel() for p in model.module.parameters()) / sum(p.numel() for p in teacher.module.parameters())
    assert half < 0.5 and (not FULL or sum(notes[-1]["scores"].values()) / 12 > 0.7)
    run = Replay(tmp_path / "run")
    about_it = card(run.recipe, run.beginning.family, model.module, run.objective, [])
    assert all(word in about_it for word in ("`pellucid/capitals` gives", "学习 `pellucid/capitals`")) and "ships" not in about_it
    assert model.tokenizer.encode("The capital of Peru is") == teacher.tokenizer.encode("The capital of Peru is")


def test_a_table_of_another_objective(folder: Path) -> None:
    path = recipe(folder, "chat.toml", adapter=f"{ADAPTER}\n{TAUGHT}")
    with pytest.raises(TrainError, match="objective"):
        run_recipe(path, folder / "never", False, 1, silent)
