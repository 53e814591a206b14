"""When facts are learnt, and how experts are loaded: what a run keeps of them is what the model says at each step."""

import json
import math
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.analysis.training_film import loads, starving
from pellucid.analysis.weight_tile import weight_tile
from pellucid.documents.training import training_document
from pellucid.errors import PellucidError, TrainError
from pellucid.training import run_recipe
from pellucid.training.facts import read_facts
from pellucid.training.objectives import IGNORED
from test_tuning import refused
from text_runs import recipe_of
from training import corpus_of, silent, stopped_after_each_step
from watched_runs import RECIPE, watched_run

MOE = """[model]
model_type = "mixtral"
hidden_size = 16
intermediate_size = 8
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
num_local_experts = 4
num_experts_per_tok = 2
sliding_window = 32
max_position_embeddings = 64
"""
SPARSE = MOE + RECIPE[RECIPE.index("\n[tokenizer]") :]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pellucid.Run:
    return watched_run(tmp_path_factory.mktemp("facts"))


def test_each_fact_is_asked_of_the_model_of_its_step(run: pellucid.Run) -> None:
    facts = read_facts(run.folder)
    assert facts is not None and facts.steps == [4, 8, 12] and 5 <= len(facts.questions) <= 10
    for step in facts.steps:
        written = json.loads((run.folder / "eval" / f"{step:09d}.json").read_text(encoding="utf-8"))["written"]
        model = run.model(step).module
        assert written == run.objective.complete(model)([q.prompt for q in facts.questions])
        right = [text.startswith(q.right) for q, text in zip(facts.questions, written, strict=True)]
        assert [own[facts.steps.index(step)] for own in facts.right] == right
    known = facts._replace(right=[[True, False, True], [False, True, True], [False] * 3], questions=facts.questions[:3])
    assert known.learnt() == [4, 8, None] and known.forgotten() == [1, 0, 0]


def test_asking_changes_no_bit(run: pellucid.Run, tmp_path: Path) -> None:
    """Without questions the run has the same states; stopped after each step it has the same answers."""
    corpus_of(tmp_path / "corpus", "France", "Spain")
    (tmp_path / "film.toml").write_text(RECIPE.replace("quiz = 10\n", ""), encoding="utf-8")
    run_recipe(tmp_path / "film.toml", tmp_path / "plain", False, 1, silent)
    plain = pellucid.Run(tmp_path / "plain")
    for name in ("weights", "moments"):
        file = f"saves/000000012/{name}.safetensors"
        assert (plain.folder / file).read_bytes() == (run.folder / file).read_bytes()
    assert read_facts(plain.folder) is None
    (tmp_path / "film.toml").write_text(RECIPE.replace("log_every = 100", "log_every = 1"), encoding="utf-8")
    again = stopped_after_each_step(tmp_path / "film.toml", tmp_path / "again", 12).parent
    for file in sorted((run.folder / "eval").iterdir()):
        assert (again / "eval" / file.name).read_bytes() == file.read_bytes()


def test_the_panels(run: pellucid.Run) -> None:
    facts, document = read_facts(run.folder), training_document(run, 8)
    assert facts is not None
    shares = next(p for p in document["panels"] if p["kind"] == "lines" and "questions" in p["title"])
    assert shares["at"] == facts.steps and shares["marked"] == 8
    total = sum(v or 0.0 for one in shares["series"] for v in one["values"])
    assert total > 0 or not any(map(any, facts.right))
    learnt = next(p for p in document["panels"] if p["kind"] == "matrix" and "learnt" in p["title"])
    by_prompt = {q.prompt: [float(x) for x in own] for q, own in zip(facts.questions, facts.right, strict=True)}
    assert dict(zip(learnt["rows"], learnt["values"], strict=True)) == by_prompt


def test_damage_and_refusals(run: pellucid.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run.folder / "eval" / "000000008.json"
    before = file.read_bytes()
    try:
        for text in (b"{", b'{"right": [true]}', b'{"right": 3}'):
            file.write_bytes(text)
            with pytest.raises(TrainError, match="000000008"):
                read_facts(run.folder)
    finally:
        file.write_bytes(before)
    path = recipe_of(tmp_path)
    path.write_text(path.read_text(encoding="utf-8") + "\n[eval]\nevery = 2\nquiz = 3\n", encoding="utf-8")
    line = refused(path, tmp_path / "run", capsys)
    assert "eval.quiz" in line


def test_loads_of_experts(tmp_path: Path) -> None:
    """Of the rows that carry loss, over all micro-batches; a row of padding more would be seen."""
    recipe = 'name = "film"\n\n' + SPARSE.replace("batch = 4", "batch = 4\nmicro = 2")
    run = watched_run(tmp_path, recipe)
    for step in (4, 8):
        training, wanted, padded = run.to(step - 1), torch.zeros(4, dtype=torch.long), 0
        for batch in training.batches(run.numbers(step)):
            with torch.no_grad(), pellucid.watch(training.model, only="layers.1.ffn.chosen") as seen:
                training.model(*batch.inputs)
            chosen = seen["layers.1.ffn.chosen"].value
            wanted += torch.bincount(chosen[batch.targets != IGNORED].flatten(), minlength=4)
            padded += chosen.numel()
        assert run.watched[step].loads["layers.1.ffn"] == wanted.tolist() and sum(wanted.tolist()) <= padded
    rows = loads(run, [4, 8])["layers.1.ffn"]
    assert abs(sum(row[1] or 0 for row in rows) - 400) < 1e-9
    assert rows[2][1] == pytest.approx(100 * 4 * wanted[2].item() / wanted.sum().item())
    assert starving([[5.0], [195.0], [100.0], [100.0]], 0)[0] == 1
    assert starving([[100.0]] * 4, 0) == (0, pytest.approx(1.0))
    p = [0.0125, 0.4875, 0.25, 0.25]
    entropy = -sum(x * math.log(x) for x in p) / math.log(4)
    assert starving([[5.0], [195.0], [100.0], [100.0]], 0)[1] == pytest.approx(entropy)
    assert sum("experts" in p["title"] for p in training_document(run)["panels"]) == 2


def test_a_tile(run: pellucid.Run) -> None:
    """In whole tiles about a cell, with the largest move of all recorded steps; a vector is one row."""
    update = run.watched[8].updates["layers.0.ffn.up.weight"].double()
    tile = weight_tile(run, 8, "layers.0.ffn.up.weight", (13, 3))
    assert (tile.rows, tile.columns) == (range(12, 24), range(16)) and torch.equal(tile.moved, update[12:24, :16])
    every = [run.watched[s].updates["layers.0.ffn.up.weight"][12:24, :16].abs().max() for s in run.watched]
    assert tile.largest == float(max(every))
    vector = weight_tile(run, 8, "layers.0.ffn.up.bias", (30,))
    assert vector.rows == range(1) and vector.columns == range(24, 48) and vector.moved.shape == (1, 24)
    with pytest.raises(PellucidError, match="has no cell"):
        weight_tile(run, 8, "layers.0.ffn.up.weight", (64, 0))
    with pytest.raises(PellucidError, match=r"no parameter.*layers\.0\.ffn\.up\.weight"):
        weight_tile(run, 8, "layers.0.ffn.upp.weight", (0, 0))
