"""`pellucid run` samples by its options over generation_config.json, ends at stop strings, and repeats draws by their seed."""

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import pellucid
from documented import accept
from pellucid.commands import main
from pellucid.commands import run as command
from pellucid.engine.defaults import defaults
from pellucid.errors import ConfigError
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.uniform import sibling

Captured = pytest.CaptureFixture[str]
OPTIONS: dict[str, Any] = {"temperature": 1.4, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repetition": 1.3, "presence": 0.4}
OPTIONS |= {"frequency": -0.2, "seed": 5}
FILE = {"do_sample": True, "temperature": 3.0, "top_p": 0.9, "top_k": 50, "min_p": None, "repetition_penalty": 1.5}


@pytest.fixture
def model(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "m"))


def run(capsys: Captured, *given: object) -> tuple[int, str, str]:
    """Return the exit code, stdout and the notes of stderr without the first line, which names the device and dtype."""
    capsys.readouterr()
    code = main([str(word) for word in given])
    out, err = capsys.readouterr()
    return code, out, "".join(line for line in err.splitlines(True) if " computes in " not in line)


def drawn(capsys: Captured, model: Path, *given: object) -> tuple[dict[str, Any], str]:
    """Return the document of a run and its notes on stderr."""
    code, out, err = run(capsys, "run", model, "The cat", "--max-new-tokens", 12, "--json", *given)
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    accept(document, "run")
    return document, err


def words_of(settings: dict[str, Any]) -> list[object]:
    """Return settings as options of a command line."""
    return [word for name, value in settings.items() for word in ("--" + name.replace("_", "-"), value)]


def test_every_option_reaches_the_draw(model: Path, capsys: Captured) -> None:
    """The document holds the options, the API gives the same tokens for them, and each setting alone changes the tokens."""
    document, err = drawn(capsys, model, *words_of(OPTIONS))
    assert (document["sampling"], err) == (OPTIONS, "")
    loaded = pellucid.load(model)
    ids = [loaded.tokenizer.encode("The cat")]
    assert [document["new"]] == loaded.generate(ids, 12, **OPTIONS)
    hot: dict[str, Any] = {"eos": None, "temperature": 6.0, "seed": 5}
    plain = loaded.generate(ids, 40, **hot)
    for more in ({"top_k": 3}, {"top_p": 0.3}, {"min_p": 0.3}, {"repetition": 3.0}, {"presence": 9.0}, {"frequency": 9.0}, {"seed": 6}):
        assert loaded.generate(ids, 40, **{**hot, **more}) != plain, more


def test_a_draw_without_a_seed_tells_the_one_it_took(model: Path, capsys: Captured) -> None:
    first, second = (drawn(capsys, model, "--temperature", 5)[0] for _ in range(2))
    assert first["sampling"]["seed"] != second["sampling"]["seed"] and first["new"] != second["new"]
    again, _ = drawn(capsys, model, "--temperature", 5, "--seed", first["sampling"]["seed"])
    assert again == first
    assert drawn(capsys, model)[0]["sampling"]["seed"] is None  # the likeliest needs none


def test_what_generation_config_asks_for(model: Path, capsys: Captured) -> None:
    """Its sampling needs do_sample, its repetition penalty always holds; options override it, and a note names what it decides."""
    likeliest, _ = drawn(capsys, model)
    file = model / "generation_config.json"
    file.write_text(json.dumps({**FILE, "do_sample": False, "repetition_penalty": 1.0}))
    assert drawn(capsys, model) == (likeliest, "")
    file.write_text(json.dumps({**FILE, "typical_p": 0.9, "eta_cutoff": 0.0}))
    document, err = drawn(capsys, model, "--seed", 3)
    assert document["sampling"] == {**likeliest["sampling"], "temperature": 3.0, "top_p": 0.9, "top_k": 50, "repetition": 1.5, "seed": 3}
    assert "temperature=3.0, top_k=50, top_p=0.9, repetition=1.5" in err and "typical_p=0.9" in err and "eta" not in err
    document, err = drawn(capsys, model, "--seed", 3, "--temperature", 0.5, "--top-k", 0)
    assert (document["sampling"]["temperature"], document["sampling"]["top_k"], document["sampling"]["top_p"]) == (0.5, 0, 0.9)
    assert "top_p=0.9, repetition=1.5" in err and "temperature" not in err and "top_k" not in err
    document, err = drawn(capsys, model, "--temperature", 0)
    assert document["sampling"]["repetition"] == 1.5 and "repetition=1.5" in err and "top_p" not in err and "typical" not in err
    assert drawn(capsys, model, "--temperature", 0, "--repetition", 1)[0]["new"] == likeliest["new"]
    file.write_text(json.dumps({"repetition_penalty": 50.0}))
    assert drawn(capsys, model)[0]["new"] == pellucid.load(model).generate([likeliest["ids"]], 12, repetition=50.0)[0]
    for name, wrong in [("temperature", -1), ("temperature", "warm"), ("top_p", True), ("top_k", 0.5), ("repetition_penalty", 0)]:
        file.write_text(json.dumps({"do_sample": True, name: wrong}))
        code, _, err = run(capsys, "run", model, "The cat", "--max-new-tokens", 1)
        assert code == 2 and "generation_config.json" in err and name.removesuffix("_penalty") in err and err.count("\n") == 1


def test_defaults() -> None:
    assert defaults({}, "m") == (Sampling(), {}) == defaults({"temperature": 0.3, "top_k": 9}, "m")
    assert defaults({"do_sample": True}, "m")[0] == Sampling(temperature=1.0) == defaults({"do_sample": True, "temperature": None}, "m")[0]
    assert defaults({"do_sample": 1, "typical_p": 0.5}, "m") == (Sampling(), {})
    with pytest.raises(ConfigError, match="top_p"):
        defaults({"do_sample": True, "top_p": 2}, "m")


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (["--top-k", "-1"], "top_k"),
        (["--top-k", "x"], "--top-k"),
        (["--top-p", "1.5"], "top_p"),
        (["--min-p", "nan"], "min_p"),
        (["--repetition", "0"], "repetition"),
        (["--presence", "inf"], "presence"),
        (["--frequency", "1e9"], "frequency"),
        (["--stop", ""], "stop"),
    ],
)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_wrong_settings_get_a_line_before_a_model_is_read(given: list[str], word: str, language: str, capsys: Captured) -> None:
    code, out, err = run(capsys, "run", "no/such/model", "x", "--lang", language, *given)
    assert (code, out) == (2, "") and word in err and err.count("\n") == 1


def test_a_setting_that_changes_nothing_is_noted(model: Path, capsys: Captured) -> None:
    document, err = drawn(capsys, model, "--top-k", 5, "--min-p", 0.1)
    assert "--min-p, --top-k" in err and document["new"] == drawn(capsys, model)[0]["new"]
    assert drawn(capsys, model, "--top-k", 5, "--temperature", 1)[1] == ""


def test_stop_strings(model: Path, capsys: Captured) -> None:
    """The text is cut before a stop string, also one that crosses tokens; generation ends there, and the document names the string."""
    uncut, _ = drawn(capsys, model, "--max-new-tokens", 40)
    text, tokenizer = uncut["text"], pellucid.load(model).tokenizer
    at, stop = next((i, text[i : i + 3]) for i in range(4, len(text) - 3) if "\ufffd" not in text[i : i + 3])
    cut = text[: text.index(stop)]
    document, _ = drawn(capsys, model, "--max-new-tokens", 40, "--stop", "never there", "--stop", stop)
    assert (document["text"], document["stop"], document["stopped"]) == (cut, stop, True) and at >= len(cut)
    assert document["new"] == uncut["new"][: len(document["new"])] and len(document["new"]) < len(uncut["new"])
    assert stop in tokenizer.decode(document["new"], skip_special=True)
    assert stop not in tokenizer.decode(document["new"][:-1], skip_special=True)
    code, out, _ = run(capsys, "run", model, "The cat", "--max-new-tokens", 40, "--stop", stop)
    assert (code, out) == (0, cut + "\n")
    assert drawn(capsys, model, "--stop", "never there")[0] == drawn(capsys, model)[0]


def test_replies_of_a_chat_draw_by_numbers_of_their_own(model: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reply has the given seed, the next have seeds derived from it, each recorded in its document."""
    lines = iter(["The cat"] * 3)

    def typed(prompt: str) -> str:
        if (line := next(lines, None)) is None:
            raise EOFError
        return line

    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", typed)
    code, out, _ = run(capsys, "run", model, "--max-new-tokens", 12, "--temperature", 5, "--seed", 8, "--json")
    replies = [json.loads(line) for line in out.splitlines() if line]
    assert code == 0 and [d["sampling"]["seed"] for d in replies] == [sibling(8, i) for i in range(3)]
    assert len({str(d["new"]) for d in replies}) == 3
    for d in replies[1:]:
        alone, _ = drawn(capsys, model, "--temperature", 5, "--seed", d["sampling"]["seed"])
        assert alone["new"] == d["new"]
    assert command.reseeded(Sampling(), 3) == Sampling()


def test_an_end_before_the_number_that_was_asked_for_is_said(capsys: Captured, model: Path) -> None:
    """A note names an end by a stop string or token before the requested number; otherwise there is none."""
    uncut, err = drawn(capsys, model)
    stop = uncut["text"][4:7]
    assert err == "" or "12" not in err
    short, err = drawn(capsys, model, "--stop", stop)
    assert len(short["new"]) < 12 and err.strip().endswith(f"{len(short['new'])} of 12 tokens") and stop in err
    assert run(capsys, "run", "pellucid/capitals", "The capital of France is", "--max-new-tokens", 12)[2].strip().endswith("of 12 tokens")
    assert run(capsys, "run", "pellucid/capitals", "The capital of France is")[2] == ""


def test_past_a_stop(capsys: Captured) -> None:
    """The text goes on to its length, as Python's without a stop; without the option it ends, and a chat refuses it."""
    model = pellucid.load("pellucid/capitals")
    ids, seeded = [model.tokenizer.encode("The capital of France is")], ("--temperature", "1", "--seed", "7")
    for given, how in (((), {}), (seeded, {"temperature": 1.0, "seed": 7})):
        documents = []
        for more in ((), ("--past-stop",)):
            code, out, _ = run(
                capsys, "run", "pellucid/capitals", "The capital of France is", "--max-new-tokens", 12, "--json", *given, *more
            )
            assert code == 0
            documents.append(json.loads(out)["new"])
        ended, whole_text = documents
        assert len(ended) < 12 == len(whole_text) and whole_text[: len(ended)] == ended
        assert [whole_text] == model.generate(ids, 12, eos=None, **how) and [ended] == model.generate(ids, 12, **how)
    assert run(capsys, "run", "pellucid/capitals", "a", "--chat", "--past-stop")[0] == 2
