"""`count --users`: the fewest devices that serve the users in time are those that a search through all splits finds."""

import itertools
import re

import pytest

from pellucid.commands import main
from pellucid.counting import Setting, counted
from pellucid.counting import offers as offering
from pellucid.counting.bounds import Device
from pellucid.counting.offers import Billed, Demand, fewest, offers
from pellucid.counting.ranks import Split, most_held, pace
from pellucid.errors import UseError
from test_commands import Captured, judged, run, wrong
from tiny import DECODERS, swapped

MODELS = ("llama", "deepseek_v3")


def billed(family: str, users: int, weights: str = "bfloat16") -> Billed:
    one, of_all = (counted(DECODERS[family], family, family, Setting(64, n, None, weights, weights, "bfloat16")) for n in (1, users))
    return Billed(one, of_all)


def by_hand(b: Billed, device: Device, demand: Demand) -> int | None:
    """Return the fewest ranks, of 1, 2 and 4, of any split that meets the demand, by trying every one."""
    for ranks in (1, 2, 4):
        for tp, pp, ep in itertools.product((1, 2, 4), repeat=3):
            split = Split(tp, pp, ep)
            if ep > 1 and not any(layer.ffn.experts for layer in b.all.config.layers):
                continue
            try:
                enough = most_held(b.all, split, 64, demand.users) <= device.memory
                between = pace(b.all, split, "decode", device).seconds / demand.efficiency
            except UseError:
                continue
            if split.ranks == ranks and enough and (demand.between is None or between <= demand.between):
                return ranks
    return None


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.quick(2)
def test_the_fewest_are_those_of_a_search_by_hand(family: str) -> None:
    """At every memory and time where one more device begins to help."""
    b, answers = billed(family, 8), set[int | None]()
    size = most_held(b.all, Split(), 64, 8)
    for share, late in itertools.product((0.2, 0.4, 0.7, 1.0), (None, 0.4, 0.8, 1.0)):
        device = Device("d", share * size, 1e6, {"float32": 1e9})
        slow = pace(b.all, Split(), "decode", device).seconds
        demand = Demand(8, None, None if late is None else late * slow, 0.5 if late == 1.0 else 1.0)
        best = fewest(b, "d", device, demand, 4)
        ranks = by_hand(b, device, demand)
        assert (best.split.ranks if not best.lacks else None) == ranks
        answers.add(ranks)
    assert answers >= {1, 2, None}


def test_what_meets_it_comes_first_and_the_cheapest_of_it() -> None:
    users = Demand(4)
    formats = {name: billed("llama", 4, name) for name in ("bfloat16", "int8")}
    size = most_held(formats["bfloat16"].all, Split(), 64, 4)
    devices = {"slow": Device("slow", size, 1e6, {"float32": 1e9}), "small": Device("small", size / 1e3, 1e9, {"float32": 1e12})}
    made = offers(formats, devices, users, {"slow": 1.0, "small": 1.0})
    assert [o.name for o in made] == ["slow", "slow", "small", "small"] and [o.lacks for o in made[2:]] == ["memory"] * 2
    assert made[0].weights == "int8" and made[0].price(1.0) < made[1].price(1.0)
    assert made[0].price(3.6) == pytest.approx(3.6 / 3600 / (4 / made[0].between) * 1e6)


def test_a_search_that_forgets_the_efficiency_is_seen() -> None:
    b = billed("llama", 8)
    device = Device("d", 1e12, 1e6, {"float32": 1e9})
    slow = pace(b.all, Split(), "decode", device).seconds
    demand = Demand(8, None, slow * 1.5, 0.5)
    assert fewest(b, "d", device, demand, 4).split.ranks == by_hand(b, device, demand) > 1  # type: ignore[operator]
    with swapped(offering, "offer", lambda *a, right=offering.offer: right(*a[:-1], Demand(8, None, slow * 1.5))):
        assert fewest(b, "d", device, demand, 4).split.ranks == 1


def test_the_command(capsys: Captured) -> None:
    _, document = judged(capsys, "count", "gpt2", "--users", 4, "--ttft", "1s", "--tpot", "50ms", "--devices", "h100,rtx4090")
    assert document["table"] == "offers" and len(document["rows"]) == 6 and {row[0] for row in document["rows"]} == {"h100", "rtx4090"}
    code, out, _ = run(
        capsys, "count", "gpt2", "--users", 4, "--devices", "h100", "--formats", "int4", "--prices", "h100=2", "--lang", "zh"
    )
    assert code == 0 and "每百万输出" in out and "是" in out
    for line, word in (
        (["--ttft", "1s"], "--users"), (["--users", 0], "--users is 0"), (["--users", 2, "--ttft", "soon"], "soon"),
        (["--users", 2, "--device", "h100"], "--device"), (["--users", 2, "--devices", "h1000"], "h1000"),
        (["--users", 2, "--prices", "h100"], "h100"), (["--users", 2, "--efficiency", 2], "--efficiency"),
        (["gpt2", "--users", 2], "one model"),
    ):  # fmt: skip
        assert word in wrong(capsys, "count", "gpt2", *line)
    assert "writes no tokens" in wrong(capsys, "count", "pellucid/capitals-bert", "--users", 2)


def test_a_device_of_ones_own(capsys: Captured) -> None:
    device = Device.described("mem=48G,bw=864G,bf16=181T")
    assert (device.memory, device.bandwidth, dict(device.peak)) == (48e9, 864e9, {"float32": 181e12, "bfloat16": 181e12})
    assert dict(Device.described("mem=1e9,bw=2,fp32=3,int8=4.5k").peak) == {"float32": 3.0, "int8": 4500.0}
    _, document = judged(capsys, "count", "gpt2", "--device", "mem=48G,bw=864G,bf16=181T")
    assert document["bounds"]["memory"] == 48_000_000_000
    for text, word in (
        ("mem=48G", "bw"), ("mem=48G,bw=1T", "bf16"), ("mem=48G,bw=1T,bf16=x", "bf16=x"), ("mem=48G,mem=1G,bw=1T,bf16=1", "mem=1G"),
        ("size=3", "size=3"), ("mem=0,bw=1,bf16=1", "mem=0"),
    ):  # fmt: skip
        line = wrong(capsys, "count", "gpt2", "--device", text)
        assert re.search(rf"\b{re.escape(word)}", line), line
    assert main(["count", "gpt2", "--users", "2", "--devices", "h100"]) == 0
