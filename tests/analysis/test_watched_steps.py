"""A watched training is the training; its sizes, its way and its sum are those of the weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pellucid.analysis import watched_steps
from pellucid.analysis.deep_or_wide import config_of
from pellucid.analysis.small_training import corpus, numbers_of, train, training_run, untrained
from pellucid.analysis.watched_steps import (
    BLOCKS,
    NEURONS,
    RATE,
    WATCHED,
    WIDTH,
    SavedWeights,
    WatchedTraining,
    adds_up,
    moved_as_computed,
    on_plane,
    part_of,
    row_moves,
    saved,
    step_parts,
    watched_training,
)
from pellucid.training.loop import TrainingRun
from tiny import swapped

STEPS = 16


@pytest.fixture(scope="module")
def run() -> WatchedTraining:
    return watched_training(STEPS, " capital")


def plain() -> tuple[TrainingRun, list[float]]:
    """Return the same training, unwatched."""
    return train(untrained(config_of(corpus()[0].tokenizer.get_vocab_size(), BLOCKS, WIDTH, NEURONS)), STEPS, RATE)


def saved_alone(own: TrainingRun, folder: Path) -> SavedWeights:
    """Return the file of a model's weights, beside the file of untrained ones."""
    saved(untrained(config_of(corpus()[0].tokenizer.get_vocab_size(), BLOCKS, WIDTH, NEURONS)), folder, 0)
    return saved(own.model, folder, 1)


def test_to_watch_changes_no_bit(run: WatchedTraining, tmp_path: Path) -> None:
    own, losses = plain()
    assert run.losses == losses and run.files[-1] == saved_alone(own, tmp_path)
    (id,) = corpus()[0].tokenizer.encode(" capital").ids
    table = own.model.get_parameter("embed.weight").detach()
    assert torch.equal(run.table, table) and torch.equal(run.rows[-1], table[id]) and len(run.rows) == WATCHED + 1
    count = sum(p.numel() for p in own.model.parameters())
    assert {(f.parameters, f.size) for f in run.files} == {(count, run.files[0].size)} and run.files[0].size > 4 * count


def test_files_before_and_after(run: WatchedTraining, tmp_path: Path) -> None:
    """Reading leaves the file; the first step moves what one step alone moves, and never more weights than there are."""
    first, used, one, last = run.files
    assert first == used and used.moved == 0 < one.moved <= first.parameters and last.moved <= first.parameters
    assert len({f.hash for f in run.files}) == 3
    own = training_run(untrained(config_of(corpus()[0].tokenizer.get_vocab_size(), BLOCKS, WIDTH, NEURONS)), STEPS, RATE)
    before = watched_steps.weights_of(own.model)
    own.one(next(iter(numbers_of(own))))
    assert one.moved == sum(int((p != before[path]).sum()) for path, p in own.model.named_parameters())
    assert one == saved_alone(own, tmp_path)


def test_a_look_that_changes_a_weight_is_seen(run: WatchedTraining) -> None:
    """The mutant: what the model writes on the way is written by a model that was changed for it."""
    right = watched_steps.written

    def changing(own: TrainingRun, prompt: str) -> str:
        with torch.no_grad():
            own.model.get_parameter("norm.weight").mul_(1.01)
        return right(own, prompt)

    with swapped(watched_steps, "written", changing):
        other = watched_training.__wrapped__(STEPS, " capital")
    assert other.files[-1] != run.files[-1] and other.files[1].moved == WIDTH and other.files[0].hash != other.files[1].hash


def test_sizes_by_hand(run: WatchedTraining) -> None:
    """The last step again, from the weights before it."""
    own, _ = plain()
    before = watched_steps.weights_of(own.model)
    one, _ = watched_steps.watched_step(own, list(range(16)))
    after = watched_steps.weights_of(own.model)
    for part, share in one.changes.items():
        names = [path for path in before if part_of(path) == part]
        moved = torch.cat([(after[path] - before[path]).flatten() for path in names]).double()
        assert share == pytest.approx(100 * float(moved.norm() / torch.cat([before[path].flatten() for path in names]).double().norm()))
    assert set(one.changes) == set(one.gradients) == {"embed", "layers.0", "layers.1", "norm"}
    assert [s.step for s in run.steps] == list(range(2, STEPS + 1, STEPS // WATCHED))


def test_the_parts_of_a_gradient(run: WatchedTraining) -> None:
    assert adds_up(run.why) and len(run.why.uses) == 1
    use = run.why.uses[0]
    short = replace(run.why, uses=[replace(use, x=use.x * (use.product.abs() < use.product.abs().max())[:, None])])
    assert not adds_up(short)
    shown, others = watched_steps.contributions(run.why, 3)
    assert sum(row[4] for row in shown) + others == pytest.approx(1000 * run.why.gradient, abs=1e-3)
    for piece, before, x, delta, product in shown:
        assert product == pytest.approx(x * delta) and isinstance(piece, str) and isinstance(before, str)


def test_the_cell_moved_as_computed(run: WatchedTraining) -> None:
    """The mutants: the step's parts of another step, and a cell that stays."""
    own, _ = plain()
    last = watched_steps.cell_of(own.model, run.why)
    assert run.moved != 0 and moved_as_computed(run) and abs(last) < 1
    assert not moved_as_computed(replace(run, moved=0.0)) and not moved_as_computed(replace(run, moved=1.1 * run.moved))
    assert sum(step_parts(run.why).values()) == pytest.approx(1000 * run.moved, rel=1e-3)


def test_a_row_moves_by_its_distance(run: WatchedTraining) -> None:
    gaps = [float((b - a).norm()) for a, b in zip(run.rows, run.rows[1:], strict=False)]
    assert row_moves(run.rows) == pytest.approx(gaps, rel=1e-5) and len(gaps) == WATCHED


def test_a_way_on_the_plane(run: WatchedTraining) -> None:
    places, share = on_plane(run.rows, run.table)
    table = run.table.double()
    centred = table - table.mean(0)
    values, directions = torch.linalg.eigh(centred.T @ centred)
    first = (run.rows.double() - table.mean(0)) @ directions[:, -1]
    assert [abs(x) for x, _ in places] == pytest.approx(first.abs().tolist())
    assert share == round(100 * float(values[-2:].sum() / values.sum()))
