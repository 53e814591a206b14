"""Several prompts of unequal length in one command: each with the answer of its lone run, and the padded table of the same texts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from documented import accept
from pellucid.analysis import prompt_batch, ragged_batch
from pellucid.analysis.prompt_batch import batched
from pellucid.commands import main
from pellucid.errors import UseError
from pellucid.messages import filled, phrases
from tiny import swapped

SPECIMEN = "pellucid/capitals"
PROMPTS = ["The capital of France is", "法国的首都是", "The name of the capital city of Japan is", "France"]
SEVERAL = [PROMPTS[0], *(word for text in PROMPTS[1:] for word in ("--prompt", text))]


def out_of(capsys: pytest.CaptureFixture[str], *given: str, code: int = 0) -> str:
    """Return what a command line prints, or its error."""
    capsys.readouterr()
    assert main(list(given)) == code
    got = capsys.readouterr()
    return got.out if code == 0 else got.err


def documents(text: str) -> list[dict[str, Any]]:
    """Return the documents of lines."""
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("name", ["capitals", "capitals-llama", "capitals-deepseek", "reader"])
def test_each_prompt_has_its_lone_answer(name: str) -> None:
    """In float64, in the engine's batch and in a padded one. The mutants: padding that no mask hides, and an answer of a neighbour."""
    model = pellucid.load(f"pellucid/{name}", dtype="float64")
    texts = [text for text in PROMPTS if name != "reader" or text != PROMPTS[1]]
    batch = batched(model, texts)
    assert batch.rows == sum(len(model.ids(text)) for text in texts) < sum(map(len, batch.table()))
    for text, one in zip(texts, batch.prompts, strict=True):
        want = model(torch.tensor([model.ids(text)]))[0, -1]
        assert one.ids == model.ids(text) and float((one.logits - want).abs().max()) < 1e-10
        assert max(one.gap, one.padded_gap) < 1e-10
    firsts = [one.first for one in batch.prompts]
    assert firsts == [sum(len(model.ids(t)) for t in texts[:n]) for n in range(len(texts))]
    with swapped(prompt_batch, "padded", lambda model, ids: ragged_batch.padded(model, ids, masked=False)):
        assert max(one.padded_gap for one in batched(model, texts).prompts) > 1e-3
    with swapped(prompt_batch, "in_engine", lambda model, ids: ragged_batch.in_engine(model, ids[::-1])):
        assert max(one.gap for one in batched(model, texts).prompts) > 1e-3


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_explain_shows_the_batch(capsys: pytest.CaptureFixture[str], lang: str) -> None:
    (document,) = documents(out_of(capsys, "explain", SPECIMEN, *SEVERAL, "--json"))
    accept(document, "explain")
    model = pellucid.load(SPECIMEN)
    ids = [model.ids(text) for text in PROMPTS]
    longest = max(map(len, ids))
    assert document["padded"] == [[None] * (longest - len(own)) + own for own in ids] and document["rows"] == sum(map(len, ids))
    assert [p["candidates"][0]["piece"] for p in document["prompts"]][:3] == ["·Paris", "巴黎", "·Tokyo"]
    text = out_of(capsys, "explain", SPECIMEN, *SEVERAL, "--lang", lang)
    words = filled(phrases(lang)["batch.padded"], prompts=4, longest=longest, all=4 * longest, padding=4 * longest - document["rows"])
    assert words in " ".join(text.split()) or words in text
    assert all(p["candidates"][0]["piece"] in text for p in document["prompts"])
    assert text.split().count("·") == 4 * longest - document["rows"]


def test_run_answers_each(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With --deterministic the bits of each lone run, drawn by the seed of its place; from options and from a file of lines."""
    how = ["--max-new-tokens", "6", "--temperature", "1.5", "--deterministic", "--dtype", "float32", "--past-stop", "--json"]
    made = documents(out_of(capsys, "run", SPECIMEN, *SEVERAL, *how, "--seed", "3"))
    for one in made:
        accept(one, "run")
    lone = [documents(out_of(capsys, "run", SPECIMEN, text, *how, "--seed", str(3 + n)))[0] for n, text in enumerate(PROMPTS)]
    assert [(one["prompt"], one["ids"], one["new"], one["text"]) for one in made] == [
        (one["prompt"], one["ids"], one["new"], one["text"]) for one in lone
    ]
    assert made[0]["new"] != documents(out_of(capsys, "run", SPECIMEN, PROMPTS[0], *how, "--seed", "4"))[0]["new"]
    file = tmp_path / "prompts.txt"
    file.write_text("\n\n".join(PROMPTS[1:]) + "\n", encoding="utf-8")
    assert documents(out_of(capsys, "run", SPECIMEN, PROMPTS[0], "--prompts", str(file), *how, "--seed", "3")) == made
    text = out_of(capsys, "run", SPECIMEN, *SEVERAL)
    assert [line.strip() for line in text.splitlines()][1::2] == [" Paris.".strip(), "巴黎。", "Tokyo.", text.splitlines()[7].strip()]


def test_stops_end_each_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    made = documents(out_of(capsys, "run", SPECIMEN, *SEVERAL[:3], "--stop", "Par", "--json"))
    assert (made[0]["text"], made[0]["stop"]) == (" ", "Par") and made[1]["stop"] is None and "巴黎" in made[1]["text"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["explain", SPECIMEN, *SEVERAL, "--head", "1"], "--head"),
        (["explain", "pellucid/capitals-t5", *SEVERAL], "capitals-t5"),
        (["explain", "pellucid/capitals-bert", *SEVERAL], "capitals-bert"),
        (["explain", SPECIMEN, *SEVERAL, "--top", "0"], "0"),
        (["explain", SPECIMEN, "", "--prompt", "a"], "prompt"),
        (["run", SPECIMEN, *SEVERAL, "--chat"], "--chat"),
        (["run", SPECIMEN, "--prompt", ""], "prompt"),
        (["run", SPECIMEN, "--prompts", "{empty}"], "prompts.txt"),
        (["run", SPECIMEN, "--prompts", "{missing}"], "missing.txt"),
        (["run", SPECIMEN, "1", "--ids", "--prompt", "x"], "x"),
        (["run", SPECIMEN, "1", "--ids", "--prompt", "9999999"], "9999999"),
    ],
)
def test_refusals_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, given: list[str], words: str) -> None:
    (tmp_path / "prompts.txt").write_text("\n \n", encoding="utf-8")
    named = {"{empty}": str(tmp_path / "prompts.txt"), "{missing}": str(tmp_path / "missing.txt")}
    line = out_of(capsys, *(named.get(word, word) for word in given), code=2)
    assert words in line.splitlines()[-1] and line.splitlines()[-1].startswith("pellucid: ")


def test_a_model_that_cannot_be_padded_is_named() -> None:
    with pytest.raises(UseError) as refused:
        batched(pellucid.load("pellucid/capitals-prefix"), PROMPTS[:2])
    assert "prefix=on" in str(refused.value)


def test_try_compares_each(capsys: pytest.CaptureFixture[str]) -> None:
    """A document a prompt, as of one prompt alone; in text a line of both answers for each. A refusal names what is for one prompt."""
    change = ["--change", "layers.0.ffn = 0"]
    made = documents(out_of(capsys, "try", SPECIMEN, *SEVERAL[:5], *change, "--json"))
    for one, text in zip(made, PROMPTS, strict=False):
        accept(one, "try")
        assert one == documents(out_of(capsys, "try", SPECIMEN, text, *change, "--json"))[0]
    lines = out_of(capsys, "try", SPECIMEN, *SEVERAL[:5], *change).splitlines()
    assert len(made) == 3 and all(text in line for text, line in zip(PROMPTS, lines[1:4], strict=False))
    assert "·Paris" in lines[1] and "巴黎" in lines[2] and "·Tokyo" in lines[3]
    assert "--by" in out_of(capsys, "try", SPECIMEN, *SEVERAL, *change, "--by", "T", code=2)
