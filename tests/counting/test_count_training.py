"""What training takes: what a forward keeps for its backward is what autograd saves on a device, and a step's products are their sums."""

from dataclasses import replace
from math import ceil
from typing import Any

import pytest
import torch

import judge
from pellucid.checkpoint.adapter import layers
from pellucid.checkpoint.new_adapter import new_adapter
from pellucid.commands import main
from pellucid.counting import training_adapters, training_memory
from pellucid.counting.bounds import Device
from pellucid.counting.flash import Flash
from pellucid.counting.meta_run import meta_model, run
from pellucid.counting.training_memory import Way, kept
from pellucid.counting.training_pace import training_pace
from test_commands import Captured, judged, wrong
from test_count_plans import bill_of
from test_count_ranks import FAMILIES
from tiny import DECODERS, LLAMA, tiny


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(6)
def test_kept_with_adapters_on_meta_is_kept_on_a_device(family: str) -> None:
    """What autograd itself saves; and the adapters are as many as the bill has it."""
    tokens, source = torch.zeros(2, 24, dtype=torch.long), torch.zeros(2, 11, dtype=torch.long)
    real, on_meta = tiny(FAMILIES[family], torch.float32), meta_model(FAMILIES[family], torch.float32)
    for model in (real, on_meta):
        training_adapters.adapt(model, 4)
    assert kept(real, tokens, source) == kept(on_meta, tokens.to("meta"), source.to("meta"))
    counted = training_adapters.adapters(bill_of(FAMILIES[family]), 4)
    assert sum(p.numel() for p in on_meta.parameters() if p.requires_grad) == counted


@pytest.mark.parametrize("kind", ["gpt2", "phi3", "llama", "deepseek_v3", "t5", "bloom"])
def test_adapters_are_those_of_a_new_adapter(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a model with the family's own file: matrices that are one on disk share A."""
    family, model = judge.ours(judge.judge(kind).folder)
    bill = bill_of(model.config)
    bill.family = kind
    counted = training_adapters.adapters(bill, 3)
    linears = layers(model, family).linears
    targets = [n.removesuffix(".weight") for group in linears.values() for n in group.ours if "layers." in n and "router" not in n]
    new_adapter(model, family, "base", "a", 3, 6, [t for t in targets if ".distance" not in t])
    made = {id(p): p.numel() for n, p in model.named_parameters() if ".adapters." in n}
    assert counted == sum(made.values())
    monkeypatch.setattr(training_adapters, "together", lambda bill, shapes: [])
    apart = training_adapters.adapters(bill, 3)
    assert (apart > counted) is (kind in ("gpt2", "phi3", "bloom"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(5)
def test_kept_by_two_layers_of_each_kind_is_kept_by_all(family: str) -> None:
    """What layers share is kept once; and before the first adapter nothing is kept, so that the first layer is no measure of the others."""
    bill = bill_of(many := replace(FAMILIES[family], layers=FAMILIES[family].layers[-1:] * 5))
    tokens, source = (torch.zeros(2, 20, dtype=torch.long, device="meta") for _ in range(2))
    for rank in (None, 4):
        model = meta_model(many, torch.bfloat16)
        model.requires_grad_(True) if rank is None else training_adapters.adapt(model, rank)
        total_bytes = sum(kept(model, tokens, source).values())
        assert total_bytes == sum(times * int(n) for _, times, n in training_memory.activations(bill, Way(rank)))
    bill.doubled = bill.reduced
    assert total_bytes != sum(times * int(n) for _, times, n in training_memory.activations(bill, Way(4)))


def test_adapters_keep_less_than_all() -> None:
    """A frozen expert's rows are kept for no weight of its own: what both of its products read, and the mixed outputs."""
    bill = bill_of(DECODERS["qwen2_moe"])
    full, low = (sum(times * int(n) for _, times, n in training_memory.activations(bill, Way(rank))) for rank in (None, 4))
    numbers = training_memory.training(bill, Way(rank=4))
    assert low < full and int(numbers["memory.activations"]) == low


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.quick(6)
def test_kept_on_meta_is_kept_on_a_device(family: str, dtype: torch.dtype) -> None:
    """torch's LayerNorm keeps means and deviations in float32, but on a CPU in bfloat16: 2 bytes less, twice a row."""
    tokens, source = torch.zeros(2, 24, dtype=torch.long), torch.zeros(2, 11, dtype=torch.long)
    real = kept(learning(tiny(FAMILIES[family], dtype)), tokens, source)
    on_meta = kept(learning(meta_model(FAMILIES[family], dtype)), tokens.to("meta"), source.to("meta"))
    if family == "gpt2" and dtype == torch.bfloat16:
        on_meta = {path: n - 2 * 2 * 48 * (1 if path == "" else 2) for path, n in on_meta.items()}
    assert real == on_meta


def learning(model: Any) -> Any:
    for p in model.parameters():
        p.requires_grad_(True)
    return model


def test_attention_on_meta_would_keep_the_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the stand-in, the count grows with the square of the context, as no kernel's memory does."""
    tokens = torch.zeros(1, 64, dtype=torch.long, device="meta")
    model = learning(meta_model(LLAMA, torch.float32))
    right = kept(model, tokens, tokens)["layers.1"]
    monkeypatch.setattr(Flash, "__torch_function__", lambda self, func, types, args=(), kwargs=None: func(*args, **(kwargs or {})))
    assert kept(model, tokens, tokens)["layers.1"] >= right + 4 * 64 * 64 * 4 - 4 * 64 * 4


def test_a_step_of_training() -> None:
    """Bytes by what they are; and 6·N·T with its difference, which attention and idle weights make up."""
    bill = bill_of(LLAMA)
    every = int(bill["parameters.total"])
    numbers = training_memory.training(bill)
    assert [int(numbers[f"memory.{n}"]) for n in ("weights", "gradients", "moments", "master")] == [
        2 * every,
        2 * every,
        8 * every,
        4 * every,
    ]
    assert int(numbers["flops.total"]) == 3 * int(bill["flops.prefill"])
    assert int(numbers["flops.total"]) == sum(int(numbers[f"flops.{n}"]) for n in ("textbook", "attention", "idle"))
    assert int(numbers["flops.attention"]) == 3 * 2 * 2 * 4 * 4 * 8 * 20 * 20
    again = training_memory.training(bill, Way(recompute=True, shards=3))
    assert int(again["memory.moments"]) == ceil(8 * every / 3)
    each = {path: int(n) for path, _, n in training_memory.activations(bill)}
    assert int(again["memory.activations"]) == 2 * 2 * 20 * 32 * 2 + each["layers.0"] + each["outside"]
    assert int(numbers["memory.activations"]) == each["layers.0"] + each["layers.1"] + each["outside"]
    head = 2 * 97 * 32 * 20 * 2  # it is outside of blocks, and does not run again
    assert int(again["flops.total"]) == 4 * int(bill["flops.prefill"]) - head


def test_a_step_of_an_encoder_decoder() -> None:
    """Every row of the target is learned, of which a prefill has one; what is not kept is made again."""
    cfg = FAMILIES["t5"]
    numbers = training_memory.training(bill_of(cfg), Way(recompute=True))
    forward = sum(run(meta_model(cfg, torch.bfloat16), 20, 0, 2, 20).flops.values())
    head = 2 * 97 * 32 * 20 * 2
    assert [int(numbers[f"flops.{n}"]) for n in ("forward", "recompute", "total")] == [forward, forward - head, 4 * forward - head]


def test_adapters_train_little() -> None:
    """Frozen matrices have no third product; attention and the adapters have all."""
    bill = bill_of(LLAMA)
    numbers = training_memory.training(bill, Way(rank=4))
    inner = 2 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 48))
    assert int(numbers["memory.adapters"]) == 4 * 4 * inner and "memory.master" not in numbers
    assert int(numbers["flops.adapters"]) == 6 * 4 * inner * 40
    mixing = 2 * 2 * 4 * 4 * 8 * 20 * 20
    assert int(numbers["flops.backward"]) == int(bill["flops.prefill"]) - mixing + 2 * mixing


@pytest.mark.parametrize("way", [Way(), Way(recompute=True), Way(rank=4), Way(shards=4)])
@pytest.mark.quick(2)
def test_the_pace_of_a_step_by_hand(way: Way) -> None:
    """On a device that multiplies slowly the products set it; on one that moves slowly the bytes, each read or written as often as said."""
    bill = bill_of(LLAMA)
    cost = {name: int(n) for name, n in training_memory.training(bill, way).items()}
    moved = sum(2 * cost.get(f"memory.{name}", 0) for name in ("weights", "adapters", "gradients", "moments", "master"))
    moved += cost["memory.weights" if way.rank is None else "memory.adapters"]
    tokens = bill.setting.context * bill.setting.batch * way.shards
    for device, seconds in (
        (Device("d", 1e15, 1e15, {"float32": 1e6}), cost["flops.total"] / 1e6),
        (Device("d", 1e15, 1e3, {"float32": 1e15}), moved / 1e3),
    ):
        pace = training_pace(bill, way, device, 0.5)
        assert pace.seconds == pytest.approx(2 * seconds) and pace.rate == pytest.approx(tokens / pace.seconds)
        assert pace.price(3.6) == pytest.approx(way.shards * 3.6 / 3600 * pace.seconds / tokens * 1e6)
    size = cost["memory.total"]
    assert [training_pace(bill, way, Device("d", m, 1.0, {"float32": 1.0})).fits for m in (size, size - 1)] == [True, False]


def test_training_on_a_device_as_a_command(capsys: Captured) -> None:
    line = ("count", "gpt2-small", "--context", 256, "--train", "--shards", 2, "--device", "h100", "--price", 3.6)
    plain, half = (judged(capsys, *line, *more)[1]["training_bounds"] for more in ((), ("--efficiency", 0.5)))
    assert half["seconds"] == pytest.approx(2 * plain["seconds"]) and plain["fits"] and plain["sets"] == "bandwidth"
    assert half["price_of_a_million_tokens"] == pytest.approx(2 * 3.6 / 3600 / half["tokens_per_second"] * 1e6)
    assert "training_bounds" not in judged(capsys, "count", "gpt2-small", "--context", 8, "--train")[1]
    again = judged(capsys, "count", "gpt2-small", "--context", 256, "--recompute", "--device", "h100", "--efficiency", 0.5)[1]
    assert again["training_bounds"]["seconds"] > 0
    assert main(["count", "llama-3.1-8b", "--context", "2048", "--train", "--device", "rtx4090", "--lang", "zh"]) == 0
    assert "一步放不下" in capsys.readouterr().out
    assert "--efficiency is 2" in wrong(capsys, "count", "gpt2-small", "--train", "--device", "h100", "--efficiency", 2)
