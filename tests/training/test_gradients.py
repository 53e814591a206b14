"""What training rests on: the loss by hand, micro-batches that add up, gradients by finite differences, and layers that are run again."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointError, checkpoint

from pellucid import config as c
from pellucid import ops
from pellucid.batch.step import Step
from pellucid.nn.attention import Attention
from pellucid.training import criterion
from pellucid.training.criterion import loss_of
from pellucid.training.objectives import IGNORED, Batch, Causal, Document
from test_symmetries import right_gradients
from tiny import DEEPSEEK_V3, EXPERTS, FAMILIES, GPT_OSS, LLAMA, T5, D, far, inputs, law, swapped, tiny
from training import DOCUMENTS, SETTINGS, WORDS, fresh, run_of

HERE = sys.modules[__name__]
attention = importlib.import_module("pellucid.nn.attention")
gated, relative, tanh, rms, add = ops.gated, attention.relative, torch.tanh, ops.rms, ops.add
identity = ops.identity
mask = Attention.mask
CHOSEN = [DOCUMENTS[i] for i in (0, 5, 8, 7)]


def made_batch(documents: list[Document] = CHOSEN) -> Batch:
    return Causal(WORDS).batch(documents)


def by_hand(logits: Tensor, targets: Tensor, smoothing: float) -> float:
    """-mean over real targets of (1 - smoothing)·log p(target) + smoothing·mean over V of log p, one number at a time."""
    total, count = 0.0, 0
    for row, target in zip(logits.flatten(0, 1), targets.flatten().tolist(), strict=True):
        if target != IGNORED:
            logs = row - row.max() - (row - row.max()).exp().sum().log()
            total -= (1 - smoothing) * float(logs[target]) + smoothing * sum(logs.tolist()) / len(logs)
            count += 1
    return total / count


def replacement(loss: Callable[[Tensor, Tensor, float], Tensor]) -> Any:
    """Another loss of logits [N V], targets [N] and the smoothing, for LogitsLoss."""
    return SimpleNamespace(apply=lambda x, t, smoothing, share, over: loss(x, t, smoothing))


def padding_smoothed(x: Tensor, t: Tensor, smoothing: float) -> Tensor:
    """What all ids share, over padding too."""
    return (1 - smoothing) * F.cross_entropy(x, t, ignore_index=IGNORED) - smoothing * x.log_softmax(-1).mean()


def cross_entropy(x: Tensor, t: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(x, t, ignore_index=IGNORED, label_smoothing=smoothing)


@law(
    padding_counts=(criterion, "LogitsLoss", replacement(lambda x, t, s: cross_entropy(x, t.clamp(min=0), s))),
    padding_smoothed=(criterion, "LogitsLoss", replacement(padding_smoothed)),
    next_but_one=(criterion, "LogitsLoss", replacement(lambda x, t, s: cross_entropy(x, t.roll(-1), s))),
    not_smoothed=(criterion, "LogitsLoss", replacement(lambda x, t, s: cross_entropy(x, t, 0.0))),
)
def test_29_loss_by_hand() -> float:
    """With and without smoothing; padding carries none of either."""
    model, batch = fresh(dtype=torch.float64), made_batch()
    assert int((batch.targets == IGNORED).sum()) > 5
    with torch.no_grad():
        logits = model(*batch.inputs)
        return max(abs(float(loss_of(model, batch, s)) - by_hand(logits, batch.targets, s)) for s in (0.0, 0.1, 0.9))


def test_29_a_run_smooths_as_its_recipe_says(tmp_path: Path) -> None:
    for smoothing in (0.0, 0.1):
        model = fresh(dtype=torch.float64)
        wanted = float(loss_of(model, made_batch(), smoothing).detach())
        run = run_of(tmp_path / str(smoothing), replace(SETTINGS, smoothing=smoothing), model=model)
        assert run.one([0, 5, 8, 7])["loss"] == wanted


def weighed(loss: Tensor, count: int, total: int) -> Tensor:
    """A micro-batch's part of the batch's loss."""
    return loss * count / total


@law(mean_of_means=(HERE, "weighed", lambda loss, count, total: loss / 3), sum_of_means=(HERE, "weighed", lambda loss, count, total: loss))
def test_29_micro_batches_are_one_batch() -> float:
    """Three of different sizes, each counting by its targets: the batch's loss and every gradient."""
    gaps, parts = [], [made_batch(CHOSEN[:1]), made_batch(CHOSEN[1:3]), made_batch(CHOSEN[3:])]
    counts = [int((p.targets != IGNORED).sum()) for p in parts]
    assert len(set(counts)) == 3
    for smoothing in (0.0, 0.1):
        model = fresh(dtype=torch.float64)
        full = loss_of(model, made_batch(), smoothing)
        wanted = torch.autograd.grad(full, list(model.parameters()))
        losses = [weighed(loss_of(model, p, smoothing), n, sum(counts)) for p, n in zip(parts, counts, strict=True)]
        for loss in losses:
            loss.backward()
        gaps += [far(full.detach(), sum(losses).detach()), *(far(g, p.grad) for g, p in zip(wanted, model.parameters(), strict=True))]
    return max(gaps)


def layered(layer: c.Layer, **how: Any) -> c.Config:
    return replace(LLAMA, layers=(layer,), **how)


FIRST = LLAMA.layers[0]
BLOCKS = {
    "window and sinks": replace(GPT_OSS, layers=GPT_OSS.layers[:1]),
    "latent and mlp": replace(DEEPSEEK_V3, layers=DEEPSEEK_V3.layers[:1]),
    "encoder": replace(T5, layers=T5.encoder, encoder=None),
    "cap": layered(replace(FIRST, attn=replace(FIRST.attn, cap=5.0))),
    "slopes": layered(replace(FIRST, attn=c.Attention(4, 4, 8, alibi=c.Alibi()))),
    "gated shared expert": layered(replace(FIRST, ffn=replace(EXPERTS, affinity="softmax", shared_gate=True))),
    "norm from 1": layered(FIRST, norm="rms offset"),
    "no norm": layered(FIRST, norm="none", embed_scale=0.1),
    "fill": layered(replace(FIRST, attn=replace(FIRST.attn, fill=0.5))),
    "thin": layered(replace(FIRST, ranks=(("ffn.up", 5), ("attn.q", 7)))),
    **{order: layered(replace(FIRST, order=order)) for order in ("post", "sandwich", "parallel", "parallel, two norms", "bare")},
}


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.quick(4)
def test_30_gradients(kind: str) -> None:
    """Kinds of block that no family in test_symmetries ends with."""
    assert right_gradients(BLOCKS[kind])


@pytest.mark.parametrize(
    ("kind", "owner", "name", "wrong"),
    [
        ("window and sinks", Attention, "mask", lambda self, step: replace(m := mask(self, step), sinks=m.sinks.detach())),
        ("latent and mlp", ops, "rms", lambda x, w, eps: rms(x.detach(), w, eps)),
        ("encoder", attention, "relative", lambda table, spec: relative(table.detach(), spec)),
        ("cap", torch, "tanh", lambda x: tanh(x.detach())),
        ("gated shared expert", ops, "gated", lambda x, gate: gated(x, gate.detach())),
        ("sandwich", ops, "rms", lambda x, w, eps: rms(x, w.detach(), eps)),
        ("parallel", ops, "add", lambda x, y: add(x, y.detach())),
        ("bare", ops, "identity", lambda x: identity(x.detach())),
    ],
)
@pytest.mark.quick(4)
def test_30_gradients_mutants(kind: str, owner: Any, name: str, wrong: Any) -> None:
    with swapped(owner, name, wrong):
        assert not right_gradients(BLOCKS[kind], D)


def again(forward: Callable[..., Tensor], x: Tensor, step: Step) -> Tensor:
    """A layer whose activations are not kept, but computed again when their gradients are asked for (arXiv 1604.06174)."""
    return checkpoint(forward, x, step, use_reentrant=False)  # type: ignore[no-any-return]


def cut_off(forward: Callable[..., Tensor], x: Tensor, step: Step) -> Tensor:
    return checkpoint(forward, x.detach(), step, use_reentrant=False)  # type: ignore[no-any-return]


def one_later(forward: Callable[..., Tensor], x: Tensor, step: Step) -> Tensor:
    """A layer that is run again over positions that have moved on."""
    moved = replace(step, positions=step.positions + 0, once={}, kept={})

    def run(x: Tensor) -> Tensor:
        out = forward(x, moved)
        moved.positions, moved.once = moved.positions * 2, {}
        return out

    return checkpoint(run, x, use_reentrant=False)  # type: ignore[no-any-return]


def learnt(f: str, dtype: torch.dtype, rerun: bool) -> list[Tensor]:
    """The logits of a family's model and the gradients of all its parameters."""
    model = tiny(f, dtype)
    for stack in (model.encoder, model.decoder) if f == "t5" else (model,):
        for layer in stack.layers:
            layer.forward = partial(HERE.again, layer.forward) if rerun else layer.forward
    args = inputs(f)
    out = model(*args)
    loss = F.cross_entropy(out.flatten(0, 1), args[-1].roll(-1).flatten())
    return [out.detach(), *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)]


@law(0.0, cut_off=(HERE, "again", cut_off), one_later=(HERE, "again", one_later))
def test_30_layers_run_again() -> float:
    """Bit for bit the gradients of layers whose activations are kept, in float32 too; other shapes the second time are refused by torch."""
    gaps = []
    for f in FAMILIES:
        for dtype in (torch.float64, torch.float32):
            try:
                gaps += map(far, learnt(f, dtype, True), learnt(f, dtype, False))
            except CheckpointError:
                gaps.append(float("inf"))
    return max(gaps)
