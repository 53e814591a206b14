"""What is told of several devices is told of them together: parts add up to the headline, and the price is of what can hold the model."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import pellucid
from pellucid.commands import main
from pellucid.counting import ranks
from pellucid.counting.bounds import Part, parts
from pellucid.counting.complexity import layers
from pellucid.counting.ranks import Split, split_of
from pellucid.counting.training_memory import Way, training
from pellucid.documents import count
from pellucid.documents.count import bounds, document, over, scenario
from pellucid.messages import say

Captured = pytest.CaptureFixture[str]
LARGE: dict[str, Any] = {"context": 131072, "batch": 8, "dtype": "fp8", "cache": "bfloat16", "device": "h200"}
SPLITS = ["tp=8", "tp=4,pp=2", "ep=8", "tp=2,pp=4"]


def off(bill: Any, split: Split) -> float:
    """By how much, at most, the parts of a phase differ from its headline, as a share."""
    bound = over(bill, split, 3.0)["bounds"]
    return max(abs(sum(p["seconds"] for p in bound[phase]["parts"]) / bound[phase]["seconds"] - 1) for phase in ("prefill", "decode"))


@pytest.mark.parametrize("split_text", SPLITS)
@pytest.mark.quick(4)
def test_parts_over_ranks_add_up_to_the_headline(split_text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant gives the parts of one device that has it all."""
    bill = pellucid.count("deepseek-v3", **LARGE)
    assert off(bill, split_of(split_text)) < 1e-12

    def alone(bill: Any, phase: str, device: Any, holder: Any = None) -> list[Part]:
        return parts(bill, phase, device)

    monkeypatch.setattr(count, "parts", alone)
    assert off(bill, split_of(split_text)) > 0.5


@pytest.mark.parametrize("split_text", SPLITS)
@pytest.mark.quick(4)
def test_the_largest_batch_and_context_over_ranks_are_the_last_that_fit(split_text: str) -> None:
    split = split_of(split_text)
    bill = pellucid.count("deepseek-v3", **LARGE)
    bound = over(bill, split)["bounds"]
    assert bound["fits"] == (bound["largest_batch"] >= bill.setting.batch) == (bound["longest_context"] >= bill.setting.context)
    assert bound["largest_batch"] > 0 and bound["longest_context"] > 0
    for more in (0, 1):
        batch = pellucid.count("deepseek-v3", **LARGE | {"batch": bound["largest_batch"] + more})
        context = pellucid.count("deepseek-v3", **LARGE | {"context": bound["longest_context"] + more})
        assert [over(b, split)["bounds"]["fits"] for b in (batch, context)] == [not more] * 2


def test_one_devices_numbers_are_not_told_beside_those_of_several(capsys: Captured) -> None:
    """A price, a time and a verdict are there once, and are those of the ranks."""
    bill = pellucid.count("deepseek-v3", **LARGE)
    bound = document(bill, scenario("h200", 3.5, ranks="tp=8"))
    assert bound["bounds"] == {"device": "NVIDIA H200 SXM", "memory": 150109945856}
    price = bound["ranks"]["bounds"]["decode"]["price_of_a_million_tokens"]
    assert price == pytest.approx(ranks.pace(bill, Split(8), "decode", count.device_of(bill)).price(8, 3.5))  # type: ignore[arg-type]
    given = ["deepseek-v3", "--dtype", "fp8", "--context", "4096", "--device", "h200", "--price", "3.5", "--ranks", "tp=8"]
    assert main(["count", *given]) == 0
    shown = capsys.readouterr().out
    assert len(re.findall(r"per\s+million\s+tokens", shown)) == 2 and "one NVIDIA H200" not in shown
    assert main(["count", *given[:-2]]) == 0
    shown = capsys.readouterr().out
    assert "one NVIDIA H200" in shown and "enough" in shown and bounds(bill, 3.5)["fits"] is False


def test_tokens_a_second_are_the_seconds() -> None:
    bound = bounds(pellucid.count("llama-3.1-8b", context=512, batch=4, device="h100"))
    assert bound["prefill"]["tokens_per_second"] == pytest.approx(4 * 512 / bound["prefill"]["seconds"])
    assert bound["decode"]["tokens_per_second"] == pytest.approx(4 / bound["decode"]["seconds"])


# Training


@pytest.mark.parametrize("dtype", ["bfloat16", "int4", "int8", "fp8"])
@pytest.mark.quick(2)
def test_frozen_weights_lie_as_they_are_stored(dtype: str) -> None:
    bill = pellucid.count("llama-3.1-8b", context=64, dtype=dtype)
    assert int(training(bill, Way(rank=16))["memory.weights"]) == int(bill["bytes.total"])
    bound = document(bill, scenario(lora=16))
    assert not [note for note in bound["notes"] if dtype in note]


@pytest.mark.parametrize("dtype", ["int4", "fp8"])
def test_weights_that_take_no_gradient_are_trained_plain_and_it_is_said(dtype: str, capsys: Captured) -> None:
    bill = pellucid.count("gpt2-small", context=64, dtype=dtype)
    assert int(training(bill)["memory.weights"]) == int(bill["bytes.dequantised"]) > int(bill["bytes.total"])
    (note,) = document(bill, scenario(train=True))["notes"]
    assert dtype in note and "bfloat16" in note
    assert main(["count", "gpt2-small", "--context", "64", "--dtype", dtype, "--train"]) == 0
    assert " ".join(note.split()) in " ".join(capsys.readouterr().out.split())


HELD = ("weights", "gradients", "moments", "master")


def trained(model: str, how: str, **setting: Any) -> dict[str, Any]:
    """The document of a training step over these ranks on one kind of device, of one device where there are none."""
    bill = pellucid.count(model, **{"context": 256, "device": "h100", **setting})
    return document(bill, scenario("h100", 2.0, train=True, ranks=how or None))


@pytest.mark.parametrize(
    ("model", "how"), [("llama-3.1-8b", "tp"), ("gpt-oss-20b", "experts"), ("deepseek-v2-lite", "tp"), ("t5-base", "tp")]
)
@pytest.mark.quick(12)
def test_a_step_over_ranks_is_a_ranks(model: str, how: str) -> None:
    """What a rank keeps is what all have alike and its part of the rest, and the step's rows are those of the ranks' own table."""
    one, two, four = (trained(model, n and f"{how}={n}") for n in ("", "2", "4"))
    kept, loss = ([d["training"][f"memory.{name}"]["value"] for d in (one, two, four)] for name in ("activations", "loss"))
    assert kept[0] - kept[1] == pytest.approx(2 * (kept[1] - kept[2]), rel=0.01) and kept[1] > kept[2] and len({*loss}) == 1
    for d, n in ((two, 2), (four, 4)):
        lasting = {name: d["training"][f"memory.{name}"] for name in HELD}
        assert lasting == {name: d["ranks"]["training"][name] for name in HELD}
        assert lasting["weights"]["value"] == d["ranks"]["stages"][0]["weights"]
        bound, least = d["training_bounds"], sum(lasting[name]["value"] for name in ("weights", "moments", "master")) + kept[0] // n
        assert least < bound["held"] == d["training"]["memory.total"]["value"] < one["training_bounds"]["held"]
        assert d["training"]["flops.total"] == one["training"]["flops.total"]
        assert one["training_bounds"]["seconds"] / n <= bound["seconds"] * 1.001 < one["training_bounds"]["seconds"]
        price = n * 2.0 / 3600 * bound["seconds"] / 256 * 1e6
        assert bound["price_of_a_million_tokens"] == pytest.approx(price)


def test_the_verdict_of_a_step_over_ranks(capsys: Captured) -> None:
    """Eight billion weights do not train on one device, and do on four; where a step is not counted over ranks no verdict is given."""
    given = ["count", "llama-3.1-8b", "--context", "2048", "--device", "h100", "--train"]
    for more, fits, devices in (([], False, 1), (["--ranks", "tp=4"], True, 4), (["--ranks", "tp=2", "--shards", "2"], True, 4)):
        assert main([*given, *more]) == 0
        shown = capsys.readouterr().out
        assert ("a step fits" in shown, "a step does not fit" in shown) == (fits, not fits)
        assert f"each of {devices} ×" in shown
    for more in (["--ranks", "tp=2,pp=2"], ["--ranks", "ep=2"], ["--ranks", "tp=16"], ["--ranks", "tp=2", "--lora", "8"]):
        model = ["count", "gpt-oss-20b", *given[2:]] if "ep=2" in more else given
        assert main([*model, *more]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert say("count.train.alone") in shown and not re.search("a step( fits| does not fit|: at least)", shown)


# Convolutions


def reach(kernels: int, dilated: bool, n: int, kernel: int = 3) -> bool:
    """Whether the last of n outputs of that many convolutions depends on the first input, by running them."""
    x = torch.zeros(1, 1, n, dtype=torch.float64)
    x[0, 0, 0] = 1
    for i in range(kernels):
        spread = kernel**i if dilated else 1
        one = nn.functional.pad(x, ((kernel - 1) * spread, 0))
        x = nn.functional.conv1d(one, torch.ones(1, 1, kernel, dtype=torch.float64), dilation=spread)
    return bool(x[0, 0, -1] > 0)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 10, 27, 28, 81, 243, 244])
def test_dilated_kernels_alone_reach_in_a_logarithm(n: int) -> None:
    """As few dilated layers as the table says join the ends of a text, and one less does not; plain ones need more."""
    few = layers(n, 3)
    assert reach(few, True, n) and (few == 1 or not reach(few - 1, True, n))
    assert n <= 5 or not reach(few, False, n)
