"""The [watch] table of a recipe: what it records is the step itself, and recording changes no bit of the run."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from covering import FULL
from killed import killed, run_apart
from pellucid.errors import PellucidError, TrainError
from pellucid.training import recorded_step, run_recipe, watched
from pellucid.training.saves import newest, read_state
from test_recipe import written
from test_replay import recipe_in
from text_runs import recipe_of
from tiny import swapped
from training import corpus_of, silent, unmeasured

TABLE = """
[watch]
every = 8
first = 2
tensors = ["layers.*.attn.pattern", "logits"]
tokens = [".", "e"]
prompts = ["The capital of France is", "Madrid"]
"""
own_watch = recorded_step.watch


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with unmeasured():
        yield


def watching(recipe: Path, table: str = TABLE) -> Path:
    """Write the recipe again, beside it, with a [watch] table."""
    other = recipe.with_name("watched.toml")
    other.write_text(recipe.read_text(encoding="utf-8") + table, encoding="utf-8")
    return other


def bits(run: pellucid.Run) -> tuple[Any, ...]:
    """The log without its clock, and the last state."""
    state, _ = newest(run.folder / "saves")
    assert state is not None
    weights, moments, _ = read_state(state)
    tensors = {name: t.numpy().tobytes() for name, t in (weights | moments).items()}
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in run.log], tensors


@pytest.fixture(scope="module", params=["gpt2", "deepseek_v3"])
def recipe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recipe_in(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def both(recipe: Path) -> tuple[pellucid.Run, pellucid.Run]:
    """A run without [watch], and the same with it."""
    return pellucid.train(recipe, recipe.parent / "plain"), pellucid.train(watching(recipe), recipe.parent / "watched")


def test_the_loss_is_recorded(tmp_path: Path) -> None:
    """Its parts token by token, of several micro-batches and with smoothing: they add up to the log's loss, and no bit changes."""
    recipe = recipe_in(tmp_path, "deepseek_v3")
    plain = pellucid.train(recipe, tmp_path / "plain")
    run = pellucid.train(watching(recipe, '[watch]\nfirst = 2\ntensors = ["loss.*"]\n'), tmp_path / "run")
    assert bits(run) == bits(plain)
    for step in run.watched.values():
        assert step.paths() == ["loss.mask", "loss.softmax", "loss.target", "loss.tokens"] and len(step.documents) == 2
        parts = list(zip(*(step.all(f"loss.{name}") for name in ("mask", "target", "tokens")), strict=True))
        count = sum(int(mask.value.sum()) for mask, *_ in parts)
        assert float(sum(tokens.value.sum() for *_, tokens in parts)) / count == pytest.approx(step.entry["loss"], rel=1e-6)
        for mask, target, tokens in parts:
            assert tokens.grad is not None and torch.allclose(tokens.grad[mask.value], torch.tensor(1 / count))
            assert bool((target.value[mask.value] > 0).all()) and not target.value[~mask.value].any()


def test_prompts_beside_tensors_of_targets(tmp_path: Path) -> None:
    """A prompt has no targets, so no loss: its trace has the other tensors."""
    table = '[watch]\nfirst = 1\nprompts = ["Madrid"]\ntensors = '
    cases = (("both", '["loss.*", "embed"]', ["embed"]), ("loss", '["loss.tokens"]', []), ("any", '["*.tokens", "emb*"]', ["embed"]))
    for name, tensors, paths in cases:
        (tmp_path / name).mkdir()
        run = pellucid.train(watching(recipe_in(tmp_path / name, "gpt2"), table + tensors + "\n"), tmp_path / name / "run")
        (prompt,) = run.watched[1].prompts
        assert prompt.paths() == paths and run.watched[1].all("loss.tokens")


@pytest.mark.quick(2)
def test_recording_changes_no_bit(both: tuple[pellucid.Run, pellucid.Run], recipe: Path) -> None:
    """Log, weights and moments. The mutant runs attention in the open while it is recorded."""
    plain, run = both
    assert bits(run) == bits(plain) and list(run.watched) == [1, 2, 8, 16] and not plain.watched
    with swapped(recorded_step, "watch", lambda *given, **how: own_watch(*given, **how, inside="reference")):
        mutant = pellucid.train(watching(recipe), recipe.parent / "mutant")
    assert bits(mutant) != bits(plain)


def test_what_is_recorded_is_the_step(both: tuple[pellucid.Run, pellucid.Run]) -> None:
    """Tensors and gradients as a replay has them, to the bit; per parameter its norms; the angle between two updates, by hand."""
    _, run = both
    last = None
    for step in run.watched:
        kept, again = run.watched[step], run.replay(step)
        assert kept.number == step and kept.entry["loss"] == again.entry["loss"] and kept.documents == again.documents
        assert {s.path.rpartition(".")[2] for s in kept} == {"pattern", "logits"} and kept.torn == []
        for s in kept:
            other = next(o for o in again if (o.path, o.step, o.call) == (s.path, s.step, s.call))
            assert torch.equal(s.value, other.value) and s.grad is not None and torch.equal(s.grad, other.grad)  # type: ignore[arg-type]
        assert kept.updates.keys() == again.updates.keys() and all(torch.equal(kept.updates[p], again.updates[p]) for p in kept.updates)
        for path, one in kept.parameters.items():
            assert one[:4] == again.parameters[path][:4] and (one.ratio is None or one.ratio == one.update / one.norm)
            if last is None:
                assert one.angle is None
            elif one.angle is not None:
                a, b = (x.updates[path].double().flatten() for x in (kept, last))
                assert one.angle == pytest.approx(float(torch.rad2deg(torch.acos((a @ b / a.norm() / b.norm()).clamp(-1, 1)))), abs=0.1)
        last = kept
    assert run.watched[16].parameters["embed.weight"].angle is not None


def test_pattern_of_a_step_with_its_gradient(both: tuple[pellucid.Run, pellucid.Run]) -> None:
    """As in the docs: one record where the step is one forward."""
    _, run = both
    first = run.watched[8].all("layers.0.attn.pattern")
    assert len(first) == len(run.watched[8].documents) and all(s.grad is not None and s.grad.shape == s.shape for s in first)
    trace = pellucid.load_trace(run.folder / "watch" / "000000008")
    assert [s.path for s in trace] == [s.path for s in run.watched[8]] and len(trace.fed) == len(first)
    documents, rows = run.built[0].documents, trace.fed[0]
    assert [row["ids"][: len(documents[n].target) - 1] for row, n in zip(rows, run.watched[8].documents[0], strict=True)] == [
        documents[n].target[:-1] for n in run.watched[8].documents[0]
    ]


def test_tokens_and_prompts(both: tuple[pellucid.Run, pellucid.Run]) -> None:
    """A token's row of the table, and a prompt's run, are those of the model after the step."""
    _, run = both
    model, step = run.model(8), run.watched[8]
    tokenizer = model.tokenizer
    assert list(step.tokens) == [".", "e"]
    assert all(torch.equal(row, model.module.embed.weight[tokenizer.encode(text)[0]]) for text, row in step.tokens.items())
    assert [trace.prompt for trace in step.prompts] == ["The capital of France is", "Madrid"]
    for trace in step.prompts:
        assert trace.ids == tokenizer.encode(trace.prompt)
        assert float((trace["logits"].value - model(torch.tensor([trace.ids])).detach()).abs().max()) < 1e-5


def test_a_resumed_run_records_what_it_would_have(both: tuple[pellucid.Run, pellucid.Run], recipe: Path, tmp_path: Path) -> None:
    """Stopped after step 10, it goes on from 7: what it recorded after that is recorded again, with the same angles."""
    _, run = both
    table = run.folder.parent / "watched.toml"

    def stop(entry: dict[str, Any]) -> None:
        if entry["step"] == 10:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run_recipe(table, tmp_path / "run", False, None, silent, on=stop)
    assert sorted(os.listdir(tmp_path / "run" / "watch")) == ["000000001", "000000002", "000000008"]
    again = pellucid.train(table, tmp_path / "run", resume=True)
    assert bits(again) == bits(run) and [again.watched[s].parameters for s in again.watched] == [
        run.watched[s].parameters for s in run.watched
    ]


def test_killed_while_it_records(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """kill -9 at a border of the disk: each recorded step that is there can be read, and the run ends in the same bits."""
    if run_apart(request):
        return
    corpus_of(tmp_path / "corpus", "France", "Spain")
    table = watching(written(tmp_path / "r.toml", batch="2", steps="3"), "[watch]\nevery = 1\n")
    wanted = bits(pellucid.train(table, tmp_path / "run"))
    for moment in (3, 9, 14) if FULL else (9,):
        folder = tmp_path / str(moment)
        status = killed(moment, [(os, "replace"), (watched, "write"), (shutil, "rmtree")], lambda f=folder: pellucid.train(table, f))
        assert status in (0, signal.SIGKILL)
        if (folder / "run.json").exists():
            run = pellucid.Run(folder)
            assert all(run.watched[step].number == step for step in run.watched)
        shutil.rmtree(folder / "watch", ignore_errors=True) if moment == 9 else None
        assert bits(pellucid.train(table, folder, resume=True)) == wanted


def test_parameters_alone(tmp_path: Path) -> None:
    """Without tensors a step has what it did to each parameter, and no record; of packed texts, ids by document."""
    run = pellucid.train(watching(recipe_of(tmp_path), "[watch]\nevery = 3\n"), tmp_path / "run")
    step = run.watched[3]
    assert list(run.watched) == [3, 6] and not len(step) and step.parameters and step.parameters == run.replay(3, only="logits").parameters
    packed = pellucid.train(
        watching(recipe_of(tmp_path), '[watch]\nfirst = 1\ntensors = ["logits"]\ngradients = false\n'), tmp_path / "packed"
    )
    step, documents = packed.watched[1], packed.built[0].documents
    assert all(s.grad is None for s in step) and len(step) == len(step.documents[0])
    assert [row["ids"] for row in step.fed[0]] == [documents[n].target[:-1] for n in step.documents[0]]


WRONG = [
    ("recipe.one", "watch.every", "first", "[watch]\ngradients = true\n"),
    ("recipe.near", "watch.evry", "every", "[watch]\nevry = 3\n"),
    ("recipe.field", "watch.every", "int > 0", "[watch]\nevery = 0\n"),
    ("recipe.field", "watch.first", "int > 0", "[watch]\nfirst = true\n"),
    ("recipe.field", "watch.tensors", "[", "[watch]\nevery = 1\ntensors = 'logits'\n"),
    ("recipe.field", "watch.gradients", "true, false", "[watch]\nevery = 1\ngradients = 1\n"),
    ("recipe.field", "watch", "dict", "watch = 3\n"),
    ("watch.token", "Paris is", "tokens", "[watch]\nevery = 1\ntokens = ['Paris is']\n"),
    ("watch.unmet", "layers.*.attn.patern", "pattern", "[watch]\nevery = 4\ntensors = ['layers.*.attn.patern']\n"),
]


@pytest.mark.parametrize(("key", "named", "allowed", "table"), WRONG)
def test_wrong_tables(key: str, named: str, allowed: str, table: str, tmp_path: Path) -> None:
    """One line, with what is allowed, before the first step."""
    corpus_of(tmp_path / "corpus", "France", "Spain")
    path = written(tmp_path / "r.toml")
    path.write_text(table + path.read_text() if table.startswith("watch =") else path.read_text() + table)
    with pytest.raises(PellucidError) as caught:
        pellucid.train(path, tmp_path / "run")
    assert caught.value.key == key and named in str(caught.value) and allowed in str(caught.value)
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_damage_is_named(both: tuple[pellucid.Run, pellucid.Run], tmp_path: Path) -> None:
    """A step that is not recorded, a file that is cut, a gradient of another shape."""
    shutil.copytree(both[1].folder, tmp_path / "run")
    run = pellucid.Run(tmp_path / "run")
    with pytest.raises(TrainError, match="recorded are: 1, 2, 8, 16"):
        run.watched[9]
    file = tmp_path / "run" / "watch" / "000000002" / "step.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps(about | {"parameters": {"x": {"norm": 1}}}))
    with pytest.raises(TrainError) as caught:
        run.watched[2]
    assert caught.value.key == "run.damaged" and str(file) in str(caught.value)
