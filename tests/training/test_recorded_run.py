"""The run that ships: its files are those of its manifest, its log and records fit each other, and any machine shows them."""

import json
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.api.model import load
from pellucid.api.run import Run
from pellucid.checkpoint.opening import recorded_runs
from pellucid.commands import main
from pellucid.documents.training import training_document
from pellucid.documents.why import tile_document
from pellucid.errors import TrainError, UseError
from pellucid.messages import speaking
from pellucid.training import identity, replay
from pellucid.training.corpus import CORPORA, read
from pellucid.training.identity import digest
from pellucid.training.saves import digest as file_digest
from tiny import FAMILIES, swapped
from training import ROOT

NAME = "pellucid/twelve-countries"
FOLDER = recorded_runs()[NAME]
MOST = 1_500_000  # bytes
KNOWN = {
    "gpt2": "3b5b15051963cb78",
    "llama": "bb2a2e49d9418442",
    "qwen3": "3ecbc9765373c49c",
    "deepseek_v3": "2275cbb3fe251d1e",
    "gpt_oss": "3bdc32c364b88ed9",
    "qwen2_moe": "7f13007e376f25f5",
    "t5": "b8c789acde0852d6",
}  # of models as runs of 30 November 2026 have saved them
WEIGHT = "layers.1.ffn.down.weight"


def unlisted(folder: Path) -> list[str]:
    """Return the files that a folder's manifest does not have as they are, or has and the folder lacks."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    own = {p.relative_to(folder).as_posix(): [file_digest(p), p.stat().st_size] for p in folder.rglob("*") if p.is_file()}
    own.pop("manifest.json")
    return sorted(name for name in own.keys() | manifest.keys() if own.get(name) != manifest.get(name))


def unlike_its_log(run: Run) -> list[int]:
    """Return the recorded steps that say something else than the run's log."""
    log = {entry["step"]: entry for entry in run.log}
    return [step for step in run.watched if run.watched[step].entry != {k: v for k, v in log[step].items() if k != "held_out"}]


def here(run: Run) -> bool:
    """True on a machine whose steps round as those of the run's do."""
    with run.threads():
        own = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}
    return all(run.about.identity[name] == value for name, value in own.items())


def test_every_file_is_the_manifests_and_small(tmp_path: Path) -> None:
    files = [p for p in FOLDER.rglob("*") if p.is_file()]
    assert unlisted(FOLDER) == [] and sum(p.stat().st_size for p in files) <= MOST
    assert {p.stat().st_mode & 0o777 for p in files} == {0o644}
    assert str(ROOT).encode() not in b"".join(p.read_bytes() for p in files)
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("manifest.json", "log.jsonl"):
        (copy / name).write_bytes((FOLDER / name).read_bytes().replace(b'"step": 120,', b'"step": 121,'))
    assert "log.jsonl" in unlisted(copy) and "recipe.toml" in unlisted(copy)


def test_log_records_and_recipe_fit() -> None:
    run = pellucid.Run(NAME)
    assert [entry["step"] for entry in run.log] == list(range(1, 601)) and list(run.watched) == [1, 120, 240, 360, 480, 600]
    assert unlike_its_log(run) == []
    assert (FOLDER / "recipe.toml").read_bytes() == (ROOT / "recipes" / "twelve-countries.toml").read_bytes()
    for step in (1, 600):
        recorded = run.watched[step]
        for path, one in recorded.parameters.items():
            assert float(recorded.updates[path].norm()) == pytest.approx(one.update, rel=1e-5), path
    with swapped(Run, "log", [entry | {"loss": entry["loss"] * (1 + 1e-9 * (entry["step"] == 360))} for entry in run.log]):
        assert unlike_its_log(run) == [360]


def test_what_it_made_is_a_model() -> None:
    model = pellucid.load(NAME)
    assert model.generate("The capital of France is", max_new_tokens=1) == " Paris"
    last = json.loads(sorted((FOLDER / "eval").glob("0*.json"))[-1].read_text(encoding="utf-8"))
    assert sum(last["right"]) >= 40


def test_its_facts_are_those_of_all_countries() -> None:
    own, every = read(CORPORA / "twelve-countries").countries, read(CORPORA / "capitals").countries
    assert len(own) == 12
    for key, country in own.items():
        assert country.named == every[key].named and set(country.neighbours) == {n for n in every[key].neighbours if n in own}


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_another_machine_shows_all_and_says_what_it_cannot(lang: str) -> None:
    """Every recorded step, and a tile of any weight; a step taken again is refused in one line that names the difference."""
    with speaking(lang), swapped(torch.backends.cpu, "get_cpu_capability", lambda: "ANOTHER"):
        run = pellucid.Run(NAME)
        for step in run.watched:
            document = training_document(run, step)
            assert document["step"] == step and len(document["panels"]) == 9
            assert len(tile_document(run, step, WEIGHT, (0, 0))["moved"]) == 12
        with pytest.raises(TrainError) as caught:
            run.why(WEIGHT, (5, 17), 120)
        what = f"cpu ({run.about.identity['cpu']} → ANOTHER)"
        assert caught.value.key == "replay.machine" and what in str(caught.value) and "\n" not in str(caught.value)


def test_a_step_taken_again_is_the_logs() -> None:
    """To the bit where the machine is of the run's kind; on any other the first loss is its own but for rounding."""
    run = pellucid.Run(NAME)
    if here(run):
        run.replay(3)
        why = run.why(WEIGHT, (5, 17), 2)
        assert abs(why.rest) < 1e-7
    with swapped(replay, "require", lambda *how, **more: ""), run.threads():
        other = pellucid.Run(NAME)
        first = other.built[0].backward(other.numbers(1))
        assert first.loss == pytest.approx(run.log[0]["loss"], rel=1e-5)
        assert digest(json.dumps(other.numbers(1)))[:16] == run.log[0]["documents"]


def test_a_run_stays_itself_when_specs_gain_fields() -> None:
    """Of the shipped run, as of any that a user has: the mutant writes each field that specs have today."""
    config, own = load(NAME).config, json.loads((FOLDER / "run.json").read_text(encoding="utf-8"))["identity"]["model"]
    assert digest(identity.written(config)) == own
    with swapped(identity, "LATER", frozenset()):
        assert digest(identity.written(config)) != own and identity.written(config) == repr(config)


def test_runs_of_every_kind_of_spec_stay_themselves() -> None:
    """Also those of experts, latent attention and encoder-decoders, which the shipped run has not. The mutant forgets a newer field."""

    def now() -> dict[str, str]:
        return {name: digest(identity.written(cfg))[:16] for name, cfg in FAMILIES.items()}

    assert now() == KNOWN
    with swapped(identity, "LATER", identity.LATER - {"corrects_logits"}):
        assert {name for name, own in now().items() if own != KNOWN[name]} == {"deepseek_v3", "gpt_oss", "qwen2_moe"}


def test_its_name_is_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run that ships is trained again from its name, by command and from Python; its first steps are those of its log."""
    assert main(["train", NAME, "--out", str(tmp_path / "run"), "--set", "train.steps=2", "-q"]) == 0
    made, shipped = pellucid.Run(tmp_path / "run"), pellucid.Run(NAME)
    assert (
        made.log[0]["loss"] == pytest.approx(shipped.log[0]["loss"], rel=1e-5) and made.log[0]["documents"] == shipped.log[0]["documents"]
    )
    capsys.readouterr()
    for lang in ("en", "zh"):
        assert main(["train", "pellucid/capitals", "--lang", lang]) == 2
        assert "pellucid/capitals" in (line := capsys.readouterr().err) and NAME in line and line.count("\n") == 1
    with pytest.raises(UseError, match="pellucid/other"):
        pellucid.train("pellucid/other", tmp_path / "other")
