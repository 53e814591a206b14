"""A run without a document: bit for bit the run that would have been, judged by real runs whose steps are given other documents."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.commands import main
from pellucid.errors import TrainError
from pellucid.training import left_out, loop
from pellucid.training.left_out import LeftOut, RunWithout
from pellucid.training.loop import TrainingRun
from pellucid.training.saves import read_state
from test_recipe import written
from test_replay import recipe_in
from test_run_commands import judged
from text_runs import recipe_of
from tiny import swapped
from training import corpus_of, unmeasured

STEPS = 20
own_feed, own_micro, own_questions = loop.feed, loop.micro_batches, left_out.question_change


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Ask no questions, of which there are hundreds, where a test is not about them."""
    with unmeasured(), swapped(left_out, "question_change", lambda *given: None):
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> pellucid.Run:
    """A run of 20 steps with states after 7, 14 and 20."""
    folder = tmp_path_factory.mktemp("gpt2")
    return pellucid.train(recipe_in(folder, "gpt2"), folder / "run")


@pytest.fixture
def run(request: pytest.FixtureRequest, finished: pellucid.Run, tmp_path: Path) -> pellucid.Run:
    """That run, or one with experts, two micro-batches and smoothing."""
    return finished if request.param == "gpt2" else pellucid.train(recipe_in(tmp_path / "deep", request.param), tmp_path / "deep" / "run")


def weights(without: LeftOut) -> dict[str, Tensor]:
    """The weights and moments of the run without documents."""
    return {path: t.detach() for path, t in without.run.weights.changing().items()} | loop.moments_of(without.run)


def trained_on(recipe: Path, out: Path, kept: Callable[[int, int], bool]) -> dict[str, Tensor]:
    """Train by a recipe, of whose steps the documents that `kept(step, number)` keeps are given to the model; return its last weights and
    moments.
    """
    at = [0]

    def feed(documents: Any, s: Any, step: int) -> Iterator[list[int]]:
        for at[0], given in enumerate(own_feed(documents, s, step), step + 1):
            yield given

    def micro(numbers: list[int], size: int | None) -> list[list[int]]:
        return [own for part in own_micro(numbers, size) if (own := [i for i in part if kept(at[0], i)])]

    with swapped(loop, "feed", feed), swapped(loop, "micro_batches", micro):
        run = pellucid.train(recipe, out)
    first, moments, _ = read_state(run.folder / "saves" / f"{run.states[-1]:09d}")
    return first | moments


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(t, b[name]) for name, t in a.items())


def files(folder: Path) -> dict[str, tuple[str, int]]:
    """The hash and the time of each file of a folder."""
    every = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in every}


@pytest.mark.parametrize(("run", "since"), [("gpt2", 0), ("gpt2", 9), ("deepseek_v3", 9)], indirect=["run"])
@pytest.mark.quick(2)
def test_it_is_the_run_that_would_have_been(run: pellucid.Run, since: int, tmp_path: Path) -> None:
    """From the beginning or from a step on; the run's folder stays as it is, and its own steps come again afterwards."""
    before = files(run.folder)
    number = run.numbers(12)[1]
    left = run.without(number, since)
    assert left.documents == (number,) and 12 in left.steps and left.first == left.steps[0] - 1 >= since and left.last == STEPS
    judge = trained_on(run.folder.parent / "r.toml", tmp_path / "other", lambda step, i: i != number or step <= since)
    assert equal(weights(left), judge) and not left.equal
    assert left.run.identity != run.built[0].identity and left.run.identity["without"] == [number]
    assert files(run.folder) == before and run.replay(STEPS, only="logits").number == STEPS
    own, other = run.model(), run.model(without=left)
    assert other.name.endswith(f"without {number}") and all(torch.equal(p, judge[name]) for name, p in other.module.named_parameters())
    assert not torch.equal(own.module.embed.weight, other.module.embed.weight)


def test_without_leaving_out_nothing_differs(finished: pellucid.Run) -> None:
    """Mutants: the document stays in the step, or the moments are not those of the step that is gone on from."""
    number = finished.numbers(12)[1]
    with swapped(RunWithout, "parts", TrainingRun.parts):
        left = finished.without(number)
    state = finished.built[0].weights.changing()
    assert left.equal and left.loss.own == left.loss.without and equal(weights(left), state | loop.moments_of(finished.built[0]))
    right = weights(finished.without(number, since=9))
    with swapped(loop.TrainingRun, "update", forgetful(loop.TrainingRun.update)):
        wrong = weights(finished.without(number, since=9)) if finished.built[0].step else right
    assert not equal(wrong, right)


def forgetful(update: Callable[..., Any]) -> Callable[..., Any]:
    """An update of a run without documents that begins with no moments."""

    def forget(run: TrainingRun, given: Any) -> Any:
        if isinstance(run, RunWithout) and not hasattr(run, "forgot"):
            run.forgot = True  # type: ignore[attr-defined]
            run.optimizer.state.clear()
        return update(run, given)

    return forget


def test_numbers_of_both(finished: pellucid.Run) -> None:
    """Losses are those of plain forwards; the document that is left out is known less well; questions and prompts have both answers."""
    numbers = [i for i in range(len(finished.built[0].documents)) if "Paris" in finished.text(i)]
    prompt = "The capital of France is"
    with swapped(left_out, "question_change", own_questions):
        left = finished.without("Paris", prompts=[prompt])
    assert left.documents == tuple(numbers) and len(numbers) > 3 and left.held_out is None
    assert left.loss.without > left.loss.own
    models = finished.model().module.double(), finished.model(without=left).module.double()
    for model, given, answered in zip(models, left.loss, left.prompts[0].loss, strict=True):
        total = count = 0
        for i in numbers:
            ids = finished.built[0].documents[i].target
            logits = model(torch.tensor([ids[:-1]]))[0].detach().log_softmax(-1)
            total, count = total - float(logits[range(len(ids) - 1), ids[1:]].sum()), count + len(ids) - 1
        assert given == pytest.approx(total / count, rel=1e-5)
        tokenizer, objective = finished.objective.tokenizer, finished.objective
        start, ids = tokenizer.encode(prompt).ids, tokenizer.encode(prompt).ids
        while len(ids) < len(start) + 16 and ids[-1] != objective.end:  # the answer is the first model's
            ids = [*ids, int(models[0](torch.tensor([ids]))[0, -1].argmax())]
        logits = model(torch.tensor([ids[:-1]]))[0].detach().log_softmax(-1)
        assert answered == pytest.approx(-float(logits[range(len(start) - 1, len(ids) - 1), ids[len(start) :]].mean()), rel=1e-5)
    q = left.questions
    assert q is not None and q.count == len(finished.objective.questions(finished.recipe.data))
    assert q.right[0] - q.right[1] == len(q.lost) - len(q.won)


@pytest.mark.parametrize("pack", ["documents", "stream"])
def test_texts(pack: str, tmp_path: Path) -> None:
    """Also the first document of a row, with micro-batches; and a step that has nothing else changes nothing."""
    recipe = recipe_of(tmp_path, data__pack=f'"{pack}"', batch="2", train__micro="1")
    run = pellucid.train(recipe, tmp_path / "run")
    number = run.numbers(2)[0]
    left = run.without(number, prompts=["Ann has"])
    documents = run.built[0].documents
    micro = documents.micro_batches  # type: ignore[attr-defined]
    first: list[list[int]] = micro(run.numbers(2), 1)
    assert first[0][0] == number and left.held_out is not None and left.held_out.own != left.held_out.without and left.questions is None

    def parts(self: TrainingRun, numbers: list[int]) -> list[list[int]]:
        return [own for part in micro(numbers, 1) if (own := [i for i in part if i != number])]

    with swapped(TrainingRun, "parts", parts):
        judge = pellucid.train(recipe, tmp_path / "other")
    state, moments, _ = read_state(judge.folder / "saves" / f"{judge.states[-1]:09d}")
    assert equal(weights(left), state | moments)
    before = left.run.step, {k: v.clone() for k, v in weights(left).items()}
    left.run.one([number])
    assert left.run.step == before[0] + 1 and equal(weights(left), before[1])


def test_refused(finished: pellucid.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by one line that says what was found and what is allowed."""
    count = len(finished.built[0].documents)
    unseen = sorted(set(range(count)) - {i for step in range(1, STEPS + 1) for i in finished.numbers(step)})
    for key, given in (
        ("without.document", {"documents": count}),
        ("without.document", {"documents": []}),
        ("without.text", {"documents": "no such text"}),
        ("without.never", {"documents": unseen[:1]}),
        ("without.steps", {"documents": 1, "since": 20}),
        ("without.steps", {"documents": 1, "step": 21}),
        ("without.prompt", {"documents": finished.numbers(3)[0], "prompts": [""]}),
    ):
        with pytest.raises(TrainError) as caught:
            finished.without(**given)  # type: ignore[arg-type]
        assert caught.value.key == key and "\n" not in str(caught.value)
    aim = left_out.RewardSettings()
    monkeypatch.setitem(finished.__dict__, "recipe", replace(finished.recipe, aim=aim))
    with pytest.raises(TrainError) as caught:
        finished.without(1)
    assert caught.value.key == "without.reward"


def test_a_pair_is_left_out_as_one() -> None:
    """A preference compares two answers: neither is left alone."""

    class Pairs(left_out.PairRows):
        def __init__(self) -> None:
            """No shards."""

        def __len__(self) -> int:
            return 6

    stand_in = type("Opened", (), {"built": (type("Training", (), {"documents": Pairs()})(),)})()
    assert left_out.chosen(stand_in, 3) == {2, 3} and left_out.chosen(stand_in, [0, 4]) == {0, 1, 4, 5}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON, in both languages, and one line for what cannot be."""
    recipe = written(tmp_path / "r.toml", steps="4", batch="4", save_every="4", log_every="100")
    corpus_of(tmp_path / "corpus", "France", "Spain")
    run = pellucid.train(recipe, tmp_path / "run")
    number = run.numbers(2)[0]
    with swapped(left_out, "question_change", own_questions):
        code, document = judged(capsys, "diff", run.folder, "--without", number, "--prompt", "The capital of France is")
    shown = document["without"]
    assert (
        isinstance(shown, dict)
        and code == 0
        and shown["questions"]["count"] > 9
        and shown["documents"] == [number]
        and document["compared"] == 4 - shown["first"]
    )
    left = run.without(number, prompts=["The capital of France is"])
    assert (shown["loss"]["own"], shown["loss"]["without"]) == left.loss and shown["prompts"][0]["own"] == left.prompts[0].answers[0]
    assert shown["texts"] == [{"number": number, "source": run.source(number), "text": run.text(number)}]
    for language, word in (("en", "what is left out"), ("zh", "被去掉的文档")):
        assert main(["diff", str(run.folder), "--without", "Paris", "--lang", language]) == 0
        assert word in capsys.readouterr().out
    for words in (
        ["--without", "9999"], ["--without", "nix"], [str(run.folder), "--without", "1"], ["--since", "2"], [],
        ["--without", "a", "--without", "1"], ["--without", str(number), "--step", "9"],
    ):  # fmt: skip
        assert main(["diff", str(run.folder), *words, "--lang", "en"]) == 2
        output = capsys.readouterr()
        assert not output.out and output.err.count("\n") == 1
