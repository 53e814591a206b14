"""Torn and hostile trace folders: complete steps are shown, the rest is named, and nothing else happens."""

import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid import tracing
from pellucid.checkpoint.folder import TRACE
from pellucid.errors import PellucidError, TraceError
from pellucid.tracing import load_trace
from test_tracing import DRAW, record, saved
from tiny import swapped


def two_steps(folder: Path) -> list[tuple[int, str]]:
    """Return a small trace of two steps, and its content."""
    seen = [record(p, torch.randn(2, generator=DRAW), "V", step) for step in (0, 1) for p in ("a", "b")]
    return [(s.step, s.path) for s in saved(folder, *seen)]


@pytest.mark.parametrize("file", [TRACE, "000000.safetensors", "000001.safetensors"])
@pytest.mark.quick(4)
def test_torn_at_every_byte(file: str, tmp_path: Path) -> None:
    """However a file is cut, complete steps are shown and a torn one is named, without another error."""
    written = two_steps(tmp_path / "t")
    path = tmp_path / "t" / file
    content = path.read_bytes()
    ends = [i for i, c in enumerate(content) if c == ord("\n")] if file == TRACE else []
    for size in range(len(content)):
        path.write_bytes(content[:size])
        if file == TRACE:
            complete = sum(size >= end for end in ends)
            if not complete:
                with pytest.raises(TraceError):
                    load_trace(tmp_path / "t")
                continue
            back = load_trace(tmp_path / "t")
            assert [(s.step, s.path) for s in back] == written[: 2 * (complete - 1)]
            clean = any(size in (end, end + 1) for end in ends)
            assert [TRACE in fault for fault in back.torn] == ([] if clean else [True])
        else:
            back = load_trace(tmp_path / "t")
            assert [(s.step, s.path) for s in back] == [x for x in written if x[0] != int(file[:6])]
            assert len(back.torn) == 1 and file in back.torn[0] and "\n" not in back.torn[0]


def test_a_shard_that_is_gone(tmp_path: Path) -> None:
    written = two_steps(tmp_path / "t")
    (tmp_path / "t" / "000001.safetensors").unlink()
    back = load_trace(tmp_path / "t")
    assert [(s.step, s.path) for s in back] == written[:2] and "000001" in back.torn[0]


Change = Callable[[dict[str, Any]], Any]


def put(name: str, value: Any) -> Change:
    return lambda entry: {**entry, name: value}


def put_in(name: str, value: Any) -> Change:
    return lambda entry: {**entry, "seen": [{**entry["seen"][0], name: value}, *entry["seen"][1:]]}


def each(how: Callable[[str, Any], Change], name: str, *values: Any) -> list[Change]:
    return [how(name, value) for value in values]


HOSTILE = [
    *each(put, "shard", "../../etc.safetensors", "/etc/passwd", "000000.safetensors/", "..", "", None, 7, ["000000.safetensors"]),
    *each(put, "shard", "000009.safetensors", "²00000.safetensors", "CON", "0" * 300 + ".safetensors", "linked0.safetensors"),
    *each(put, "shard", "000005.safetensors", "000006.safetensors"),  # a link to elsewhere, a pipe
    *each(put, "seen", None, {}, "x", 3, [None], [[]], [3], [{}]),
    lambda entry: {**entry, "seen": entry["seen"] * 2},
    *each(put_in, "path", None, 3, ["a"], {}),
    *each(put_in, "dims", None, 3, "", "B T", [1]),
    *each(put_in, "step", None, "0", 1.5, -1, True, 10**19),
    *each(put_in, "call", None, "x", -1, 0.5),
    *each(put_in, "request", [1], {}, 1.5, -1, True),
    *each(put_in, "source", None, "measured", 3),
    *each(put_in, "error", 1.5, "x", "1e", "1..2", "-1", "infinity", [], "9" * 100),
    *each(put_in, "op", 3, [], {}),
    *each(put_in, "rows", "x", [0.5], [-1], [None], [[1]], [2**63], {}),
    *each(put_in, "inputs", "x", [3], None, {}),
    *each(put_in, "weights", "x", [3], None, {}),
    *each(put_in, "flops", "x", -1, 0.5, True, [1], 2**63),
    lambda entry: {k: v for k, v in entry.items() if k != "seen"},
    lambda entry: {**entry, "seen": [{k: v for k, v in entry["seen"][0].items() if k != "dims"}]},
    lambda entry: [entry],
    lambda entry: "text",
]


def dropped(change: Change, folder: Path) -> bool:
    """Return True if the reader drops and names a second step with a changed line, and shows the first."""
    written = two_steps(folder)
    (folder / "000005.safetensors").symlink_to(folder.parent / "outside.safetensors")
    (folder.parent / "outside.safetensors").write_bytes((folder / "000001.safetensors").read_bytes())
    os.mkfifo(folder / "000006.safetensors")
    lines = (folder / TRACE).read_text().splitlines()
    lines[2] = json.dumps(change(json.loads(lines[2])))
    (folder / TRACE).write_text("\n".join(lines) + "\n")
    back = load_trace(folder)
    return [(s.step, s.path) for s in back] == written[:2] and len(back.torn) == 1 and "\n" not in back.torn[0]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
@pytest.mark.quick(5)
def test_hostile_lines(number: int, tmp_path: Path) -> None:
    """A line that no writer writes is dropped and named."""
    assert dropped(HOSTILE[number], tmp_path / "t")


def test_hostile_lines_mutants_are_seen(tmp_path: Path) -> None:
    """Seen are readers that follow links, or take fields unchecked."""
    with swapped(tracing, "inside", lambda root, name, error: root / name):
        assert not dropped(put("shard", "000005.safetensors"), tmp_path / "a" / "t")
    with swapped(tracing, "sound", lambda s, axes: True):
        assert not dropped(put_in("step", "0"), tmp_path / "b" / "t")
        with pytest.raises(ValueError):
            dropped(put_in("error", "x"), tmp_path / "c" / "t")


NO_JSON = ['{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}', "[" * 5000, '{"a": "\\ud800"}', "\x00", "\ufeff{}", "null"]
WRONG = [{"schema": 2}, {"schema": None}, {"schema": True}, {"model": 3}, {"prompt": [1]}, {"ids": "x"}, {"ids": [0.5]}, {"new": [-1]}]
WRONG += [
    {"starts": "x"},
    {"starts": -1},
    {"blanks": 1},
    {"blanks": [None]},
    {"pieces": ["61"]},
    {"pieces": {"1": 7}},
    {"pieces": {"1": "6"}},
]
WRONG += [
    {"pieces": {"-1": "61"}},
    {"pieces": {"1": "6G"}},
    {"pieces": {"": "61"}},
    {"pieces": {"1" * 30: "61"}},
    {"pieces": {"1": "61\n"}},
]


@pytest.mark.parametrize("text", NO_JSON)
def test_hostile_json(text: str, tmp_path: Path) -> None:
    written = two_steps(tmp_path / "t")
    with (tmp_path / "t" / TRACE).open("a", encoding="utf-8") as f:
        f.write(text + "\n")
    back = load_trace(tmp_path / "t")
    assert [(s.step, s.path) for s in back] == written and len(back.torn) == 1
    (tmp_path / "t" / TRACE).write_text(text + "\n", encoding="utf-8")
    with pytest.raises(TraceError):
        load_trace(tmp_path / "t")


@pytest.mark.parametrize("change", [*WRONG, {"ids": None}])
def test_hostile_first_lines(change: dict[str, Any], tmp_path: Path) -> None:
    two_steps(tmp_path / "t")
    lines = (tmp_path / "t" / TRACE).read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | change)
    (tmp_path / "t" / TRACE).write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError):
        load_trace(tmp_path / "t")


def test_noise_in_any_file(tmp_path: Path) -> None:
    """Bytes changed, removed and inserted at random give PellucidError or a trace."""
    draw = random.Random(4)
    two_steps(tmp_path / "t")
    for file in (TRACE, "000000.safetensors"):
        path = tmp_path / "t" / file
        content = path.read_bytes()
        for _ in range(400):
            noisy = bytearray(content)
            for _ in range(draw.randrange(1, 4)):
                at = draw.randrange(len(noisy))
                noisy[at : at + draw.randrange(2)] = draw.choice([b"", bytes([draw.randrange(256)]), b'"', b"{", b"9", b"\n", b"-", b"]"])
            path.write_bytes(noisy)
            with suppress(PellucidError):
                load_trace(tmp_path / "t")
        path.write_bytes(content)


def test_what_is_no_trace_is_said(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(TraceError) as caught:
            load_trace(folder)
        assert caught.value.key == "trace.missing"
