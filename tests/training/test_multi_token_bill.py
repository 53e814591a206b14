"""The bill of a recipe with modules for multi-token prediction: numbers, products and bytes are those of its run."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid.batch.step import Step
from pellucid.commands import main
from pellucid.counting import training_memory, training_modules
from pellucid.counting.training_extra import Extra
from pellucid.counting.training_memory import Way, activations, training
from pellucid.documents.recipe_bill import RecipeBill, recipe_bill
from pellucid.nn.transformer import Decoder
from pellucid.training.loop import TrainingRun
from pellucid.training.multi_token_loss import MultiTokenLoss
from pellucid.training.objectives import Batch
from pellucid.training.recipe_parts import MultiTokenSettings
from pellucid.watching.watch import watch
from test_facts_bill import recipe_of, run_of, steps_of
from test_multi_token_run import TEXTS
from test_step_memory import WITHIN, measured
from text_runs import write_texts
from tiny import swapped

DEPTH, NARROW = 2, '"bfloat16"'


def recipe_in(folder: Path, name: str, **changed: Any) -> Path:
    path = recipe_of(folder, name, **changed)
    path.write_text(path.read_text(encoding="utf-8") + f"\n[multi_token]\ndepth = {DEPTH}\n", encoding="utf-8")
    return path


def flops_of(run: TrainingRun, numbers: list[int]) -> int:
    """Return the FLOPs of a step's forwards, three times: backward takes twice as many."""
    total = 0
    for batch in run.batches(numbers):
        with torch.no_grad(), watch(run.model, keep=lambda x: None) as seen:
            run.criterion.judge(run.model, batch)
        total += 3 * sum(seen.flops.values())
    return total


@pytest.mark.parametrize("name", ["capitals-llama", "capitals-deepseek"])
def test_products_and_numbers_are_those_of_the_run(name: str, tmp_path: Path) -> None:
    path = recipe_in(tmp_path, name)
    bill, run = recipe_bill(path), run_of(path)
    assert bill.run()["flops"] == sum(flops_of(run, numbers) for numbers in steps_of(run))
    modules = sum(p.numel() for p in run.model.get_submodule("multi_token").parameters())
    counts = training(bill.bill, bill.way)
    every = sum(p.numel() for p in run.model.parameters())
    assert every == int(bill.bill["parameters.total"]) + modules
    stored = int(bill.bill["bytes.total"]) + 4 * modules  # with buffers of routers
    assert [int(counts[f"memory.{name}"]) for name in ("weights", "gradients", "moments")] == [stored, 4 * every, 8 * every]
    assert any(f"{modules:,}" in note for note in bill.bill.notes)
    with swapped(training_modules, "shapes", lambda cfg, depth: {}):  # the mutant: modules are free
        assert int(training(bill.bill, bill.way)["memory.weights"]) == stored - 4 * modules


WAYS: list[dict[str, Any]] = [{}, {"recompute": "true"}, {"dtype": NARROW}, {"micro": 6}, {"optimizer": '"muon"', "dtype": NARROW}]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.quick(2)
def test_the_bill_is_what_is_taken(how: dict[str, Any], tmp_path: Path) -> None:
    """Of what the allocator hands out in the step that takes the most."""
    path = recipe_in(tmp_path, "capitals-llama", **how)
    bill, run = recipe_bill(path), run_of(path)
    predicted = int(training(bill.bill, bill.way)["memory.total"])
    taken = max(measured(run, numbers) for numbers in steps_of(run))
    assert abs(predicted / taken - 1) < WITHIN, (predicted, taken)
    bare = replace(bill.way, extra=Extra())
    assert 1 - int(training(bill.bill, bare)["memory.total"]) / taken > WITHIN  # the mutant: without modules


def test_kept_on_meta_is_kept_on_a_device(tmp_path: Path) -> None:
    """What autograd saves in the forwards of model and modules, each storage once."""
    path = recipe_in(tmp_path, "capitals-deepseek")
    bill, run = recipe_bill(path).bill, run_of(path)
    s = bill.setting
    model = run.model
    assert isinstance(model, Decoder)
    counted = {path: int(n) * times for path, times, n in activations(bill, Way(extra=Extra(modules=DEPTH)))}
    tokens = torch.zeros(s.batch, s.context, dtype=torch.long)
    kept = training_memory.kept(model, tokens, tokens)
    ahead = {path: n for path, n in kept.items() if path.startswith("multi_token.")}
    assert ahead == {path: n for path, n in counted.items() if path.startswith("multi_token.")} and len(ahead) == 2 * DEPTH
    assert sum(kept.values()) == sum(counted.values())


def test_a_recipe_of_texts_has_the_same(tmp_path: Path) -> None:
    """Its rows are counted full; three times the products of the modules' forward, by a watch of a forward of such rows."""
    write_texts(tmp_path)
    (tmp_path / "r.toml").write_text(TEXTS, encoding="utf-8")
    bill = recipe_bill(tmp_path / "r.toml")
    assert int(training(bill.bill, bill.way)["flops.multi_token"]) == 3 * products_of(bill)


def products_of(own: RecipeBill) -> int:
    """Return the FLOPs of the modules' forward on rows of the bill, on a model with numbers."""
    s, cfg = own.bill.setting, own.bill.config
    model = Decoder(cfg)
    training_modules.attach(model, cfg, DEPTH, torch.float32)
    model.multi_token = model.multi_token.to_empty(device="cpu") if model.multi_token is not None else None
    for p in model.parameters():
        torch.nn.init.normal_(p)
    tokens = torch.zeros(s.batch, s.context, dtype=torch.long)
    total = list[int]()
    for multi_token in (None, model.multi_token):
        model.multi_token = multi_token
        with torch.no_grad(), watch(model, keep=lambda x: None) as seen:
            MultiTokenLoss(MultiTokenSettings(DEPTH)).judge(model, batch_of(tokens))
        total.append(sum(seen.flops.values()))
    return total[1] - total[0]


def batch_of(tokens: Tensor) -> Batch:
    return Batch((tokens, Step.plain(tokens)), tokens)


def test_the_terminal_and_the_document_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recipe_in(tmp_path, "capitals-llama")
    for language, words in (("en", "(?i)modules for multi-token prediction"), ("zh", "多词元预测模块")):
        assert main(["count", str(path), "--lang", language]) == 0
        assert len(re.findall(words, capsys.readouterr().out)) >= 1
