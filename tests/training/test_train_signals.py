"""SIGINT and SIGTERM to `pellucid train`: 75 with everything saved, 130 before that or at the second signal."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pellucid.commands import main
from pellucid.commands.screen import Screen
from pellucid.training import pipeline
from test_recipe import written
from training import corpus_of

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    corpus_of(tmp_path / "corpus", "France", "Spain")
    return written(tmp_path / "mini.toml", batch="2", steps="3")


@pytest.fixture(autouse=True)
def as_before() -> Any:
    """The process hears its signals as before."""
    before = {s: signal.getsignal(s) for s in SIGNALS}
    yield
    assert {s: signal.getsignal(s) for s in SIGNALS} == before


def send_at(monkeypatch: pytest.MonkeyPatch, begins: str, *numbers: int) -> None:
    """Send these signals to this process, once, when a note begins so."""
    left = list(numbers)

    def note(self: Screen, text: str) -> None:
        while left and text.startswith(begins):
            os.kill(os.getpid(), left.pop(0))

    monkeypatch.setattr(Screen, "note", note)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(("begins", "saved"), [("step 1 ", 1), ("step 3 ", 3), ("scores", 3)])
@pytest.mark.quick(4)
def test_a_signal_stops_a_run_that_goes_on(
    recipe: Path, begins: str, saved: int, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within a step, within the last, and while the model is examined: 75, one line, nothing lost; --resume makes the model."""
    out = recipe.parent / "out"
    send_at(monkeypatch, begins, number)
    assert main(["train", str(recipe), "--out", str(out)]) == 75
    output = capsys.readouterr()
    assert not output.out and output.err.count("\n") == 1 and f"step {saved} of 3" in output.err and "--resume" in output.err
    assert f"{saved:09d}" in os.listdir(out / "saves") and not (out / "model").exists()
    assert main(["train", str(recipe), "--out", str(out), "--resume"]) == 0
    assert (out / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize("numbers", [SIGNALS, SIGNALS[::-1]])
def test_a_second_signal_ends_a_run_at_once(recipe: Path, numbers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    send_at(monkeypatch, "step 1 ", *numbers)
    assert main(["train", str(recipe), "--out", str(recipe.parent / "out")]) == 130
    assert not (recipe.parent / "out" / "saves").exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_the_first_step_ends_a_run(recipe: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is made for a state that nothing asked for; the same command can be given again."""
    prepare = pipeline.prepare

    def interrupted(*given: Any) -> Any:
        os.kill(os.getpid(), number)
        return prepare(*given)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "prepare", interrupted)
        assert main(["train", str(recipe), "--out", str(recipe.parent / "out")]) == 130
    assert os.listdir(recipe.parent / "out") == ["lock"]
    assert main(["train", str(recipe), "--out", str(recipe.parent / "out")]) == 0


def test_a_process_that_is_told_to_end(recipe: Path) -> None:
    """SIGTERM from outside: 75, and after the steps nothing on stderr but the line that tells it."""
    code = "import sys; from pellucid.commands import main; sys.exit(main())"
    endless = written(recipe.parent / "endless.toml", batch="2", steps="1000000")
    given = [sys.executable, "-c", code, "train", str(endless), "--out", str(recipe.parent / "out")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(given, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None and process.stderr.readline().startswith("step 1 ")
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    other = [line for line in err.splitlines() if not line.startswith("step ")]
    assert process.returncode == 75 and not out and len(other) == 1 and "--resume" in other[0], err


@pytest.mark.parametrize(("language", "wanted"), [("en", "with everything saved"), ("zh", "退出码")])
def test_help_tells_the_exit_codes(language: str, wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help", "--lang", language]) == 0
    output = capsys.readouterr().out
    assert wanted in output and "75" in output and "130" in output
