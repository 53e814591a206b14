"""The stages of sampling applied to a row of logits, as JSON."""

import math
from typing import Any

from torch import Tensor

from pellucid.documents.number import finite
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import choose, stages
from pellucid.runs.kept_run import Run

SCHEMA = 1


def sample_document(run: Run, k: int, row: int, logits: Tensor, given: dict[str, Any], most: int) -> dict[str, Any]:
    """Apply the settings `given` to a row's logits [V], and return the stages and the picked token; the model does not run.

    rows: the `most` likeliest tokens of the last stage, with their number after every stage; null if a stage has cut them.
    """
    sampling = Sampling.of(given)
    sampling.check(len(logits))
    by_stage = stages(logits, sampling, run.read, run.trace.new[:k])
    last = by_stage[-1][1]
    best = last.argsort(descending=True, stable=True)[:most].tolist()
    picked = choose(logits, sampling, run.read, run.trace.new[:k])
    best = best if picked in best else [*best[:-1], picked]
    shown = [(name, int((x > (0 if name == "probabilities" else -math.inf)).sum()), x[best].tolist()) for name, x in by_stage]
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
