"""Small models with experts after a few steps: their loads by hand, and what balancing leaves of the excess."""

from pathlib import Path

import pytest
import torch

from pellucid.analysis.small_training import BATCH, SEED, corpus
from pellucid.analysis.starvation import RATE, Trained, loads, model_of, trained
from pellucid.training import balance
from pellucid.training.loop import TrainingRun
from pellucid.training.objectives import IGNORED
from pellucid.training.recipe import TrainSettings


def test_measures_by_hand() -> None:
    run = Trained([4.0] * 9 + [2.0] * 1, [0.5, 0.3, 0.15, 0.05])
    assert (run.loss, run.starved, run.overload) == (2.0, 1, 2.0)


def test_loads_are_the_chosen(tmp_path: Path) -> None:
    objective, documents = corpus()
    settings = TrainSettings(SEED, 1, BATCH, RATE)
    run = TrainingRun(model_of(objective.tokenizer.get_vocab_size()), objective, list(documents[:20]), settings, tmp_path)
    batch, chosen = objective.batch(documents[:20]), []
    part = run.model.layers[0].ffn
    choose = part.choose
    part.choose = lambda logits: [chosen.append(out := choose(logits)), out][1]
    with torch.no_grad():
        run.model(*batch.inputs)
    part.choose = choose
    rows = chosen[0][1][batch.targets != IGNORED]
    assert loads(run) == pytest.approx([float((rows == e).double().mean()) for e in range(8)])


def test_a_balanced_run_is_more_even() -> None:
    """The correction takes the right way, and so does the auxiliary loss; a correction of the wrong sign would not."""
    alone, corrected, penalised = trained(40, 0.0, 0.0), trained(40, 0.05, 0.0), trained(40, 0.0, 0.1)
    assert len(alone.losses) == 40 and alone.losses[0] == corrected.losses[0] == penalised.losses[0] and alone.losses[-1] < alone.losses[0]
    assert corrected.overload < alone.overload and penalised.overload < alone.overload


def test_a_penalty_of_the_wrong_sign_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right, uneven = trained(40, 0.0, 0.1), balance.unevenness
    monkeypatch.setattr(balance, "unevenness", lambda *given: -uneven(*given))
    assert trained.__wrapped__(40, 0.0, 0.1).overload > right.overload
