"""Training in bfloat16: float32 master weights, changed by a plain AdamW; rounded weights are read; and the bytes of the bill."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pellucid
from pellucid.counting.training_memory import training
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.sharding import Sharding
from pellucid.training import run_recipe, trained_weights
from pellucid.training.loop import TrainingRun, learning_rate
from pellucid.training.objectives import IGNORED
from pellucid.training.recipe import TrainSettings
from pellucid.training.saves import newest, read_state
from pellucid.training.stretches import verify_stretches
from pellucid.training.trained_weights import MasterWeights
from test_replay import recipe_in
from test_resume_damage import stopped_at
from test_watched import bits, watching
from text_runs import recipe_of
from tiny import swapped
from training import SETTINGS, fresh, log_of, resumed, run_of, silent, unmeasured

HALF = replace(SETTINGS, dtype="bfloat16", clip=0.5)
STEPS = [[0, 1, 2, 3], [9, 8, 7, 6], [20, 3, 11, 14], [5, 6, 7, 8]]


def weights(run: TrainingRun) -> dict[str, Tensor]:
    return {path: p.detach().clone() for path, p in run.weights.named_parameters()}


def by_torch(run: TrainingRun, steps: list[list[int]], parts: int) -> dict[str, Tensor]:
    """Return the weights after these steps by torch's own AdamW on float32 weights; a bfloat16 copy of them has the gradients.

    parts: forwards of a step.
    """
    s, copy, full = run.s, fresh().to(torch.bfloat16), fresh()
    groups = [{"params": [p for p in full.parameters() if (p.ndim > 1) is wide]} for wide in (True, False)]
    groups[0]["weight_decay"], groups[1]["weight_decay"] = s.weight_decay, 0.0  # type: ignore[assignment]
    adamw = torch.optim.AdamW(groups, betas=(s.beta1, s.beta2), foreach=False)
    for i, numbers in enumerate(steps):
        for p in full.parameters():
            p.grad = torch.zeros_like(p)
        batches = [run.objective.batch([run.documents[n] for n in numbers[k::parts]]) for k in range(parts)]
        targets = [int((b.targets != IGNORED).sum()) for b in batches]
        for b, n in zip(batches, targets, strict=True):
            copy.zero_grad()
            logits = copy(*b.inputs).float().flatten(0, 1)
            (nn.functional.cross_entropy(logits, b.targets.flatten(), ignore_index=IGNORED) * (n / sum(targets))).backward()
            for p, q in zip(full.parameters(), copy.parameters(), strict=True):
                assert p.grad is not None and q.grad is not None and q.grad.dtype == torch.bfloat16
                p.grad += q.grad.float()
        nn.utils.clip_grad_norm_(full.parameters(), s.clip)
        for group in adamw.param_groups:
            group["lr"] = learning_rate(i, s)
        adamw.step()
        copy.load_state_dict(full.state_dict())
    return {path: p.detach() for path, p in full.named_parameters()}


def gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((a[path] - b[path]).abs().max()) for path in a)


class UnkeptWeights(MasterWeights):
    """Masters that are rounded with the model's weights."""

    def step(self, optimizer: Any) -> None:
        super().step(optimizer)
        for path, p in self.rounded.items():
            self.masters[path].data.copy_(p)


class UnclippedWeights(MasterWeights):
    """Masters whose gradients are not clipped."""

    def clip(self, sharding: Sharding, most: float) -> float:
        norm, self.factor = super().clip(sharding, most), 1.0
        return norm


def narrow(master: nn.Parameter, p: Tensor) -> None:
    """Add gradients up in bfloat16."""
    assert p.grad is not None
    before = torch.zeros_like(p) if master.grad is None else master.grad.to(p.dtype)
    master.grad, p.grad = (before + p.grad).to(master.dtype), None


@pytest.mark.parametrize("micro", [None, 2])
def test_a_step_is_adamw_on_float32_weights(micro: int | None, tmp_path: Path) -> None:
    """Four steps beside torch's; without masters, with gradients added in bfloat16, or unclipped, they are others."""
    s = replace(HALF, micro=micro)

    def after(kind: type[MasterWeights] = MasterWeights) -> TrainingRun:
        with swapped(trained_weights, "MasterWeights", kind):
            run = run_of(tmp_path, s)
        for numbers in STEPS:
            run.one([*numbers[::2], *numbers[1::2]] if micro else numbers)  # by_torch takes each second one
        return run

    run = after()
    wanted = by_torch(run, STEPS, 2 if micro else 1)
    own = weights(run)
    assert {p.dtype for p in own.values()} == {torch.float32} and {p.dtype for p in run.model.parameters()} == {torch.bfloat16}
    assert all(torch.equal(p.detach(), own[path].bfloat16()) for path, p in run.model.named_parameters())
    assert gap(own, wanted) < 1e-6 < 1e-4 < gap(own, weights(run_of(tmp_path, s)))
    assert gap(weights(after(UnkeptWeights)), wanted) > 1e-4
    if micro:
        with swapped(trained_weights, "add_up", narrow):
            assert gap(weights(after()), wanted) > 1e-6
    else:
        assert gap(weights(after(UnclippedWeights)), wanted) > 1e-6


def test_small_steps_are_not_lost(tmp_path: Path) -> None:
    """A step of 1e-5 of a weight of 1 is below bfloat16's precision; a hundred of them are not."""
    run = run_of(tmp_path, replace(HALF, learning_rate=1e-5, warmup=1, steps=100, schedule="constant", floor=1.0, weight_decay=0.0))
    before, rounded = weights(run), {path: p.detach().clone() for path, p in run.model.named_parameters()}
    run.one(STEPS[0])
    assert torch.equal(rounded["norm.weight"], run.model.get_parameter("norm.weight"))
    assert not torch.equal(before["norm.weight"], weights(run)["norm.weight"])


def test_one_forward_of_several_is_one_forward(tmp_path: Path) -> None:
    """Gradients that are added up in float32 are those of one forward, where there is one."""
    one, several = run_of(tmp_path, HALF), run_of(tmp_path, replace(HALF, micro=2))
    assert not any(p.grad is not None for p in several.model.parameters())
    assert one.one([4, 5])["gradient"] == several.one([4, 5])["gradient"]
    assert gap(weights(one), weights(several)) == 0


@pytest.mark.parametrize("s", [HALF, replace(HALF, micro=2), replace(HALF, optimizer="muon")], ids=["one", "several", "muon"])
@pytest.mark.quick(4)
def test_a_stopped_run_goes_on_to_the_same_bits(s: TrainSettings, tmp_path: Path) -> None:
    """States have the float32 weights; from rounded ones a run goes on elsewhere."""
    through = run_of(tmp_path / "through", s)
    through.train(silent)
    stopped_at(tmp_path / "a", 5, s=s)
    state, _ = newest(tmp_path / "a" / "saves")
    assert state is not None and {t.dtype for t in read_state(state)[0].values()} == {torch.float32}
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    went_on = resumed(tmp_path / "a", s=s)
    assert gap(weights(went_on), weights(through)) == 0 and log_of(went_on) == log_of(through)
    with swapped(MasterWeights, "publish", lambda self: None):  # the model reads what it had before
        assert gap(weights(resumed(tmp_path / "b", s=s)), weights(through)) > 0


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe in bfloat16 with two forwards a step, and its run."""
    recipe = recipe_in(tmp_path_factory.mktemp("half"), "deepseek_v3")
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("[train]", '[train]\ndtype = "bfloat16"'), encoding="utf-8")
    with unmeasured():
        return recipe, run_recipe(recipe, recipe.parent / "run", False, 1, silent).parent


def test_each_step_comes_again(ran: tuple[Path, Path]) -> None:
    """Replayed bit for bit, verified between its states, and explained: the tokens of a weight add up, and it moves as is said."""
    run = pellucid.Run(ran[1])
    first, second = run.replay(10).all("layers.0.attn.q")  # two forwards
    assert first.dtype == torch.bfloat16 and second.grad is not None
    assert {p.dtype for p in run.model(10).module.parameters()} == {torch.float32}
    verify_stretches(run, 1)
    path, cell = "layers.1.attn.o.weight", (3, 4)
    why, before, after = run.why(path, cell, 9), run.model(8), run.model(9)
    assert abs(why.rest) < 2**-7 * sum(abs(row.product) for row in why.tokens) and why.move is not None  # autograd rounds its sum
    moved = after.module.get_parameter(path)[cell].item() - before.module.get_parameter(path)[cell].item()
    assert abs(moved - why.move.total()) < 1e-6


def test_a_recorded_step_is_the_step(ran: tuple[Path, Path]) -> None:
    """With [watch] the run has the same bits, and its updates are those of the float32 weights."""
    with unmeasured():
        folder = run_recipe(watching(ran[0]), ran[0].parent / "watched", False, 1, silent).parent
    watched, plain = pellucid.Run(folder), pellucid.Run(ran[1])
    assert bits(watched) == bits(plain)
    update = watched.watched[8].updates["embed.weight"]
    change = plain.model(8).module.get_parameter("embed.weight") - plain.model(7).module.get_parameter("embed.weight")
    assert update.dtype == torch.float32 and torch.equal(update, change.detach())


@pytest.mark.parametrize("micro", [None, "4"])
def test_the_bytes_are_those_of_the_bill(micro: str | None, tmp_path: Path) -> None:
    """Of weights, masters, moments and gradients, counted on the tensors that a step holds."""
    path = recipe_of(tmp_path, steps="3", train__dtype='"bfloat16"', **({} if micro is None else {"train__micro": micro}))
    counts = dict[str, int]()
    step: Callable[[MasterWeights, Any], None] = MasterWeights.step

    def counted(self: MasterWeights, optimizer: Any) -> None:
        counts["gradients"] = size(p.grad for p in (*self.rounded.values(), *self.masters.values()))
        step(self, optimizer)
        counts["weights"], counts["master"] = size(self.rounded.values()), size(self.masters.values())
        counts["moments"] = size(t for own in optimizer.state.values() for name, t in own.items() if name != "step")

    with swapped(MasterWeights, "step", counted), unmeasured():
        run_recipe(path, tmp_path / "run", False, 1, silent)
    bill = recipe_bill(path)
    numbers = training(bill.bill, bill.way)
    ids = bill.bill.config.vocab - (pellucid.Run(tmp_path / "run").model(0).config.vocab)  # the bill has the most ids of the tokenizer
    less = ids * bill.bill.config.width
    each = {"weights": 2, "master": 4, "moments": 8, "gradients": 2 if micro is None else 4}
    assert counts == {name: int(numbers[f"memory.{name}"]) - less * n for name, n in each.items()}


def size(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def test_a_model_and_an_adapter(tmp_path: Path) -> None:
    """A run in bfloat16 makes a model that loads; an adapter on it, also on int8 blocks, is stored as the float32 weights that trained."""
    base = run_recipe(recipe_of(tmp_path, steps="3", train__dtype='"bfloat16"'), tmp_path / "run", False, 1, silent)
    assert pellucid.load(base).precision.stored == torch.bfloat16
    text = (
        '[model]\nfrom = "run/model"{}\n[adapter]\nrank = 2\n[data]\nfiles = ["text/*.txt"]\nlength = 32\n'
        '[train]\nseed = 1\nsteps = 3\nbatch = 4\nlearning_rate = 1e-2\nwarmup = 1\ndtype = "bfloat16"\n'
    )
    for name, quant in (("plain", ""), ("blocks", '\nquant = "int8"')):
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\n' + text.format(quant), encoding="utf-8")
        out = run_recipe(tmp_path / f"{name}.toml", tmp_path / name, False, 1, silent)
        state, _ = newest(tmp_path / name / "saves")
        assert state is not None
        kept, adapter = read_state(state)[0], pellucid.load(base, adapter=out)
        for path, own in kept.items():
            if "lora" in path:
                there = adapter.module.get_parameter(path)
                assert own.dtype == torch.float32 and torch.equal(there.detach(), own.to(there.dtype))
