"""Traces on disk and in memory are equal bit for bit, streamed, readable by their owner alone, and compared."""

import gc
import os
import stat
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid import tracing
from pellucid.analysis.difference import first_difference
from pellucid.api.model import Model
from pellucid.api.trace import trace
from pellucid.checkpoint.safetensors_file import write
from pellucid.errors import PellucidError, TraceError
from pellucid.tracing import Trace, Writer, described, load_trace, watch
from pellucid.watching.records import Seen
from tiny import DECODERS, FAMILIES, inputs, swapped, tiny

DRAW = torch.Generator().manual_seed(0)


def record(path: str, value: Tensor, dims: str = "", step: int = 0, **more: Any) -> Seen:
    """Make a record by hand; its axes are as many letters as it needs."""
    s = Seen(path, dims or " ".join("BTHKD"[: value.ndim]), tuple(value.shape), value.dtype, value, step, None, 0, None)
    for name, given in more.items():
        setattr(s, name, given)
    return s


def values() -> dict[str, Tensor]:
    """Return tensors of every dtype with special values, in every memory layout."""
    real = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, 1.0, -2.5])
    wide = torch.randn(4, 6, generator=DRAW)
    return {
        **{str(t): real.to(t).view(2, 4) for t in (torch.float64, torch.float32, torch.bfloat16, torch.float16)},
        **{str(t): torch.tensor([0, 1, 127]).to(t) for t in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)},
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(3.25),
        "nothing": torch.empty(2, 0, 3),
        "turned": wide.t(),
        "cut": wide[1:3, ::2],
        "spread": torch.randn(1, 3, generator=DRAW).expand(5, 3),
        "whole": wide,
        "quiet nan": torch.tensor([0x7FC01234, -0x12345], dtype=torch.int32).view(torch.float32),
    }


def same(a: Tensor, b: Tensor) -> bool:
    """Return True if dtype, shape and bits are equal."""
    return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)


def raw(t: Tensor) -> bytes:
    return bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy()) if t.numel() else b""


def saved(folder: Path, *seen: Seen, **run: Any) -> Trace:
    """Return these records after saving and loading."""
    Trace(**{"model": "m", **run}, seen=list(seen)).save(folder)
    return load_trace(folder)


def test_round_trip_of_every_value(tmp_path: Path) -> None:
    kept = values()
    back = saved(tmp_path / "t", *(record(name, v) for name, v in kept.items()))
    assert back.paths() == list(kept) and back.torn == []
    for s in back:
        assert same(s.value, kept[s.path]), s.path
        assert s.shape == tuple(kept[s.path].shape) and s.dtype == kept[s.path].dtype


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (tracing, "read_tensor", lambda entry: torch.empty(entry.shape, dtype=entry.dtype).zero_()),
        (tracing, "write", lambda path, tensors: write(path, {k: v.to(torch.float32) for k, v in tensors.items()})),
        (tracing, "write", lambda path, tensors: write(path, {k: v.contiguous().t().contiguous() for k, v in tensors.items()})),
    ],
)
def test_round_trip_mutants_are_seen(owner: Any, name: str, value: Any, tmp_path: Path) -> None:
    given = torch.randn(3, 3, generator=DRAW).bfloat16()
    with swapped(owner, name, value):
        assert not same(saved(tmp_path / "t", record("x", given))["x"].value, given)


def test_round_trip_of_every_field(tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    full = {"request": 7, "call": 2, "rows": torch.tensor([4, 1]), "source": "recomputed", "error": 1.5e-7, "op": "linear", "flops": 48}
    seen = record("layers.0.ffn.up", x, "N F", 3, **full, inputs=("a", "b"), weights=("w",))
    odd = record("x", x, "B T", 3, request=("a", 1), error=float("nan"))
    more = {"starts": 3, "blanks": [1, 0], "pieces": {5: b"\xe5\xb7", 7: b""}}
    back = saved(tmp_path / "t", seen, odd, model="m\udc80", prompt="巴黎 \u2028 <b>", ids=[5, 6], new=[7], **more)
    assert {name: getattr(back, name) for name in more} == more
    assert (back.model, back.prompt, back.ids, back.new, back.steps) == ("m?", "巴黎 \u2028 <b>", [5, 6], [7], 4)
    a, b = back
    for name in ("path", "dims", "step", "request", "call", "source", "error", "op", "inputs", "weights", "flops"):
        assert getattr(a, name) == getattr(seen, name), name
    assert a.rows is not None and a.rows.tolist() == [4, 1]
    assert b.request == "('a', 1)" and b.error != b.error
    index = tmp_path / "t" / "index.jsonl"
    index.write_text(index.read_text(encoding="utf-8").replace(', "flops": 48', ""), encoding="utf-8")  # as once written
    a, b = load_trace(tmp_path / "t")
    assert (a.flops, b.flops) == (None, 0)


def test_a_prompt_s_trace_comes_back(specimen: Model, tmp_path: Path) -> None:
    traced = trace(specimen, "The capital of France is", steps=3)
    traced.save(tmp_path / "trace")
    back = load_trace(tmp_path / "trace")
    assert (back.model, back.prompt, back.ids, back.new) == (traced.model, traced.prompt, traced.ids, traced.new)
    assert [(s.path, s.dims, s.step, s.op, s.inputs, s.flops) for s in back] == [
        (s.path, s.dims, s.step, s.op, s.inputs, s.flops) for s in traced
    ]
    assert all(s.flops for s in back if s.path.endswith("attn.q"))
    assert all(same(a.value, b.value) for a, b in zip(traced, back, strict=True))
    assert first_difference(traced, back) is None
    likely = back.last_logits(0).topk(20).indices.tolist()
    for id in (*traced.ids, *traced.new, *likely):
        assert back.pieces[id] == specimen.tokenizer.pieces([id])[0].raw
    back.save(tmp_path / "again")  # without the model
    assert load_trace(tmp_path / "again").pieces == back.pieces
    assert torch.equal(back.last_logits(), traced.last_logits()) and int(back.last_logits(0).argmax()) == traced.new[0]


def test_streaming_is_capturing(tmp_path: Path) -> None:
    """to=folder records what memory would, and only the folder holds it."""
    model, ids = tiny("llama", torch.float32), inputs("llama")
    with watch(model) as seen:
        for _ in range(3):
            model(*ids)
    with watch(model, to=tmp_path / "t") as none:
        for _ in range(3):
            model(*ids)
    back = load_trace(tmp_path / "t")
    assert len(none) == 0 and len(back) == len(seen) > 0
    assert all(same(a.value, b.value) and (a.path, a.step) == (b.path, b.step) for a, b in zip(seen, back, strict=True))


def alive(folder: Path) -> int:
    """Return the most earlier steps whose tensors are in memory while a later one is recorded."""
    model, ids = tiny("gpt2", torch.float32), inputs("gpt2", 1, 5)
    kept: list[tuple[int, weakref.ref[Tensor]]] = []
    most = 0
    call = Writer.__call__

    def write(self: Writer, seen: Seen) -> None:
        nonlocal most
        call(self, seen)
        kept.append((seen.step, weakref.ref(seen.value)))
        if seen.path == "logits":
            gc.collect()
            most = max(most, len({step for step, value in kept if value() is not None}))

    with swapped(Writer, "__call__", write), watch(model, to=folder):
        for _ in range(6):
            model(*ids)
    return most


def test_memory_is_that_of_one_step(tmp_path: Path) -> None:
    assert alive(tmp_path / "a") == 1
    kept: list[Seen] = []

    def keeps(seen: Seen) -> dict[str, Any]:
        kept.append(seen)
        return described(seen)

    with swapped(tracing, "described", keeps):
        assert alive(tmp_path / "b") > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_tracing_changes_nothing(family: str, tmp_path: Path) -> None:
    """Outputs have the same bits in memory, on disk and afterwards."""
    model, ids = tiny(family, torch.float32), inputs(family)
    with torch.no_grad():
        plain = model(*ids)
        with watch(model):
            kept = model(*ids)
        with watch(model, to=tmp_path / "t"):
            streamed = model(*ids)
        after = model(*ids)
        with watch(model, edit={"*layers.0.mid": lambda x: x + 1e-3}):
            edited = model(*ids)
    assert all(same(plain, other) for other in (kept, streamed, after))
    assert not same(plain, edited)


def test_later_writes_do_not_reach_the_folder(tmp_path: Path) -> None:
    """A step on disk stays as it was after its tensor is overwritten."""
    writer, x = Writer(tmp_path / "t", model="m"), torch.ones(3)
    writer(record("x", x))
    writer(record("y", torch.ones(1), step=1))
    x.zero_()
    writer.close()
    assert load_trace(tmp_path / "t")["x"].value.tolist() == [1, 1, 1]


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        (tmp_path / "there").mkdir(mode=0o755)
        for folder in (tmp_path / "new", tmp_path / "there"):
            saved(folder, record("x", torch.ones(2)))
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert {stat.S_IMODE(f.stat().st_mode) for f in folder.iterdir()} == {0o600}
    finally:
        os.umask(before)


def test_one_writer_a_folder(tmp_path: Path) -> None:
    first = Writer(tmp_path / "t", model="first")
    with pytest.raises(TraceError) as caught:
        Writer(tmp_path / "t", model="second")
    assert caught.value.key == "trace.exists"
    first(record("x", torch.ones(2)))
    first.close()
    with pytest.raises(TraceError):
        saved(tmp_path / "t", record("y", torch.ones(2)))
    back = load_trace(tmp_path / "t")
    assert back.model == "first" and back.paths() == ["x"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    for folder, key in ((tmp_path / "mine", "trace.full"), (tmp_path / "mine" / "letter.txt", "trace.exists")):
        with pytest.raises(TraceError) as caught:
            saved(folder, record("x", torch.ones(2)))
        assert caught.value.key == key
    assert [f.name for f in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def stream(model: Any, ids: Any, folder: Path, times: int, **how: Any) -> None:
    """Run a model `times` times, watched to a folder; fail if negative."""
    with watch(model, to=folder, **how):
        for _ in range(abs(times)):
            model(*ids)
        if times < 0:
            raise ZeroDivisionError


def test_a_full_disk_keeps_what_is_written(tmp_path: Path) -> None:
    """The step that does not fit raises, earlier ones are on disk, the file is closed, and no half step stays."""
    model, ids = tiny("gpt2", torch.float32), inputs("gpt2", 1, 5)

    def full(path: Path, tensors: Any) -> None:
        if path.name == "000002.safetensors":
            raise PellucidError("file.write", file=path, reason="No space left on device")
        write(path, tensors)

    with swapped(tracing, "write", full), pytest.raises(PellucidError, match="No space left"):
        stream(model, ids, tmp_path / "t", 5)
    back = load_trace(tmp_path / "t")
    assert back.torn == [] and {s.step for s in back} >= {0, 1}
    assert not list((tmp_path / "t").glob(".*"))


def test_an_exception_leaves_a_whole_trace(tmp_path: Path) -> None:
    model, ids = tiny("gpt2", torch.float32), inputs("gpt2", 1, 5)
    with pytest.raises(ZeroDivisionError):
        stream(model, ids, tmp_path / "t", -1)
    assert {s.step for s in load_trace(tmp_path / "t")} == {0}
    assert not any("forward" in m.__dict__ for m in model.modules())


def test_what_is_no_tensor_is_refused(tmp_path: Path) -> None:
    model, ids = tiny("gpt2", torch.float32), inputs("gpt2", 1, 5)
    with pytest.raises(TraceError) as caught:
        stream(model, ids, tmp_path / "t", 1, keep=lambda x: x.mean().item())
    assert caught.value.key == "trace.value"
    with pytest.raises(TraceError):
        saved(tmp_path / "meta", record("x", torch.ones(2, device="meta")))


# Differences.


def runs(family: str = "gpt2") -> Callable[..., Trace]:
    """Return a function that traces a tiny model with edits."""
    model, ids = tiny(family), inputs(family)

    def run(**edit: Callable[[Tensor], Tensor]) -> Trace:
        with watch(model, edit={k.replace("__", "."): f for k, f in edit.items()}) as seen, torch.no_grad():
            model(*ids)
        return Trace("m", seen=seen.seen)

    return run


def nudged(x: Tensor) -> Tensor:
    x[0, 3, 1] += 1e-9
    return x


@pytest.mark.parametrize("family", DECODERS)
def test_first_difference_finds_the_disturbed(family: str) -> None:
    """The first disturbed tensor, its cell and both values are found; equal traces give None."""
    run = runs(family)
    a, b = run(), run(layers__1__mid=nudged)
    assert first_difference(a, run()) is None
    difference = first_difference(a, b)
    assert difference is not None and (difference.path, difference.step, difference.index) == ("layers.1.mid", 0, (0, 3, 1))
    x, y = (float(t["layers.1.mid"].value[0, 3, 1]) for t in (a, b))
    assert difference.values == (x, y) and difference.largest == abs(x - y) > 0
    assert first_difference(a, b, atol=1.0) is None


def pair(x: Tensor, y: Tensor) -> tuple[Trace, Trace]:
    return Trace(seen=[record("x", x)]), Trace(seen=[record("x", y)])


def test_first_difference_of_special_values() -> None:
    nan, inf = float("nan"), float("inf")
    assert first_difference(*pair(torch.tensor([nan, inf, -inf, 0.0]), torch.tensor([nan, inf, -inf, -0.0]))) is None
    for u, v in ((nan, 1.0), (1.0, nan), (inf, 1.0), (inf, -inf), (nan, inf)):
        difference = first_difference(*pair(torch.tensor([0.0, u]), torch.tensor([0.0, v])), rtol=0.5, atol=1e9)
        assert difference is not None and difference.index == (1,) and difference.largest == inf
    difference = first_difference(*pair(torch.tensor([100.0, 1.0]), torch.tensor([101.0, 1.5])), rtol=0.1)
    assert difference is not None and difference.index == (1,) and difference.largest == 0.5
    difference = first_difference(*pair(torch.ones(2), torch.ones(3)))
    assert difference is not None and difference.largest == inf and difference.index == ()
    assert first_difference(*pair(torch.empty(0), torch.empty(0))) is None


def test_agreement_about_nothing_is_an_error() -> None:
    for a, b in ((Trace(), Trace()), (Trace(seen=[record("x", torch.ones(1))]), Trace(seen=[record("y", torch.ones(1))]))):
        with pytest.raises(TraceError) as caught:
            first_difference(a, b)
        assert caught.value.key == "diff.nothing"
