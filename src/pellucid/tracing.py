"""One run as plain data: what was seen, in order, with the prompt that it came from; in memory and on disk.

On disk a trace is a folder: `index.jsonl`, whose first line tells the run and every further line one step, and one safetensors file a
step. A step is written whole before its line is; what a crash tears is dropped on reading, and named.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pellucid import watching
from pellucid.checkpoint.json_file import parse_object
from pellucid.checkpoint.safetensors_file import read_header, read_tensor, write
from pellucid.errors import PellucidError, TraceError
from pellucid.watching import Records, Seen, Watch

INDEX = "index.jsonl"
SCHEMA = 1
FIELDS = ("path", "dims", "step", "request", "call", "source", "error", "op")


@dataclass
class Trace(Records):
    """Records with their run: the model's name, the prompt, its ids, and the ids that the run went on with."""

    model: str = ""
    prompt: str | None = None
    ids: list[int] = field(default_factory=list)
    new: list[int] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)  # what a damaged folder has lost

    @property
    def steps(self) -> int:
        """How many forwards were recorded."""
        return 1 + max((s.step for s in self.seen), default=-1)

    def last_logits(self, step: int = -1) -> Tensor:
        """The logits of the last row of a step, [V]."""
        found = self.all("logits")
        value: Tensor = found[step].value
        return value[-1, -1]

    def save(self, folder: str | Path) -> None:
        """Write the trace into a folder of its own."""
        writer = Writer(folder, model=self.model, prompt=self.prompt, ids=self.ids, new=self.new)
        for s in self.seen:
            writer(s)
        writer.close()


class Writer:
    """Takes records one by one and writes a step when the next begins; `watch(to=...)` feeds it. Files are readable by their owner alone.

    Memory stays that of one step, however many steps there are.
    """

    def __init__(self, folder: str | Path, **run: Any) -> None:
        self.folder, self.step, self.written = Path(folder), -1, 0
        self.waiting: list[Seen] = []
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened = os.open(self.folder / INDEX, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise TraceError("trace.exists", folder=folder) from None
        except OSError as broken:
            raise TraceError("trace.write", folder=folder, reason=broken.strerror) from None
        self.index = os.fdopen(opened, "w", encoding="utf-8")
        self.line({"schema": SCHEMA, **run})

    def __call__(self, seen: Seen) -> None:
        if not isinstance(seen.value, Tensor):
            raise TraceError("trace.value", path=seen.path, found=type(seen.value).__name__)
        if seen.step != self.step:
            self.flush()
            self.step = seen.step
        self.waiting.append(seen)

    def flush(self) -> None:
        """Write the waiting step: its tensors first, then its line."""
        if not self.waiting:
            return
        name = f"{self.written:06d}.safetensors"
        try:
            write(self.folder / name, {str(i): s.value.detach().cpu() for i, s in enumerate(self.waiting)})
            (self.folder / name).chmod(0o600)
            self.line({"shard": name, "seen": [described(s) for s in self.waiting]})
        except OSError as broken:
            raise TraceError("trace.write", folder=self.folder, reason=broken.strerror) from None
        self.waiting, self.written = [], self.written + 1

    def line(self, entry: dict[str, Any]) -> None:
        self.index.write(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n")
        self.index.flush()
        os.fsync(self.index.fileno())

    def close(self) -> None:
        """Write what waits; the folder is a whole trace from here on."""
        self.flush()
        self.index.close()


def described(s: Seen) -> dict[str, Any]:
    """A record without its tensor, as one JSON object."""
    rows = None if s.rows is None else s.rows.tolist()
    request = s.request if isinstance(s.request, str | int | None) else repr(s.request)
    error = None if s.error is None else repr(s.error)
    return {f: getattr(s, f) for f in FIELDS} | {"rows": rows, "request": request, "error": error, "inputs": s.inputs, "weights": s.weights}


def load_trace(folder: str | Path) -> Trace:
    """A trace from its folder. What is torn is dropped, and named in `torn`; what was never a trace is an error."""
    root = Path(folder)
    if not (root / INDEX).is_file():
        raise TraceError("trace.missing", folder=folder, file=INDEX)
    lines = (root / INDEX).read_bytes().split(b"\n")
    run = parse_object(lines[0], INDEX, TraceError)
    if run.get("schema") != SCHEMA:
        raise TraceError("trace.schema", folder=folder, found=run.get("schema"), allowed=SCHEMA)
    trace = Trace(run.get("model", ""), run.get("prompt"), run.get("ids", []), run.get("new", []))
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        try:
            trace.seen += step_of(root, parse_object(line, f"{INDEX}:{number}", TraceError))
        except PellucidError as fault:
            trace.torn.append(str(fault))
    return trace


def step_of(root: Path, entry: dict[str, Any]) -> list[Seen]:
    """The records of one line of the index. File names are numbers: no name in a trace becomes a path."""
    name, seen = entry.get("shard"), entry.get("seen")
    if not (isinstance(name, str) and len(name) == 18 and name[:6].isdigit() and name.endswith(".safetensors") and isinstance(seen, list)):
        raise TraceError("trace.line", found=name)
    tensors = read_header(root / name)
    records = []
    for i, s in enumerate(seen):
        if not isinstance(s, dict) or str(i) not in tensors or any(f not in s for f in FIELDS):
            raise TraceError("trace.line", found=f"{name}:{i}")
        value = read_tensor(tensors[str(i)])
        error = None if s["error"] is None else float(s["error"])
        record = Seen(
            s["path"], s["dims"], tuple(value.shape), value.dtype, value, s["step"], s["request"], s["call"], None, s["source"], error
        )
        record.rows = None if s.get("rows") is None else torch.tensor(s["rows"])
        record.op, record.inputs, record.weights = s["op"], tuple(s.get("inputs", ())), tuple(s.get("weights", ()))
        records.append(record)
    return records


@dataclass(frozen=True)
class Difference:
    """Where two traces part: the first path whose tensors differ by more than allowed."""

    path: str
    step: int
    largest: float  # the largest difference of a cell; inf where shapes differ
    index: tuple[int, ...]
    values: tuple[float, float]


def first_difference(a: Trace | Watch, b: Trace | Watch, atol: float = 0.0, rtol: float = 0.0) -> Difference | None:
    """The first record, in a's order, that b has too and that differs by more than atol + rtol·|a|; None where all agree.

    Two traces with no path in common are an error: agreement about nothing says nothing.
    """
    others = {(s.path, s.step, s.call, s.request): s for s in b}
    shared = [(s, others[key]) for s in a if (key := (s.path, s.step, s.call, s.request)) in others]
    if not shared:
        raise TraceError("diff.nothing")
    for x, y in shared:
        if x.shape != y.shape:
            return Difference(x.path, x.step, float("inf"), (), (float(len(x.shape)), float(len(y.shape))))
        u, v = x.value.double(), y.value.double()
        over = torch.where((u == v) | (u.isnan() & v.isnan()), 0.0, (u - v).abs().nan_to_num(float("inf")))
        if bool((over > atol + rtol * u.abs()).any()):
            at = tuple(int(i) for i in torch.unravel_index(over.argmax(), over.shape))
            return Difference(x.path, x.step, float(over.max()), at, (float(u[at]), float(v[at])))
    return None


@contextmanager
def watch(model: Any, *, to: str | Path | None = None, **how: Any) -> Iterator[Watch]:
    """`watch.watch`, for a Model or a module; to: a folder that records stream into, step by step, instead of memory."""
    module: nn.Module = getattr(model, "module", model)
    if to is None:
        with watching.watch(module, **how) as seen:
            yield seen
        return
    writer = Writer(to, model=getattr(model, "name", type(module).__name__))
    try:
        with watching.watch(module, to=writer, **how) as seen:
            yield seen
    finally:
        writer.close()
