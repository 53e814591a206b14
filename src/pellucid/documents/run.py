"""A run as JSON: its tokens, its steps with what could come next, and its tensors, step by step, in the order in which they were made."""

from dataclasses import fields
from typing import Any

from pellucid.documents.number import finite
from pellucid.documents.part_settings import masks, routings
from pellucid.documents.tensor import tensors
from pellucid.nn.transformer import Encoder
from pellucid.ops.sampling.settings import Sampling
from pellucid.runs.answers import Answer, Candidate, piece_of
from pellucid.runs.kept_run import Run, kept

SCHEMA = 1


def run_document(run: Run) -> dict[str, Any]:
    """The run with the tensors of its first step; those of another are asked for by `step_document`."""
    pieces, new = ([run.piece(i) for i in ids] for ids in (run.trace.ids, run.trace.new))
    request, tokenizer = run.request, run.tokenizer
    return {
        "schema": SCHEMA,
        "run": run.id,
        "model": run.trace.model,
        "kind": run.kind,
        "values": any(map(kept, run.trace)),
        "prompt": run.trace.prompt,
        "ids": run.trace.ids,
        "pieces": pieces,
        "new": run.trace.new,
        "new_pieces": new,
        "ended": run.kind != "encoder" and run.model is not None and bool(run.trace.new) and run.trace.new[-1] in run.model.stops,
        "text": tokenizer.decode(i for i in run.trace.new if piece_of(tokenizer, i).raw) if tokenizer is not None else None,
        "sampling": drawn(run),
        "edited": [] if request is None else [e.path for e in request.edits],
        "torn": run.trace.torn,
        "sights": masks(run),
        "routings": routings(run),
        "steps": [step(run, k) for k in range(run.trace.steps)],
        "tensors": tensors(run, 0) if run.trace.steps else [],
    }


def drawn(run: Run) -> dict[str, Any]:
    """Every setting with which the run's tokens were drawn; nothing where that is not known, as of a trace, or where none was drawn.

    An encoder fills its blanks with the likeliest whatever was asked.
    """
    if run.request is None or not run.trace.new:
        return {}
    used = Sampling() if isinstance(run.loaded and run.loaded.module, Encoder) else Sampling.of(run.request.sampling)
    return {f.name: value for f in fields(used) if (value := getattr(used, f.name)) is not None}


def step_document(run: Run, k: int) -> dict[str, Any]:
    """The tensors of one step."""
    return {"schema": SCHEMA, "run": run.id, "step": k, "tensors": tensors(run, k)}


def step(run: Run, k: int) -> dict[str, Any]:
    """What was fed, how many rows the past held before, which tensors are its own, and its answers: as many as a model fills blanks."""
    fed, before = run.fed(k)
    answers = run.answers[k] if k < len(run.answers) else []
    return {
        "step": k,
        "fed": fed,
        "before": before,
        "first": run.firsts[k],
        "count": run.firsts[k + 1] - run.firsts[k],
        "answers": [written(run, a) for a in answers],
    }


def written(run: Run, a: Answer) -> dict[str, Any]:
    """One answer: after the last row (-1), or in the row of a blank."""
    return {"row": a.row, "picked": candidate(run, a.pick), "candidates": [candidate(run, c) for c in a.candidates]}


def candidate(run: Run, c: Candidate) -> dict[str, Any]:
    return {"id": c.id, "piece": run.piece(c.id), "logit": finite(c.logit), "probability": finite(c.probability)}
