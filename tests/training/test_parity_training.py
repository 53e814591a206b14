"""Training beside transformers: the same batches, torch's AdamW, float64; every loss is theirs, and the norms of the first gradients.

PELLUCID_FULL=1 takes a hundred steps, otherwise twelve. Rounding grows along a curve: after 100 steps the losses are 2e-10 apart at most,
and the norms 6e-9.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import judge
from pellucid.training.loop import TrainingRun, batches, learning_rate
from pellucid.training.objectives import IGNORED, Batch, Causal, Document, Objective, Translation
from pellucid.training.optimizers import optimizer
from training import SETTINGS, WORDS

EARLY = 12  # steps of which the gradient is compared too
STEPS = 100 if os.environ.get("PELLUCID_FULL") else EARLY
S = replace(SETTINGS, steps=100, warmup=5, learning_rate=3e-3, weight_decay=0.3, clip=0.5, correction=0.0, save_every=1000)
FAMILIES = ["gpt2", "llama", "qwen3", "gemma2", "deepseek_v3", "t5"]
Optimize = Callable[[nn.Module], Any]


def documents(family: str) -> list[Document]:
    """Return 24 documents of 4 to 19 ids, and sources for them if the family has an encoder."""
    draw = torch.Generator().manual_seed(5)
    texts = [torch.randint(1, 97, (4 + i % 16,), generator=draw).tolist() for i in range(24)]
    return [Document(text[::-1][: 2 + i % 5] if family == "t5" else [], text) for i, text in enumerate(texts)]


def theirs(hf: Any, batch: Batch) -> Tensor:
    """Return transformers' loss of a batch of ours."""
    inputs: dict[str, Any] = {"input_ids": batch.inputs[0]}
    if len(batch.inputs) == 4:
        inputs |= {"decoder_input_ids": batch.inputs[1], "attention_mask": (batch.inputs[3].positions >= 0).long()}
    logits = hf(**inputs, use_cache=False).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)


Curve = list[tuple[float, float]]  # of each step its loss, and the norm of its gradient


def curves(family: str, folder: Path, optimize: Optimize, steps: int, late: int = 0) -> tuple[Curve, Curve]:
    """Train both from the same weights, and return our curve and theirs. late: steps by which their rate lags."""
    j = judge.make(family)
    model = judge.ours(j.folder)[1].requires_grad_(True)
    objective: Objective = (Translation if family == "t5" else Causal)(WORDS)
    run = TrainingRun(model, objective, documents(family), S, folder)
    own, other = Curve(), Curve()
    step, feed = optimize(j.hf), batches(run.documents, S)
    for k in range(steps):
        numbers = next(feed)
        entry = run.one(numbers)
        own.append((entry["loss"], entry["gradient"]))
        with judge.promoted():
            loss = theirs(j.hf, objective.batch([run.documents[i] for i in numbers]))
        j.hf.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(j.hf.parameters(), S.clip)
        for group in step.param_groups:
            group["lr"] = learning_rate(k - late, S)
        step.step()
        other.append((float(loss.detach()), float(norm)))
    return own, other


def furthest(own: Curve, other: Curve) -> float:
    """Return how far apart two curves are at most, relative to their numbers: all losses, and the early norms."""
    pairs = [(a, b) for (a, _), (b, _) in zip(own, other, strict=True)] + [
        (a, b) for (_, a), (_, b) in zip(own[:EARLY], other[:EARLY], strict=True)
    ]
    return max(abs(a - b) / abs(b) for a, b in pairs)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(4)
def test_the_curve_is_theirs(family: str, tmp_path: Path) -> None:
    own, other = curves(family, tmp_path, lambda model: optimizer(model, S), STEPS)
    assert furthest(own, other) < 1e-9 and own[-1][0] < own[0][0], furthest(own, other)


MUTANTS: dict[str, tuple[Optimize, int]] = {
    "norms decay": (lambda m: torch.optim.AdamW(m.parameters(), betas=(S.beta1, S.beta2), weight_decay=S.weight_decay), 0),
    "another beta": (lambda m: optimizer(m, replace(S, beta2=0.951)), 0),
    "a step's rate too late": (lambda m: optimizer(m, S), 1),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_another_step_is_another_curve(mutant: str, tmp_path: Path) -> None:
    optimize, late = MUTANTS[mutant]
    assert furthest(*curves("llama", tmp_path, optimize, 5, late)) > 1e-7
