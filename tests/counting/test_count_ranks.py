"""How fast ranks can be at best: one rank is the device itself, several come to no less than an even share; by hand, and its mutants."""

from collections.abc import Callable
from typing import Any

import pytest

from covering import config_of
from pellucid import catalog
from pellucid.api.count import count
from pellucid.config import Config
from pellucid.counting import Bill, Setting, counted
from pellucid.counting.bounds import Device, parts
from pellucid.counting.fit import bytes_held, price, seconds
from pellucid.counting.ranks import Pace, Rank, Split, pace, ranks, spread
from pellucid.documents import count as bill_json
from tiny import DECODERS, LLAMA, swapped
from tiny import FAMILIES as TINY

FAMILIES: dict[str, Config] = {**TINY, **{f: config_of(f, "plain") for f in ("lfm2", "qwen3_5_text", "granitemoehybrid", "falcon_h1")}}

H100 = Device.of(catalog.devices()["h100"])
H200 = Device.of(catalog.devices()["h200"])
PHASES = ("prefill", "decode")


def bill_of(cfg: Config, **how: Any) -> Bill:
    return counted(cfg, "tiny", "tiny", Setting(**{"context": 20, "batch": 4, **how}))


def phases(bill: Bill) -> list[str]:
    return [phase for phase in PHASES if f"flops.{phase}" in bill]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(5)
def test_one_rank_is_the_device(family: str) -> None:
    """Part by part: the same products, the same bytes."""
    bill = bill_of(FAMILIES[family])
    (one,) = ranks(bill, Split())
    for phase in phases(bill):
        assert parts(bill, phase, H100, one) == parts(bill, phase, H100)
        assert pace(bill, Split(), phase, H100).seconds == seconds(bill, phase, H100)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(5)
def test_what_is_held_is_what_is_billed(family: str) -> None:
    """The memory that fits are judged by is the bill's own, at another context and batch too, and the first rank of one has it."""
    bill = bill_of(FAMILIES[family])
    for context, batch in ((20, 4), (3, 1), (33, 7)):
        other = bill_of(FAMILIES[family], context=context, batch=batch)
        cache = int(other["cache.bytes"]) if "cache.bytes" in other else 0
        assert bytes_held(bill, context, batch) == int(other["bytes.total"]) + cache
        assert not cache or int(ranks(other, Split())[0].cache()) == cache


@pytest.mark.parametrize(("family", "part", "row"), [("qwen3_5_text", "delta", 16 + 16 + 48), ("granitemoehybrid", "mamba", 64 + 24 + 24)])
def test_a_state_is_read_and_written_once_a_step(family: str, part: str, row: int) -> None:
    """A step of decoding moves such a layer's weights, its last rows and its state both ways; each of two ranks all of it."""
    bill = bill_of(FAMILIES[family])
    spec = FAMILIES[family].layers[0].attn
    weights = sum(c.times * int(bill[f"bytes.{c.path}"]) for c in bill.weights if f".{part}" in c.path)
    rows, states = 2 * 4 * spec.rows_kept(20) * row * 2, 2 * 4 * spec.state * 4  # two layers, four texts
    for holder in (None, ranks(bill, Split(2))[0]):
        assert sum(p.moved for p in parts(bill, "decode", H100, holder) if p.path.endswith(f".{part}")) == weights + rows + 2 * states


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("split", [Split(2), Split(1, 2), Split(2, 2, 2), Split(2, 1, 4), Split(1, 1, 2), Split(1, 1, 1, 2)])
@pytest.mark.quick(4)
def test_no_rank_does_less_than_its_share(family: str, split: Split) -> None:
    """What all ranks of all stages do is at least what one device would do, and no rank does more than that."""
    bill = bill_of(FAMILIES[family])
    assert slack(bill, split) == []


def slack(bill: Bill, split: Split) -> list[str]:
    """What breaks that, in words."""
    wrong = []
    for phase in phases(bill):
        alone, by_rank = parts(bill, phase, H100), [parts(bill, phase, H100, rank) for rank in ranks(bill, split)]
        side = split.ranks // split.pp
        for name in ("flops", "moved"):
            all_of_it, each = sum(getattr(p, name) for p in alone), [sum(getattr(p, name) for p in one) for one in by_rank]
            wrong += [f"{phase} {name} little"] if side * sum(each) < all_of_it * (1 - 1e-12) else []
            again = 2 if split.pp > 1 and name == "moved" else 1  # what stages share, each has
            wrong += [f"{phase} {name} much"] if sum(each) > again * all_of_it * (1 + 1e-12) else []
    return wrong


def test_two_ranks_by_hand() -> None:
    """A block's matrices are halved, its norms are not; of 4 heads and 2 groups each rank has 2 and 1."""
    bill = bill_of(LLAMA)
    (rank,) = ranks(bill, Split(2))
    by_path = {p.path: p for p in parts(bill, "decode", H100, rank)}
    matrices = 32 * 32 + 2 * 16 * 32 + 32 * 32
    assert by_path["layers.0.attn"].moved == 2 * 2 * (matrices // 2 + 32) + 2 * 4 * 21 * (2 * 8 * 2)
    assert by_path["layers.0.attn"].flops == 2 * 4 * (2 * matrices + 2 * 21 * 4 * 16) / 2
    assert by_path["head"].moved == 2 * 49 * 32  # 97 entries over two
    assert int(rank.cache()) == spread(bill, Split(2)).stages[0].cache == 2 * 20 * 4 * (2 * 8 * 2)


def test_stages_follow_one_another() -> None:
    bill = bill_of(LLAMA)
    paced = pace(bill, Split(1, 2), "decode", H100)
    assert len(paced.stages) == 2 and paced.seconds == sum(paced.stages) and paced.rate == 4 / max(paced.stages)
    assert paced.seconds == pytest.approx(seconds(bill, "decode", H100), rel=1e-12)
    assert Pace(10, (1.0, 4.0)).price(2, 3600.0) == 2 / (10 / 4) * 1e6
    assert pace(bill, Split(), "decode", H100).price(1, 7.0) == pytest.approx(price(bill, "decode", H100, 7.0))


def test_a_latent_is_on_every_rank() -> None:
    """DeepSeek-V3 at 131,072 tokens on 8 H200: by heads every rank reads the whole cache, by experts each its own requests'."""
    bill = count("deepseek-v3", context=131072, batch=8, dtype="fp8", cache="bfloat16", device="h200")
    heads, experts = (bill_json.over(bill, split) for split in (Split(8, 1, 8), Split(1, 1, 8)))
    assert heads["stages"][0]["cache"] == int(bill["cache.bytes"]) == 8 * experts["stages"][0]["cache"]
    assert not heads["bounds"]["fits"] and experts["bounds"]["fits"]
    assert experts["bounds"]["decode"]["tokens_per_second"] > heads["bounds"]["decode"]["tokens_per_second"]
    cache = 131073 * 61 * (512 + 64) * 2
    (rank,) = ranks(bill, Split(1, 1, 8))
    attn = [p for p in parts(bill, "decode", H200, rank) if p.path.endswith(".attn")]
    assert sum(p.moved for p in attn) == cache + sum(
        rank.copies(c.path, c.times) * rank.bytes(c) for c in bill.weights if ".attn" in c.path
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_formulas_end_in_what_a_rank_holds(family: str) -> None:
    bill = bill_of(FAMILIES[family], source=11)
    for split in (Split(2), Split(1, 2), Split(1, 1, 2)):
        for rank, stage in zip(ranks(bill, split), spread(bill, split).stages, strict=True):
            for number, value in ((rank.parameters(), stage.parameters), (rank.weights(), stage.weights), (rank.cache(), stage.cache)):
                assert int(number) == value and number.formula.endswith(f"{value:,}")
                assert summed(number.filled) == value or not number.filled


def summed(filled: str) -> int:
    """The sum of products that a formula's figures are."""
    out = 0
    for term in filled.replace(",", "").split(" + "):
        value = 1
        for factor in term.split("·"):
            value *= int(factor)
        out += value
    return out


MUTANTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "work of nobody": ("work", lambda self, path: 0.0),
    "everybody's work": ("work", lambda self, path: 2.0),
    "no weights": ("bytes", lambda self, c: 0.0),
    "no cache": ("row_bytes", lambda self, path: 0.0),
    "all layers": ("copies", lambda self, path, times: 2 * times),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(name: str) -> None:
    bill = bill_of(DECODERS["deepseek_v3"])
    assert slack(bill, Split(2, 1, 2)) == []
    with swapped(Rank, *MUTANTS[name]):
        assert slack(bill, Split(2, 1, 2)) != []
