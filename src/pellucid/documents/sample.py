"""What settings of sampling make of a row of logits, stage by stage, as JSON."""

import math
from typing import Any

from torch import Tensor

from pellucid.documents.number import finite
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import choose, stages
from pellucid.runs.kept_run import Run

SCHEMA = 1


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
