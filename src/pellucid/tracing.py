"""One run as plain data, in memory and on disk: the recorded tensors in order, and the prompt that they come from.

On disk a trace is a folder: `index.jsonl`, whose first line describes the run and every further line one step, and one safetensors file
a step. A step's tensors are written before its line; a step that a crash has torn is dropped on reading, and named.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.arguments import checked
from pellucid.axes import parse
from pellucid.batch.step import Step, spans_of
from pellucid.checkpoint.disk import inside, read_whole
from pellucid.checkpoint.folder import TRACE
from pellucid.checkpoint.json_file import parse_object
from pellucid.checkpoint.safetensors_file import read_header, read_tensor, write
from pellucid.errors import CheckpointError, PellucidError, TokenizerError, TraceError, UseError
from pellucid.families.aliases import aliases, of_records, put
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.tokenizer.pieces import find_word
from pellucid.watching import watch as watching
from pellucid.watching.cells import Find
from pellucid.watching.change import Change, as_changes
from pellucid.watching.records import Records, Seen
from pellucid.watching.watch import Edit, Inside, Watch

SCHEMA = 1
INDEX_BYTES = 1_000_000_000
FIELDS = ("path", "dims", "step", "request", "call", "source", "error", "op")
ID = re.compile("[0-9]{1,18}")
DIFFERENCE = re.compile(r"nan|inf|[0-9]{1,20}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,3})?")
NEAR = 100  # the likeliest next tokens whose bytes are saved
LINE = 200  # characters of a setting's text
SOURCES = ("executed", "recomputed", "reference", "edited")


@dataclass
class Trace(Records):
    """Records with their run: the model's name, the prompt, its ids, and the new ids.

    starts: the id that a decoder beside an encoder begins with.  blanks: the rows that an encoder's new ids fill.
    pieces: the bytes of ids, from a folder.  fed: {step: the ids that it was given}, from a folder that a watch streamed to: an entry
    {"request", "ids"} for each request or row of the batch, and "source" beside an encoder.
    """

    model: str = ""
    prompt: str | None = None
    ids: list[int] = field(default_factory=list)
    new: list[int] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    starts: int | None = None
    blanks: list[int] = field(default_factory=list)
    pieces: dict[int, bytes] = field(default_factory=dict)
    fed: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    torn: list[str] = field(default_factory=list)  # what a damaged folder has lost
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    runner: Any = field(default=None, compare=False)  # the Model, None for a trace from a folder, which has only its name

    def __repr__(self) -> str:
        return f"Trace({self.model!r}, {self.prompt!r}, {len(self.ids)} ids, {len(self.new)} new, {len(self.seen)} tensors)"

    @property
    def steps(self) -> int:
        """Return the number of recorded forwards."""
        return 1 + max((s.step for s in self.seen), default=-1)

    def last_logits(self, step: int = -1, row: int = -1) -> Tensor:
        """Return the logits [V] of one row of a step; by default the last row of the last step."""
        value: Tensor = self.all("logits")[step].value
        return value[-1, row]

    def save(self, folder: str | Path) -> None:
        """Write the trace into a folder of its own."""
        run = {"model": self.model, "prompt": self.prompt, "ids": list(map(int, self.ids)), "new": self.new}
        pieces = {str(id): raw.hex() for id, raw in (self.pieces | pieces_of(self)).items()}
        writer = Writer(folder, **run, starts=self.starts, blanks=self.blanks, pieces=pieces)
        for s in self.seen:
            writer(s)
        writer.close()


def pieces_of(trace: Trace) -> dict[int, bytes]:
    """Return the bytes of a run's ids and of the likeliest next ones, by the tokenizer of the model that ran; {} if it has none."""
    try:
        tokenizer = trace.runner.tokenizer if trace.runner is not None else None
    except CheckpointError:
        tokenizer = None
    if tokenizer is None:
        return {}
    ids, pieces = {*trace.ids, *trace.new}, dict[int, bytes]()
    for s in trace.seen:
        if s.path == "logits" and isinstance(s.value, Tensor) and s.value.ndim == 3 and s.value.numel():
            rows = s.value[0, trace.blanks or [-1]].float()
            ids.update(rows.topk(min(NEAR, rows.shape[-1])).indices.flatten().tolist())
    for id in sorted(ids):
        with suppress(TokenizerError):  # a table is often padded to more rows than there are pieces
            pieces[id] = tokenizer.pieces([id])[0].raw
    return pieces


class Writer:
    """A writer of records to a folder, a step when the next one begins: the `to` of `watch`. Files are readable by their owner alone.

    It holds one step in memory, however many there are.
    """

    def __init__(self, folder: str | Path, **run: Any) -> None:
        self.folder, self.step, self.written = Path(folder), -1, 0
        self.waiting: list[Seen] = []
        self.fed: Callable[[], list[dict[str, Any]]] = list  # the ids of the running forward
        self.ids: list[dict[str, Any]] = []
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(f.name != TRACE for f in self.folder.iterdir()) and not (self.folder / TRACE).exists():
                raise TraceError("trace.full", folder=folder)
            opened = os.open(self.folder / TRACE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self.folder.chmod(0o700)
        except FileExistsError:
            raise TraceError("trace.exists", folder=folder) from None
        except OSError as broken:
            raise TraceError("trace.write", folder=folder, reason=broken.strerror) from None
        self.index = os.fdopen(opened, "w", encoding="utf-8", errors="replace")  # a path may hold bytes that are no text
        self.line({"schema": SCHEMA, **run})

    def __call__(self, seen: Seen) -> None:
        if not isinstance(seen.value, Tensor) or seen.value.is_meta:
            raise TraceError("trace.value", path=seen.path, found=seen.value.device if isinstance(seen.value, Tensor) else type(seen.value))
        if seen.step != self.step:
            self.flush()
            self.step = seen.step
            self.ids = self.fed()
        self.waiting.append(seen)

    def flush(self) -> None:
        """Write the waiting step: its tensors first, then its line."""
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        name = f"{self.written:06d}.safetensors"
        gradients = {f"{i}.grad": s.grad for i, s in enumerate(waiting) if s.grad is not None}
        write(self.folder / name, {str(i): s.value.detach() for i, s in enumerate(waiting)} | gradients)
        try:
            (self.folder / name).chmod(0o600)
        except OSError as broken:
            raise TraceError("trace.write", folder=self.folder, reason=broken.strerror) from None
        self.line({"shard": name, **({"fed": self.ids} if self.ids else {}), "seen": [described(s) for s in waiting]})
        self.written += 1

    def line(self, entry: dict[str, Any]) -> None:
        try:
            self.index.write(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n")
            self.index.flush()
            os.fsync(self.index.fileno())
        except OSError as broken:
            raise TraceError("trace.write", folder=self.folder, reason=broken.strerror) from None

    def close(self) -> None:
        """Write the waiting step, and close the index."""
        try:
            self.flush()
        finally:
            self.index.close()


def described(s: Seen) -> dict[str, Any]:
    """Return a record without its tensor, as one JSON object."""
    rows = None if s.rows is None else s.rows.tolist()
    error = None if s.error is None else repr(s.error)
    more: dict[str, Any] = {"rows": rows, "request": name_of(s.request), "error": error, "inputs": s.inputs}
    more |= {"weights": s.weights, "flops": s.flops} | ({"settings": s.settings} if s.settings else {})
    return {f: getattr(s, f) for f in FIELDS} | more


@checked
def load_trace(folder: str | Path) -> Trace:
    """Read a trace from its folder. Torn steps are dropped, and named in `torn`. A TraceError if the folder is no trace."""
    root = Path(folder)
    if not (root / TRACE).is_file():
        raise TraceError("trace.missing", folder=folder, file=TRACE)
    lines = read_whole(inside(root, TRACE, TraceError), INDEX_BYTES, TraceError).split(b"\n")
    file = str(root / TRACE)
    run = parse_object(lines[0], file, TraceError)
    if (schema := run.get("schema")) != SCHEMA or type(schema) is not int:
        raise TraceError("trace.schema", folder=folder, found=schema, allowed=SCHEMA)
    trace = Trace(run.get("model", ""), run.get("prompt"), run.get("ids", []), run.get("new", []))
    trace.starts, trace.blanks, pieces = run.get("starts"), run.get("blanks", []), run.get("pieces", {})
    texts = isinstance(trace.model, str) and isinstance(trace.prompt, str | None)
    lists = all(map(numbers, (trace.ids, trace.new, trace.blanks, [] if trace.starts is None else [trace.starts])))
    if not (texts and lists and isinstance(pieces, dict) and all(ID.fullmatch(i) and hexadecimal(raw) for i, raw in pieces.items())):
        raise TraceError("trace.line", found=f"{file}:1")
    trace.pieces = {int(i): bytes.fromhex(raw) for i, raw in pieces.items()}
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        try:
            entry = parse_object(line, f"{file}:{number}", TraceError)
            records = step_of(root, entry, f"{file}:{number}")
            trace.seen += records
            trace.fed |= {records[0].step: entry["fed"]} if records and "fed" in entry else {}
        except PellucidError as fault:
            trace.torn.append(str(fault))
    if "ids" not in run:
        settle(trace)
    trace.aliases = of_records(trace.seen)
    return trace


def settle(trace: Trace) -> None:
    """Set the prompt's and the new ids of a trace of one text by what its steps were fed. Several texts are in `fed` alone."""
    steps = [trace.fed[k] for k in sorted(trace.fed)]
    if steps and all(len(entries) == 1 for entries in steps):
        (first,), rest = steps[0], [e["ids"] for (e,) in steps[1:]]
        trace.ids = first.get("source", first["ids"])
        trace.new = [i for (i,) in rest] if all(len(ids) == 1 for ids in rest) else []


def sound_fed(value: object) -> bool:
    """True for a list of entries {"request", "ids"}, with or without "source"."""
    return isinstance(value, list) and all(
        isinstance(e, dict)
        and {"request", "ids"} <= e.keys() <= {"request", "ids", "source"}
        and (e["request"] is None or isinstance(e["request"], str) or numbers([e["request"]]))
        and numbers(e["ids"])
        and numbers(e.get("source", []))
        for e in value
    )


def step_of(root: Path, entry: dict[str, Any], line: str) -> list[Seen]:
    """Read the records of one line of the index. File names are numbers: no name in a trace becomes a path."""
    name, seen = entry.get("shard"), entry.get("seen")
    if not (
        isinstance(name, str)
        and re.fullmatch(r"[0-9]{6,12}\.safetensors", name)
        and isinstance(seen, list)
        and sound_fed(entry.get("fed", []))
    ):
        raise TraceError("trace.line", found=line)
    tensors = read_header(inside(root, name, TraceError))
    records = []
    for i, s in enumerate(seen):
        entry_of = tensors.get(str(i))
        if entry_of is None or not isinstance(s, dict) or not sound(s, len(entry_of.shape)):
            raise TraceError("trace.line", found=f"{line}: {name}, {i}")
        value = read_tensor(entry_of)
        error = None if s["error"] is None else float(s["error"])
        rows = None if s.get("rows") is None else torch.tensor(s["rows"], dtype=torch.long)
        record = Seen(
            s["path"], s["dims"], tuple(value.shape), value.dtype, value, s["step"], s["request"], s["call"], rows, s["source"], error
        )
        record.op, record.inputs, record.weights = s["op"], tuple(s.get("inputs", ())), tuple(s.get("weights", ()))
        record.flops, record.settings = s.get("flops"), s.get("settings", {})
        if (gradient := tensors.get(f"{i}.grad")) is not None:
            record.grad = read_tensor(gradient)
            if record.grad.shape != value.shape:
                raise TraceError("trace.line", found=f"{line}: {name}, {i}.grad")
        records.append(record)
    return records


def sound(s: dict[str, Any], axes: int) -> bool:
    """True if a record of the index has every field, each of its type, and as many axes as its tensor."""
    texts = all(isinstance(s.get(f, ()), list) and all(isinstance(x, str) for x in s[f]) for f in ("inputs", "weights") if f in s)
    return (
        all(f in s for f in FIELDS)
        and texts
        and isinstance(s["path"], str)
        and isinstance(s["dims"], str)
        and len(parse(s["dims"])) == axes
        and numbers([s["step"], s["call"]])
        and (s["request"] is None or isinstance(s["request"], str) or numbers([s["request"]]))
        and s["source"] in SOURCES
        and (s["error"] is None or (isinstance(s["error"], str) and DIFFERENCE.fullmatch(s["error"]) is not None))
        and isinstance(s["op"], str | None)
        and (s.get("rows") is None or numbers(s["rows"]))
        and (s.get("flops") is None or numbers([s["flops"]]))
        and isinstance(s.get("settings", {}), dict)
        and all(plain(x) for x in s.get("settings", {}).values())
    )


def plain(value: object) -> bool:
    """True for what an op's setting may be: a number, a text of a line, None, or a list of numbers."""
    if isinstance(value, list | dict):
        return all(isinstance(x, int | float) for x in (value if isinstance(value, list) else value.values()))
    return value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) < LINE and value.isprintable())


def hexadecimal(value: object) -> bool:
    """True for bytes as hexadecimal text."""
    return isinstance(value, str) and re.fullmatch("([0-9a-f]{2})*", value) is not None


def numbers(value: object) -> bool:
    """True for a list of whole numbers from 0 that a tensor can hold."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


@checked
@contextmanager
def watch(
    model: Any,
    only: str | Iterable[str] = "*",
    keep: Callable[[Tensor], Any] | None = None,
    edit: Edit | None = None,
    grad: bool = False,
    request: object = None,
    inside: Inside = "beside",
    terms: bool = False,
    to: str | Path | None = None,
) -> Iterator[Watch]:
    """Record and edit the tensors that have a path, while this thread runs `model`, a Model or a module.

    only: paths to record, with `*`; a TraceError for one that matches no tensor. Here and in `edit`, TransformerLens' and transformers'
    names of a tensor work too (families.aliases).  keep: f(tensor) -> what to keep of it; by default the tensor itself.
    edit: {path: f(tensor) -> tensor, or None to leave it}, or a list of changes (`zero`, `put`, `add`, `take`, ...); a module for f is a
    part of the model, recorded below the path.
    grad: leave `value` in the graph, and fill `Seen.grad` when a backward runs.
    request: record one request of a batch alone; by default all, each record with its request.  inside: for values inside a fused op,
    "beside" recomputes them, "listed" lists them and `Seen.later` recomputes one, "reference" runs the open form in the op's place.
    terms: keep the summands of every cell too.  to: a folder that records stream to, step by step, instead of memory.
    """
    module = module_of(model)
    known = aliases(module, getattr(model, "family", None)) if isinstance(module, Decoder | EncoderDecoder) else {}
    only = put((only,) if isinstance(only, str) else only, known)
    (changes,) = resolved(model, [edit], known)
    if to is None:
        with watching.watch(module, only, keep, changes, grad, request, inside, terms) as seen:
            seen.aliases = known
            yield seen
        return
    writer = Writer(to, model=getattr(model, "name", type(module).__name__))
    try:
        with watching.watch(module, only, keep, changes, grad, request, inside, terms, writer) as seen:
            writer.fed, seen.aliases = lambda: fed(*seen.given), known
            yield seen
    finally:
        writer.close()


def resolved(model: Any, edits: Iterable[Edit | None], known: Mapping[str, tuple[str, ...]] | None = None) -> list[list[Change]]:
    """Return the changes of each edit by our paths alone, with the function that finds a word in a prompt. known: other names of paths."""
    module, find, paths = module_of(model), finder(model), dict[str, list[str]]()
    if known is None:
        known = aliases(module, getattr(model, "family", None)) if isinstance(module, Decoder | EncoderDecoder) else {}
    out = []
    for edit in edits:
        changes = as_changes(edit)
        paths |= {c.path: put([c.path], known) for c in changes if c.path not in paths}
        out.append([replace(c, path=path, find=find) for c in changes for path in paths[c.path]])
    return out


def module_of(model: Any) -> nn.Module:
    """Return the module of a Model, or a module itself. A UseError for anything else, such as a model's name that was not loaded."""
    module = getattr(model, "module", model)
    if not isinstance(module, nn.Module):
        raise UseError("model.loaded", found=repr(model) if isinstance(model, str | Path) else type(model).__name__)
    return module


def finder(model: Any) -> Find | None:
    """Return the function that finds a word's pieces in ids by the model's tokenizer. None for a model without one."""
    tokenizer = getattr(model, "_tokenizer", None)
    return None if tokenizer is None else lambda ids, word: find_word(tokenizer.pieces(ids), word)


def fed(given: tuple[Tensor, ...], steps: tuple[Step, ...]) -> list[dict[str, Any]]:
    """Return the ids that a forward was called with, as JSON: an entry for each request or row, with the source's ids if it has one."""
    *sources, tokens = (x.tolist() for x in given)
    spans = spans_of(steps, "T")
    if not spans:
        own = [{"request": None, "ids": row} for row in tokens]
        return [e | {"source": row} for e, row in zip(own, sources[0], strict=True)] if sources else own
    read = {s.request: sources[0][0][s.start : s.stop] for s in spans_of(steps, "S")} if sources else {}
    return [
        {"request": name_of(s.request), "ids": tokens[0][s.start : s.stop]} | ({"source": read[s.request]} if s.request in read else {})
        for s in spans
    ]


def name_of(request: object) -> str | int | None:
    """Return a request as JSON: a text, a number or None as it is, any other by its repr."""
    return request if isinstance(request, str | int | None) else repr(request)
