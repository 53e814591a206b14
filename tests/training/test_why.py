"""Why a weight moved: the gradient of a run's step as a sum over tokens of its documents, and the parts of AdamW's step."""

import importlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid.errors import UseError
from pellucid.ops import narrow_rows
from pellucid.training import pipeline, why
from pellucid.training.balance import Balance
from pellucid.training.loop import TrainingRun, feed, micro_batches
from pellucid.training.move import adamw_move
from pellucid.training.objectives import Causal, Document, Translation
from pellucid.training.recipe import read_recipe
from pellucid.training.why import Why, why_gradient, why_moved
from text_runs import recipe_of
from tiny import DEEPSEEK_V3, QWEN2_MOE, T5, V, swapped, tiny
from training import DOCUMENTS, SETTINGS, WORDS, fresh, run_of, state

products = importlib.import_module("pellucid.ops.linear")
SETUP = replace(SETTINGS, weight_decay=0.3, clip=0.05, micro=3, smoothing=0.1)
FEED = [[0, 1, 2, 3], [9, 8, 7, 6], [20, 3, 11, 14]]


def cells(run: TrainingRun, seed: int) -> list[tuple[str, tuple[int, ...]]]:
    """Draw a random cell of each parameter; of the table, one that the first document reads."""
    draw = random.Random(seed)
    drawn = {path: tuple(draw.randrange(n) for n in p.shape) for path, p in run.model.named_parameters()}
    return [*drawn.items(), ("embed.weight", (DOCUMENTS[9].target[0], 4))]


def gaps(folder: Path) -> tuple[float, float]:
    """Return, over steps of a run, the largest gap of a gradient's sum, and of a move's, each over its largest part."""
    run, sums, moves = run_of(folder, SETUP, model=fresh(dtype=torch.float64)), [0.0], [0.0]
    for numbers in FEED:
        known = [why_moved(run, numbers, path, cell) for path, cell in cells(run, run.step)]
        before = {path: p.detach().clone() for path, p in run.model.named_parameters()}
        run.one(numbers)
        for one in known:
            p = run.model.get_parameter(one.path).detach()
            parts = one.move
            assert parts is not None
            largest = max(abs(x) for x in (parts.gradient, parts.momentum, parts.decay, 1e-12))
            moves.append(abs(float(p[one.cell] - before[one.path][one.cell]) - parts.total()) / largest)
            sums.append(abs(one.rest) / max([abs(t.product) for t in one.tokens] + [1e-30]))
    return max(sums), max(moves)


def test_sum_and_move_of_every_parameter(tmp_path: Path) -> None:
    """Three steps with micro-batches, a clip that bites, decay and smoothing: the rows are the gradient, the parts are the change."""
    sums, moves = gaps(tmp_path)
    assert sums < 1e-10
    assert moves < 1e-10  # a change is the difference of two weights, which are up to 10⁴ times as large


@pytest.mark.parametrize("has", [True, False], ids=["products of bfloat16", "none"])
def test_a_run_in_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: bool) -> None:
    """Whose products are taken some rows at a time: what is no token's is what rounding leaves."""
    monkeypatch.setattr(narrow_rows, "LARGE", 1)
    monkeypatch.setattr(narrow_rows, "multiplied", lambda dtype: has)
    run = run_of(tmp_path, replace(SETTINGS, dtype="bfloat16"), model=fresh())
    chosen = [("layers.0.ffn.down.weight", (5, 17)), ("head.weight", (3, 4)), ("layers.0.attn.o.weight", (2, 7))]
    for path, cell in chosen:
        one = why_moved(run, FEED[0], path, cell)
        assert abs(one.rest) < 0.02 * sum(abs(t.product) for t in one.tokens) != 0
    monkeypatch.setattr(narrow_rows, "dual", lambda x: False)
    with pytest.raises(NotImplementedError):
        why_moved(run, FEED[0], *chosen[0])


def moved_without(name: str) -> Any:
    """Return `adamw_move` with a setting replaced."""
    wrong: dict[str, Any] = {"clip": 1.0, "decay": 0.0, "steps": 7, "first": 0.0, "betas": (0.9, 0.9)}

    def move(weight: float, gradient: float, first: float, second: float, steps: int, **how: Any) -> Any:
        given = {"weight": weight, "gradient": gradient, "first": first, "second": second, "steps": steps, **how}
        return adamw_move(**{**given, name: wrong[name]})

    return move


@pytest.mark.parametrize("name", ["clip", "decay", "steps", "first", "betas"])
@pytest.mark.quick(4)
def test_move_mutants(name: str, tmp_path: Path) -> None:
    """Forgotten are the clip, the decay, the number of steps, the momentum; the second moment has another beta."""
    with swapped(why, "adamw_move", moved_without(name)):
        assert gaps(tmp_path)[1] > 1e-6


def test_parts_add_up_to_the_change() -> None:
    """At 1e-12 of the largest part, against torch's AdamW on one weight for ten steps."""
    w = torch.nn.Parameter(torch.tensor([0.0], dtype=torch.float64))
    optimizer = torch.optim.AdamW([w], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.3)
    draw = torch.Generator().manual_seed(1)
    for t in range(10):
        w.grad = torch.randn(1, generator=draw, dtype=torch.float64) * 0.2
        kept = optimizer.state.get(w) or {"exp_avg": torch.zeros(1), "exp_avg_sq": torch.zeros(1)}
        before, moments = float(w.detach()), (float(kept["exp_avg"]), float(kept["exp_avg_sq"]))
        move = adamw_move(before, 2 * float(w.grad), *moments, t, rate=1e-2, betas=(0.9, 0.95), eps=1e-8, decay=0.3, clip=0.5)
        forgotten = adamw_move(before, 2 * float(w.grad), *moments, t, rate=1e-2, betas=(0.9, 0.95), eps=1e-8, decay=0.3)
        optimizer.step()
        size = max(abs(move.gradient), abs(move.momentum), abs(move.decay))
        assert abs(float(w.detach()) - before - move.total()) < 1e-12 * max(size, abs(before))
        assert t == 0 or abs(float(w.detach()) - before - forgotten.total()) > 1e-6 * size


def test_tokens_name_their_documents(tmp_path: Path) -> None:
    """Every row of the step's documents, the largest first, with the id that stands at its position."""
    run, numbers = run_of(tmp_path, SETUP, model=fresh(dtype=torch.float64)), [9, 8, 7, 16]
    one = why_moved(run, numbers, "layers.0.ffn.down.weight", (5, 17))
    sizes = [abs(t.product) for t in one.tokens]
    assert sizes == sorted(sizes, reverse=True) and set(one.by_path()) == {"layers.0.ffn"}
    assert {t.document for t in one.tokens if t.product} == set(numbers)
    for t in one.tokens:
        ids = DOCUMENTS[t.document].target
        assert t.product == pytest.approx(t.x[0] * t.delta[0], rel=1e-12) and len(t.x) == len(t.delta) == 1
        if t.position < len(ids) - 1:
            assert t.id == ids[t.position]
        else:
            assert t.product == 0  # padding of a shorter document
    by_table = why_moved(run, numbers, "embed.weight", (DOCUMENTS[9].target[0], 4)).by_path()
    assert set(by_table) == {"embed", "logits"}


def test_the_run_is_left_as_it_is(tmp_path: Path) -> None:
    """A step after the question has the bits of a step without it; a row dropped would be seen."""
    plain, known = (run_of(tmp_path / name, SETUP) for name in "ab")
    for numbers in FEED:
        why_moved(known, numbers, "layers.0.attn.q.weight", (1, 2))
        left, right = plain.one(numbers), known.one(numbers)
        assert left["loss"] == right["loss"] and left["gradient"] == right["gradient"]
    assert state(plain) == state(known)


@pytest.mark.parametrize("cfg", [DEEPSEEK_V3, QWEN2_MOE])
def test_an_auxiliary_loss_counts(cfg: Any) -> None:
    """A router's rows carry the gradient of both losses, and balance counts none of them."""
    model, documents = tiny(cfg), [Document([], list(range(3 * i, 3 * i + 6 + i))) for i in range(4)]
    parts = [Causal(WORDS).batch([documents[i] for i in part]) for part in micro_batches([0, 1, 2, 3], 2)]
    path, cell, balance = "layers.1.ffn.router.weight", (3, 5), Balance(model, 0.1, 0.5)
    one, without = why_gradient(model, parts, path, cell, balance=balance), why_gradient(model, parts, path, cell)
    assert abs(one.rest) < 1e-10 * max(abs(t.product) for t in one.tokens) and abs(one.gradient - without.gradient) > 1e-6
    assert all(p.grad is None for p in model.parameters()) and not one.others


def test_a_translation_names_source_and_target() -> None:
    """Both texts of a document, padded, in their own positions; the shared table's uses are told apart."""
    model = tiny(T5)
    documents = [Document([5, 9, 7, 60, 2][:n], [8, 30, 9, 5][: 5 - n]) for n in (3, 2, 4)]
    part = Translation(WORDS).batch(documents)
    assert int(part.inputs[0].max()) < V
    one = why_gradient(model, [part], "embed.weight", (9, 3))
    assert set(one.by_path()) == {"source", "embed", "logits"}
    assert abs(one.rest) < 1e-10 * max(abs(t.product) for t in one.tokens)
    read = {(t.document, t.position) for t in one.tokens if t.path == "source" and t.x and t.x[0]}
    assert read == {(0, 1), (1, 1), (2, 1)} and all(documents[d].given[p] == 9 for d, p in read)


def test_what_no_row_accounts_for_is_named() -> None:
    """An op that does not say how it reads a weight leaves a rest, and its record is named."""
    model = tiny(DEEPSEEK_V3)
    part = Causal(WORDS).batch([Document([], [3, 4, 5, 6, 7])])
    path, cell = "layers.0.ffn.up.weight", (3, 5)
    one: Why = why_gradient(model, [part], path, cell)
    assert one.others == () and abs(one.rest) < 1e-12
    right = products.note
    with swapped(products, "note", lambda *given, again=None, **how: right(*given, **how)):
        one = why_gradient(model, [part], path, cell)
    assert one.others == ("layers.0.ffn.up",) and one.rest == one.gradient != 0 and not one.tokens


def test_refused() -> None:
    """A parameter that does not exist or does not train, and a cell outside it."""
    model, part = tiny(DEEPSEEK_V3), Causal(WORDS).batch([Document([], [3, 4, 5])])
    model.norm.weight.requires_grad_(False)
    for path, cell, key in (
        ("layers.0.ffn.upp.weight", (0, 0), "why.weight"),
        ("layers.0.ffn.up.weight", (0,), "why.cell"),
        ("layers.0.ffn.up.weight", (48, 0), "why.cell"),
        ("norm.weight", (0,), "why.frozen"),
    ):
        with pytest.raises(UseError) as caught:
            why_gradient(model, [part], path, cell)
        assert caught.value.key == key


def test_rows_of_packed_texts_name_their_documents(tmp_path: Path) -> None:
    """Several documents in a row, rows in micro-batches: each token stands where its row says. Another order is the mutant."""
    recipe = read_recipe(recipe_of(tmp_path, train__micro="2"))
    objective = pipeline.prepare(recipe, tmp_path)
    documents, _ = pipeline.examples(recipe, objective)
    model = pipeline.fresh(recipe, objective)[2].double()
    run = TrainingRun(model, objective, documents, recipe.train, tmp_path)
    numbers = next(feed(documents, recipe.train, 0))
    id = documents[numbers[-1]].target[0]
    one = why_moved(run, numbers, "embed.weight", (id, 3))
    largest = max(abs(row.product) for row in one.tokens)
    assert abs(one.rest) < 1e-10 * largest

    def named(one: Why) -> bool:
        read = [row for row in one.tokens if row.path == "embed" and row.product]
        places = [(documents[row.document].target, row.position) for row in read]
        return bool(read) and all(at < len(target) and target[at] == id for target, at in places)

    assert len(run.parts(numbers)) == 4 < len(numbers) and named(one)
    assert not named(replace(one, documents=[part[::-1] for part in run.parts(numbers)]))
