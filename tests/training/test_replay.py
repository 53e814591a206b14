"""A run that is opened again: each of its steps comes again bit for bit, and what would make another one is refused by name."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.checkpoint.fill import targets
from pellucid.checkpoint.safetensors_file import read_header, read_tensor, write
from pellucid.errors import TrainError
from pellucid.training import loop, replay, run_recipe
from pellucid.training.objectives import Document
from pellucid.training.run_folder import write_run
from pellucid.training.saves import FILES, digest, read_state
from pellucid.training.shards import load_tokenizer
from test_recipe import written
from text_runs import recipe_of
from tiny import swapped
from training import corpus_of, silent, unmeasured

STEPS = 20
DEEPSEEK = """name = "deep"
[model]
model_type = "deepseek_v3"
hidden_size = 16
intermediate_size = 24
moe_intermediate_size = 8
num_hidden_layers = 2
first_k_dense_replace = 1
num_attention_heads = 2
num_key_value_heads = 2
n_routed_experts = 4
num_experts_per_tok = 2
n_shared_experts = 1
n_group = 2
topk_group = 1
routed_scaling_factor = 1.0
norm_topk_prob = true
rms_norm_eps = 1e-5
rope_theta = 10000.0
tie_word_embeddings = true
q_lora_rank = 12
kv_lora_rank = 8
qk_nope_head_dim = 6
qk_rope_head_dim = 4
v_head_dim = 6
max_position_embeddings = 96
[tokenizer]
size = 400
[data]
folder = "corpus"
[train]
seed = 2
steps = 20
batch = 4
micro = 2
learning_rate = 1e-2
warmup = 2
save_every = 7
smoothing = 0.1
keep = "all"
"""


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with unmeasured():
        yield


def recipe_in(folder: Path, family: str) -> Path:
    """Write a corpus and a recipe of 20 steps with states after 7, 14 and 20."""
    corpus_of(folder / "corpus", "France", "Spain")
    if family == "deepseek_v3":
        (folder / "r.toml").write_text(DEEPSEEK, encoding="utf-8")
        return folder / "r.toml"
    return written(folder / "r.toml", steps=str(STEPS), batch="4", save_every="7", log_every="100", train__keep='"all"')


@pytest.fixture(scope="module", params=["gpt2", "deepseek_v3"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, and beside it `weights`, what its weights and moments were after each step."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "weights").mkdir()
    run = pellucid.train(recipe_in(folder, request.param), folder / "run")
    assert run.states == [7, 14, 20] and [entry["step"] for entry in run.log] == list(range(1, STEPS + 1))
    return run.folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    shutil.copytree(finished.parent, tmp_path / "copy")
    about = json.loads((tmp_path / "copy" / "run" / "run.json").read_text())
    (tmp_path / "copy" / "run" / "run.json").write_text(json.dumps(about | {"root": str(tmp_path / "copy")}))
    return tmp_path / "copy" / "run"


@pytest.mark.quick(2)
def test_every_step_comes_again(finished: Path) -> None:
    """From the states that are kept, in one opened run and in any order: the logged numbers, and the weights of the states, to the bit."""
    run = pellucid.Run(finished)
    logged = {entry["step"]: entry for entry in run.log}
    for step in [*range(STEPS, 0, -6), *range(1, STEPS + 1)]:
        recorded = run.replay(step, only=["logits", "*.pattern"] if step % 5 else "*")
        own, entry = recorded.entry, logged[step]
        assert recorded.number == step and {k: own[k] for k in own if k != "seconds"} == {k: entry[k] for k in own if k != "seconds"}
        if step in run.states:
            weights, moments, _ = read_state(finished / "saves" / f"{step:09d}")
            training = run.built[0]
            assert all(torch.equal(t, weights[path]) for path, t in targets(training.model).items())
            state = {f"{path}:{k}": v for path, p in training.model.named_parameters() for k, v in training.optimizer.state[p].items()}
            assert state.keys() == moments.keys() and all(torch.equal(state[k], moments[k]) for k in state)


def test_a_step_has_every_tensor_and_gradient(finished: Path) -> None:
    """Each record of a float tensor that the loss depends on has its gradient; each parameter has what the step did to it."""
    run = pellucid.Run(finished)
    before, after = run.model(8), run.model(9)
    step = run.replay(9)
    assert all(
        s.grad is not None and s.grad.shape == s.value.shape for s in step if s.path.endswith((".pattern", ".scores", "logits", ".mid"))
    )
    assert len(step.all("logits")) == len(step.documents) and not any(s.value.requires_grad for s in step)
    moved = {path: p.detach() - before.module.get_parameter(path).detach() for path, p in after.module.named_parameters()}
    assert step.parameters.keys() == moved.keys() and all(torch.equal(step.updates[path], moved[path]) for path in moved)
    for path, one in step.parameters.items():
        assert one.update == float(moved[path].norm()) and one.norm == float(before.module.get_parameter(path).detach().norm())
    total = sum(one.gradient**2 for one in step.parameters.values()) ** 0.5
    assert total == pytest.approx(step.entry["gradient"], rel=1e-5)  # before they were clipped


def test_the_corpus_is_encoded_once(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second replay of an opened run encodes nothing, and the tokenizer is not trained again."""
    run, made, own = pellucid.Run(finished), [], replay.examples_of
    monkeypatch.setattr(replay, "examples_of", lambda *given: made.append(1) or own(*given))
    monkeypatch.setattr("pellucid.training.corpus.train_tokenizer", None)
    run.replay(2, only="logits")
    run.replay(1, only="logits")
    assert made == [1]


def test_a_model_of_any_step(finished: Path) -> None:
    """The last one, a kept state, one between two, and the first weights; each is a copy."""
    run = pellucid.Run(finished)
    ids = torch.tensor([[5, 9, 7]])
    models = {step: run.model(step) for step in (0, 7, 10, STEPS)}
    out = {step: model(ids) for step, model in models.items()}
    assert torch.equal(run.model()(ids), out[STEPS]) and not torch.equal(out[7], out[10])
    weights, _, _ = read_state(finished / "saves" / "000000007")
    assert all(torch.equal(t, weights[path]) for path, t in targets(models[7].module).items())
    with torch.no_grad():
        models[10].module.embed.weight.zero_()
    assert torch.equal(run.model(10)(ids), out[10])
    assert models[7].name == f"{run.recipe.name} at step 7" and isinstance(models[7].tokenizer.encode("Paris"), list)


# What makes another step.


def refused(folder: Path, step: int, only: str = "logits") -> TrainError:
    with pytest.raises(TrainError) as caught:
        pellucid.Run(folder).replay(step, only=only)
    return caught.value


def test_another_document_is_refused(copied: Path) -> None:
    """A corpus that changed differs in its hash; a document that changes in memory gives another loss at its first step."""
    facts = copied.parent / "corpus" / "facts.json"
    facts.write_text(facts.read_text(encoding="utf-8").replace("Paris", "Lyon"), encoding="utf-8")
    error = refused(copied, 9)
    assert error.key == "train.differs" and str(error).endswith("documents")
    with swapped(replay, "require", lambda *given, **how: ""), swapped(loop, "require", lambda *given, **how: ""):
        error = refused(copied, 9)
    assert error.key == "replay.differs" and error.values["what"] in ("documents", "loss")


def test_a_document_in_memory_is_refused(finished: Path) -> None:
    """The step, what differs, and both values are named; afterwards the run is as it was."""
    run = pellucid.Run(finished)
    documents, number = run.built[0].documents, run.numbers(10)[0]
    assert isinstance(documents, list)
    own = documents[number]
    documents[number] = Document(own.given, [*own.target[:-1], own.target[-1] ^ 1])
    with pytest.raises(TrainError) as caught:
        run.replay(12)
    first = min(step for step in range(8, 13) if number in run.numbers(step))
    assert caught.value.key == "replay.differs" and caught.value.values["step"] == first <= 10 and caught.value.values["what"] == "loss"
    logged = next(entry["loss"] for entry in run.log if entry["step"] == first)
    assert str(caught.value) == f"step {first} ran again: loss {logged}, now {caught.value.values['now']}"
    documents[number] = own
    assert run.replay(12, only="logits").number == 12


@pytest.mark.parametrize("kind", ["weights", "moments"])
@pytest.mark.parametrize("hashed", [False, True])
def test_another_state_is_refused(kind: str, hashed: bool, copied: Path) -> None:
    """By its manifest; with a manifest that fits, by the loss of the first step that depends on it."""
    state = copied / "saves" / "000000007"
    file = state / f"{kind}.safetensors"
    tensors: dict[str, Tensor] = {name: read_tensor(entry) for name, entry in read_header(file).items()}
    name = next(n for n in tensors if n.endswith("q.weight" if kind == "weights" else "embed.weight:exp_avg") or "q_a.weight" in n)
    rows = torch.arange(1, len(tensors[name]) + 1)[:, None] / len(tensors[name])  # not one factor: a norm after q_a would take it out again
    tensors[name] = tensors[name] * (1 + rows)
    file.unlink()
    write(file, tensors)
    if hashed:
        (state / "manifest.json").write_text(json.dumps({f: [digest(state / f), (state / f).stat().st_size] for f in FILES}))
    error = refused(copied, 8)
    if hashed:
        assert error.key == "replay.differs" and error.values["what"] == "loss" and error.values["step"] == (8 if kind == "weights" else 9)
    else:
        assert error.key == "train.damaged" and str(file) in str(error)


def test_another_rate_is_refused(finished: Path) -> None:
    """A mutant of the loop: its schedule forgets the warm-up."""
    with swapped(loop, "learning_rate", lambda step, s: s.learning_rate):
        error = refused(finished, 3)
    assert error.key == "replay.differs" and error.values["step"] == 2


def test_refused_steps_and_folders(copied: Path, tmp_path: Path) -> None:
    """A step that was not taken, a folder without a run, another machine, and steps before what is kept."""
    assert refused(copied, 21).key == refused(copied, 0).key == "replay.step"
    with pytest.raises(TrainError) as caught:
        pellucid.Run(tmp_path)
    assert caught.value.key == "replay.none"
    about = json.loads((copied / "run.json").read_text())
    other = about | {"identity": about["identity"] | {"cpu": "other"}}
    (copied / "run.json").write_text(json.dumps(other))
    error = refused(copied, 9)
    assert error.key == "replay.machine" and "cpu (other →" in str(error)
    (copied / "run.json").write_text(json.dumps(about | {"since": 10}))
    assert refused(copied, 8).key == refused(copied, 10).key == "replay.elsewhere"
    error = refused(copied, 12)
    assert error.key == "replay.early" and "step 12 lies before the states kept (from 14)" in str(error)
    assert pellucid.Run(copied).replay(15, only="logits").number == 15
    (copied / "run.json").write_text("{}")
    with pytest.raises(TrainError) as caught:
        pellucid.Run(copied)
    assert caught.value.key == "run.damaged"


def test_a_damaged_run_file_is_written_anew(copied: Path) -> None:
    """By a run that goes on, which knows its identity from there; one that is sound keeps the step it holds from."""
    run = pellucid.Run(copied)
    for content, since in ((None, run.about.since), ("{", 15), ("[]", 16)):
        if content is not None:
            (copied / "run.json").write_text(content)
            with pytest.raises(TrainError, match=r"run\.json is damaged"):
                pellucid.Run(copied)
        write_run(copied, run.recipe, load_tokenizer(copied / "tokenizer.json"), run.about.identity, max(since, 15))
        assert pellucid.Run(copied).about.since == since


def test_another_number_of_threads_is_the_runs_own(finished: Path) -> None:
    """A replay computes with the run's threads, and leaves the process its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert pellucid.Run(finished).replay(1, only="logits").number == 1 and torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


# The folder of a run.


def test_a_run_sets_the_threads_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where none are asked for: MKL chooses its own number until one is set, as a replay does, and so had other last bits."""
    given, setter = list[int](), torch.set_num_threads
    monkeypatch.setattr(torch, "set_num_threads", lambda n: given.append(n) or setter(n))
    run_recipe(recipe_of(tmp_path, steps="1"), tmp_path / "run", False, None, silent)
    assert given[:1] == [torch.get_num_threads()]


def test_a_run_of_texts_comes_again(tmp_path: Path) -> None:
    """From its shards alone, also once the texts are gone; each entry is handed on."""
    entries: list[dict[str, Any]] = []
    run = pellucid.train(recipe_of(tmp_path, train__keep="1"), tmp_path / "run", on=entries.append)
    assert [entry["step"] for entry in entries] == [1, 2, 3, 4, 5, 6] and entries == run.log and run.states == [6]
    shutil.rmtree(tmp_path / "text")
    assert pellucid.Run(tmp_path / "run").replay(4).entry["loss"] == entries[3]["loss"]


def test_a_run_that_moved_says_since_when(tmp_path: Path) -> None:
    """A run resumed on another machine has only the steps after that to take again."""
    recipe = recipe_in(tmp_path, "gpt2")
    run_recipe(recipe, tmp_path / "run", False, 1, silent)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["since"] == 0 and Path(about["root"]) == tmp_path
    moved = about | {"identity": about["identity"] | {"torch": "0"}}
    (tmp_path / "run" / "run.json").write_text(json.dumps(moved))
    shutil.rmtree(tmp_path / "run" / "saves" / "000000020")
    (tmp_path / "run" / "saves" / "000000014").rename(tmp_path / "run" / "saves" / "000000014.aside")
    run = pellucid.train(recipe, tmp_path / "run", resume=True)
    assert run.about.since == 7 and run.replay(8, only="logits").number == 8
    assert refused(run.folder, 7).key == "replay.elsewhere"


def test_keep(tmp_path: Path) -> None:
    """2 where nothing is said, a number, or all; anything else is refused, with what is allowed."""
    for value, kept in ((None, [4, 6]), ("1", [6]), ('"all"', [2, 4, 6])):
        folder = tmp_path / str(value).strip('"')
        corpus_of(folder / "corpus", "France", "Spain")
        recipe = written(folder / "r.toml", **({} if value is None else {"train__keep": value}))
        assert pellucid.train(recipe, folder / "run").states == kept
    for value in ("0", '"some"', "true", "1.5"):
        with pytest.raises(TrainError) as caught:
            pellucid.train(written(tmp_path / "r.toml", train__keep=value), tmp_path / "none")
        assert caught.value.key == "recipe.field" and '"all"' in str(caught.value)
    assert replace(pellucid.Run(tmp_path / "1" / "run").recipe.train, keep=2) == pellucid.Run(tmp_path / "None" / "run").recipe.train
