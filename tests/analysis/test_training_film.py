"""What a run of training recorded, as the pictures of its recorded steps take it."""

import math
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.analysis import training_film as film
from pellucid.documents.panel_document import PanelDocument
from pellucid.documents.training import training_document
from tiny import swapped
from watched_runs import PROMPT, RECIPE, STEPS, WATCHED, watched_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pellucid.Run:
    return watched_run(tmp_path_factory.mktemp("film"))


def test_a_curve_is_the_means_of_the_log(run: pellucid.Run) -> None:
    at, losses, apart = film.curves(run.log)
    assert at == [4, 8, 12] and apart == [entry["held_out"] for entry in run.log if "held_out" in entry]
    assert losses == pytest.approx([sum(e["loss"] for e in run.log[i : i + 4]) / 4 for i in (0, 4, 8)], abs=1e-12)
    plain = [{"step": i + 1, "loss": float(i)} for i in range(1000)]
    steps, means, none = film.curves(plain)
    assert len(steps) == film.POINTS and steps[-1] == 1000 and means[0] == 12.0 and set(none) == {None}


def test_changes_are_those_of_the_weights(run: pellucid.Run) -> None:
    """A recorded step's change of a part over its size, from the weights before and after it. The mutant counts a step late."""

    def wrong() -> bool:
        every = [film.about(run, step)["parameters"] for step in WATCHED]
        parts, out = film.part_changes(every), False
        for i, step in enumerate(WATCHED):
            before, after = (dict(run.model(n).module.named_parameters()) for n in (step - 1, step))
            for part in parts:
                own = [path for path in before if film.part_of(path) == part]
                moved = math.sqrt(sum(float((after[p] - before[p]).detach().double().square().sum()) for p in own))
                size = math.sqrt(sum(float(before[p].detach().double().square().sum()) for p in own))
                out = out or parts[part][i] != pytest.approx(100 * moved / size, rel=1e-4)
        return out

    assert not wrong()
    right = film.about
    with swapped(film, "about", lambda run, step: right(run, WATCHED[min(WATCHED.index(step) + 1, 3)])):
        assert wrong()


def test_a_long_run_is_thinned() -> None:
    steps = [10 * i for i in range(1, 1001)]
    kept = film.thinned(steps, 770)
    assert len(kept) <= film.POINTS + 2 and {770, 10, 10_000} <= set(kept) and kept == sorted(set(kept))
    assert film.thinned([1, 4], 4) == [1, 4] and film.thinned([7], 7) == [7]


def test_a_tokens_way_is_its_row(run: pellucid.Run) -> None:
    rows = film.token_rows(run, WATCHED)
    assert list(rows) == [".", "e"]
    (id,) = run.objective.tokenizer.encode("e").ids
    for i, step in enumerate(WATCHED):
        assert torch.equal(rows["e"][i], run.model(step).module.get_parameter("embed.weight")[id].detach())
    places, share = film.ways(rows)
    assert [len(way) for way in places.values()] == [4, 4] and 50 < share <= 100


def test_attention_before_and_now(run: pellucid.Run) -> None:
    first, last = (film.prompts_at(run, step)[0] for step in (1, STEPS))
    moved = film.most_moved(film.patterns(first), film.patterns(last))
    assert moved is not None and first.prompt == PROMPT
    path, head = moved
    gaps = {(p, h): float((x[h] - film.patterns(first)[p][h]).abs().sum()) for p, x in film.patterns(last).items() for h in range(2)}
    assert max(gaps, key=lambda key: gaps[key]) == (path, head) and len(gaps) == 4
    assert film.most_moved({}, film.patterns(last)) is None


def kinds(panels: list[PanelDocument]) -> list[str]:
    return [p["kind"] for p in panels]


def test_every_panel_follows_the_step(run: pellucid.Run) -> None:
    """The shown step marks the curves, and is the one of the table and the second pattern; a step that is not recorded is the newest."""
    first, last = training_document(run, 4), training_document(run)
    assert last == training_document(run, 5) and last["step"] == STEPS and last["watched"] == WATCHED and last["taken"] == STEPS
    assert kinds(first["panels"]) == ["lines", "lines", "matrix", "lines", "matrix", "matrix", "plane", "matrix", "table"]
    losses, facts, answers, parts, *others, table = first["panels"]
    assert [p.get("marked") for p in (losses, facts, parts)] == [4, 4, 4]
    assert [last["panels"][i].get("marked") for i in (0, 1, 3)] == [STEPS] * 3 and answers == last["panels"][2]
    assert [p == q for p, q in zip(others, last["panels"][4:8], strict=True)] == [True, False, True, True]
    assert table["kind"] == "table" and table != last["panels"][8]
    own = film.about(run, 4)["parameters"]
    assert {row[0]: row[1] for row in table["rows"]} == {path: one["norm"] for path, one in own.items()}
    assert first["shapes"]["layers.0.ffn.down.weight"] == list(run.model(4).module.get_parameter("layers.0.ffn.down.weight").shape)


def test_a_run_without_records_has_its_loss(tmp_path: Path) -> None:
    document = training_document(watched_run(tmp_path, RECIPE.partition("[watch]")[0]))
    assert (document["watched"], document["step"], document["parameters"]) == ([], None, [])
    assert kinds(document["panels"]) == ["lines", "lines", "matrix"] and document["taken"] == STEPS
