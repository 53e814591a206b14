"""Training: the step is the formula, a run that stops or dies goes on bit for bit, and what cannot be trained is refused."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from pellucid import config as c
from pellucid.checkpoint import disk
from pellucid.checkpoint.safetensors_file import read_tensor
from pellucid.errors import PellucidError, TrainError
from pellucid.model import load
from pellucid.models import Decoder
from pellucid.train import apprentice, loop, run_recipe, saves
from pellucid.train.loop import IGNORED, Run, batches, initialise, learning_rate, loss_of, optimizer, sheet
from pellucid.train.recipe import Settings, read_recipe
from pellucid.train.saves import digest, newest, save_state
from tiny import swapped

ROOT = Path(__file__).parents[1]
CONFIG = c.Config(
    23, 16, (c.Layer(c.Attention(2, 2, 8, bias=True, out_bias=True), c.Mlp(32, "gelu_tanh", False, True)),), True, 1e-5, "layer", 16
)  # fmt: skip
SETTINGS = Settings(seed=3, steps=12, batch=4, learning_rate=1e-2, warmup=3, save_every=3, log_every=1, pool=2)
DOCUMENTS = [[(7 * i + j * j) % 23 for j in range(2 + i % 9)] for i in range(21)]


def fresh(seed: int = 1, dtype: torch.dtype = torch.float32) -> Decoder:
    """A tiny model with its first weights."""
    model = Decoder(CONFIG)
    initialise(model, 1, 0.3, seed)
    return model.to(dtype)


def run_of(folder: Path, s: Settings = SETTINGS, documents: list[list[int]] = DOCUMENTS, model: Decoder | None = None) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    return Run(model or fresh(), documents, s, folder)


def at_step(run: Run, step: int) -> bool:
    """Whether a run is to stop."""
    return run.step == step


def silent(entry: dict[str, Any]) -> None:
    """Progress for nobody."""


def state(run: Run) -> dict[str, bytes]:
    """Every weight and moment, as bytes."""
    held = {path: p.detach() for path, p in run.model.named_parameters()}
    for path, p in run.model.named_parameters():
        held |= {f"{path}:{k}": v for k, v in run.optimizer.state[p].items()}
    return {name: v.numpy().tobytes() for name, v in held.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """A run that nothing interrupts: its last state, and its log."""
    run = run_of(tmp_path_factory.mktemp("whole"))
    assert run.train(silent)
    return state(run), log_of(run)


def log_of(run: Run) -> list[dict[str, Any]]:
    """The log without its clock."""
    lines = (run.folder / "log.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_second"} for line in lines]


def resumed(folder: Path, **how: Any) -> Run:
    """A new process' run in a folder: other first weights, which must not matter where a state was saved."""
    run = run_of(folder, model=fresh(99 if newest(folder / "saves")[0] else 1), **how)
    run.resume()
    run.train(silent)
    return run


# The step.


def test_first_weights_follow_from_the_seed() -> None:
    """All of them, whatever ran before: matrices normal, those that write to the residual smaller, biases 0, norms 1."""
    torch.manual_seed(1)
    a: dict[str, Tensor] = dict(fresh(1).named_parameters())
    torch.manual_seed(2)
    b, other = (dict(fresh(seed).named_parameters()) for seed in (1, 2))
    assert all(torch.equal(a[path], b[path]) for path in a)
    assert all(torch.equal(a[path], other[path]) == (a[path].ndim < 2) for path in a)
    assert not any(float(p.detach().abs().max()) for path, p in a.items() if path.endswith("bias"))
    a = {path: p.detach() for path, p in a.items()}
    assert float(a["layers.0.ffn.up.weight"].std()) == pytest.approx(0.3, rel=0.1)
    assert float(a["layers.0.ffn.down.weight"].std()) == pytest.approx(0.3 / 2**0.5, rel=0.1)


def test_loss_is_the_mean_over_real_targets() -> None:
    """-log p of each target that is no padding, by hand in float64; a mean over padding too would differ."""
    model = fresh(dtype=torch.float64)
    numbers = [0, 5, 8, 7]
    inputs, targets = sheet(DOCUMENTS, numbers)
    assert inputs.shape == targets.shape == (4, max(len(DOCUMENTS[i]) for i in numbers) - 1) and bool((targets == IGNORED).any())
    with torch.no_grad():
        told = [
            -model(torch.tensor([DOCUMENTS[i][:-1]]))[0].log_softmax(-1)[torch.arange(len(DOCUMENTS[i]) - 1), DOCUMENTS[i][1:]]
            for i in numbers
        ]
        found = float(loss_of(model, inputs, targets))
    assert found == pytest.approx(float(torch.cat(told).mean()), rel=1e-12)
    assert found != pytest.approx(float(torch.stack([t.mean() for t in told]).mean()), rel=1e-6)
    assert found != pytest.approx(float(torch.cat(told).sum() / targets.numel()), rel=1e-6)


def by_hand(run: Run, batch: list[list[int]]) -> dict[str, Tensor]:
    """The weights after these batches, by the formula of AdamW (arXiv 1711.05101) and clipping, in float64."""
    s = run.s
    at = {path: p.detach().clone() for path, p in run.model.named_parameters()}
    m, v = ({path: torch.zeros_like(p) for path, p in at.items()} for _ in range(2))
    model = fresh(dtype=torch.float64)
    for step, numbers in enumerate(batch):
        for path, p in model.named_parameters():
            p.data, p.grad = at[path].clone(), None
        inputs, targets = sheet(run.documents, numbers)
        loss_of(model, inputs, targets).backward()
        g = {path: cast(Tensor, p.grad) for path, p in model.named_parameters()}
        norm = math.sqrt(sum(float((x * x).sum()) for x in g.values()))
        for path in at:
            x = g[path] * min(1.0, s.clip / (norm + 1e-6))
            m[path] = s.beta1 * m[path] + (1 - s.beta1) * x
            v[path] = s.beta2 * v[path] + (1 - s.beta2) * x * x
            up = (m[path] / (1 - s.beta1 ** (step + 1))) / ((v[path] / (1 - s.beta2 ** (step + 1))).sqrt() + 1e-8)
            decay = s.weight_decay if at[path].ndim > 1 else 0.0
            rate = s.learning_rate * (step + 1) / s.warmup
            at[path] = at[path] * (1 - rate * decay) - rate * up
    return at


def test_step_is_adamw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps against the hand formula; a decay of norms, and a gradient that is not clipped, would be seen."""
    s = replace(SETTINGS, weight_decay=0.3, clip=0.05)

    def gap() -> float:
        run = run_of(tmp_path, s, model=fresh(dtype=torch.float64))
        feed = [[0, 1, 2, 3], [9, 8, 7, 6], [20, 3, 11, 14]]
        wanted = by_hand(run, feed)
        for numbers in feed:
            run.one(numbers)
        return max(float((p.detach() - wanted[path]).abs().max()) for path, p in run.model.named_parameters())

    assert gap() < 1e-12
    with monkeypatch.context() as m:
        m.setattr(loop, "optimizer", lambda model, s: torch.optim.AdamW(model.parameters(), betas=(s.beta1, s.beta2), weight_decay=0.3))
        assert gap() > 1e-6
    with monkeypatch.context() as m:
        m.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, clip: torch.tensor(1.0))
        assert gap() > 1e-6


def test_learning_rate() -> None:
    s = replace(SETTINGS, steps=110, warmup=10, learning_rate=2.0, floor=0.1)
    assert [learning_rate(i, s) for i in (0, 4, 9)] == pytest.approx([0.2, 1.0, 2.0])
    assert [learning_rate(i, s) for i in (10, 60, 110)] == pytest.approx([2.0, 2.0 * 0.55, 0.2])
    assert [g["weight_decay"] for g in optimizer(fresh(), s).param_groups] == [s.weight_decay, 0.0]


def test_batches_follow_from_the_seed() -> None:
    """Every document once an epoch, in another order each, the same for the same seed."""
    feed, again, other = (batches(DOCUMENTS, replace(SETTINGS, seed=x)) for x in (3, 3, 4))
    per = 2 + 2 + 2  # pools of 8, 8 and 5 documents
    epochs = [[next(feed) for _ in range(per)] for _ in range(3)]
    assert [[next(again) for _ in range(per)] for _ in range(3)] == epochs
    assert [next(other) for _ in range(per)] != epochs[0] and epochs[0] != epochs[1]
    assert all(sorted(i for b in epoch for i in b) == list(range(len(DOCUMENTS))) for epoch in epochs)


def test_one_batch_can_be_learnt(tmp_path: Path) -> None:
    documents = [[0, 5, 7, 2, 1], [0, 9, 4, 4, 8, 3], [0, 11, 2]]
    found: list[float] = []
    s = replace(SETTINGS, steps=250, learning_rate=2e-2, warmup=10, weight_decay=0.0, save_every=1000)
    run_of(tmp_path, s, [[i, *d] for i, d in enumerate(documents, 15)]).train(lambda e: found.append(e["loss"]))
    assert found[-1] < 0.01 < 1 < found[0]


# Going on.


@pytest.mark.parametrize("at", [1, 3, 4, 6, 9, 11, 12])
def test_resume_is_bit_identical(at: int, tmp_path: Path, whole: tuple[dict[str, bytes], list[dict[str, Any]]]) -> None:
    """Stopped after any step, at a save or between two, the run goes on as if nothing had been; its log too."""
    first = run_of(tmp_path)
    assert not first.train(silent, lambda: first.step == at)
    with (tmp_path / "log.jsonl").open("a") as f:
        f.write('{"step": 99, "loss": 0}\n{"step": 1')  # what a crash leaves of steps that are lost
    run = resumed(tmp_path)
    assert run.step == 12 and state(run) == whole[0] and log_of(run) == whole[1]


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (loop, "batches", lambda documents, s: iter([[i % 21] for i in range(40)])),
        (loop, "learning_rate", lambda step, s: s.learning_rate),
        (saves, "read_tensor", lambda entry: read_tensor(entry) * (1.0 if "exp_avg_sq" not in entry.name else 0.5)),
    ],
)
def test_resume_mutants_are_seen(owner: Any, name: str, value: Any, tmp_path: Path, whole: tuple[dict[str, bytes], Any]) -> None:
    """Other data after a resume, a forgotten place in the schedule, a moment that changed."""
    first = run_of(tmp_path)
    first.train(silent, lambda: first.step == 6)
    with swapped(owner, name, value):
        assert state(resumed(tmp_path)) != whole[0]


def test_saving_changes_nothing(tmp_path: Path, whole: tuple[dict[str, bytes], Any]) -> None:
    for every in (1, 5, 1000):
        run = run_of(tmp_path / str(every), replace(SETTINGS, save_every=every))
        run.train(silent)
        assert state(run) == whole[0]
        assert sorted(p.name for p in (run.folder / "saves").iterdir())[-1] == "000000012"


def dying(folder: Path, moment: int) -> int:
    """Train in a child that is killed at this moment: before a file is written, synced, renamed or deleted. Its exit status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    count = 0

    def deadly(f: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **how: Any) -> Any:
            nonlocal count
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return f(*args, **how)

        return called

    try:
        for owner, name in ((os, "fsync"), (os, "replace"), (shutil, "rmtree"), (saves, "text"), (saves, "write")):
            setattr(owner, name, deadly(getattr(owner, name)))
        run_of(folder).train(silent)
    finally:
        os._exit(0 if sys.exc_info()[0] is None else 1)


def test_killed_at_any_moment(tmp_path: Path, whole: tuple[dict[str, bytes], Any]) -> None:
    """kill -9 at every border of the disk: a complete state is there once one was, and the resumed run ends in the same bits."""
    moment, died = 0, 0
    while True:
        moment += 1 if moment < 36 else 5  # densely through two saves, then here and there
        folder = tmp_path / str(moment)
        status = dying(folder, moment)
        assert status in (0, signal.SIGKILL), status
        assert newest(folder / "saves")[0] is not None or moment <= 16, moment
        run = resumed(folder)
        assert state(run) == whole[0]
        shutil.rmtree(folder)
        died += status != 0
        if status == 0:
            break
    assert died > 30


def test_kill_9_of_a_process(tmp_path: Path, whole: tuple[dict[str, bytes], Any]) -> None:
    """A real process, killed from outside once it has saved."""
    code = f"""
import sys, time
sys.path[:0] = [{str(ROOT / "tests")!r}]
import torch
torch.set_num_threads(1)
import test_train as t
from pathlib import Path
t.run_of(Path({str(tmp_path)!r})).train(lambda entry: time.sleep(0.05))
"""
    child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        for _ in range(2400):
            if (tmp_path / "saves" / "000000003" / "manifest.json").exists() or child.poll() is not None:
                break
            time.sleep(0.05)
        assert child.poll() is None
    finally:
        child.kill()
    assert child.wait() == -signal.SIGKILL
    run = resumed(tmp_path)
    assert run.step == 12 and state(run) == whole[0]


# Damage.

DAMAGE: dict[str, Callable[[Path], Any]] = {
    "bit": lambda f: flip(f / "weights.safetensors"),
    "moment": lambda f: flip(f / "moments.safetensors"),
    "state": lambda f: (f / "state.json").write_text((f / "state.json").read_text().replace("9", "8")),
    "cut": lambda f: os.truncate(f / "weights.safetensors", 100),
    "zeros": lambda f: (f / "weights.safetensors").write_bytes(bytes((f / "weights.safetensors").stat().st_size)),
    "gone": lambda f: (f / "moments.safetensors").unlink(),
    "no manifest": lambda f: (f / "manifest.json").unlink(),
    "torn manifest": lambda f: os.truncate(f / "manifest.json", 20),
    "empty manifest": lambda f: (f / "manifest.json").write_text("{}"),
}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-9] ^= 4
    file.write_bytes(content)


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_state_is_passed_over(how: str, tmp_path: Path, whole: tuple[dict[str, bytes], Any]) -> None:
    """The newest state that verifies is where the run goes on; what was wrong is named; the last bits are the same."""
    first = run_of(tmp_path)
    first.train(silent, lambda: first.step == 9)
    DAMAGE[how](tmp_path / "saves" / "000000009")
    run = run_of(tmp_path, model=fresh(5))
    faults = run.resume()
    assert run.step == 6 and len(faults) == 1 and "000000009" in faults[0] and "\n" not in faults[0]
    assert run.train(silent) and state(run) == whole[0]
    assert newest(tmp_path / "saves")[1] == []


def test_all_states_damaged(tmp_path: Path, whole: tuple[dict[str, bytes], Any]) -> None:
    """Then the run begins anew, and says what was wrong; a reader without the manifest would go on from damage."""
    first = run_of(tmp_path)
    first.train(silent, lambda: first.step == 6)
    for folder in (tmp_path / "saves").iterdir():
        flip(folder / "weights.safetensors")
    run = run_of(tmp_path)
    assert len(run.resume()) == 2 and run.step == 0
    assert run.train(silent) and state(run) == whole[0]
    flip(tmp_path / "saves" / "000000009" / "weights.safetensors")
    shutil.rmtree(tmp_path / "saves" / "000000012")

    def trusted(path: Path) -> str:
        manifest = path.parent / "manifest.json"
        return json.loads(manifest.read_text())[path.name][0] if manifest.exists() else digest(path)

    with swapped(saves, "digest", trusted):
        assert state(resumed(tmp_path)) != whole[0]


def test_two_states_are_kept(tmp_path: Path) -> None:
    run = run_of(tmp_path, replace(SETTINGS, save_every=1))
    held: list[list[str]] = []
    run.train(lambda e: held.append(sorted(p.name for p in (tmp_path / "saves").glob("*"))))
    assert held[-1] == ["000000010", "000000011"]
    save_state(tmp_path / "saves", 1_000, {"w": torch.ones(1)}, {}, {})
    assert [p.name for p in sorted((tmp_path / "saves").iterdir())] == ["000000012", "000001000"]


def test_a_full_disk_ends_the_run_cleanly(tmp_path: Path, whole: tuple[dict[str, bytes], Any]) -> None:
    """At the n-th sync, for all of a save: a TrainError, no half state, the older one is there, and the run can go on."""
    sync, count = disk.sync, 0
    for n in range(1, 9):
        folder = tmp_path / str(n)
        first = run_of(folder)
        assert not first.train(silent, partial(at_step, first, 3))
        count = 0

        def full(path: Path, n: int = n) -> None:
            nonlocal count
            count += 1
            if count == n:
                raise OSError(28, "No space left on device")
            sync(path)

        with pytest.MonkeyPatch.context() as m:
            m.setattr(disk, "sync", full)
            m.setattr(saves, "sync", full)
            with pytest.raises(TrainError, match="No space left"):
                first.train(silent)
        assert {p.name for p in (folder / "saves").iterdir()} <= {"000000003", "000000006"}
        assert newest(folder / "saves")[0] is not None
        assert state(resumed(folder)) == whole[0]


@pytest.mark.parametrize("what", ["settings", "documents", "model", "torch", "threads"])
def test_another_run_is_refused(what: str, tmp_path: Path) -> None:
    """A state belongs to its settings, documents, model, torch and threads; what differs is named."""
    first = run_of(tmp_path)
    first.train(silent, lambda: first.step == 3)
    changed: dict[str, dict[str, Any]] = {
        "settings": {"s": replace(SETTINGS, learning_rate=2e-2)},
        "documents": {"documents": [[1, 2, 4], *DOCUMENTS[1:]]},
        "model": {"model": Decoder(replace(CONFIG, eps=1e-4))},
    }
    other = run_of(tmp_path, **changed.get(what, {}))
    if what in ("torch", "threads"):
        other.identity[what] = "0"
    before = state(other)
    with pytest.raises(TrainError) as caught:
        other.resume()
    assert caught.value.key == "train.differs" and str(caught.value).endswith(what) and state(other) == before


# What ends a run.


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_no_number_changes_nothing(what: str, tmp_path: Path) -> None:
    """NaN or infinity in the loss or in a gradient: the run ends, with the step and documents named, before a weight is touched."""
    run = run_of(tmp_path)
    run.train(silent, lambda: run.step == 5)
    before, real = state(run), loss_of

    def broken(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        loss = real(model, inputs, targets)
        return loss * float("nan") if what == "loss" else loss + (model.norm.weight[0] - model.norm.weight[0].detach()) * 1e30 * 1e30

    with swapped(loop, "loss_of", broken), pytest.raises(TrainError) as caught:
        run.train(silent)
    assert caught.value.key == f"train.{what}" and "step 6" in str(caught.value)
    assert state(run) == before and run.step == 5


def test_documents_are_checked(tmp_path: Path) -> None:
    for documents, key in (([], "train.empty"), ([[1]], "train.length"), ([[1, 2], [1] * 18], "train.length"), ([[1, 23]], "train.id")):
        with pytest.raises(TrainError) as caught:
            run_of(tmp_path, documents=documents)
        assert caught.value.key == key
    assert run_of(tmp_path, documents=[[1] * 17]).one([0])["step"] == 1


# Recipes.

GOOD = {
    "name": '"mini"', "[model]": "", "model_type": '"gpt2"', "n_embd": "16", "n_layer": "1", "n_head": "2", "n_positions": "96",
    "[tokenizer]": "", "size": "400", "[data]": "", "folder": '"corpus"', "[train]": "", "seed": "1", "steps": "6", "batch": "8",
    "learning_rate": "1e-2", "warmup": "2", "save_every": "2", "log_every": "1",
}  # fmt: skip


def written(path: Path, **changed: str | None) -> Path:
    """A recipe with some fields changed, None to leave one out; `train__x` adds x to [train]."""
    lines = []
    for name, value in {**GOOD, **{k: v for k, v in changed.items() if k in GOOD}}.items():
        lines += [] if value is None else [name if name.startswith("[") else f"{name} = {value}"]
        lines += [f"{k.split('__')[1]} = {v}" for k, v in changed.items() if name == f"[{k.split('__')[0]}]" and "__" in k]
    path.write_text("\n".join([f"{k} = {v}" for k, v in changed.items() if k not in GOOD and "__" not in k] + lines) + "\n")
    return path


RECIPES: list[tuple[str, str, dict[str, str | None]]] = [
    ("recipe.unknown", "extra", {"extra": "1"}),
    ("recipe.unknown", "train.stepz", {"train__stepz": "1"}),
    ("recipe.unknown", "tokenizer.siez", {"tokenizer__siez": "1"}),
    ("recipe.unknown", "data.file", {"data__file": '"x"'}),
    ("recipe.field", "name", {"name": None}),
    ("recipe.field", "name", {"name": "3"}),
    ("recipe.field", "name", {"name": '"../../elsewhere"'}),
    ("recipe.field", "name", {"name": '""'}),
    ("recipe.field", "data.folder", {"folder": None}),
    ("recipe.field", "data.folder", {"folder": "3"}),
    ("recipe.field", "tokenizer.size", {"size": "256"}),
    ("recipe.field", "tokenizer.size", {"size": "300.0"}),
    ("recipe.field", "train.steps", {"steps": None}),
    ("recipe.field", "train.steps", {"steps": "0"}),
    ("recipe.field", "train.steps", {"steps": "1.5"}),
    ("recipe.field", "train.steps", {"steps": "true"}),
    ("recipe.field", "train.seed", {"seed": "-1"}),
    ("recipe.field", "train.learning_rate", {"learning_rate": "nan"}),
    ("recipe.field", "train.learning_rate", {"learning_rate": "inf"}),
    ("recipe.field", "train.learning_rate", {"learning_rate": "0"}),
    ("recipe.field", "train.learning_rate", {"learning_rate": '"fast"'}),
    ("recipe.field", "train.beta2", {"train__beta2": "1.0"}),
    ("recipe.field", "train.clip", {"train__clip": "0"}),
    ("recipe.field", "train.batch", {"batch": "9223372036854775808"}),
    ("recipe.toml", "line", {"seed": "= 3"}),
    ("recipe.toml", "line", {"folder": '"corpus'}),
]


@pytest.mark.parametrize(("key", "named", "changed"), RECIPES)
def test_recipe_errors(key: str, named: str, changed: dict[str, str | None], tmp_path: Path) -> None:
    """One line that names the file, the field and what is allowed."""
    assert read_recipe(written(tmp_path / "good.toml")).train.steps == 6
    with pytest.raises(TrainError) as caught:
        read_recipe(written(tmp_path / "r.toml", **changed))
    assert caught.value.key == key and named in str(caught.value) and "r.toml" in str(caught.value) and "\n" not in str(caught.value)


def test_recipe_files(tmp_path: Path) -> None:
    """Missing, a folder, not UTF-8, too deep, too large."""
    for name, content, key in (
        ("none.toml", None, "file.missing"),
        ("bytes.toml", b'name = "\xff"', "recipe.toml"),
        ("deep.toml", b"a = " + b"[" * 100_000, "recipe.toml"),
        ("large.toml", b"#" * 1_000_001, "file.large"),
        ("empty.toml", b"", "recipe.field"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(TrainError) as caught:
            read_recipe(tmp_path / name)
        assert caught.value.key == key
    with pytest.raises(TrainError):
        read_recipe(tmp_path)


def test_the_recipe_that_ships_is_read() -> None:
    recipe = read_recipe(ROOT / "recipes" / "capitals.toml")
    assert recipe.name == "capitals" and (recipe.data / "facts.json").is_file()


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe over five countries of the corpus that ships."""
    root = tmp_path_factory.mktemp("mini")
    facts = json.loads((ROOT / "recipes" / "capitals" / "facts.json").read_text(encoding="utf-8"))["countries"]
    kept = dict(list(facts.items())[:5])
    for entry in kept.values():
        entry["neighbours"] = [n for n in entry["neighbours"] if n in kept]
    first = next(iter(kept))
    kept[first]["neighbours"] = kept[first]["neighbours"] or [list(kept)[1]]
    (root / "corpus").mkdir()
    (root / "corpus" / "facts.json").write_text(json.dumps({"countries": kept}), encoding="utf-8")
    shutil.copy(ROOT / "recipes" / "capitals" / "forms.json", root / "corpus")
    return written(root / "mini.toml")


@pytest.fixture(scope="module")
def finished(mini: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the recipe's finished model."""
    return run_recipe(mini, tmp_path_factory.mktemp("run") / "out", False, 1, silent)


def test_a_recipe_makes_a_model(finished: Path) -> None:
    """A folder that loads, in bfloat16, with its tokenizer and a card of measured numbers."""
    model = load(finished)
    assert model.dtype == torch.bfloat16 and [model.tokenizer.piece(i) for i in model.stops] == ["<|endoftext|>"]
    ids = model.tokenizer.encode("The capital of France is")
    assert len(model.generate([ids], 3)[0]) in (1, 2, 3)
    card = (finished / "README.md").read_text(encoding="utf-8")
    assert f"{model.num_parameters():,}" in card and card.count("|---|") == 2 and "mini.toml" in card


def test_interrupted_recipe_goes_on(mini: Path, finished: Path, tmp_path: Path) -> None:
    """SIGINT and SIGTERM save at the border of a step; the run resumed later has the same weights, to the bit."""
    signals, steps = [signal.SIGINT, signal.SIGTERM], list[int]()
    before = {s: signal.getsignal(s) for s in signals}

    def interrupt(entry: dict[str, Any]) -> None:
        if "step" in entry:
            steps.append(entry["step"])
            if entry["step"] in (1, 3) and signals:
                os.kill(os.getpid(), signals.pop())

    for resume, at in ((False, 1), (True, 3)):
        with pytest.raises(TrainError) as caught:
            run_recipe(mini, tmp_path, resume, 1, interrupt)
        assert caught.value.key == "train.stopped" and f"{at:09d}" in os.listdir(tmp_path / "saves")
        assert {s: signal.getsignal(s) for s in before} == before
    folder = run_recipe(mini, tmp_path, True, 1, interrupt)
    assert steps == [1, 2, 3, 4, 5, 6]
    assert (folder / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    with pytest.raises(TrainError) as caught:
        run_recipe(mini, tmp_path, False, 1, silent)
    assert caught.value.key == "train.exists"


def test_one_run_a_folder(mini: Path, tmp_path: Path) -> None:
    with apprentice.alone(tmp_path), pytest.raises(TrainError) as caught:
        run_recipe(mini, tmp_path, False, 1, silent)
    assert caught.value.key == "train.locked"
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TrainError) as caught:
            run_recipe(mini, place, False, 1, silent)
        assert caught.value.key == "train.folder"


@pytest.mark.parametrize("changed", [{"n_positions": "8"}, {"model_type": '"t5"'}, {"n_head": "3"}, {"n_embd": None}])
def test_models_that_cannot_be_trained(changed: dict[str, str | None], mini: Path, tmp_path: Path) -> None:
    """One line, and nothing but the lock is left in the run's folder."""
    shutil.copytree(mini.parent / "corpus", tmp_path / "corpus")
    recipe = written(tmp_path / "r.toml", **changed)
    if changed == {"n_embd": None}:
        recipe.write_text(recipe.read_text().replace("[model]", "[model]\nrope_theta = 3"))
    with pytest.raises(PellucidError) as caught:
        run_recipe(recipe, tmp_path / "out", False, 1, silent)
    assert "\n" not in str(caught.value) and os.listdir(tmp_path / "out") == ["lock"]
