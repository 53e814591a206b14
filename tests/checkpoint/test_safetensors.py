"""Safetensors in and out: hostile files are refused with a place, valid ones are read as the library reads them."""

import errno
import itertools
import json
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from pellucid.checkpoint import disk, safetensors_file
from pellucid.checkpoint.disk import require_memory
from pellucid.checkpoint.safetensors_file import DTYPES, MOST_TENSORS, read_header, read_metadata, read_tensor, write
from pellucid.errors import CheckpointError

Table = dict[str, Any]


def entry(begin: int, end: int, shape: Any = None, dtype: Any = "U8") -> Table:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def packed(header: Table | bytes, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def one(data: int = 4, **fields: Any) -> bytes:
    return packed({"x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **fields}}, bytes(data))


def refused(file: Path, content: bytes) -> CheckpointError:
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_header(file)
    assert str(file.name) in str(caught.value) or len(str(file)) > 100
    assert "\n" not in str(caught.value)
    return caught.value


HUGE = (2**64 - 1).to_bytes(8, "little")
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
HOSTILE: dict[str, tuple[bytes, str, str]] = {
    "no bytes": (b"", "safetensors.length", "0 bytes"),
    "seven bytes": (b"1234567", "safetensors.length", "7 bytes"),
    "header beyond the file": (packed(b"{}")[:9], "safetensors.header", "2 bytes"),
    "header of 2^64": (HUGE + b"{}", "safetensors.header", "18446744073709551615"),
    "LFS pointer": (LFS, "file.lfs", "Git LFS"),
    "web page": (b"<!DOCTYPE html><html><body>404", "file.html", "web page"),
    "duplicate name": (packed(b'{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"x":{}}'), "json.twice", "the key x"),
    "duplicate field": (packed(b'{"x":{"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}}'), "json.twice", "dtype"),
    "empty header": (packed(b""), "safetensors.start", ""),
    "leading space": (packed(b" {}"), "safetensors.start", ""),
    "trailing NUL": (packed(b"{}\0"), "json.encoding", ""),
    "mark": (packed(b"\xef\xbb\xbf{}"), "safetensors.start", ""),
    "list": (packed(b"[]"), "safetensors.start", ""),
    "not UTF-8": (packed(b'{"\xff":1}'), "json.encoding", "offset 2"),
    "lone surrogate": (packed(b'{"__metadata__":{"a":"\\ud800"}}'), "json.surrogate", "__metadata__.a"),
    "deep": (packed(b'{"a":' * 2000), "json.depth", "64"),
    "junk": (packed(b"{}x"), "json.syntax", "column 3"),
    "no fields": (packed({"x": {}}), "safetensors.fields", "tensor x"),
    "not an object": (packed({"x": [1]}), "safetensors.fields", "array"),
    "unknown field": (one(device="cpu"), "safetensors.fields", "device"),
    "metadata a list": (packed({"__metadata__": []}), "safetensors.metadata", ""),
    "metadata of numbers": (packed({"__metadata__": {"a": 1}}), "safetensors.metadata", ""),
    "F8": (one(dtype="F8_E5M2"), "safetensors.dtype", "dtype F8_E5M2 of tensor x"),
    "F4": (one(dtype="F4"), "safetensors.dtype", "F4"),
    "lower case": (one(dtype="f32"), "safetensors.dtype", "f32"),
    "dtype a list": (one(dtype=["F32"]), "safetensors.dtype", "tensor x"),
    "wide product": (one(shape=[0, 2**62, 2**62]), "safetensors.shape", "tensor x"),
    "wide strides": (one(shape=[0, 2**39, 2**39]), "safetensors.shape", "tensor x"),
    "many axes": (one(shape=[1] * 5000), "safetensors.shape", "at most 8"),
    "bytes of another shape": (one(shape=[5]), "safetensors.bytes", "needs 5 bytes"),
    "bytes of another dtype": (one(dtype="F32"), "safetensors.bytes", "needs 16 bytes"),
    "cut off": (one(data=3), "safetensors.truncated", "was it cut off?"),
    "trailing": (one(data=5), "safetensors.trailing", "only"),
    "data alone": (packed({}, b"x"), "safetensors.trailing", "only"),
    "begins late": (packed({"x": entry(1, 3)}, bytes(3)), "safetensors.hole_first", "begins at 1"),
    "hole": (packed({"x": entry(0, 2), "y": entry(3, 4)}, bytes(4)), "safetensors.hole", "x, which ends at 2, and y"),
    "overlap": (packed({"x": entry(0, 3), "y": entry(2, 4)}, bytes(4)), "safetensors.overlap", "x ends at 3, y begins at 2"),
    "the same range": (packed({"x": entry(0, 4), "y": entry(0, 4)}, bytes(4)), "safetensors.overlap", "x and y"),
    "end before begin": (one(data_offsets=[4, 0]), "safetensors.offsets", "[4, 0]"),
    "three offsets": (one(data_offsets=[0, 2, 4]), "safetensors.offsets", "tensor x"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_refused(name: str, tmp_path: Path) -> None:
    content, key, place = HOSTILE[name]
    error = refused(tmp_path / "f.safetensors", content)
    assert error.key == key and place in str(error)


@pytest.mark.parametrize("bad", [-1, 1.0, True, False, "1", None, ["1"], {}, 2**40, 10**19])
def test_numbers_must_be_whole(bad: Any, tmp_path: Path) -> None:
    """A scalar of any other kind, in each place that holds a number; True is not 1."""
    file = tmp_path / "f.safetensors"
    refused(file, packed({"x": {"dtype": "U8", "shape": [bad, 1], "data_offsets": [0, 1]}}, b"0"))
    refused(file, packed({"x": {"dtype": "U8", "shape": [1], "data_offsets": [bad, 1]}}, b"0"))
    refused(file, packed({"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, bad]}}, b"0"))
    refused(file, packed({"x": {"dtype": "U8", "shape": bad, "data_offsets": [0, 1]}}, b"0"))
    refused(file, packed({"x": {"dtype": "U8", "shape": [1], "data_offsets": bad}}, b"0"))


def test_covers(tmp_path: Path) -> None:
    """All placements of three tensors of two bytes on six: those that cover the data exactly are read, the others refused."""
    file = tmp_path / "f.safetensors"
    for begins in itertools.product(range(5), repeat=3):
        content = packed({name: entry(b, b + 2) for name, b in zip("xyz", begins, strict=True)}, bytes(6))
        if sorted(begins) == [0, 2, 4]:
            file.write_bytes(content)
            assert [e.begin - (len(content) - 6) for e in read_header(file).values()] == [0, 2, 4]
        else:
            refused(file, content)


def test_refusing_allocates_nothing(tmp_path: Path) -> None:
    file = tmp_path / "f.safetensors"
    for length in (2**64 - 1, 100_000_001, 10**15):
        with file.open("wb") as sparse:
            sparse.write(length.to_bytes(8, "little"))
            sparse.truncate(200_000_000)
        tracemalloc.start()
        with pytest.raises(CheckpointError, match="header"):
            read_header(file)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1_000_000


def test_many_empty_tensors(tmp_path: Path) -> None:
    raw = b"{" + b",".join(b'"%d":{}' % i for i in range(MOST_TENSORS + 5)) + b"}"
    assert refused(tmp_path / "f.safetensors", packed(raw)).key == "safetensors.many"


@pytest.mark.parametrize("name", ["", "\0", "../x", "x" * 1_000_000, "\x1b[31mred", "\u202egpj.exe", "__proto__", "<img src=x>"])
def test_odd_names_are_only_names(name: str, tmp_path: Path) -> None:
    """Any name is read; in an error it is escaped and cut."""
    file = tmp_path / "f.safetensors"
    file.write_bytes(packed({name: entry(0, 2)}, b"ab"))
    assert read_tensor(read_header(file)[name]).tolist() == [97, 98]
    text = str(refused(file, packed({name: entry(0, 2, [3])}, b"ab")))
    assert text.isprintable() and len(text) < 1000


def test_kinds_of_files(tmp_path: Path) -> None:
    """A pipe must not block, a device must not be read."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "pipe", tmp_path / "folder", Path("/dev/zero"), tmp_path / "nul\0"):
        with pytest.raises(CheckpointError) as caught:
            read_header(path)
        assert caught.value.key in ("file.kind", "file.closed")
    with pytest.raises(CheckpointError, match="does not exist"):
        read_header(tmp_path / "none")


def sample() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = {tag: torch.randint(0, 2, (3, 5)).to(dtype) for tag, dtype in DTYPES.items()}
    return tensors | {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 7), "wide": torch.randn(4, 3, 2).bfloat16()}


def test_as_the_library(tmp_path: Path) -> None:
    """Both ways: the library's file read by us, our file read by the library."""
    tensors = sample()
    save_file(tensors, tmp_path / "theirs", {"format": "pt", "a": "b"})
    write(tmp_path / "ours", tensors, {"format": "pt", "a": "b"})
    assert read_metadata(tmp_path / "theirs") == read_metadata(tmp_path / "ours") == {"format": "pt", "a": "b"}
    for file in (tmp_path / "theirs", tmp_path / "ours"):
        entries, judged = read_header(file), load_file(file)
        assert entries.keys() == judged.keys() == tensors.keys()
        for name, e in entries.items():
            value = read_tensor(e)
            assert value.dtype == e.dtype == judged[name].dtype and tuple(value.shape) == e.shape
            assert torch.equal(value, judged[name]) and torch.equal(value, tensors[name])
            assert value.data_ptr() % 64 == 0 or not value.numel()
    assert os.listdir(tmp_path) and not [f for f in os.listdir(tmp_path) if f.endswith(".part")]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda n: n != "__metadata__"),
        st.tuples(st.sampled_from(list(DTYPES)), st.lists(st.integers(0, 4), max_size=4)),
        max_size=6,
    )
)
def test_random_files_as_the_library(tmp_path: Path, shapes: dict[str, tuple[str, list[int]]]) -> None:
    tensors = {name: torch.randint(0, 2, tuple(shape)).to(DTYPES[tag]) for name, (tag, shape) in shapes.items()}
    save_file(tensors, tmp_path / "f")
    assert {name: (e.dtype, list(e.shape)) for name, e in read_header(tmp_path / "f").items()} == {
        name: (DTYPES[tag], shape) for name, (tag, shape) in shapes.items()
    }
    assert all(torch.equal(read_tensor(e), tensors[name]) for name, e in read_header(tmp_path / "f").items())


def test_mutants_raise_nothing_foreign(tmp_path: Path) -> None:
    """Files changed at random: refused by us, or accepted by the library too and read the same."""
    random.seed(1)
    file = tmp_path / "f.safetensors"
    save_file({"a.weight": torch.arange(6).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.empty(0)}, file)
    seed = file.read_bytes()
    read = 0
    for count in range(2000):
        raw = bytearray(seed)
        for _ in range(random.randint(1, 3)):
            at = random.randrange(min(len(raw), 200))
            new = random.choice([b"", b"0", b"9", b"{", b'"', b",", b"]", b"\xff", b" ", bytes([random.randrange(256)]), raw[at : at + 9]])
            raw[at : at + random.randint(0, 2)] = new
        file = tmp_path / str(count)
        file.write_bytes(raw)
        try:
            ours = {name: read_tensor(e) for name, e in read_header(file).items()}
        except CheckpointError:
            continue
        theirs = load_file(file)
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[n].view(-1), theirs[n].view(-1)) for n in ours)
        read += 1
    assert read > 20


def test_bool_bytes(tmp_path: Path) -> None:
    """Any byte but 0 is true, and is held as 1."""
    file = tmp_path / "f"
    file.write_bytes(packed({"x": entry(0, 4, [4], "BOOL")}, bytes([0, 1, 2, 255])))
    value = read_tensor(read_header(file)["x"])
    assert value.tolist() == [False, True, True, True] and value.view(torch.uint8).tolist() == [0, 1, 1, 1]


def test_misaligned(tmp_path: Path) -> None:
    """A header of odd length leaves numbers at odd places."""
    file = tmp_path / "f"
    value = torch.randn(5, dtype=torch.float64)
    header = json.dumps({"x": entry(0, 40, [5], "F64")}).encode()
    for padding in range(8):
        file.write_bytes(packed(header + b" " * padding, value.numpy().tobytes()))
        assert torch.equal(read_tensor(read_header(file)["x"]), value)


def test_rows_and_place(tmp_path: Path) -> None:
    value = torch.randn(6, 2, 3)
    write(tmp_path / "f", {"x": value, "s": torch.tensor(1.0)})
    e = read_header(tmp_path / "f")
    assert torch.equal(read_tensor(e["x"], rows=(2, 5)), value[2:5]) and read_tensor(e["x"], rows=(3, 3)).shape == (0, 2, 3)
    stacked = torch.zeros(4, 6, 2, 3)
    assert read_tensor(e["x"], stacked[1]).data_ptr() == stacked[1].data_ptr()
    assert torch.equal(stacked[1], value) and not stacked[0].any() and not stacked[2].any()
    transposed, double = torch.zeros(2, 3, 6).permute(2, 0, 1), torch.zeros(6, 2, 3, dtype=torch.float64)
    parameter = torch.nn.Parameter(torch.zeros(2, 2, 3))
    assert torch.equal(read_tensor(e["x"], transposed), value) and torch.equal(read_tensor(e["x"], double), value.double())
    assert torch.equal(read_tensor(e["x"], parameter, rows=(1, 3)), value[1:3])
    for rows in ((-1, 2), (4, 7), (3, 2)):
        with pytest.raises(CheckpointError, match="rows"):
            read_tensor(e["x"], rows=rows)
    with pytest.raises(CheckpointError, match="rows"):
        read_tensor(e["s"], rows=(0, 1))
    with pytest.raises(CheckpointError, match="place of shape"):
        read_tensor(e["x"], torch.zeros(6, 6))


def test_file_changed_after_its_header(tmp_path: Path) -> None:
    """Truncated, replaced or rewritten: an error, never a mapping that dies."""
    file = tmp_path / "f"

    def truncate() -> None:
        os.truncate(file, 100)

    def replace() -> None:
        write(file, {"x": torch.ones(1000)})

    def remove() -> None:
        file.unlink()

    changes: list[Callable[[], None]] = [truncate, replace, remove]
    for change in changes:
        write(file, {"x": torch.zeros(1000)})
        e = read_header(file)["x"]
        change()
        with pytest.raises(CheckpointError, match=r"changed or replaced|does not exist"):
            read_tensor(e)


def test_short_reads_and_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may give one byte at a time; where it fails or ends early, the error tells the offset, for every byte of a file."""
    file = tmp_path / "f"
    value = torch.arange(4)
    write(file, {"x": value})
    size = file.stat().st_size
    real = os.preadv

    def drip(fd: int, views: list[memoryview], at: int) -> int:
        return real(fd, [views[0][:1]], at)

    monkeypatch.setattr(os, "preadv", drip)
    assert torch.equal(read_tensor(read_header(file)["x"]), value)
    for fault in range(size):

        def fail(fd: int, views: list[memoryview], at: int, fault: int = fault) -> int:
            if at == fault:
                raise OSError(errno.EIO, "Input/output error")
            return drip(fd, views, at)

        def stop(fd: int, views: list[memoryview], at: int, fault: int = fault) -> int:
            return 0 if at == fault else drip(fd, views, at)

        for broken in (fail, stop):
            monkeypatch.setattr(os, "preadv", broken)
            with pytest.raises(CheckpointError, match=rf"byte {fault}\b"):
                read_tensor(read_header(file)["x"])
    monkeypatch.setattr(os, "preadv", real)
    monkeypatch.delattr(os, "preadv")
    assert torch.equal(read_tensor(read_header(file)["x"]), value)


def test_one_read_that_is_not_a_loop_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a reader that trusts one read leaves the rest of a tensor unset."""

    def once(fd: int, view: memoryview, offset: int, path: Path, error: object = None) -> None:
        os.preadv(fd, [view[: len(view) // 2] if len(view) > 100_000 else view], offset)

    value = torch.ones(100_000)
    write(tmp_path / "f", {"x": value})
    monkeypatch.setattr(safetensors_file, "read_at", once)
    assert not torch.equal(read_tensor(read_header(tmp_path / "f")["x"], torch.zeros(100_000)), value)


def test_write_shared_and_odd_tensors(tmp_path: Path) -> None:
    """Tied and transposed tensors, views and parameters are written as what they hold."""
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "a": base,
        "tied": base,
        "turned": base.T,
        "part": base[1:],
        "slice": torch.arange(9)[4:6],
        "p": torch.nn.Parameter(torch.ones(2)),
    }
    write(tmp_path / "f", tensors)
    assert all(torch.equal(value, tensors[name]) for name, value in load_file(tmp_path / "f").items())
    assert read_metadata(tmp_path / "f") == {"format": "pt"}
    write(tmp_path / "none", {})
    assert read_header(tmp_path / "none") == {}
    with pytest.raises(CheckpointError, match="dtype"):
        write(tmp_path / "g", {"x": torch.ones(1, dtype=torch.complex64)})
    with pytest.raises(CheckpointError, match="__metadata__"):
        write(tmp_path / "g", {"__metadata__": torch.ones(1)})
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("fault", ["save_file", "fsync", "replace"])
def test_failed_write_changes_nothing(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "f", {"x": torch.ones(3)})
    before = (tmp_path / "f").read_bytes()

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(safetensors_file if fault == "save_file" else os, fault, full)
    with pytest.raises(CheckpointError, match="No space left"):
        write(tmp_path / "f", {"x": torch.zeros(3)})
    assert os.listdir(tmp_path) == ["f"] and (tmp_path / "f").read_bytes() == before


def test_write_reaches_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content first, then the name, then the folder."""
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_sync(fd: int) -> None:
        order.append("folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "content")
        fsync(fd)

    def note_replace(old: Path, new: Path) -> None:
        order.append("name")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    write(tmp_path / "f", {"x": torch.ones(3)})
    assert order == ["content", "name", "folder"]


def test_memory_is_asked_first(tmp_path: Path) -> None:
    require_memory(10**9, tmp_path, lambda: 2 * 10**9)
    require_memory(10**18, tmp_path, lambda: None)
    with pytest.raises(CheckpointError, match=r"needs 38\.1 GB, 20\.3 GB free"):
        require_memory(38_100_000_000, tmp_path, lambda: 20_300_000_000)
    free = disk.free_memory()
    assert free is None or free > 0
