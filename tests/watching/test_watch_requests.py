"""A batch of requests watched together: each record has its request and rows, and a folder of records has the fed tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.analysis.difference import first_difference
from pellucid.api.model import Model, load
from pellucid.tracing import load_trace
from pellucid.watching.records import Seen
from pellucid.watching.watch import Watch
from tiny import swapped

RAGGED = [[1, 2, 3, 4], [5, 6], [7, 8, 9]]
NEW = 3
NAMES = ("pellucid/capitals", "pellucid/capitals-deepseek")


def same(a: Seen, b: Seen) -> bool:
    """Return True if two records are equal in all but their FLOPs, which are the batch's."""
    rows = a.rows is b.rows or (a.rows is not None and b.rows is not None and torch.equal(a.rows, b.rows))
    fields = ("path", "dims", "shape", "step", "request", "call", "source")
    return rows and all(getattr(a, f) == getattr(b, f) for f in fields) and torch.equal(a.value, b.value)


def apart(model: Model) -> list[str]:
    """Return the paths whose records differ between watching all requests and watching each."""
    with pellucid.watch(model) as seen:
        model.generate(RAGGED, NEW, eos=None)
    out = []
    for r in range(len(RAGGED)):
        with pellucid.watch(model, request=r) as own:
            model.generate(RAGGED, NEW, eos=None)
        mine = [s for s in seen if s.request == r]
        if [s.path for s in mine] != [s.path for s in own]:
            out.append(f"{r}: {len(mine)} for {len(own)}")
        out += [f"{r}: {s.path}" for s, t in zip(mine, own, strict=False) if not same(s, t)]
    return out


@pytest.mark.parametrize("name", NAMES)
def test_a_watch_of_all_is_a_watch_of_each(name: str) -> None:
    """Prompts read at once, cut prompts, replayed steps and routed rows give the same records."""
    assert apart(load(name)) == []


def test_a_watch_that_cuts_nothing_is_seen() -> None:
    plain = Watch.cuts

    def every_row(self: Watch, x: Tensor, dims: str, rows: Tensor | None) -> Any:
        return plain(self, x, dims, rows) if self.request is not None else [(None, (), rows)]

    with swapped(Watch, "cuts", every_row):
        assert apart(load(NAMES[0]))


def test_what_a_ragged_run_records(specimen: Model) -> None:
    with pellucid.watch(specimen, only="layers.0.out") as seen:
        specimen.generate(RAGGED, 1, eos=None)
    assert [(s.request, s.shape, s.rows.tolist()) for s in seen] == [  # type: ignore[union-attr]
        (0, (1, 4, 128), [0, 1, 2, 3]), (1, (1, 2, 128), [0, 1]), (2, (1, 3, 128), [0, 1, 2]),
    ]  # fmt: skip


def test_one_request_is_compared_with_a_plain_call(specimen: Model) -> None:
    """A run of one text and a call of the model record the same paths and values."""
    trace = pellucid.trace(specimen, RAGGED[0])
    with pellucid.watch(specimen) as seen:
        specimen(torch.tensor(RAGGED[:1]))
    assert first_difference(trace, seen, atol=1e-3, rtol=1e-3) is None
    assert {s.path for s in trace} - {"sample.logits"} == {s.path for s in seen}


def test_a_folder_of_records_knows_its_ids(specimen: Model, tmp_path: Path) -> None:
    """A folder of one text has its ids and new tokens; one of a batch, plain or flat, every step's own."""
    with pellucid.watch(specimen, only="*.out", to=tmp_path / "one"):
        specimen(torch.tensor(RAGGED[:1]))
    assert (one := load_trace(tmp_path / "one")).ids == RAGGED[0] and one.new == [] and one.torn == []
    with pellucid.watch(specimen, only="*.out", to=tmp_path / "written"):
        new = specimen.generate(RAGGED[:1], NEW, eos=None)[0]
    assert (run := load_trace(tmp_path / "written")).ids == RAGGED[0] and run.new == new[:-1]  # the last was fed to nothing
    with pellucid.watch(specimen, only="*.out", to=tmp_path / "batch"):
        specimen(torch.tensor([[1, 2], [3, 4]]))
        specimen(torch.tensor([[5, 6, 7]]))
    batch = load_trace(tmp_path / "batch")
    assert {k: [e["ids"] for e in fields] for k, fields in batch.fed.items()} == {0: [[1, 2], [3, 4]], 1: [[5, 6, 7]]} and batch.ids == []
    with pellucid.watch(specimen, only="*.out", to=tmp_path / "flat"):
        new = specimen.generate(RAGGED, 2, eos=None)  # type: ignore[assignment]
    fields = {k: {e["request"]: e["ids"] for e in entries} for k, entries in load_trace(tmp_path / "flat").fed.items()}
    assert fields == {0: dict(enumerate(RAGGED)), 1: {r: [n[0]] for r, n in enumerate(new)}}  # type: ignore[index]


def test_a_source_is_told_beside(tmp_path: Path) -> None:
    model = load("pellucid/capitals-t5")
    with pellucid.watch(model, only="*.out", to=tmp_path / "t"):
        new = model.generate(RAGGED[:1], NEW, eos=None)[0]
    trace = load_trace(tmp_path / "t")
    assert trace.fed[0] == [{"request": 0, "ids": [model.config.starts], "source": RAGGED[0]}]
    assert (trace.ids, trace.new) == (RAGGED[0], new[:-1])


@pytest.mark.parametrize(
    "fed", ['"x"', '[{"ids": [1]}]', '[{"request": null, "ids": [-1]}]', '[{"request": null, "ids": [1], "x": 0}]', "[3]"]
)
def test_damaged_ids_are_a_damaged_line(fed: str, specimen: Model, tmp_path: Path) -> None:
    with pellucid.watch(specimen, only="layers.0.out", to=tmp_path / "t"):
        specimen(torch.tensor([[1]]))
    index = tmp_path / "t" / "index.jsonl"
    text = index.read_text()
    assert '"fed": [{"request": null, "ids": [1]}]' in text
    index.write_text(text.replace('[{"request": null, "ids": [1]}]', fed))
    damaged = load_trace(tmp_path / "t")
    assert len(damaged.torn) == 1 and "index.jsonl:2" in damaged.torn[0] and damaged.ids == []


def test_records_say_what_they_are_in_one_line() -> None:
    """In a notebook a record is looked at by its name; a million numbers are in its `value`."""
    model = load("pellucid/capitals")
    with pellucid.watch(model) as seen:
        model(torch.tensor([[337, 308]]))
    assert repr(seen["layers.0.attn.q"]) == "Seen(layers.0.attn.q: B 1, T 2, H 4, K 32; float32, executed by linear)"
    assert repr(seen) == f"Watch({len(seen)} tensors, {seen.seen[0].path} to logits)"
