"""What a page in a file carries: the server's answers by what the page would ask, and the tensors' bytes, as much as a limit allows.

First the documents, step by step, within half of the limit; then the tensors' values, the smallest first; then the terms of cells. What is
left out is counted, for the page to say so.
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
from pellucid.watching.watch import Seen

SCHEMA = 1
TOP, FIRST = 1000, 5  # the pieces that the page asks for with an answer, and after each block
ENTRY = 200  # bytes about a tensor's values: its name, its shape, its hash
NAMES = {dtype: name for name, dtype in DTYPES.items()}
COLUMN = 11  # bytes that a number of a column takes, in base64
CELL = 64  # bytes that tell of a cell which columns it takes, and its sum


@dataclass(frozen=True)
class RecordingLimits:
    """bytes: of all that is recorded.  numbers, cells: how many factors of terms, and of how many cells."""

    bytes: int
    numbers: int
    cells: int


def recording(run: Run, place: Place, limits: RecordingLimits) -> dict[str, Any]:
    """All that the page of a run shows. place: where it opens."""
    document = run_document(run)
    answers: dict[str, Any] = {"models": models(run), f"runs/{run.id}": document}
    if run.model is not None and not document["values"]:
        answers |= counts(run, run.model)
    used, steps = len(inert(answers)), document["steps"]
    for k in range(len(steps)):
        more = ({f"runs/{run.id}/steps/{k}": step_document(run, k)} if k else {}) | samples(run, steps[k]) | lenses(run, steps[k])
        size = len(inert(more))
        if k and used + size > limits.bytes // 2:
            document["steps"] = steps[:k]
            break
        answers |= more
        used += size
    told = {n: run.trace.seen[n] for n in range(run.firsts[len(document["steps"])]) if carries(run.trace.seen[n])}
    carried = fitting(told, limits.bytes - used)
    room = max(0, limits.bytes - used - sum(taken(s) for s in carried.values()))
    columns = Columns(min(limits.numbers, room // 2 // COLUMN), min(limits.cells, room // 2 // CELL))
    terms = {"bytes": packed(columns.file(carried)), "told": columns.carried, "cells": sum(s.value.numel() for s in told.values())}
    left = {"tensors": len(told) - len(carried), "of": len(told), "steps": len(steps) - len(document["steps"]), "limit": limits.bytes}
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
    """What the page may choose from: the one model; of a trace that only tells a name, the name."""
    row = {"name": run.trace.model, "prompt": run.trace.prompt, "weights": False} if run.loaded is None else run.loaded.row()
    return {"schema": SCHEMA, "current": row["name"], "run": run.id, "models": [row]}


def counts(run: Run, model: Model) -> dict[str, Any]:
    """What a model's budget is drawn from: its weights, its bill in its own format, and no other model or device to put beside it."""
    assert run.loaded is not None
    dtype = counted_dtype(model)
    cache = "bfloat16" if dtype == "int4" else dtype
    bill = billed(model.config, model.family.name, model.name, dtype=dtype, cache=cache, plain=dtype if dtype in PLAIN else "bfloat16")
    return {
        f"weights?{query({'model': model.name})}": weights_document(run.loaded),
        f"count?{query({'model': model.name, 'batch': 1, 'dtype': dtype, 'cache': cache})}": count_document(bill),
        "catalog": {"schema": SCHEMA, "models": [], "devices": [], "situations": []},
    }


def query(told: Mapping[str, object]) -> str:
    """Parameters as a browser writes them, which escapes ~ and leaves *."""
    return urlencode(told).replace("~", "%7E").replace("%2A", "*")


def samples(run: Run, step: RunStepDocument) -> dict[str, Any]:
    """The pieces of the likeliest tokens at each answer of a step, where its logits are there."""
    k, found = step["step"], dict[str, Any]()
    seen = run.trace.seen[run.firsts[k] : run.firsts[k + 1]]
    logits = next((s.value for s in seen if s.path == "logits" and kept(s)), None)
    if logits is None:
        return found
    for row in (a["row"] for a in step["answers"]):
        asked = {"sampling": {"temperature": 1}, "row": row, "top": TOP}
        told = sample_document(run, k, row, logits[0, row].cpu(), sampling_of(asked), TOP)
        found[f"runs/{run.id}/steps/{k}/sample {inert(asked)}"] = told
    return found


def lenses(run: Run, step: RunStepDocument) -> dict[str, Any]:
    """What the stream says of each pick of a step after every block, and what each part added to it, where that can be told."""
    found = dict[str, Any]()
    for row, id in ((a["row"], a["picked"]["id"]) for a in step["answers"]):
        at, place = query({"id": id} if row < 0 else {"row": row, "id": id}), f"runs/{run.id}/steps/{step['step']}"
        with suppress(PellucidError):  # a trace without its model has neither
            found[f"{place}/lens?{at}"] = lens_document(run, step["step"], row, id, FIRST, Stop())
        with suppress(PellucidError):
            found[f"{place}/attribution?{at}"] = attribution_document(run, step["step"], row, id, Stop())
    return found


def fitting(told: Mapping[int, Seen], room: int) -> dict[int, Seen]:
    """The tensors whose values go into this many bytes, by their numbers: the smallest ones."""
    chosen = set()
    for n in sorted(told, key=lambda n: (told[n].value.nbytes, n)):
        if (room := room - taken(told[n])) < 0:
            break
        chosen.add(n)
    return {n: s for n, s in told.items() if n in chosen}


def carries(seen: Seen) -> bool:
    """Whether a record has values that a page can read."""
    return kept(seen) and seen.value.dtype in NAMES


def taken(seen: Seen) -> int:
    """Bytes that a tensor's values take in a file."""
    return -(-int(seen.value.nbytes) // 3) * 4 + ENTRY


def values(seen: Seen) -> dict[str, Any]:
    """A tensor's bytes, and their hash."""
    x = plain(seen.value)
    return {"dtype": NAMES[x.dtype], "shape": list(x.shape), "bytes": packed(raw(x)), "sha256": digest(x)}
