"""Why a weight moved in a step of a run, from its folder: in Python, as a document, and in the terminal."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.commands import main
from pellucid.documents.why import MOST
from pellucid.runs.answers import piece_of, visible
from pellucid.terminal.cell_lines import precise
from pellucid.training import why
from test_replay import recipe_in
from text_runs import recipe_of
from tiny import swapped
from training import unmeasured

CELLS = {"embed.weight": (5, 3), "layers.0.ffn.down.weight": (4, 7), "norm.weight": (2,)}


@pytest.fixture(scope="module", params=["texts", "deepseek_v3"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run of texts, or of facts."""
    folder = tmp_path_factory.mktemp(request.param)
    recipe = recipe_of(folder) if request.param == "texts" else recipe_in(folder, request.param)
    with unmeasured():
        yield pellucid.train(recipe, folder / "run").folder


@pytest.mark.quick(2)
def test_tokens_add_up_and_the_weight_moves(finished: Path) -> None:
    """In float32: the rows are the gradient, the parts are the change of the run's own weights. A forgotten momentum is seen."""
    run = pellucid.Run(finished)
    for path, cell in CELLS.items():
        one = run.why(path, cell, 5)
        assert one.move is not None
        moved = float((run.model(5).module.get_parameter(path) - run.model(4).module.get_parameter(path)).detach()[cell])
        assert abs(one.rest) < 1e-4 * max(abs(token.product) for token in one.tokens)
        assert one.move.total() == pytest.approx(moved, rel=1e-3, abs=1e-7)
        with swapped(why, "adamw_move", lambda *given, **how: moves(*given[:2], 0.0, *given[3:], **how)):
            mutant = run.why(path, cell, 5).move
        assert mutant is not None and mutant.total() != pytest.approx(moved, rel=1e-2)


moves = why.adamw_move


@pytest.mark.quick(2)
def test_the_command_prints_the_numbers_of_python(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The document has them to the last digit, the text to nine figures; tokens stand in the documents that are named."""
    run, path, cell = pellucid.Run(finished), "layers.0.ffn.down.weight", (4, 7)
    one = run.why(path, cell, 5)
    given = ["explain", str(finished), "--step", "5", "--weight", path, "4,7"]
    assert main([*given, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["total"] == one.total() and document["gradient"] == one.gradient and document["count"] == len(one.tokens)
    assert [t["product"] for t in document["tokens"]] == [t.product for t in one.tokens[:MOST]]
    assert [t["x"] + t["delta"] for t in document["tokens"]] == [[*t.x, *t.delta] for t in one.tokens[:MOST]]
    assert one.move is not None and document["move"]["total"] == one.move.total() and document["move"]["momentum"] == one.move.momentum
    assert sum(t["product"] for t in document["tokens"]) + document["rest"] == pytest.approx(one.total(), rel=1e-6, abs=1e-12)
    assert document["weight"] == float(run.model(4).module.get_parameter(path).detach()[cell])
    training = run.built[0]
    for token in document["tokens"]:
        ids = [*training.documents[token["document"]].given, *training.documents[token["document"]].target]
        assert token["document"] in run.numbers(5) and ids[token["position"]] == token["id"]
        assert token["piece"] == visible(piece_of(run.tokenizer, token["id"]))  # each byte shows
    for text in document["documents"]:
        assert text["text"] and text["source"] == run.source(text["number"]) and text["text"] == run.text(text["number"])[:200]
    for language, word in (("en", "autograd's gradient"), ("zh", "autograd 的梯度")):
        assert main([*given, "--lang", language]) == 0
        out = capsys.readouterr().out
        shown = [one.total(), one.gradient, one.move.total(), one.move.gradient, one.move.momentum, one.move.decay]
        assert word in out and all(precise(x) in out for x in [*shown, *(t.product for t in one.tokens[:MOST])])


def test_documents_of_texts_are_named_by_file(tmp_path: Path) -> None:
    """The file and the place there of each example's first token, against the files themselves; a document cut in parts has one name."""
    with unmeasured():
        run = pellucid.train(recipe_of(tmp_path, data__length="16"), tmp_path / "run")
    stories = {"text/a.txt": (tmp_path / "text" / "a.txt").read_text(encoding="utf-8").strip().split("\n<|endoftext|>\n")}
    stories["b.jsonl"] = [json.loads(line)["text"] for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    rows = run.built[0].documents
    names = [rows.source(number) for number in range(len(rows))]  # type: ignore[attr-defined]
    assert {name for name, _ in names} == set(stories) and len(set(names)) < len(names)
    for number, (name, place) in enumerate(names):
        assert run.text(number).strip("\ufffd") in stories[name][place]
        assert run.source(number) == f"{name}, document {place + 1}"


def test_wrong_uses(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2: an option alone, a prompt beside, no cell, no weight, no step, no run."""
    weight = ["--weight", "embed.weight", "5,3"]
    for given, part in (
        ([str(finished), "--step", "5"], "--weight"),
        ([str(finished), *weight], "--step"),
        ([str(finished), "The", "--step", "5", *weight], "RUN"),
        ([str(finished), "--step", "5", "--weight", "embed.weight", "a"], "5,17"),
        ([str(finished), "--step", "5", "--weight", "embed.weight", "5"], "embed.weight"),
        ([str(finished), "--step", "5", "--weight", "embd.weight", "5,3"], "embed.weight"),
        ([str(finished), "--step", "900", *weight], "900"),
        ([str(tmp_path), "--step", "5", *weight], "run.json"),
    ):
        assert main(["explain", *given, "--lang", "en"]) == 2
        output = capsys.readouterr()
        assert not output.out and output.err.count("\n") == 1 and part in output.err


def test_why_leaves_the_run_as_it_is(finished: Path) -> None:
    """Asked for twice, and again after another step, the numbers have the same bits."""
    run = pellucid.Run(finished)
    one = run.why("norm.weight", (2,), 3)
    run.replay(2, only="logits")
    again = run.why("norm.weight", (2,), 3)
    assert one.tokens == again.tokens and one.move == again.move
    assert torch.equal(run.model(6).module.norm.weight, pellucid.Run(finished).model(6).module.norm.weight)
