"""`bench` measures this machine and a model beside its bound: rates, timed parts, ratios, stored limits, refusals.

No time is asserted: the clock of these tests advances by a given number of seconds at each reading.
"""

import json
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pellucid.bench import benched_model, idle, last_measured, machine_limits, timing
from pellucid.bench.machine_limits import Gauge, MachineLimits, Rate, threaded
from pellucid.catalog import devices
from pellucid.counting import Bill, Setting, counted
from pellucid.counting.bounds import Device, moved, parts
from pellucid.engine.plans import Plans
from pellucid.errors import UseError
from pellucid.families import understand
from pellucid.nn.transformer import Decoder
from pellucid.ops import native
from test_commands import Captured, judged, run, wrong
from tiny import DECODERS, tiny

ROOT = Path(__file__).parents[2]
DEVICE = Device("made up", 1e9, 100.0, {"float32": 1000.0})
GPT2 = {"model_type": "gpt2", "vocab_size": 101, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64}
HEADS = {"num_attention_heads": 1024, "num_key_value_heads": 1024, "vocab_size": 1024}
T5 = {
    "model_type": "t5",
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "is_encoder_decoder": True,
}


class Ticking:
    """A clock that advances by the given seconds, in turn, at each reading."""

    def __init__(self, *steps: float) -> None:
        self.now, self.steps, self.reads = 0.0, steps, 0

    def __call__(self) -> float:
        self.now += self.steps[self.reads % len(self.steps)]
        self.reads += 1
        return self.now


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make measurements small, the verdict independent of other processes, and the cache a folder of the test."""
    monkeypatch.setattr(idle, "MOST", 1.0)
    monkeypatch.setattr(idle, "LEAST", 0.0)
    monkeypatch.setattr(machine_limits, "SHAPES", ((2, 16, 16), (2, 16, 32)))
    monkeypatch.setattr(machine_limits, "A_RUN", 1 << 20)
    monkeypatch.setattr(machine_limits, "ENOUGH", 1e9)
    monkeypatch.setattr(machine_limits, "BLOCK", 1 << 20)
    monkeypatch.setattr(machine_limits, "BLOCKS", (1 << 20, 4 << 20))
    monkeypatch.setattr(timing, "SPENT", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def bill_of(family: str, context: int = 9) -> Bill:
    return counted(DECODERS[family], family, family, Setting(context, 1, None, "float32", "float32", "float32"))


# The machine


def test_rates_are_amounts_over_seconds(quick: Path) -> None:
    """The best rate is of the shortest run and the median of the middle one; of two shapes the larger is faster."""
    clock = Ticking(0.0, 1.0, 0.0, 2.0, 0.0, 4.0)
    limits = Gauge(1, 5 << 20, clock).measure(3).limits
    middle = 1 if native.available() else 2  # the kernels read in two ways, in 1 and 2, 4 and 1, 2 and 4 seconds
    assert limits.block == 5 << 20 and limits.read == {1: Rate((5 << 20) / middle, 5 << 20)}
    flops = 2.0 * 2 * 16 * 32
    assert limits.product == dict.fromkeys(("float32", "bfloat16", "int8"), Rate(flops / 2, flops))
    device = limits.device
    assert (device.name, device.bandwidth, dict(device.peak)) == (limits.cpu, 5 << 20, dict.fromkeys(limits.product, flops))


def test_a_limit_is_the_best_of_all_that_was_seen(quick: Path) -> None:
    """A second measurement never lowers a limit, and one thread may read faster than two."""
    gauge = Gauge(1, clock=Ticking(0.0, 2.0)).measure(2)
    slow = gauge.limits.read[1].best
    gauge.clock = Ticking(0.0, 1.0)
    gauge.measure(2)
    assert gauge.limits.read[1].best == 2 * slow
    gauge.clock = Ticking(0.0, 8.0)
    assert gauge.measure(2).limits.read[1].best == 2 * slow
    two = replace(gauge.limits, threads=2, read={1: Rate(3.0, 5.0), 2: Rate(1.0, 4.0)})
    assert two.device.bandwidth == 5.0


def test_a_slow_product_is_timed_until_it_took_enough(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a processor lacks the instruction one product takes a second: two of them are enough, of the seven asked for."""
    monkeypatch.setattr(machine_limits, "ENOUGH", 1.5)
    gauge = Gauge(1, clock=Ticking(0.0, 1.0)).measure(7)
    assert all(len(rates) == 2 for by_shape in gauge.products.values() for rates in by_shape.values())
    assert all(len(rates) == 7 for by_threads in gauge.reads.values() for rates in by_threads.values())


def test_small_blocks_are_read_over_and_over(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_limits, "A_RUN", 8 << 20)
    for off in (False, True):
        monkeypatch.setattr(native.library.here, "off", off)  # type: ignore[attr-defined]
        assert machine_limits.reading(torch.ones(1 << 18), Ticking(0.0, 1.0)) == 8 << 20
        assert machine_limits.reading(torch.ones(4 << 20), Ticking(0.0, 1.0)) == 16 << 20


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()

    def fails() -> None:
        with threaded(2):
            assert torch.get_num_threads() == 2
            raise UseError("bench.what")

    with pytest.raises(UseError):
        fails()
    assert torch.get_num_threads() == before


# A model


@pytest.mark.parametrize("family", DECODERS)
def test_every_bounded_part_is_timed(family: str) -> None:
    """With a clock that ticks once a reading, a part takes one second for each of its modules: in each layer a norm and what it feeds."""
    bill, model = bill_of(family), tiny(family, torch.float32)
    for phase in (timing.prefill(model, bill, Ticking(1.0)), timing.decode(model, bill, 1, Ticking(1.0))):
        bounds = {p.path: p for p in parts(bill, phase.phase, DEVICE)}
        assert set(bounds) <= set(phase.parts)
        for path, seconds in phase.parts.items():
            assert seconds == (2 * bounds[path].times if path.startswith("layers.") else 1)
        assert sum(bounds[p].times for p in phase.parts if p.startswith("layers.")) == 2 * len(bill.config.layers)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_what_is_timed_is_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill makes logits of every row, no timed step is shorter than the bill's context, and two steps are not timed."""
    bill, model = bill_of("gpt2"), tiny("gpt2", torch.float32)
    seen: list[int] = []
    with torch.no_grad():
        hook = model.head.register_forward_hook(lambda m, x, y: seen.append(y.shape[1]))
        timing.prefill(model, bill)
        hook.remove()
    assert set(seen) == {9}
    lengths: list[int] = []
    honest = Plans.step

    def spied(plans: Plans, feed: Any, proposed: Any, **more: Any) -> Any:
        lengths.extend(plans.pages.length[r] for r in feed)
        return honest(plans, feed, proposed, **more)

    monkeypatch.setattr(Plans, "step", spied)
    timed = timing.decode(model, bill, 4)
    assert lengths == 2 * [9, 10, 11, 12, 13, 14] and len(timed.full) == len(timed.eager) == 4
    assert timed.planned == native.available()


def test_hooks_change_no_number() -> None:
    bill, model = bill_of("llama"), tiny("llama", torch.float32)
    tokens = torch.tensor([timing.tokens(bill)])
    with torch.no_grad():
        plain = model(tokens)
        with timing.Stopwatch(bill, model):
            assert torch.equal(model(tokens), plain)


def test_ratios_are_measured_over_bound() -> None:
    bill = bill_of("deepseek_v3")
    bounds = {p.path: p for p in parts(bill, "decode", DEVICE)}
    timed = timing.Timed("decode", [3.0, 9.0, 5.0], [7.0], {**{p: 2 * b.seconds for p, b in bounds.items()}, "embed": 0.25})
    phase, each = timing.against_bounds(bill, timed, DEVICE)
    assert (phase.seconds, phase.bound) == (5.0, sum(b.seconds for b in bounds.values()))
    assert phase.ratio == 5.0 / phase.bound and phase.error == phase.bound / 5.0 - 1
    assert {b.path: b.ratio for b in each} == {**dict.fromkeys(bounds, 2.0), "embed": None}
    assert {b.path: (b.layers, b.sets) for b in each if b.bound} == {p: (b.times, b.sets) for p, b in bounds.items()}
    assert timing.AgainstBound("x", 4.0, 3.0).error == -0.25
    twice = replace(DEVICE, bandwidth=200.0, peak={"float32": 2000.0})
    assert timing.against_bounds(bill, timed, twice)[0].bound == pytest.approx(phase.bound / 2)


def test_a_step_reads_its_weights_and_its_cache() -> None:
    """The measured block has the size of one step's reads: a tied embedding counts once, positions do not count."""
    bill = bill_of("gpt2")
    weights = sum(p.numel() for n, p in tiny("gpt2").named_parameters() if n != "positions.weight")
    assert moved(bill) == 4 * weights + (9 + 1) * 2 * 2 * 4 * 8 * 4


def test_random_weights() -> None:
    """Random weights are the same each time: norms of 1, no two rows alike, a tied head; and the logits are finite."""
    for hf in (GPT2, {**GPT2, "n_embd": 1024, "vocab_size": 2001}):
        _, cfg = understand(hf)
        a, b = (benched_model.random_weights("x", cfg, torch.bfloat16) for _ in range(2))
        assert all(torch.equal(p, q) and p.dtype == torch.bfloat16 for p, q in zip(a.parameters(), b.parameters(), strict=True))
        assert a.head.weight is a.embed.weight and len(a.embed.weight.unique(dim=0)) == cfg.vocab
        assert (a.norm.weight == 1).all() and 0.5 < a.layers[1].ffn.up.weight.float().std() / benched_model.SPREAD < 1.5
    assert a(torch.tensor([[1, 2, 3]])).isfinite().all()
    moe = benched_model.random_weights("x", DECODERS["deepseek_v3"], torch.float32)
    assert all((b == 0).all() for b in moe.buffers()) and moe(torch.tensor([[1, 2, 3]])).isfinite().all()


# What is kept


def test_limits_are_kept(quick: Path, capsys: Captured) -> None:
    """Measured limits are written in one piece, readable by the user alone, and read back as a device."""
    _, document = judged(capsys, "bench", "--limits")
    file = Path(document["file"])
    assert file == quick / "cache" / "pellucid" / "limits.json" and [f.name for f in file.parent.iterdir()] == ["limits.json"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    limits = last_measured.kept()
    assert last_measured.document(limits) == document["limits"] and json.loads(file.read_text()) == {"schema": 1, **document["limits"]}
    device = last_measured.device("cpu")
    assert device == limits.device and device is not None and device.peak["int8"] == document["limits"]["product"]["int8"]["best"]
    assert last_measured.device("H200") == Device.of(devices()["h200"]) and last_measured.device("nix") is None
    code, out, _ = run(capsys, "bench", "--limits", "-q")
    assert code == 0 and limits.cpu in out and "int8" in out and str(file) in out


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": 1}', "{schema", '{"schema": 2, ...}', '{"read": {}, ...}', '{"read": {"x": 1}, ...}',
     '{"block": null, ...}',
     '{"product": {"float32": {"median": 1, "best": 0}}, ...}', '{"product": {"int8": {"median": 1, "best": 1}}, ...}'],
)  # fmt: skip
def test_damaged_measurements(text: str, quick: Path) -> None:
    """Whatever the file contains, the error is one line that names it."""
    one = MachineLimits("cpu", 0, 1, 1, {1: Rate(1.0, 1.0)}, {"float32": Rate(1.0, 1.0)}, "2", None, "now")
    file = last_measured.keep(one)
    assert last_measured.kept() == one
    text = (
        text.replace(", ...}", "}")
        if "..." not in text
        else json.dumps(json.loads(file.read_text()) | json.loads(text.replace(", ...", "")))
    )
    file.write_text(text)
    with pytest.raises(UseError) as error:
        last_measured.device("cpu")
    assert str(file) in str(error.value)


def test_nothing_kept(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UseError, match="bench --limits"):
        last_measured.device("cpu")
    (quick / "cache").write_text("a file stands where the folder should")
    with pytest.raises(UseError, match=r"limits\.json"):
        last_measured.keep(MachineLimits("cpu", 0, 1, 1, {}, {}, "2", None, "now"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(quick))
    assert last_measured.place() == quick / ".cache" / "pellucid" / "limits.json"


# The command


def consistent(document: dict[str, Any]) -> None:
    """Return True if every ratio is of the numbers beside it and no number is of another phase."""
    for phase in document["phases"].values():
        assert phase["ratio"] == phase["seconds"] / phase["bound"] and phase["error"] == phase["bound"] / phase["seconds"] - 1
        assert phase["bound"] == pytest.approx(sum(p["bound"] for p in phase["parts"]))
        assert all(p["ratio"] == (p["seconds"] / p["bound"] if p["bound"] else None) for p in phase["parts"])
        assert {"embed", "layers.0.attn", "layers.0.ffn", "head"} <= {p["path"] for p in phase["parts"]}


def test_a_model_with_weights(folder: Path, quick: Path, capsys: Captured) -> None:
    _, document = judged(capsys, "bench", folder, "--new", 3)
    consistent(document)
    assert document["setting"] == {"context": 64 - 3 - 3, "dtype": "float32", "random_weights": False}
    decode = document["phases"]["decode"]
    assert decode["runs"] == 3 and decode["planned"] == native.available()
    assert decode["tokens_per_second"] == 1 / decode["seconds"]
    prefill = document["phases"]["prefill"]
    assert prefill["tokens_per_second"] == 58 / prefill["seconds"] and not prefill["planned"]
    assert not (quick / "cache").exists()  # a model's run keeps nothing


def test_a_model_without(quick: Path, capsys: Captured) -> None:
    """A config.json or its folder is enough; an encoder has one phase."""
    (quick / "config.json").write_text(json.dumps(GPT2))
    for place in (quick, quick / "config.json"):
        _, document = judged(capsys, "bench", place, "--new", 2, "--context", 5, "--threads", 1)
        consistent(document)
        assert document["setting"] == {"context": 5, "dtype": "float32", "random_weights": True}
    code, out, err = run(capsys, "bench", quick, "--new", 2, "--dtype", "float32")
    assert code == 0 and "layers.0.attn" in out and len(err.splitlines()) == 1
    bert = {"model_type": "bert", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    bert |= {"intermediate_size": 48, "max_position_embeddings": 32, "type_vocab_size": 2}
    (quick / "config.json").write_text(json.dumps(bert))
    _, document = judged(capsys, "bench", quick, "--new", 2)
    assert list(document["phases"]) == ["prefill"]
    _, document = judged(capsys, "bench", "pellucid/capitals", "--new", 2, "--context", 16, "--quant", "int4")
    consistent(document)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([], "--limits"),
        (["gpt2-small", "--limits"], "MODEL"),
        (["nix"], "nix"),
        (["{tmp}", "--new", "0"], "--new"),
        (["{tmp}", "--threads", "0"], "--threads"),
        (["{tmp}", "--threads", "99999"], "--threads"),
        (["{tmp}", "--context", "0"], "context"),
        (["{tmp}", "--context", "31"], "context"),  # 64 positions, 32 new ones and three to warm up
        (["{tmp}", "--device", "cuda"], "cuda"),
        (["--limits", "--device", "cuda:0"], "processor"),
        (["{tmp}", "--dtype", "float16"], "float16"),
        (["{tmp}", "--dtype", "int8"], "int8"),
        (["{folder}", "--dtype", "float64"], "float64"),
        (["llama-3-8b", "--context", "1000000000000"], "GB"),
        (["gpt-4"], "GPT-4"),
        (["{t5}"], "encoder"),
    ],
)
def test_wrong_use(given: list[str], named: str, folder: Path, quick: Path, capsys: Captured) -> None:
    (quick / "config.json").write_text(json.dumps(GPT2))
    (quick / "t5.json").write_text(json.dumps(T5))
    filled = [word.format(tmp=quick, folder=folder, t5=quick / "t5.json") for word in given]
    assert named in wrong(capsys, "bench", *filled)


def test_more_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that does not fit is refused before its memory is allocated."""
    monkeypatch.setattr(nn.Module, "to_empty", lambda *_, **__: pytest.fail("its memory was taken"))
    _, cfg = understand({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 1 << 17, "intermediate_size": 1 << 18, **HEADS})
    with pytest.raises(UseError.__mro__[1], match="GB"):
        benched_model.random_weights("large", cfg, torch.float32)


# The report over several models


def test_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "count", raising=False)
    import count  # type: ignore[import-not-found]

    def case(phase: str, seconds: float, part: float) -> dict[str, Any]:
        part_bound, phase_bound = (
            count.to_json(timing.AgainstBound("head", part, 1.0)),
            count.to_json(timing.AgainstBound(phase, seconds, 1.0)),
        )
        return {"model": "m", "dtype": "float32", "phase": phase, "context": 8, **phase_bound, "parts": {"head": part_bound}}

    summary = count.summary([case("decode", 1.25, 1.0), case("decode", 2.0, 0.5), case("decode", 1.0, 3.0), case("prefill", 0.5, 1.0)])
    assert summary["decode"] == {
        "median_error": pytest.approx(0.2), "worst_error": 0.5, "goal": 0.2, "reached": summary["decode"]["median_error"] <= 0.2,
        "below": [], "parts_below": ["m float32 8 head"],
    }  # fmt: skip
    assert (
        summary["prefill"]["below"] == ["m float32 8"] and summary["prefill"]["median_error"] == 1.0 and not summary["prefill"]["reached"]
    )
    assert isinstance(tiny("gpt2"), Decoder)
