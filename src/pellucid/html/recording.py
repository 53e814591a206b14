"""The recording in a page's file: the server's answers by the page's requests, and the bytes of tensors, within a limit.

First the documents, step by step, within half of the limit; then the tensors' values, the smallest first; then the terms of cells. Steps
and tensors that are left out are counted, for the page to say so.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from pellucid.api.count import PLAIN, billed
from pellucid.api.model import Model
from pellucid.checkpoint.safetensors_file import DTYPES
from pellucid.documents.cell_columns import Columns
from pellucid.documents.count_formulas import count_document
from pellucid.documents.lens import attribution_document, lens_document
from pellucid.documents.run import RunStepDocument, run_document, step_document
from pellucid.documents.run_map import map_document
from pellucid.documents.sample import sample_document
from pellucid.documents.weight_list import weights_document
from pellucid.errors import PellucidError
from pellucid.html.file import inert, packed
from pellucid.html.shown import Place, counted_dtype
from pellucid.messages import language
from pellucid.runs.kept_run import Run, kept
from pellucid.runs.request import sampling_of
from pellucid.runs.slices import digest, plain, raw
from pellucid.runs.worker import Stop
from pellucid.watching.records import Seen

SCHEMA = 1
TOP, FIRST = 1000, 5  # the pieces that the page asks for with an answer, and after each block
ENTRY = 200  # bytes about a tensor's values: its name, its shape, its hash
NAMES = {dtype: name for name, dtype in DTYPES.items()}
COLUMN = 11  # bytes that a number of a column takes, in base64
CELL = 64  # bytes of a cell's column numbers and its sum


@dataclass(frozen=True)
class RecordingLimits:
    """Limits of a recording. bytes: of all of it.  numbers: of factors in terms.  cells: with terms."""

    bytes: int
    numbers: int
    cells: int


def recording(run: Run, place: Place, limits: RecordingLimits) -> dict[str, Any]:
    """Return all that the page of a run shows. place: the view that it opens with."""
    document = run_document(run)
    answers: dict[str, Any] = {"models": models(run), f"runs/{run.id}": document}
    if run.model is not None and not document["values"]:
        answers |= counts(run, run.model)
    if not document["steps"]:
        answers |= maps(run, 0)
    used, steps = len(inert(answers)), document["steps"]
    for k in range(len(steps)):
        more = (
            ({f"runs/{run.id}/steps/{k}": step_document(run, k)} if k else {})
            | samples(run, steps[k])
            | lenses(run, steps[k])
            | maps(run, k)
        )
        size = len(inert(more))
        if k and used + size > limits.bytes // 2:
            document["steps"] = steps[:k]
            break
        answers |= more
        used += size
    records = {n: run.trace.seen[n] for n in range(run.firsts[len(document["steps"])]) if carries(run.trace.seen[n])}
    carried = fitting(records, limits.bytes - used)
    free = max(0, limits.bytes - used - sum(taken(s) for s in carried.values()))
    columns = Columns(min(limits.numbers, free // 2 // COLUMN), min(limits.cells, free // 2 // CELL))
    terms = {"bytes": packed(columns.file(carried)), "told": columns.carried, "cells": sum(s.value.numel() for s in records.values())}
    left = {"tensors": len(records) - len(carried), "of": len(records), "steps": len(steps) - len(document["steps"]), "limit": limits.bytes}
    return {
        "schema": SCHEMA,
        "place": urlencode(place),
        "language": language(),
        "answers": answers,
        "tensors": {str(n): values(s) for n, s in carried.items()},
        "terms": terms,
        **({"left": left} if left["tensors"] or left["steps"] else {}),
    }


def models(run: Run) -> dict[str, Any]:
    """Return the list of models: the run's own; for a trace without its model, an entry with the name."""
    row = {"name": run.trace.model, "prompt": run.trace.prompt, "weights": False} if run.loaded is None else run.loaded.row()
    return {"schema": SCHEMA, "current": row["name"], "run": run.id, "training": None, "shipped": None, "tokenizer": None, "models": [row]}


def counts(run: Run, model: Model) -> dict[str, Any]:
    """Return the answers for a model's budget: its weights, its bill in its own format, and a catalogue without other models or devices."""
    assert run.loaded is not None
    dtype = counted_dtype(model)
    cache = "bfloat16" if dtype == "int4" else dtype
    bill = billed(model.config, model.family.name, model.name, dtype=dtype, cache=cache, plain=dtype if dtype in PLAIN else "bfloat16")
    return {
        f"weights?{query({'model': model.name})}": weights_document(run.loaded),
        f"count?{query({'model': model.name, 'batch': 1, 'dtype': dtype, 'cache': cache})}": count_document(bill),
        "catalog": {"schema": SCHEMA, "models": [], "devices": [], "situations": []},
    }


def query(parameters: Mapping[str, object]) -> str:
    """Write parameters as a browser does, which escapes ~ and leaves *."""
    return urlencode(parameters).replace("~", "%7E").replace("%2A", "*")


def samples(run: Run, step: RunStepDocument) -> dict[str, Any]:
    """Return the likeliest tokens at each answer of a step; {} if its logits are not kept."""
    k, answers = step["step"], dict[str, Any]()
    seen = run.trace.seen[run.firsts[k] : run.firsts[k + 1]]
    logits = next((s.value for s in seen if s.path == "logits" and kept(s)), None)
    if logits is None:
        return answers
    for row in (a["row"] for a in step["answers"]):
        body = {"sampling": {"temperature": 1}, "row": row, "top": TOP}
        document = sample_document(run, k, row, logits[0, row].cpu(), sampling_of(body), TOP)
        answers[f"runs/{run.id}/steps/{k}/sample {inert(body)}"] = document
    return answers


def lenses(run: Run, step: RunStepDocument) -> dict[str, Any]:
    """Return the lens and the attribution of each picked token of a step; {} for a trace without its model."""
    answers = dict[str, Any]()
    for row, id in ((a["row"], a["picked"]["id"]) for a in step["answers"]):
        at, place = query({"id": id} if row < 0 else {"row": row, "id": id}), f"runs/{run.id}/steps/{step['step']}"
        with suppress(PellucidError):  # a trace without its model has neither
            answers[f"{place}/lens?{at}"] = lens_document(run, step["step"], row, id, FIRST, Stop())
        with suppress(PellucidError):
            answers[f"{place}/attribution?{at}"] = attribution_document(run, step["step"], row, id, Stop())
    return answers


def maps(run: Run, k: int) -> dict[str, Any]:
    """Return the map of the run up to step `k`."""
    return {f"runs/{run.id}/steps/{k}/map": map_document(run, k, Stop())}


def fitting(records: Mapping[int, Seen], free: int) -> dict[int, Seen]:
    """Return the smallest records, by number, whose values fit into `free` bytes together."""
    chosen = set()
    for n in sorted(records, key=lambda n: (records[n].value.nbytes, n)):
        if (free := free - taken(records[n])) < 0:
            break
        chosen.add(n)
    return {n: s for n, s in records.items() if n in chosen}


def carries(seen: Seen) -> bool:
    """True if a record has values that a page can read."""
    return kept(seen) and seen.value.dtype in NAMES


def taken(seen: Seen) -> int:
    """Return the bytes that a tensor's values take in a file."""
    return -(-int(seen.value.nbytes) // 3) * 4 + ENTRY


def values(seen: Seen) -> dict[str, Any]:
    """Return a tensor's bytes and their hash."""
    x = plain(seen.value)
    return {"dtype": NAMES[x.dtype], "shape": list(x.shape), "bytes": packed(raw(x)), "sha256": digest(x)}
