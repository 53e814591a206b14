"""A run as JSON: its tokens, its steps with what could come next, and its tensors, step by step, in the order in which they were made."""

import math
from dataclasses import fields
from math import prod
from typing import Any

from torch import Tensor

from pellucid.counting.weights import Weight, by_first_use, parameters
from pellucid.documents.formula import block, formula
from pellucid.documents.notation import notes
from pellucid.documents.number import finite
from pellucid.documents.run import Answer, Candidate, piece_of
from pellucid.documents.summands import template
from pellucid.nn.transformer import Encoder
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import choose, stages
from pellucid.server.runs import LetGo, Run, kept, summed
from pellucid.server.settings import masks, routings
from pellucid.server.shelf import LoadedModel
from pellucid.server.stats import Stats, told
from pellucid.watching.watch import Seen

SCHEMA = 1


def run_document(run: Run) -> dict[str, Any]:
    """The run with the tensors of its first step; those of another are asked for by `step_document`."""
    pieces, new = ([run.piece(i) for i in ids] for ids in (run.trace.ids, run.trace.new))
    asked, tokenizer = run.asked, run.tokenizer
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
        "edited": [] if asked is None else [e.path for e in asked.edits],
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
    if run.asked is None or not run.trace.new:
        return {}
    used = Sampling() if isinstance(run.held and run.held.module, Encoder) else Sampling.of(run.asked.sampling)
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


def stats_document(run: Run, n: int, s: Seen, stats: Stats) -> dict[str, Any]:
    """What the values of one tensor range over. s: its record with them, and with the difference that a recomputed one has."""
    return {"schema": SCHEMA, "run": run.id, "n": n, "path": s.path, "source": s.source, "error": finite(s.error), "stats": told(stats)}


def sample_document(run: Run, k: int, row: int, logits: Tensor, given: dict[str, Any], most: int) -> dict[str, Any]:
    """What these settings of sampling make of a row's logits [V], stage by stage, and the token that they pick; the model does not run.

    rows: the tokens that are likeliest at the end, with their number after every stage; null where a stage has cut them.
    """
    sampling = Sampling.of(given)
    sampling.check(len(logits))
    found = stages(logits, sampling, run.read, run.trace.new[:k])
    last = found[-1][1]
    best = last.argsort(descending=True, stable=True)[:most].tolist()
    picked = choose(logits, sampling, run.read, run.trace.new[:k])
    best = best if picked in best else [*best[:-1], picked]
    shown = [(name, int((x > (0 if name == "probabilities" else -math.inf)).sum()), x[best].tolist()) for name, x in found]
    columns = zip(*(values for _, _, values in shown), strict=True)
    return {
        "schema": SCHEMA,
        "run": run.id,
        "step": k,
        "row": row,
        "sampling": given,
        "picked": picked,
        "stages": [{"name": name, "left": left} for name, left, _ in shown],
        "rows": [{"id": i, "piece": run.piece(i), "values": list(map(finite, values))} for i, values in zip(best, columns, strict=True)],
    }


def weights_document(held: LoadedModel) -> dict[str, Any]:
    """Every weight of a model."""
    told = [{f: getattr(w, f) for f in ("path", "dims", "axes", "shape", "dtype", "count", "parameter")} for w in held.weights.values()]
    return {"schema": SCHEMA, "model": held.name, "weights": told}


def written(run: Run, a: Answer) -> dict[str, Any]:
    """One answer: after the last row (-1), or in the row of a blank."""
    return {"row": a.row, "picked": candidate(run, a.pick), "candidates": [candidate(run, c) for c in a.candidates]}


def candidate(run: Run, c: Candidate) -> dict[str, Any]:
    return {"id": c.id, "piece": run.piece(c.id), "logit": finite(c.logit), "probability": finite(c.probability)}


def tensors(run: Run, k: int) -> list[dict[str, Any]]:
    """The tensors of one step by their numbers within the run."""
    found = range(run.firsts[k], run.firsts[k + 1])
    dims, seen = {s.path: s.dims for s in run.trace.seen}, [run.trace.seen[n] for n in found]
    first = by_first_use(seen, {} if run.held is None else run.held.weights)
    return [tensor(run, n, s, dims, own) for n, s, own in zip(found, seen, first, strict=True)]


def tensor(run: Run, n: int, s: Seen, dims: dict[str, str], own: tuple[Weight, ...]) -> dict[str, Any]:
    """One tensor without its values: what it is, what made it, what that took, and what the values range over.

    own: of its weights, those that no earlier tensor of the step used; `parameters` counts these.
    """
    count = prod(s.shape)
    place, name = block(s.path)
    little = kept(s) and count <= run.limits.measured
    stats = s.value.stats if isinstance(s.value, LetGo) else run.measure(n, s.value) if little else None
    return {
        "n": n,
        "path": s.path,
        "block": place,
        "name": name,
        "dims": s.dims,
        "shape": list(s.shape),
        "dtype": str(s.dtype).removeprefix("torch."),
        "step": s.step,
        "call": s.call,
        "source": s.source,
        "error": finite(s.error),
        "op": s.op,
        "made": formula(s, dims),
        "notes": [[key, values] for key, values in notes(s, dims)],
        "put": template(s),
        "inputs": list(s.inputs),
        "weights": list(s.weights),
        "bytes": count * s.dtype.itemsize,
        "parameters": None if run.held is None else parameters(own),
        "flops": s.flops,
        "rows": None if s.rows is None or s.rows.is_meta else s.rows.tolist(),
        "stats": None if stats is None else told(stats),
        "kept": kept(s),
        "terms": summed(run, s),
    }
