"""Training of DoRA (arXiv 2402.09353) beside PEFT's: steps of AdamW in float64, runs by recipe, what is written, counted and refused."""

import json
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import adapters
import pellucid
from pellucid.api.count import billed
from pellucid.checkpoint.new_adapter import new_adapter
from pellucid.counting.training_adapters import Dora
from pellucid.counting.training_memory import Way, training
from pellucid.documents.formula import formula
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.documents.summands import labels
from pellucid.errors import TrainError
from pellucid.families import understand
from pellucid.nn.adapted import Addition
from pellucid.nn.transformer import build
from pellucid.ops.blocks import Blocks
from pellucid.terminal.training_and_ranks import FLOPS, MEMORY
from pellucid.training import run_recipe
from pellucid.training.corpus import train_tokenizer
from pellucid.training.dropout import mask
from pellucid.training.loop import TrainingRun, initialise
from pellucid.training.objectives import Causal, Document
from pellucid.training.pipeline import check_ranks
from pellucid.training.recipe import TrainSettings, read_recipe
from pellucid.training.stretches import verify_stretches
from pellucid.watching.watch import watch
from test_adapter_dropout import SHARE, folder, furthest
from test_step_memory import CONFIGS, HEADS, WITHIN, measured
from test_tuning import ADAPTER, recipe, refused
from tiny import far, swapped
from training import moved_as_said, silent, stopped_after_each_step

__all__ = ["folder"]
OPS = sys.modules["pellucid.ops.linear"]
NAME = "adapter_model.safetensors"


CASES = [("gpt2", 0.0), ("gpt2", SHARE), ("llama", 0.0), ("llama", SHARE), ("deepseek_v3", 0.0)]


@pytest.mark.parametrize(("family", "share"), CASES)
@pytest.mark.quick(4)
def test_twenty_steps_are_peft_s(family: str, share: float, tmp_path: Path) -> None:
    assert furthest(family, tmp_path, share, dora=True) < 1e-9


def with_gradient(magnitude: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    return magnitude / (weight + scale * (b @ a)).norm(dim=1)


def of_the_plain_matrix(magnitude: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    return magnitude / weight.norm(dim=1)


@pytest.mark.parametrize("mutant", [with_gradient, of_the_plain_matrix])
@pytest.mark.quick(2)
def test_other_lengths_are_another_curve(mutant: Callable[..., Tensor], tmp_path: Path) -> None:
    with swapped(OPS, "gain", mutant), swapped(pellucid.ops, "gain", mutant):
        assert furthest("llama", tmp_path, 0.0, 6, dora=True) > 1e-6


def test_a_gain_that_misses_dropout_is_another_curve(tmp_path: Path) -> None:
    real = Addition.forward
    with swapped(Addition, "forward", lambda self, x, weight: real(self, x, weight)._replace(base=None)):
        assert furthest("llama", tmp_path, SHARE, 6, dora=True) > 1e-6


@pytest.mark.parametrize("quant", [None, "int8"])
def test_at_first_it_is_the_model_and_then_follows_its_magnitudes(quant: str | None) -> None:
    """Bit for bit before a step; after one, what is generated, merged and written has the new lengths."""
    prompt, folder = [[3, 5, 7, 9]], adapters.judge("llama").folder
    model = pellucid.load(folder, dtype="float32", quant=quant)

    def answers(of: pellucid.Model) -> tuple[Tensor, Any]:
        with torch.no_grad():
            return of(torch.tensor(prompt)), of.generate(prompt, max_new_tokens=8)

    before, text = answers(model)
    model.lora(2, ["attn.[qv]", "ffn.up"], "mine", dora=True)
    first, same = answers(model)
    assert torch.equal(first, before) and same == text
    trained = {n: p for n, p in model.module.named_parameters() if p.requires_grad}
    assert {n.rpartition(".")[2] for n in trained} == {"weight", "magnitude"}
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in trained.values():
            p += torch.randn(p.shape, generator=draw) * 0.5
    after, new = answers(model)
    model.save_adapter(again := adapters.fresh())
    read = pellucid.load(folder, dtype="float32", quant=quant, adapter=again)
    logits, its = answers(read)
    assert far(logits, after) < 1e-5 < 1e-2 < far(before, after) and its == new != text
    for one in (model, read):
        one.merge(dequantise=quant is not None)
    assert far(answers(model)[0], answers(read)[0]) < 1e-5 and (quant is not None or far(answers(model)[0], after) < 1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_each_cell_of_a_step_with_dropout_is_the_sum_of_its_terms(family: str) -> None:
    model = pellucid.load(adapters.judge(family).folder, dtype="float64")
    model.lora(2, ["attn.[qkvo]"], dora=True)
    draw, ids = torch.Generator().manual_seed(1), torch.tensor([[3, 5, 7, 9]])
    with torch.no_grad():
        for p in (p for p in model.module.parameters() if p.requires_grad):
            p += torch.randn(p.shape, generator=draw, dtype=p.dtype) * 0.5
    for m in model.module.modules():
        if isinstance(m, Addition):
            m.drawn = lambda x: mask(x, SHARE, "a")
    with watch(model.module, terms=True) as seen:
        model.module(ids)
    cells = [s for s in seen if s.op == "adapted"]
    assert len(cells) == 8
    for s in cells:
        at = tuple(n // 2 for n in s.shape)
        terms = s.terms(at)
        assert terms.total() == pytest.approx(float(s.value[at]), abs=1e-10)
        assert formula(s, {}).endswith(" + (gain − 1) · base") and "ᵀ · gain" not in formula(s, {})
        assert labels(s, {})("base") == "(gain − 1) · base" and abs(terms.added["base"]) > 1e-6


@pytest.mark.parametrize("share", ["0", "0.3"])
def test_a_run(folder: Path, tmp_path: Path, share: str) -> None:
    """Watched, stopped and taken again it is the same; a magnitude says, token by token, why it moved; PEFT reads what is written."""
    adapter = f"{ADAPTER}\ndora = true\ndropout = {share}"
    path = recipe(folder, adapter=adapter)
    made = run_recipe(path, tmp_path / "run", False, 1, silent)
    assert json.loads((made / "adapter_config.json").read_text())["use_dora"]
    again = stopped_after_each_step(path, tmp_path / "out", 6)
    watched = run_recipe(recipe(folder, "w.toml", adapter=f"{adapter}\n[watch]\nevery = 2"), tmp_path / "watched", False, 1, silent)
    plain = run_recipe(recipe(folder, "p.toml"), tmp_path / "plain", False, 1, silent)
    assert (again / NAME).read_bytes() == (watched / NAME).read_bytes() == (made / NAME).read_bytes() != (plain / NAME).read_bytes()
    run = pellucid.Run(made.parent)
    assert [s.fault for s in verify_stretches(run, 3, 1)] == [None] * 3
    for weight, cell in (("magnitude", (1,)), ("lora_a.weight", (1, 1)), ("lora_b.weight", (1, 1))):
        why = moved_as_said(run, f"layers.0.attn.o.adapters.mine.{weight}", cell, 4)
        assert len(why.tokens) > 3 and all(t.position >= 0 for t in why.tokens)
    prompt = torch.tensor([[3, 5, 7, 9]])
    model = pellucid.load(folder / "base", dtype="float64", adapter=made)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float64)
        theirs = peft.PeftModel.from_pretrained(base, made).double().eval()(prompt).logits
    assert far(model(prompt), theirs) < 1e-6
    bare, last = pellucid.load(folder / "base", dtype="float64"), run.model(6)
    assert far(last(prompt), model(prompt)) < 1e-4 < far(bare(prompt), model(prompt))


def test_a_quantised_base_trains(folder: Path, tmp_path: Path) -> None:
    """Its rows' lengths are those of what its blocks stand for."""
    path = recipe(folder, "q.toml", model='quant = "int8"\ntemplate = "chat.jinja"', adapter=f"{ADAPTER}\ndora = true")
    made = run_recipe(path, tmp_path, False, 1, silent)
    base = pellucid.load(folder / "base", quant="int8")
    of = {n: t for n, t in load_file(made / NAME).items() if n.endswith("magnitude_vector")}
    weight = base.module.get_parameter("layers.0.attn.o.weight")
    assert isinstance(weight, Blocks)
    (moved,) = (t - weight.plain().norm(dim=1) for n, t in of.items() if ".0.attn.c_proj" in n)
    assert len(of) == 2 and 0 < float(moved.abs().max()) < 0.1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("recompute", "dropout"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.quick(4)
def test_the_bill_is_what_is_taken(tmp_path: Path, kind: str, dtype: str, recompute: bool, dropout: bool) -> None:
    """Memory as the allocator has it, and products as torch counts them."""
    run, bill, how = billed_run(tmp_path, kind, dtype, recompute, dropout)
    predicted, taken = int(training(bill, how)["memory.total"]), measured(run, [0, 1, 2, 3])
    assert abs(predicted / taken - 1) < WITHIN, (predicted, taken)
    if dtype != "float32":  # in bfloat16 not all of torch's products are ones that it counts
        return
    with FlopCounterMode(display=False) as dora:
        run.one([0, 1, 2, 3])
    other, *_ = billed_run(tmp_path / "plain", kind, dtype, recompute, dropout, plain=True)
    with FlopCounterMode(display=False) as lora:
        other.one([0, 1, 2, 3])
    first = [run.model.get_parameter(f"layers.0.attn.{name}.weight").numel() for name in "qkv"]  # to whose input no gradient goes
    counted = int(training(bill, how)["flops.dora"]) - dropout * 2 * 4 * 128 * sum(first)
    assert dora.get_total_flops() - lora.get_total_flops() == counted > 0


def billed_run(folder: Path, kind: str, dtype: str, recompute: bool, dropout: bool, plain: bool = False) -> tuple[TrainingRun, Any, Way]:
    """Return a run of a new model's adapter, its bill, and how it trains. plain: without magnitudes."""
    wide_ones = {"n_embd": 64} if kind == "gpt2" else {**HEADS, "hidden_size": 64}
    family, cfg = understand({"model_type": kind, **CONFIGS[kind], **wide_ones, "vocab_size": 500})
    model = build(cfg)
    initialise(model, 4, 0.02, 1)
    new_adapter(model, family, "base", "a", 4, 8, ["layers.*.attn.[qkvo]"], dropout=SHARE if dropout else 0.0, dora=not plain)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    magnitudes = {n: p for n, p in trained.items() if n.endswith("magnitude")}
    matrices = sum(model.get_parameter(f"{n.partition('.adapters.')[0]}.weight").numel() for n in magnitudes)
    lengths = sum(p.numel() for p in magnitudes.values())
    low = sum(p.numel() for p in trained.values()) - lengths
    how = Way(
        recompute=recompute, master=dtype != "float32", rank=4, adapted=tuple(f"attn.{name}" for name in "kovq"), low=low,
        dropout=dropout, dora=Dora(lengths, matrices),
    )  # fmt: skip
    rows = torch.randint(500, (4, 129), generator=torch.Generator().manual_seed(1)).tolist()
    settings = TrainSettings(1, 9, 4, 3e-4, 1, dtype=dtype, recompute=recompute)
    folder.mkdir(exist_ok=True)
    objective = Causal(train_tokenizer(["a b c"], 300))
    run = TrainingRun(model.train(), objective, [Document([], row) for row in rows], settings, folder)
    return run, billed(cfg, family.name, kind, 128, 4, dtype, dtype, plain=dtype), how


def test_a_recipes_bill_counts_what_trains(folder: Path) -> None:
    adapter = f"{ADAPTER}\ndora = true"
    way = recipe_bill(recipe(folder, adapter=adapter)).way
    model = pellucid.load(folder / "base")
    model.lora(2, ["attn.[qkvo]"], dora=True)
    trained = sum(p.numel() for p in model.module.parameters() if p.requires_grad)
    assert way.dora is not None and way.low is not None and not way.dropout
    assert way.low + way.dora.magnitudes == trained
    assert recipe_bill(recipe(folder, "p.toml")).way.dora is None


def test_every_count_of_a_step_has_a_row(folder: Path) -> None:
    """What the sums of a bill are made of can be read in its table."""
    own = recipe_bill(recipe(folder, adapter=f"{ADAPTER}\ndora = true\ndropout = 0.1"))
    cost = training(own.bill, own.way)
    assert "flops.dora" in cost
    unnamed = [name for name in cost if name.partition(".")[2] not in (MEMORY if name.startswith("memory") else FLOPS)]
    assert not unnamed


def test_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(recipe(folder, "bad.toml", adapter=f"{ADAPTER}\ndora = 1"), tmp_path / "run", capsys, ("zh", "en"))
    assert "adapter.dora" in line
    for ranks, wrong in (("tensor = 2", True), ("data = 2\nshard = 2", True), ("data = 2", False)):
        path = recipe(folder, "r.toml", adapter=f"{ADAPTER}\ndora = true\n[ranks]\n{ranks}")
        with pytest.raises(TrainError, match=r"adapter\.dora") if wrong else nullcontext():
            check_ranks(read_recipe(path))
