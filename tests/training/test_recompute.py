"""Recomputation: the same bits with blocks that run twice, also of routers and dropout; a watch sees one run; and the bytes of the bill."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import judge
import pellucid
from pellucid.counting import training_memory
from pellucid.counting.training_memory import Way
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.nn.block import Block
from pellucid.tracing import watch
from pellucid.training import criterion, recompute, run_recipe
from pellucid.training.dropout import Dropout
from pellucid.training.loop import TrainingRun
from pellucid.training.objectives import Causal, Translation
from test_adapter_dropout import both
from test_count_plans import bill_of
from test_parity_training import documents
from test_replay import recipe_in
from test_watched import bits, watching
from text_runs import recipe_of
from tiny import LLAMA, swapped
from training import SETTINGS, WORDS, run_of, silent, state, unmeasured

S = replace(SETTINGS, micro=2, correction=0.01)
AGAIN = replace(S, recompute=True)
FAMILIES = ["gpt2", "llama", "gemma2", "deepseek_v3", "qwen3_moe", "t5"]


def run_in(folder: Path, family: str, s: Any) -> TrainingRun:
    model = judge.ours(judge.judge(family).folder, torch.float32)[1].requires_grad_(True)
    return TrainingRun(model.train(), (Translation if family == "t5" else Causal)(WORDS), documents(family), s, folder)


def counted(calls: list[nn.Module]) -> Any:
    """Count the runs of blocks."""

    def through(block: Any, x: Any, step: Any) -> Any:
        calls.append(block)
        return forward(block, x, step)

    forward = Block.forward
    return swapped(Block, "forward", through)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(2)
def test_no_bit_changes(family: str, tmp_path: Path) -> None:
    """Three steps of two forwards; each block runs twice in each, and routers are corrected by the first run alone."""
    s = replace(S, auxiliary=0.1) if "moe" in family else S
    plain, again = run_in(tmp_path, family, s), run_in(tmp_path, family, replace(s, recompute=True))
    calls = list[nn.Module]()
    for numbers in ([0, 1, 2, 3], [7, 4, 9, 11], [5, 6, 12, 8]):
        one = plain.one(numbers)
        with counted(calls):
            other = again.one(numbers)
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    blocks = sum(isinstance(m, Block) for m in again.model.modules())
    assert len(calls) == 3 * 2 * 2 * blocks and state(plain) == state(again)


def test_adapters_drop_the_same_again(tmp_path: Path) -> None:
    """Dropout is that of the micro-batch, also when a block runs again; without its masks there is no second run."""

    def after(on: bool, folder: Path) -> dict[str, bytes]:
        run = both("llama", folder, 0.25)[0]
        run.recompute = recompute.Recompute(run.model, on)
        run.one([0, 1, 2, 3])
        return {path: p.detach().numpy().tobytes() for path, p in run.weights.named_parameters()}

    plain = after(False, tmp_path / "a")
    assert after(True, tmp_path / "b") == plain
    drawn = Dropout.drawn
    yields = iter(range(100))
    once = swapped(criterion.Dropout, "drawn", lambda self, micro: drawn(self, micro) if next(yields) % 2 == 0 else nullcontext())
    with once, pytest.raises(RuntimeError, match="number of tensors was saved"):  # torch finds another forward
        after(True, tmp_path / "c")


def test_a_watch_sees_one_run(tmp_path: Path) -> None:
    """The second run of a block in the backward pass is inside of the watch, and not recorded."""
    run = run_of(tmp_path, replace(AGAIN, micro=None))

    def seen() -> int:
        with watch(run.model, only="layers.*.attn_norm") as records:
            run.backward([0, 1, 2, 3])
        return len(records)

    assert seen() == len(run.model.layers)
    with swapped(recompute, "seen_by", nullcontext):
        assert seen() == 2 * len(run.model.layers)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recipe_in(tmp_path_factory.mktemp("recompute"), "deepseek_v3")


def test_a_recorded_step_is_the_step(recipe: Path) -> None:
    """With and without [watch], with and without recomputation: one run; and a step is taken again from either."""
    again = recipe.with_name("again.toml")
    again.write_text(recipe.read_text(encoding="utf-8").replace("[train]", "[train]\nrecompute = true"), encoding="utf-8")
    with unmeasured():
        paths = {"plain": recipe, "again": again, "watched": watching(again)}
        folders = {name: run_recipe(path, recipe.parent / name, False, 1, silent).parent for name, path in paths.items()}
    opened = {name: pellucid.Run(folder) for name, folder in folders.items()}
    assert bits(opened["again"]) == bits(opened["plain"]) == bits(opened["watched"])
    grad = {name: opened[name].replay(9).all("layers.0.attn.pattern")[0].grad for name in ("plain", "again")}
    assert grad["plain"] is not None and grad["again"] is not None and torch.equal(grad["plain"], grad["again"])
    recorded = opened["watched"].watched[8].all("layers.0.attn.pattern")
    assert len(recorded) == 2 and recorded[0].grad is not None
    weights = [opened[name].model().module.state_dict() for name in ("plain", "again")]  # and its model is one that recomputes nothing
    assert all(torch.equal(x, y) for x, y in zip(*(w.values() for w in weights), strict=True))
    copy = opened["again"].model().module
    assert not copy.head._forward_pre_hooks and "run_block" not in vars(copy)


def test_a_run_goes_on_with_and_without_it(tmp_path: Path) -> None:
    """It changes no number, so a state of either is the other's."""
    run_of(tmp_path, S).train(silent, lambda: True)
    run = run_of(tmp_path, AGAIN)
    run.resume()
    assert run.step == 1


def test_freed_memory_is_given_back(tmp_path: Path) -> None:
    """Before the logits and before the backward pass of blocks that run again, not where there is none; a run that keeps everything takes
    it again in any case.
    """
    for settings, times in ((AGAIN, 2), (S, 0)):
        run, trimmed = run_of(tmp_path / str(times), settings), list[int]()
        assert (run.recompute.trim is None) is (times == 0 or sys.platform != "linux")
        run.recompute.trim = run.recompute.trim and trimmed.append
        run.one([0, 1])
        with torch.no_grad():
            run.model(torch.zeros(1, 3, dtype=torch.long))
        assert trimmed == [0] * times


def test_the_bill(tmp_path: Path) -> None:
    """Blocks keep their inputs, and the largest one the rest; of the work the blocks come again, and not the head."""
    plain, again = (recipe_bill(recipe_of(tmp_path, n_layer="3", train__recompute=on)) for on in ("false", "true"))
    a, b = (training_memory.training(x.bill, x.way) for x in (plain, again))
    assert int(b["memory.activations"]) < int(a["memory.activations"]) and int(b["flops.total"]) > int(a["flops.total"])
    bill = bill_of(LLAMA)
    numbers = training_memory.training(bill, Way(recompute=True))
    head = 2 * 97 * 32 * bill.setting.context * bill.setting.batch
    assert int(numbers["flops.recompute"]) == int(numbers["flops.forward"]) - head
    outside = {path: int(n) for path, _, n in training_memory.activations(bill)}["outside"]
    model = judge.ours(judge.judge("llama").folder, torch.float32)[1].requires_grad_(True)
    tokens = torch.zeros(2, 20, dtype=torch.long)
    every = training_memory.kept(model, tokens, tokens)
    recompute.Recompute(model, True)
    assert {path for path, n in training_memory.kept(model, tokens, tokens).items() if n} == {""} != set(every) and outside
