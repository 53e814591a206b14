"""`trace` and `verify` of a run's folder: a step of it in a trace, and proof that its states follow from its data."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import pellucid
from documented import accept
from pellucid.analysis import run_difference
from pellucid.commands import main
from pellucid.training import stretches
from pellucid.training.replay import Replay
from pellucid.training.saves import FILES, digest
from pellucid.training.stretches import verify_stretches
from test_replay import recipe_in
from tiny import swapped
from training import unmeasured


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run with states after 7, 14 and 20 steps."""
    folder = tmp_path_factory.mktemp("run")
    with unmeasured():
        yield pellucid.train(recipe_in(folder, "gpt2"), folder / "run").folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    shutil.copytree(finished.parent, tmp_path / "copy")
    about = json.loads((tmp_path / "copy" / "run" / "run.json").read_text())
    (tmp_path / "copy" / "run" / "run.json").write_text(json.dumps(about | {"root": str(tmp_path / "copy")}))
    return tmp_path / "copy" / "run"


def judged(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, object]]:
    """Return a command's exit code and its JSON, which its schema accepts."""
    code = main([*map(str, words), "--json"])
    document = json.loads(capsys.readouterr().out)
    accept(document, words[0])
    return code, document


def test_a_run_that_is_opened_before_its_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While its tokens are made, a folder has no run.json yet; any other folder is told what it lacks."""
    (tmp_path / "run" / "data").mkdir(parents=True)
    assert main(["open", str(tmp_path / "run"), "--no-browser"]) == 2 and "run.json" in capsys.readouterr().err
    (tmp_path / "run" / "lock").touch()
    assert main(["open", str(tmp_path / "run"), "--no-browser"]) == 2
    assert "before its first step" in (line := capsys.readouterr().err) and line.count("\n") == 1
    (tmp_path / "run" / "saves").mkdir()
    assert main(["open", str(tmp_path / "run"), "--no-browser"]) == 2 and "run.json" in capsys.readouterr().err


def test_trace_of_a_step(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trace on disk has the step's tensors and gradients, to the bit; `--only` leaves the others out."""
    code, document = judged(capsys, "trace", finished, "--step", 9, "--save", tmp_path / "all")
    step, saved = pellucid.Run(finished).replay(9), pellucid.load_trace(tmp_path / "all")
    assert code == 0 and document["tensors"] == len(step) == len(saved) and saved.fed
    for one, other in zip(saved, step, strict=True):
        assert one.path == other.path and torch.equal(one.value, other.value) and (one.grad is None) == (other.grad is None)
        assert one.grad is None or (other.grad is not None and torch.equal(one.grad, other.grad))
    assert pellucid.first_difference(saved, step) is None and (tmp_path / "all" / "step.json").exists()
    code, document = judged(capsys, "trace", finished, "--step", 9, "--save", tmp_path / "some", "--only", "*.pattern")
    assert pellucid.load_trace(tmp_path / "some").paths() == ["layers.0.attn.pattern"]
    for words, part in (
        ([finished, "--step", 9], "--save"),
        ([finished, "The", "--step", 9, "--save", tmp_path / "x"], "RUN"),
        ([finished, "--step", 99, "--save", tmp_path / "x"], "99"),
        ([finished, "--step", 9, "--save", tmp_path / "all"], "all"),
        ([finished, "--step", 9, "--save", tmp_path / "x", "--only", "nix"], "nix"),
        ([finished, "--save", tmp_path / "x"], "PROMPT"),
        ([finished, "--step", 9, "--save", tmp_path / "x", "--dtype", "bfloat16"], "--dtype"),
        ([finished, "--step", 9, "--save", tmp_path / "x", "--adapter", finished], "--adapter"),
        ([finished, "--step", 9, "--save", tmp_path / "x", "--steps", 2], "--steps"),
    ):
        assert main(["trace", *map(str, words), "--lang", "en"]) == 2
        output = capsys.readouterr()
        assert output.err.count("\n") == 1 and part in output.err and not (tmp_path / "x").exists()


def test_a_sound_run_is_verified(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of its stretches, or a random one, as JSON and in both languages."""
    code, document = judged(capsys, "verify", finished, "--stretches", 9)
    rows = [{"first": a, "last": b, "fault": None} for a, b in ((0, 7), (7, 14), (14, 20))]
    assert code == 0 and document == {"schema": 1, "run": str(finished), "agrees": True, "stretches": rows}
    drawn = {(s.first, s.last) for seed in range(4) for s in verify_stretches(Replay(finished), 1, seed)}
    assert 1 < len(drawn) <= 3
    for language, word in (("en", "same bits"), ("zh", "逐位相同")):
        assert main(["verify", str(finished), "--stretches", "1", "--lang", language]) == 0
        assert word in capsys.readouterr().out
    assert main(["verify", str(finished), "--stretches", "0"]) == 2
    for words in (["--dtype", "float32"], ["--all"], ["--tolerance", "1"], ["--device", "cpu"]):
        capsys.readouterr()
        assert main(["verify", str(finished), *words]) == 2
        err = capsys.readouterr().err
        assert words[0] in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["weights", "moments"])
@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.quick(2)
def test_one_flipped_bit_of_a_state(name: str, hashed: bool, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its manifest names the file; where the manifest fits the bit, the tensor is named by the steps that lead there."""
    state = copied / "saves" / "000000014"
    content = bytearray((state / f"{name}.safetensors").read_bytes())
    content[-9] ^= 4
    (state / f"{name}.safetensors").write_bytes(content)
    if hashed:
        (state / "manifest.json").write_text(json.dumps({f: [digest(state / f), (state / f).stat().st_size] for f in FILES}))
    code, document = judged(capsys, "verify", copied, "--stretches", 3)
    faults = {(s.first, s.last): s.fault for s in verify_stretches(Replay(copied), 3)}
    assert code == 1 and not document["agrees"] and faults[0, 7] is None
    if hashed:
        assert ("weight" in (fault := faults[7, 14] or "") or "exp_avg" in fault) and "000000014" in fault
        with swapped(Replay, "check_stretch", lambda self, first, last: self.to(last)):  # the mutant compares the log alone
            assert all(s.fault is None for s in verify_stretches(Replay(copied), 3) if s.last == 14)
    else:
        assert f"{name}.safetensors" in (faults[14, 14] or "") and (7, 14) not in faults
        with swapped(stretches, "check_state", lambda folder: {}):
            assert len(verify_stretches(Replay(copied), 3)) == 3


def test_one_changed_document(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the documents."""
    facts = copied.parent / "corpus" / "facts.json"
    facts.write_text(facts.read_text(encoding="utf-8").replace("Paris", "Lyon"), encoding="utf-8")
    assert main(["verify", str(copied), "--lang", "en"]) == 2
    output = capsys.readouterr()
    assert not output.out and output.err.count("\n") == 1 and output.err.strip().endswith("documents")


def test_two_runs_part(finished: Path, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal runs are equal; with another rate from a step on, the step after it is named, and its first tensor that a weight made."""
    code, document = judged(capsys, "diff", finished, copied)
    assert code == 0 and document["equal"] and document["compared"] == 20 and document["parting"] is None
    recipe = finished.parent / "other.toml"
    text = (finished.parent / "r.toml").read_text(encoding="utf-8")
    recipe.write_text(text.replace("clip = 1.0", "clip = 0.5") if "clip = 1.0" in text else text.replace("[train]", "[train]\nfloor = 0.5"))
    with unmeasured():
        other = pellucid.train(recipe, tmp_path / "other")
    own = pellucid.Run(finished)
    apart = next(e["step"] for e, o in zip(own.log, other.log, strict=True) if (e["loss"], e["gradient"]) != (o["loss"], o["gradient"]))
    code, document = judged(capsys, "diff", finished, other.folder)
    parting = document["parting"]
    assert isinstance(parting, dict) and code == 1 and parting["step"] == apart > 1
    assert parting["field"] in ("loss", "gradient") and parting["tensor"]["path"] == own.replay(apart).paths()[0]
    assert main(["diff", str(finished), str(other.folder), "--lang", "en"]) == 1
    assert f"part in step {apart}" in capsys.readouterr().out
    assert main(["diff", str(finished), str(other.folder), "--atol", "1e9"]) == 0
    with swapped(run_difference, "COMPARED", ("documents",)):  # a mutant: the numbers are not compared
        assert run_difference.first_parting(own, other) is None
