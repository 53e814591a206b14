"""Prompts read on machines apart from those that write: each number by hand, and the bound is the same together."""

import pytest

from pellucid.counting import Bill, Setting, counted
from pellucid.counting import reading_apart as module
from pellucid.counting.bounds import Device
from pellucid.counting.ranks import Split, pace
from pellucid.counting.reading_apart import apart
from test_commands import Captured, judged, run, wrong
from tiny import DECODERS, swapped

FAST, WIDE = Device("fast", 1e15, 1e5, {"float32": 1e9}, link=1e4), Device("wide", 1e15, 1e6, {"float32": 1e8}, link=1e5)
WRITTEN, BATCH = 12, 8


def bills(family: str) -> tuple[Bill, Bill]:
    of = DECODERS[family]
    one, texts = (counted(of, family, family, Setting(n, b, None, "bfloat16", "bfloat16", "bfloat16")) for n, b in ((40, 1), (46, BATCH)))
    return one, texts


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
@pytest.mark.parametrize("split", [Split(), Split(tp=2)])
def test_each_number_by_hand(family: str, split: Split) -> None:
    one, texts = bills(family)
    a = apart(one, texts, WRITTEN, FAST, WIDE, split, 0.5)
    read, together = (2 * pace(one, split, "prefill", d).seconds for d in (FAST, WIDE))
    step = 2 * pace(texts, split, "decode", WIDE).seconds
    assert (a.read, a.read_together, a.step) == pytest.approx((read, together, step))
    assert a.write == pytest.approx(step * WRITTEN / BATCH) and a.together == pytest.approx(together + a.write)
    # in as many steps as a text has tokens, each of the batch's texts ends once, and one prompt is read for it
    assert WRITTEN * a.between == pytest.approx(WRITTEN * step + BATCH * together)
    rows = int(one["cache.bytes"])
    assert a.sent == rows and a.over == pytest.approx(rows / (1e4 * split.ranks))
    assert a.share / (1 - a.share) == pytest.approx(a.read / a.write)
    alike = apart(one, texts, WRITTEN, WIDE, WIDE, split)
    assert alike.read + alike.write == pytest.approx(alike.together)


def test_a_transfer_of_the_whole_batch_is_seen() -> None:
    one, texts = bills("llama")
    right = apart(one, texts, WRITTEN, FAST, WIDE, Split())
    with swapped(module, "bytes_held", lambda bill, context, batch, real=module.bytes_held: real(bill, context, BATCH)):
        assert apart(one, texts, WRITTEN, FAST, WIDE, Split()).sent != right.sent


def test_the_command(capsys: Captured) -> None:
    line = ("count", "gpt2-small", "--context", 64, "--batch", 4, "--device", "h200")
    _, document = judged(capsys, *line, "--reader", "h100", "--written", 16, "--prices", "h100=2,h200=3")
    assert document["table"] == "apart" and len(document["rows"]) == 10
    _, document = judged(capsys, *line, "--written", 16)
    assert len(document["rows"]) == 9
    assert run(capsys, *line, "--written", 16, "--lang", "zh")[0] == 0
    for more, word in (
        (["--written", 0], "--written"), (["--written", 4, "--efficiency", 3], "--efficiency"), (["--written", 4, "--reader", "h1"], "h1"),
        (["--written", 4, "--ranks", "pp=2"], "tp and ep"), (["--written", 4, "--prices", "a100=1"], "a100"),
    ):  # fmt: skip
        assert word in wrong(capsys, *line, *more)
    assert "--device" in wrong(capsys, "count", "gpt2-small", "--written", 4)
    assert "--written" in wrong(capsys, *line, "--reader", "h100")
    described = ("count", "gpt2-small", "--context", 64, "--device", "mem=48G,bw=864G,bf16=181T", "--written", 16)
    assert len(judged(capsys, *described)[1]["rows"]) == 9
