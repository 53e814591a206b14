"""Preference: the better of two answers is made likelier than the other, by more than the first weights have it.

    Δ = (c − c₀) − (r − r₀)        c, r: Σ log p over the tokens of the better answer and of the other; c₀, r₀: by the first weights

    dpo     −(1 − s)·log σ(β·Δ) − s·log σ(−β·Δ)        s: the smoothing                        (arXiv 2305.18290)
    hinge   max(0, 1 − β·Δ)                                                                    (arXiv 2305.10425)
    ipo     (Δ − 1 / (2·β))²        with means over the tokens in place of the sums            (arXiv 2310.12036)

The first weights are the run's own before its first step, which a new adapter leaves as they are; what they give is computed once and
kept. Their tokens of the prompt are no part of a sum.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, relu

from pellucid.checkpoint.disk import reason, replacing
from pellucid.checkpoint.json_file import TABLE_BYTES, read_object
from pellucid.errors import PellucidError, TrainError
from pellucid.training.criterion import Criterion, Judged, text_sums
from pellucid.training.identity import digest
from pellucid.training.objectives import Batch
from pellucid.training.pair_rows import PairRows
from pellucid.training.recipe_tables import PreferSettings
from pellucid.training.text_objective import PairedText, packed_batch

REFERENCE = "reference.json"
TOGETHER = 8  # documents of one forward of the first weights


def preference_loss(delta: Tensor, beta: float, loss: str = "dpo", smoothing: float = 0.0) -> Tensor:
    """Return the loss of each pair, [pairs]. delta: Δ, of sums for "dpo" and "hinge", of means for "ipo"."""
    if loss == "ipo":
        return (delta - 1 / (2 * beta)) ** 2
    if loss == "hinge":
        return relu(1 - beta * delta)
    return -(1 - smoothing) * logsigmoid(beta * delta) - smoothing * logsigmoid(-beta * delta)


class Preference(Criterion):
    """The mean preference loss over pairs. references: the digest of what the first weights gave.

    Its figures are the rewards β·(c − c₀) and β·(r − r₀), their margin, and the share of pairs whose margin is above 0.
    """

    reached, figures = "card.texts.preferred", ("chosen", "rejected", "margin", "accuracy")

    def __init__(self, settings: PreferSettings, references: str = "") -> None:
        self.settings = settings
        given = {f"prefer.{name}": value for name, value in vars(settings).items()}
        self.identity = {**given, "references": references}

    def units(self, batch: Batch) -> int:
        """Return the number of pairs."""
        return len(batch.inputs[-1].spans) // 2

    def judge(self, model: nn.Module, batch: Batch, share: float = 1.0) -> Judged:
        s = self.settings
        sums, counts = text_sums(model(*batch.inputs), batch)
        assert batch.of_texts is not None
        gains = sums - batch.of_texts.to(sums)
        delta = difference(gains / counts if s.loss == "ipo" else gains)
        better, other = (s.beta * gains.detach()).view(-1, 2).unbind(1)
        figures = {
            "chosen": better.mean(),
            "rejected": other.mean(),
            "margin": (better - other).mean(),
            "accuracy": (better > other).to(better).mean(),
        }
        loss = preference_loss(delta, s.beta, s.loss, s.smoothing).mean()
        return Judged(loss, {name: float(value) for name, value in figures.items()})


def difference(of_texts: Tensor) -> Tensor:
    """Return the better answer's number less the other's, [pairs]."""
    better, other = of_texts.view(-1, 2).unbind(1)
    return better - other


def refer(objective: PairedText, model: nn.Module, seed: int, base: str, folder: Path) -> str:
    """Give the pairs of an objective what the first weights make of them, and return its digest.

    model: at its first weights.  base: the digest of what it is made from.  folder: where reference.json is kept; other pairs, other
    weights, or a damaged file are no reason to stop, for it is made again.
    """
    sides: tuple[PairRows, PairRows] = objective.pairs_of(seed)
    of = digest(json.dumps([base, [rows.identity() | {"pairs": len(rows)} for rows in sides]], default=str))
    kept = read_references(folder / REFERENCE, of, [len(rows) for rows in sides])
    if kept is None:
        kept = [logprobs_of(model, rows) for rows in sides]
        content = {"schema": 1, "of": of, "trained": kept[0], "held_out": kept[1]}
        try:
            with replacing(folder / REFERENCE, TrainError) as part:
                part.write_text(json.dumps(content) + "\n", encoding="utf-8")
        except OSError as fault:
            raise TrainError("train.folder", folder=folder, reason=reason(fault)) from None
    for rows, references in zip(sides, kept, strict=True):
        rows.references = references
    return digest(json.dumps(kept))


def read_references(path: Path, of: str, counts: Sequence[int]) -> list[list[float]] | None:
    """Return the numbers of reference.json, None if it is missing, damaged, or of other pairs or weights."""
    try:
        content: dict[str, Any] = read_object(path, TABLE_BYTES, TrainError)
    except PellucidError:
        return None
    kept: list[Any] = [content.get(name) for name in ("trained", "held_out")]
    sound = [isinstance(one, list) and len(one) == n and all(type(x) is float for x in one) for one, n in zip(kept, counts, strict=True)]
    return kept if content.get("of") == of and all(sound) else None


@torch.no_grad()
def logprobs_of(model: nn.Module, rows: PairRows) -> list[float]:
    """Return Σ log p over the answer's tokens of each document."""
    out = list[float]()
    for start in range(0, len(rows), TOGETHER):
        batch = packed_batch(rows[start : start + TOGETHER])
        out += text_sums(model(*batch.inputs), batch)[0].tolist()
    return out
