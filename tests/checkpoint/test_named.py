"""What a name may be: a file, a folder with half of a model, one without a tokenizer. Each is told in a line what it is, or works."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from documented import accept
from pellucid import count
from pellucid.api.model import load
from pellucid.commands import main
from pellucid.commands.open import judge
from pellucid.errors import PellucidError

Ran = Callable[..., SimpleNamespace]


@pytest.fixture
def wordless(folder: Path, tmp_path: Path) -> Path:
    """A model without a tokenizer."""
    shutil.copytree(folder, tmp_path / "wordless")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "wordless" / name).unlink()
    return tmp_path / "wordless"


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Return the function that runs a command line, with its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "300")

    def run(*words: str) -> SimpleNamespace:
        capsys.readouterr()
        code = main(list(words))
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    return run


@pytest.mark.parametrize("name", ["model.gguf", "there.gguf", "owner/model.gguf"])
def test_a_gguf_that_is_not_there_or_says_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file that is there, as one that is not, as what looks like a hub id."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.gguf").write_bytes(b"GGUF\3\0\0\0" + bytes(16))
    for function in (load, count):
        with pytest.raises(PellucidError, match="general.architecture" if name == "there.gguf" else "does not exist"):
            function(name)


def test_a_folder_of_gguf_alone_is_no_pickle(folder: Path, tmp_path: Path) -> None:
    """One GGUF is the folder's model, also beside pickles, which stay closed; of several one must be named."""
    shutil.copy(folder / "config.json", tmp_path)
    (tmp_path / "model-q8_0.gguf").write_bytes(b"GGUF")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(PellucidError, match=r"model-q8_0\.gguf: .* needs 4 bytes"):
        load(tmp_path)
    (tmp_path / "model-q4_0.gguf").write_bytes(b"GGUF")
    with pytest.raises(PellucidError, match=r"several GGUF models; .* model-q4_0\.gguf, model-q8_0\.gguf"):
        load(tmp_path)


def test_a_file_is_no_model(folder: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(PellucidError, match="is a file; a model is a folder"):
            load(folder / name)


def test_ids_need_no_tokenizer(wordless: Path, folder: Path, ran: Ran) -> None:
    """A model without a tokenizer goes on from ids with ids; one with a tokenizer with text, as before."""
    new = load(wordless).generate([[1, 2, 3]], 5, eos=None)[0]
    shown = ran("run", str(wordless), "1 2 3", "--ids", "--max-new-tokens", "5")
    assert (shown.returncode, shown.stdout) == (0, " ".join(map(str, new)) + "\n")
    result = ran("run", str(wordless), "1 2 3", "--ids", "--max-new-tokens", "5", "--json")
    document = json.loads(result.stdout)
    accept(document, "run")
    assert document["new"] == new and document["text"] == shown.stdout.strip()
    worded = ran("run", str(folder), "1 2 3", "--ids", "--max-new-tokens", "5")
    assert worded.returncode == 0 and worded.stdout == load(folder).tokenizer.decode(new, skip_special=True) + "\n"
    for more in (["--stop", "a"], []):
        wanting = ran("run", str(wordless), *(["1 2", "--ids", *more] if more else ["a text"]))
        assert wanting.returncode == 2 and "has no tokenizer files" in wanting.stderr and wanting.stderr.count("\n") == 1


@pytest.mark.parametrize(("name", "why"), [("nosuch", "is neither a folder nor a hub id"), ("model.gguf", "does not exist")])
def test_open_tells_no_address_of_a_name_of_nothing(name: str, why: str, ran: Ran) -> None:
    done = ran("open", name, "--no-browser")
    assert done.returncode == 2 and done.stdout == "" and why in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("contents", ["notes.txt", "nothing"])
def test_open_tells_no_address_of_what_cannot_be_opened(contents: str, tmp_path: Path, ran: Ran) -> None:
    if contents != "nothing":
        (tmp_path / contents).write_text("{}")
    done = ran("open", str(tmp_path), "--no-browser")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "neither a model (config.json), nor a tokenizer, nor a trace (index.jsonl), nor a run of training (run.json)" in done.stderr
    assert f"found: {contents}" in done.stderr


def test_open_tells_no_address_of_an_unknown_configuration(folder: Path, tmp_path: Path, ran: Ran) -> None:
    """A field that is missing, and one that is not known, are told before the page is; the second may be left aside."""
    config = json.loads((folder / "config.json").read_text())
    missing = {name: value for name, value in config.items() if name not in ("hidden_size", "n_embd")}
    for changed, named in ((missing, ("hidden_size", "n_embd")), (config | {"twists": 3}, ("twists",))):
        (tmp_path / "config.json").write_text(json.dumps(changed))
        done = ran("open", str(tmp_path), "--no-browser")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and any(name in done.stderr for name in named)
    judge(str(tmp_path), ["twists"])


def test_open_tells_no_address_of_a_damaged_tokenizer(tmp_path: Path, ran: Ran) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    done = ran("open", str(tmp_path), "--no-browser")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1 and "tokenizer.json" in done.stderr
