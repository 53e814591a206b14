"""Training: first weights, loss and step are the formula; what cannot be trained is refused, and what is no number changes nothing."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from pellucid.errors import TrainError
from pellucid.training import criterion, loop
from pellucid.training.criterion import loss_of
from pellucid.training.held_out import HeldOut
from pellucid.training.identity import digest
from pellucid.training.loop import TrainingRun, batches, learning_rate
from pellucid.training.objectives import IGNORED, Batch, Causal, Document
from pellucid.training.optimizers import optimizer
from pellucid.training.recipe import TrainSettings
from tiny import swapped
from training import DOCUMENTS, SETTINGS, WORDS, fresh, log_of, run_of, silent, state


def test_first_weights_follow_from_the_seed() -> None:
    """All of them, whatever ran before: matrices normal, those that write to the residual smaller, biases 0, norms 1."""
    torch.manual_seed(1)
    a: dict[str, Tensor] = dict(fresh(1).named_parameters())
    torch.manual_seed(2)
    b, other = (dict(fresh(seed).named_parameters()) for seed in (1, 2))
    assert all(torch.equal(a[path], b[path]) for path in a)
    assert all(torch.equal(a[path], other[path]) == (a[path].ndim < 2) for path in a)
    assert not any(float(p.detach().abs().max()) for path, p in a.items() if path.endswith("bias"))
    a = {path: p.detach() for path, p in a.items()}
    assert float(a["layers.0.ffn.up.weight"].std()) == pytest.approx(0.3, rel=0.1)
    assert float(a["layers.0.ffn.down.weight"].std()) == pytest.approx(0.3 / 2**0.5, rel=0.1)


def test_loss_is_the_mean_over_real_targets() -> None:
    """-log p of each target that is no padding, by hand in float64; a mean over padding too would differ."""
    model = fresh(dtype=torch.float64)
    numbers = [0, 5, 8, 7]
    texts = [DOCUMENTS[i].target for i in numbers]
    batch = Causal(WORDS).batch([DOCUMENTS[i] for i in numbers])
    (inputs, _), targets = batch.inputs, batch.targets
    assert inputs.shape == targets.shape == (4, max(map(len, texts)) - 1) and bool((targets == IGNORED).any())
    with torch.no_grad():
        log_probabilities = [-model(torch.tensor([ids[:-1]]))[0].log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]] for ids in texts]
        loss = float(loss_of(model, batch))
    assert loss == pytest.approx(float(torch.cat(log_probabilities).mean()), rel=1e-12)
    assert loss != pytest.approx(float(torch.stack([t.mean() for t in log_probabilities]).mean()), rel=1e-6)
    assert loss != pytest.approx(float(torch.cat(log_probabilities).sum() / targets.numel()), rel=1e-6)


def by_hand(run: TrainingRun, batch: list[list[int]]) -> dict[str, Tensor]:
    """The weights after these batches, by the formula of AdamW (arXiv 1711.05101) and clipping, in float64."""
    s = run.s
    at = {path: p.detach().clone() for path, p in run.model.named_parameters()}
    m, v = ({path: torch.zeros_like(p) for path, p in at.items()} for _ in range(2))
    model = fresh(dtype=torch.float64)
    for step, numbers in enumerate(batch):
        for path, p in model.named_parameters():
            p.data, p.grad = at[path].clone(), None
        loss_of(model, run.objective.batch([run.documents[i] for i in numbers])).backward()
        g = {path: cast(Tensor, p.grad) for path, p in model.named_parameters()}
        norm = math.sqrt(sum(float((x * x).sum()) for x in g.values()))
        for path in at:
            x = g[path] * min(1.0, s.clip / (norm + 1e-6))
            m[path] = s.beta1 * m[path] + (1 - s.beta1) * x
            v[path] = s.beta2 * v[path] + (1 - s.beta2) * x * x
            up = (m[path] / (1 - s.beta1 ** (step + 1))) / ((v[path] / (1 - s.beta2 ** (step + 1))).sqrt() + 1e-8)
            decay = s.weight_decay if at[path].ndim > 1 else 0.0
            rate = s.learning_rate * (step + 1) / s.warmup
            at[path] = at[path] * (1 - rate * decay) - rate * up
    return at


def test_step_is_adamw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps against the hand formula; a decay of norms, and a gradient that is not clipped, would be seen."""
    s = replace(SETTINGS, weight_decay=0.3, clip=0.05)

    def gap() -> float:
        run = run_of(tmp_path, s, model=fresh(dtype=torch.float64))
        feed = [[0, 1, 2, 3], [9, 8, 7, 6], [20, 3, 11, 14]]
        wanted = by_hand(run, feed)
        for numbers in feed:
            run.one(numbers)
        return max(float((p.detach() - wanted[path]).abs().max()) for path, p in run.model.named_parameters())

    assert gap() < 1e-12
    with monkeypatch.context() as m:
        m.setattr(loop, "optimizer", lambda model, s, _: torch.optim.AdamW(model.parameters(), betas=(s.beta1, s.beta2), weight_decay=0.3))
        assert gap() > 1e-6
    with monkeypatch.context() as m:
        m.setattr(torch.nn.utils, "get_total_norm", lambda gradients: torch.tensor(0.0))
        assert gap() > 1e-6


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_micro_batches_add_up_to_the_step(micro: int, tmp_path: Path) -> None:
    """Each is a share of the step's targets, of which they have unequal numbers; a mean of their means is another gradient."""

    def step(s: TrainSettings) -> tuple[dict[str, Any], dict[str, Tensor]]:
        run = run_of(tmp_path, s, model=fresh(dtype=torch.float64))
        entry = run.one([0, 5, 8, 7])
        return entry, {path: p.detach().clone() for path, p in run.model.named_parameters()}

    def unweighted(model: Any, batch: Batch, smoothing: float, share: float) -> Tensor:
        return loss_of(model, batch) * full["tokens"] / int((batch.targets != IGNORED).sum()) * micro / 4

    def gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
        return max(float((a[path] - b[path]).abs().max()) for path in a)

    full, at = step(SETTINGS)
    parts, there = step(replace(SETTINGS, micro=micro))
    assert parts["loss"] == pytest.approx(full["loss"], rel=1e-12) and parts["gradient"] == pytest.approx(full["gradient"], rel=1e-10)
    assert parts["tokens"] == full["tokens"] and gap(at, there) < 1e-10
    with swapped(criterion, "loss_of", unweighted):
        assert micro == 4 or gap(at, step(replace(SETTINGS, micro=micro))[1]) > 1e-6


def test_held_out_loss_is_the_mean_over_its_targets_and_changes_nothing(tmp_path: Path) -> None:
    """Over all targets of all its batches, by hand in float64; and a run that asks for it ends in the same bits."""
    documents = [Document([], [(5 * i + j) % 23 for j in range(2 + 3 * i)]) for i in range(5)]
    model = fresh(dtype=torch.float64)
    own = HeldOut(Causal(WORDS), documents, 4, 2)
    with torch.no_grad():
        parts = [-model(torch.tensor([d.target[:-1]]))[0].log_softmax(-1)[torch.arange(len(d.target) - 1), d.target[1:]] for d in documents]
    assert own.loss(model) == pytest.approx(float(torch.cat(parts).mean()), rel=1e-12)
    assert own.loss(model) != pytest.approx(float(torch.stack([x.mean() for x in parts]).mean()), rel=1e-6)
    plain, evaluated = run_of(tmp_path / "a"), run_of(tmp_path / "b")
    evaluated.held_out = own
    for run in (plain, evaluated):
        run.train(silent)
    assert state(plain) == state(evaluated)
    assert [e["step"] for e in log_of(evaluated) if "held_out" in e] == [4, 8, 12] and not any("held_out" in e for e in log_of(plain))


def test_every_step_has_its_line_in_the_log(tmp_path: Path) -> None:
    """Whatever progress shows: a line a step, with the hash of its documents, which another order changes."""
    shown: list[int] = []
    run = run_of(tmp_path, replace(SETTINGS, log_every=5))
    run.train(lambda entry: shown.append(entry["step"]))
    lines = log_of(run)
    assert [e["step"] for e in lines] == [*range(1, 13)] and shown == [5, 10, 12]
    feed = batches(DOCUMENTS, SETTINGS)
    assert [e["documents"] for e in lines] == [digest(json.dumps(next(feed)))[:16] for _ in lines]
    assert digest(json.dumps([1, 2]))[:16] != digest(json.dumps([2, 1]))[:16]


def test_learning_rate() -> None:
    s = replace(SETTINGS, steps=110, warmup=10, learning_rate=2.0, floor=0.1)
    assert [learning_rate(i, s) for i in (0, 4, 9)] == pytest.approx([0.2, 1.0, 2.0])
    assert [learning_rate(i, s) for i in (10, 60, 110)] == pytest.approx([2.0, 2.0 * 0.55, 0.2])
    for schedule, rates in {
        "linear": (2.0, 1.1, 0.2),
        "constant": (2.0, 2.0, 2.0),
        "wsd": (2.0, 2.0, 0.2),
    }.items():
        assert [learning_rate(i, replace(s, schedule=schedule)) for i in (10, 60, 110)] == pytest.approx(rates)
    wsd = replace(s, schedule="wsd", cooldown=0.5)
    assert [learning_rate(i, wsd) for i in (9, 10, 55, 56, 109)] == pytest.approx([2.0, 2.0, 2.0, 0.2 + 1.8 * 54 / 55, 0.2 + 1.8 / 55])
    assert [g["weight_decay"] for g in optimizer(fresh(), s).param_groups] == [s.weight_decay, 0.0]


def test_batches_follow_from_the_seed() -> None:
    """Every document once an epoch, in another order each, the same for the same seed."""
    feed, again, other = (batches(DOCUMENTS, replace(SETTINGS, seed=x)) for x in (3, 3, 4))
    per = 2 + 2 + 2  # pools of 8, 8 and 5 documents
    epochs = [[next(feed) for _ in range(per)] for _ in range(3)]
    assert [[next(again) for _ in range(per)] for _ in range(3)] == epochs
    assert [next(other) for _ in range(per)] != epochs[0] and epochs[0] != epochs[1]
    assert all(sorted(i for b in epoch for i in b) == list(range(len(DOCUMENTS))) for epoch in epochs)


def test_one_batch_can_be_learnt(tmp_path: Path) -> None:
    documents = [[0, 5, 7, 2, 1], [0, 9, 4, 4, 8, 3], [0, 11, 2]]
    losses: list[float] = []
    s = replace(SETTINGS, steps=250, learning_rate=2e-2, warmup=10, weight_decay=0.0, save_every=1000)
    run_of(tmp_path, s, [Document([], [i, *d]) for i, d in enumerate(documents, 15)]).train(lambda e: losses.append(e["loss"]))
    assert losses[-1] < 0.01 < 1 < losses[0]


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_no_number_changes_nothing(what: str, tmp_path: Path) -> None:
    """NaN or infinity in the loss or in a gradient: the run ends, with the step and documents named, before a weight is touched."""
    run = run_of(tmp_path)
    run.train(silent, lambda: run.step == 5)
    before, real = state(run), loss_of

    def broken(model: Any, batch: Batch, smoothing: float, share: float) -> Tensor:
        loss = real(model, batch)
        return loss * float("nan") if what == "loss" else loss + (model.norm.weight[0] - model.norm.weight[0].detach()) * 1e30 * 1e30

    with swapped(criterion, "loss_of", broken), pytest.raises(TrainError) as caught:
        run.train(silent)
    assert caught.value.key == f"train.{what}" and "step 6" in str(caught.value)
    assert state(run) == before and run.step == 5


def test_documents_are_checked(tmp_path: Path) -> None:
    for documents, key in (([], "train.empty"), ([[1]], "train.length"), ([[1, 2], [1] * 18], "train.length"), ([[1, 23]], "train.id")):
        with pytest.raises(TrainError) as caught:
            run_of(tmp_path, documents=[Document([], ids) for ids in documents])
        assert caught.value.key == key
    assert run_of(tmp_path, documents=[Document([], [1] * 17)]).one([0])["step"] == 1
