"""The memory of a step before it runs is what torch's allocator hands out in it, at most at once."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import pellucid
from pellucid.api.count import billed
from pellucid.checkpoint.new_adapter import new_adapter
from pellucid.counting import training_memory
from pellucid.counting.number import Number, total
from pellucid.counting.training_extra import Extra
from pellucid.counting.training_memory import Way, recomputed, training
from pellucid.documents import count
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.families import understand
from pellucid.nn.transformer import build
from pellucid.training import loop, run_recipe
from pellucid.training.corpus import train_tokenizer
from pellucid.training.loop import TrainingRun, initialise, moments_of
from pellucid.training.objectives import Causal, Document
from pellucid.training.recipe import TrainSettings
from text_runs import recipe_of
from tiny import swapped
from training import silent, unmeasured

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256},
    "llama": {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4, "tie_word_embeddings": False},
    "qwen2_moe": {
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "moe_intermediate_size": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 64,
        "intermediate_size": 64,
    },
}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
SIZES = [(32, 2000, 4, 64), (256, 500, 4, 128), (256, 9000, 2, 16)]
"""(width, ids, texts, tokens of a text): the loss sets the most, a layer's backward pass, or the weights' change."""
WAYS = [(recompute, adapter, micro) for recompute in (False, True) for adapter, micro in ((False, None), (True, None), (False, 1))]
WITHIN = 0.1
EVERY = [(kind, size, dtype, way) for kind in CONFIGS for size in SIZES for dtype in ("float32", "bfloat16") for way in WAYS]


def measured(run: TrainingRun, numbers: list[int]) -> int:
    """Return the bytes at most of the second step: what the run holds between steps, and what the allocator hands out beyond it."""
    run.one(numbers)
    run.weights.clear()
    lasting = [*run.model.parameters(), *run.model.buffers(), *run.weights.parameters()]
    lasting += [t for own in run.optimizer.state.values() for t in own.values()]
    state = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in lasting}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run.one(numbers)
    return sum(state.values()) + most_of(profiled)


def most_of(profiled: profile) -> int:
    """Return the most bytes at once that the allocator handed out under a profiler."""
    events = profiled.profiler.kineto_results.events()
    now = most = 0
    for _, n in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"):
        now += n
        most = max(most, now)
    return most


def both(
    folder: Path, kind: str, size: tuple[int, int, int, int], dtype: str, way: tuple[bool, bool, int | None]
) -> tuple[Callable[[], int], int]:
    """Return what computes the bill's bytes, and the bytes that were measured."""
    (width, ids, texts, length), (recompute, adapter, micro) = size, way
    wide = {"n_embd": width} if kind == "gpt2" else {**HEADS, "hidden_size": width}
    family, cfg = understand({"model_type": kind, **CONFIGS[kind], **wide, "vocab_size": ids})
    model = build(cfg)
    initialise(model, 4, 0.02, 1)
    how = Way(recompute=recompute, master=dtype != "float32", summed=micro is not None)
    if adapter:
        new_adapter(model, family, "base", "a", 4, 8, ["layers.*.attn.[qkvo]"])
        low = sum(p.numel() for p in model.parameters() if p.requires_grad)
        how = replace(how, rank=4, adapted=tuple(f"attn.{name}" for name in "kovq"), low=low)
    rows = torch.randint(ids, (texts, length + 1), generator=torch.Generator().manual_seed(1)).tolist()
    settings = TrainSettings(1, 9, texts, 3e-4, 1, dtype=dtype, recompute=recompute, micro=micro)
    folder.mkdir(exist_ok=True)
    objective = Causal(train_tokenizer(["a b c"], 300))
    run = TrainingRun(model.train(), objective, [Document([], row) for row in rows], settings, folder)
    bill = billed(cfg, family.name, kind, length, micro or texts, dtype, dtype, plain=dtype)
    return lambda: int(training(bill, how)["memory.total"]), measured(run, list(range(texts)))


@pytest.mark.quick(45)
@pytest.mark.parametrize(("kind", "size", "dtype", "way"), EVERY)
def test_the_bill_is_what_is_taken(tmp_path: Path, kind: str, size: Any, dtype: str, way: Any) -> None:
    predicted, taken = both(tmp_path, kind, size, dtype, way)
    assert abs(predicted() / taken - 1) < WITHIN, (predicted(), taken)


@pytest.mark.parametrize(
    ("kind", "dtype", "size", "way", "moment"),
    [
        ("llama", "bfloat16", 0, WAYS[0], "at_loss"),
        ("llama", "bfloat16", 1, WAYS[3], "at_backward"),
        ("llama", "bfloat16", 2, WAYS[0], "at_update"),
        ("gpt2", "float32", 2, WAYS[0], "at_embedding"),  # its head is the table
        ("gpt2", "bfloat16", 2, WAYS[5], "at_embedding"),
    ],
)
def test_each_moment_counts(tmp_path: Path, kind: str, dtype: str, size: int, way: Any, moment: str) -> None:
    """Without the one that sets the most the bill is less."""
    predicted, taken = both(tmp_path, kind, SIZES[size], dtype, way)
    assert abs(predicted() / taken - 1) < WITHIN
    with swapped(training_memory, moment, lambda *_: {} if moment == "at_embedding" else Number(0)):
        assert 1 - predicted() / taken > WITHIN


@pytest.mark.parametrize(("name", "again"), [("pellucid/capitals-bert", True), ("t5-small", True), ("llama-3-8b", False)])
def test_a_table_that_another_place_reads_has_its_moment(name: str, again: bool) -> None:
    """BERT's head has a bias of its own beside the table."""
    assert ("memory.at_embedding" in training(pellucid.count(name, context=16))) is again


@pytest.mark.parametrize("layers", [2, 9])
def test_every_layer_under_adapters_counts(layers: int) -> None:
    """The first layer keeps less, and each later one what the second keeps: at the end of the forward all of it is kept."""
    family, cfg = understand(
        {"model_type": "llama", **CONFIGS["llama"], **HEADS, "hidden_size": 64, "vocab_size": 99, "num_hidden_layers": layers}
    )
    bill = billed(cfg, family.name, "llama", 32, 4, "float32", "float32", plain="float32")
    with swapped(training_memory, "working_of", lambda bill, way: dict.fromkeys((f"layers.{k.first}" for k in bill.reduced.kinds), 0)):
        cost = training(bill, Way(rank=4, extra=Extra(tables=0)))
    row = 4 * 32 * 64 * 4
    kept = sum(int(cost[f"memory.{name}"]) for name in ("weights", "adapters", "gradients", "moments", "activations"))
    assert int(cost["memory.at_backward"]) == kept + row + 4 * 32 * 99 * 4  # and the logits' gradient


def test_no_block_that_runs_again_keeps_its_own_at_the_loss(tmp_path: Path) -> None:
    predicted, taken = both(tmp_path, "llama", SIZES[0], "float32", WAYS[3])
    assert abs(predicted() / taken - 1) < WITHIN
    with swapped(training_memory, "recomputed", lambda bill, kept: [("all", 1, total(recomputed(bill, kept)))]):
        assert predicted() / taken - 1 > WITHIN


def test_muon_keeps_one_moment_of_its_matrices(tmp_path: Path) -> None:
    """The bill of a recipe has the bytes that the optimizer holds after a step, of as many ids as its table has at most."""
    path = recipe_of(tmp_path, steps="1", train__optimizer='"muon"')
    sizes = list[int]()

    def counted(run: TrainingRun) -> dict[str, torch.Tensor]:
        moments = moments_of(run)
        sizes.append(sum(t.numel() * t.element_size() for name, t in moments.items() if not name.endswith(":step")))
        return moments

    with swapped(loop, "moments_of", counted), unmeasured():
        run = pellucid.Run(run_recipe(path, tmp_path / "run", False, 1, silent).parent)
    bill = recipe_bill(path)
    ids = bill.bill.config.vocab - run.model(0).config.vocab
    assert int(training(bill.bill, bill.way)["memory.moments"]) - 8 * ids * bill.bill.config.width == sizes[0]


def test_a_recipe_s_bill_is_that_of_the_model(tmp_path: Path) -> None:
    """`count --train` has the same memory, moment by moment, for the model, rows and dtype of a recipe."""
    of_recipe = recipe_bill(recipe_of(tmp_path, train__dtype='"bfloat16"', data__pack='"none"'))
    bill, s = of_recipe.bill, of_recipe.bill.setting
    alone = billed(bill.config, bill.family, "alone", s.context, s.batch, s.weights, s.activations, plain=s.activations)
    one, other = (count.document(b, how)["training"] for b, how in ((bill, of_recipe.scenario), (alone, count.scenario(train=True))))
    assert one == other and {f"memory.at_{moment}" for moment in ("loss", "backward", "embedding", "update")} <= one.keys()
