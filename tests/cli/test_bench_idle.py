"""A verdict needs an idle machine, and a bound the read rate for its number of bytes: `bench` and `count` use the same one.

No time is asserted: rates and the system's processor times are made up.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pellucid
from pellucid.bench import idle, last_measured, machine_limits
from pellucid.bench.batch_load import First
from pellucid.bench.idle import Idle, Watchman
from pellucid.bench.machine_limits import Gauge, MachineLimits, Rate, block_for
from pellucid.bench.peers import Served
from pellucid.bench.timing import Timed, against_bounds
from pellucid.counting import Setting, counted
from pellucid.counting.bounds import Device, moved
from pellucid.documents import bench as bench_document
from pellucid.documents import count
from pellucid.terminal import bench as drawing
from test_bench import Ticking
from tiny import DECODERS

RATES = {1 << 20: 90.0e9, 4 << 20: 60.0e9, 16 << 20: 40.0e9, 64 << 20: 25.0e9, 256 << 20: 20.0e9}
FAST = {"float32": Rate(9e12, 9e12), "bfloat16": Rate(9e12, 9e12)}
MADE = MachineLimits("made up", 8 << 30, 2, 256 << 20, {1: Rate(9.0e9, 10.0e9), 2: Rate(19.0e9, 20.0e9)}, FAST, "2", None, "now", RATES)


# The same bound


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MachineLimits:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    last_measured.keep(MADE)
    assert last_measured.kept() == MADE
    return MADE


@pytest.mark.parametrize("name", ["pellucid/capitals", "gpt2-small"])
def test_count_and_bench_have_one_bound(name: str, measured: MachineLimits) -> None:
    """A step of a few MB is bound by the cache's rate in both commands; the rate of one large block would be too slow."""
    bill = pellucid.count(name, context=32, device="cpu")
    block = block_for(moved(bill))
    here = MachineLimits("made up", 8 << 30, 2, block, {2: Rate(RATES[block], RATES[block])}, FAST, "2", None, "now")  # as `bench` measures
    phase, _ = against_bounds(bill, Timed("decode", [1.0], [1.0], {"head": 1.0}), here.device)
    bound = count.bounds(bill)["decode"]["seconds"]
    assert bound == pytest.approx(phase.bound)
    last_measured.keep(replace(MADE, blocks={}))
    alone = count.bounds(bill)["decode"]["seconds"]
    assert (alone > 2 * bound) == (name == "pellucid/capitals")


MB = 1 << 20


@pytest.mark.parametrize(("reads", "block"), [(10, MB), (MB, MB), (4 * MB - 1, MB), (5 * MB, 4 * MB), (1e12, 256 * MB)])
def test_a_bound_takes_the_largest_block_that_is_filled(reads: float, block: int, measured: MachineLimits) -> None:
    """Between two measured blocks the rate of the smaller one holds, which keeps it a bound; the source names the block."""
    device = last_measured.device("cpu", reads)
    assert device is not None and block_for(reads) == block
    assert device.bandwidth == RATES[block] and f"{block >> 20} MiB" in device.source
    assert last_measured.device("cpu") == MADE.device and MADE.device.bandwidth == 20e9


def test_every_size_is_measured() -> None:
    """Every block size is measured with all threads that are asked for, and the best rate of each is stored."""
    limits = Gauge(2, 4 << 20, Ticking(0.0, 1.0), blocks=(1 << 20, 4 << 20)).measure(2).limits
    assert sorted(limits.blocks) == [1 << 20, 4 << 20] and limits.blocks[4 << 20] == limits.read[1].best == limits.read[2].best
    assert limits.reading(1 << 20).bandwidth == limits.blocks[1 << 20] == machine_limits.A_RUN


# A verdict


def books(monkeypatch: pytest.MonkeyPatch, *seen: tuple[float, float] | None, own: float = 0.0) -> Watchman:
    """Replace the system's processor times at the beginning and at the end, and this process's own seconds."""
    rows, clock = iter(seen), iter((0.0, own))
    monkeypatch.setattr(idle, "used", lambda: next(rows))
    monkeypatch.setattr(idle, "time", SimpleNamespace(process_time=lambda: next(clock)))
    return Watchman(idle.used(), idle.time.process_time())


@pytest.mark.parametrize(
    ("end", "own", "others", "quiet"),
    [((10.0, 40.0), 10.0, 0.0, True), ((12.0, 40.0), 10.0, 0.05, True), ((30.0, 40.0), 10.0, 0.5, False), (None, 1.0, None, True),
     ((3.0, 40.0), 10.0, 0.0, True)],
)  # fmt: skip
def test_what_others_took(end: Any, own: float, others: float | None, quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes are charged with the busy time that is not ours; without processor times their share is None."""
    idle = books(monkeypatch, (0.0, 0.0), end, own=own).verdict(MADE)
    assert idle.others == others and idle.quiet == quiet and idle.steadiness == 0.9


def test_unsteady_rates_are_no_ground() -> None:
    assert not Idle(0.0, 0.4).quiet and Idle(0.0, 0.6).quiet and not Idle(0.5, 1.0).quiet


def test_the_books_of_the_processors_that_are_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All but idle and waiting counts as busy; other processors and the sum line are left out."""
    table = tmp_path / "stat"
    ours = "cpu0 100 0 50 300 50 0 0 0 0 0\ncpu1 200 0 100 100 0 0 0 0 7 0\n"
    table.write_text(f"cpu  9 9 9 9 9 9 9 9 0 0\n{ours}cpu2 5 5 5 5 5 5 5 5 5 5\nintr 1\n")
    monkeypatch.setattr(idle, "TABLE", table)
    monkeypatch.setattr(idle.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(idle.os, "sysconf", lambda name: 100)
    assert idle.used() == (4.5, 9.0)
    monkeypatch.setattr(idle, "TABLE", tmp_path / "none")
    assert idle.used() is None


def shown(idle: Idle, first: First | None = None) -> tuple[str, dict[str, Any]]:
    """Return the terminal's text and the JSON document of a made-up measurement."""
    bill = counted(DECODERS["gpt2"], "m", "gpt2", Setting(9, 1, None, "float32", "float32", "float32"))
    device = Device("made up", 1e9, 100e6, {"float32": 1e9}, "a source")
    timed = Timed("decode", [4.0], [5.0], {"layers.0.attn": 2.0, "head": 3.0})
    phases = [(timed, *against_bounds(bill, timed, device))]
    text = "\n".join(line.plain for line in drawing.drawn(bill, False, phases, device, Served(first), idle, 200))
    return text, bench_document.document(bill, False, phases, device, Served(first), idle)


def test_a_verdict_is_withheld_where_the_machine_was_not_idle() -> None:
    """On a busy machine times and bounds are shown; ratios, shares and the error of a prediction are not."""
    text, document = shown(Idle(0.0, 0.9))
    phase = document["phases"]["decode"]
    assert phase["ratio"] == 4.0 / phase["bound"] and None not in (phase["error"], phase["share"]) and "no verdict" not in text
    assert "prediction" in text and "best rate of reading" in text and "a source" in " ".join(text.split())
    for busy in (Idle(0.6, 0.9), Idle(0.0, 0.2)):
        text, document = shown(busy)
        phase = document["phases"]["decode"]
        assert phase["seconds"] == 4.0 and phase["bound"] > 0 and not document["idle"]["quiet"]
        assert (phase["ratio"], phase["error"], phase["share"]) == (None, None, None) and {p["ratio"] for p in phase["parts"]} == {None}
        assert "no verdict" in text and "prediction" not in text and "best rate of reading" not in text


@pytest.mark.parametrize(("cached", "sentence"), [(0, "nothing of such a prompt"), (48, "knows 48 of them")])
def test_an_empty_cache_is_not_reported_as_warm(cached: int, sentence: str) -> None:
    text, _ = shown(Idle(0.0, 0.9), First(64, cached, [1.0], [0.5]))
    assert sentence in text and "knows 0" not in text


def test_every_number_column_has_a_heading() -> None:
    text, _ = shown(Idle(0.0, 0.9))
    heading = next(line for line in text.splitlines() if "measured" in line and "ratio" in line)
    assert [word for word in ("part", "layers", "measured", "bound", "ratio", "set by") if word not in heading] == []
