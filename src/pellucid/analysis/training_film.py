"""What a run of training recorded, over its recorded steps: its loss, what each step moved, attention to a prompt, a token's way."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pellucid.analysis.rows import mean, plane_of
from pellucid.api.run import Run
from pellucid.checkpoint.json_file import TABLE_BYTES, read_object
from pellucid.errors import TrainError
from pellucid.tracing import Trace, load_trace
from pellucid.training.watched import PROMPTS, STEP, TOKENS, read_tensors

POINTS = 40  # of a curve
STARVED = 0.1  # of an even share
Parameters = Mapping[str, Mapping[str, float | None]]


def about(run: Run, step: int) -> dict[str, Any]:
    """Return what a recorded step says of itself, without its tensors: its log entry, documents and parameters."""
    own: dict[str, Any] = read_object(run.watched.root / f"{step:09d}" / STEP, TABLE_BYTES, TrainError)
    return own


def stretches(log: Sequence[Mapping[str, Any]]) -> list[Sequence[Mapping[str, Any]]]:
    """Cut a log into at most POINTS stretches; where losses of held-out examples are logged, each stretch but the last has one."""
    evaluated = sum("held_out" in entry for entry in log)
    size = max(1, math.ceil(len(log) / min(POINTS, evaluated or POINTS)))
    return [log[i : i + size] for i in range(0, len(log), size)]


def curves(
    log: Sequence[Mapping[str, Any]], name: str = "loss", held_out: str = "held_out"
) -> tuple[list[int], list[float], list[float | None]]:
    """Return the last step of each stretch of a log, its mean loss, and its last loss of held-out examples; or of another figure."""
    cut = stretches([e for e in log if name in e])  # a step that was skipped has no loss
    apart = [next((float(e[held_out]) for e in reversed(part) if held_out in e), None) for part in cut]
    return [int(part[-1]["step"]) for part in cut], [mean(float(e[name]) for e in part) for part in cut], apart


def thinned(steps: Sequence[int], shown: int) -> list[int]:
    """Return at most POINTS + 2 of the recorded steps: evenly apart, the newest, and the shown one."""
    apart = math.ceil(len(steps) / POINTS)
    return [step for i, step in enumerate(steps) if i % apart == 0 or step in (shown, steps[-1])]


def percents(steps: Iterable[Parameters]) -> dict[str, list[float | None]]:
    """Return each parameter's change in every recorded step, in percent of its size. steps: what each did to each parameter."""
    every = list(steps)
    return {path: [percent(one.get(path, {}).get("ratio")) for one in every] for path in every[-1]}


def percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * ratio


def part_changes(steps: Iterable[Parameters]) -> dict[str, list[float | None]]:
    """Return the same for parts of the model, the table, each block, the last norm: the size of all numbers of a part together."""
    every = list(steps)
    parts = dict.fromkeys(map(part_of, every[-1]))
    return {part: [percent(part_ratio(one, part)) for one in every] for part in parts}


def part_of(path: str) -> str:
    """Return the part of a model that a parameter belongs to, by the first words of its path."""
    return ".".join(path.split(".")[: 2 if path.startswith(("layers.", "encoder.")) else 1])


def part_ratio(parameters: Parameters, part: str) -> float | None:
    """Return the size of a part's change over the size of its weights. None for weights of size 0."""
    own = [one for path, one in parameters.items() if part_of(path) == part]
    size = math.hypot(*(one["norm"] or 0.0 for one in own))
    return math.hypot(*(one["update"] or 0.0 for one in own)) / size if size else None


def token_rows(run: Run, steps: Sequence[int]) -> dict[str, Tensor]:
    """Return the row of each recorded token in the table, after each of these steps [N D]."""
    texts: list[str] = about(run, steps[-1])["tokens"]
    files = [read_tensors(run.watched.root / f"{step:09d}" / TOKENS) for step in steps]
    return {text: torch.stack([file[str(i)] for file in files]) for i, text in enumerate(texts) if all(str(i) in file for file in files)}


def loads(run: Run, steps: Sequence[int]) -> dict[str, list[list[float | None]]]:
    """Return by layer of experts, for each expert, its share of the choices over the steps, in percent of an even share."""
    every = [about(run, step).get("loads", {}) for step in steps]
    out = dict[str, list[list[float | None]]]()
    for path, own in every[-1].items():
        sums = [sum(one.get(path, [])) for one in every]
        rows = [[100 * one[path][e] * len(own) / n if n else None for one, n in zip(every, sums, strict=True)] for e in range(len(own))]
        out[path] = rows
    return out


def starving(rows: Sequence[Sequence[float | None]], at: int) -> tuple[int, float]:
    """Return at a step how many experts have less than a tenth of an even share, and the entropy of the loads over that of even ones."""
    shares = [(row[at] or 0.0) / 100 / len(rows) for row in rows]
    entropy = -sum(x * math.log(x) for x in shares if x > 0)
    return sum(x * len(rows) < STARVED for x in shares), entropy / math.log(len(rows)) if len(rows) > 1 else 1.0


def ways(rows: Mapping[str, Tensor]) -> tuple[dict[str, list[list[float]]], int]:
    """Return rows [N D] of several tokens on the first two directions of all, and the share of these in percent."""
    places, share = plane_of(torch.cat([x.double() for x in rows.values()]))
    cut = places.split([len(x) for x in rows.values()])
    return {text: part.tolist() for text, part in zip(rows, cut, strict=True)}, share


def prompts_at(run: Run, step: int) -> list[Trace]:
    """Return the traces of the recipe's prompts after a recorded step."""
    folder = run.watched.root / f"{step:09d}" / PROMPTS
    return [load_trace(folder / str(i)) for i in range(len(list(folder.iterdir())) if folder.is_dir() else 0)]


def patterns(trace: Trace) -> dict[str, Tensor]:
    """Return the attention patterns of a trace, by path [H T T]."""
    return {s.path: s.value[0] for s in trace if s.path.endswith("attn.pattern") and s.value.ndim == 4}


def most_moved(first: Mapping[str, Tensor], last: Mapping[str, Tensor]) -> tuple[str, int] | None:
    """Return the path and the head whose pattern differs most between two steps. None if none is in both."""
    both = [path for path in last if path in first and first[path].shape == last[path].shape]
    gaps = {path: (first[path].double() - last[path].double()).abs().sum((-2, -1)) for path in both}
    if not gaps:
        return None
    path = max(gaps, key=lambda name: float(gaps[name].max()))
    return path, int(gaps[path].argmax())
