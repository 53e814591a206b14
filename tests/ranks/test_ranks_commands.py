"""Commands of several processes: what is refused in one line, and how a run ends by a signal or by the death of a rank."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pellucid.commands import main
from pellucid.commands.screen import Screen
from pellucid.distributed import Ranks, join
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.errors import TrainError, UseError
from pellucid.nn.norm import HeadsRmsNorm
from pellucid.sharding import split
from pellucid.training.pipeline import check_ranks
from pellucid.training.recipe import read_recipe
from pellucid.training.recipe_tables import RanksSettings
from test_recipe import written
from text_runs import recipe_of
from tiny import DECODERS, QWEN3, tiny
from training import corpus_of
from under_torchrun import environment


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    corpus_of(tmp_path / "corpus", "France", "Spain")
    return with_table(tmp_path / "mini.toml", "[ranks]\ndata = 2")


def with_table(path: Path, table: str, **changed: str) -> Path:
    """Write a recipe of many steps with one more table."""
    written(path, **{"batch": "4", "steps": "100000", "save_every": "5"} | changed)
    path.write_text(f"{path.read_text()}{table}\n")
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be the first of four that torchrun started."""
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)


REFUSED = [
    (["count", "gpt2-small"], "count runs in one process, 4 were started"),
    (["run", "pellucid/capitals", "a", "--chat"], "--chat is for one process, 4 were started"),
    (["run", "pellucid/capitals", "a", "--deterministic"], "--deterministic is for one process"),
    (["run", "pellucid/capitals", "a", "--device", "cuda"], "--device is for one process"),
    (["trace", "run", "--step", "3", "--save", "x"], "--step is for one process"),
    (["score", "pellucid/capitals", "-"], "FILE: - is for one process"),
    (["run", "pellucid/capitals", "a", "--ranks", "pp=4"], "--ranks is pp=4; processes share tp=N, experts=N, or both with one N"),
    (["run", "pellucid/capitals", "a", "--ranks", "tp=1"], "[ranks] data=1 tensor=1 needs 1 processes, 4 were started"),
    (["trace", "pellucid/capitals", "a", "--save", "x", "--ranks", "experts=2"], "[ranks] data=1 tensor=1 expert=2 needs 2 processes"),
]


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(("given", "line"), REFUSED)
def test_what_several_processes_cannot_do(given: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 2
    output = capsys.readouterr()
    assert not output.out and output.err.count("\n") == 1 and line in output.err


@pytest.mark.usefixtures("started")
def test_as_many_processes_as_the_recipe_has(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(recipe), "--out", str(recipe.parent / "out")]) == 2
    assert capsys.readouterr().err == "pellucid: [ranks] data=2 tensor=1 needs 2 processes, 4 were started\n"
    assert not (recipe.parent / "out").exists()


def test_a_recipe_of_two_ranks_alone(recipe: Path) -> None:
    with pytest.raises(UseError, match="needs 2 processes, 1 were started"):
        join(2, 1)
    assert main(["train", str(recipe), "--out", str(recipe.parent / "out")]) == 2


@pytest.mark.parametrize(
    ("changed", "ranks", "field"),
    [
        ({"train__auxiliary": "0.1"}, RanksSettings(2, 1), "train.auxiliary is 0.1"),
        ({}, RanksSettings(2, 1), "watch is"),
    ],
)
def test_what_ranks_do_not_train(recipe: Path, changed: dict[str, str], ranks: RanksSettings, field: str) -> None:
    read = read_recipe(with_table(recipe, "" if changed else "[watch]\nevery = 2", **changed))
    check_ranks(read)
    with pytest.raises(TrainError, match=field):
        check_ranks(replace(read, ranks=ranks))


@pytest.mark.parametrize("value", ["0", "1.5", '"2"'])
def test_ranks_are_whole_numbers(recipe: Path, value: str) -> None:
    with pytest.raises(TrainError, match=r"ranks.data is .*allowed: int > 0"):
        read_recipe(with_table(recipe, f"[ranks]\ndata = {value}"))
    with pytest.raises(TrainError, match=r"ranks.tensor is 2; allowed: 1, ranks.expert = 4"):
        read_recipe(with_table(recipe, "[ranks]\ntensor = 2\nexpert = 4"))
    with pytest.raises(TrainError, match=r"ranks.shard is 2; allowed: a divisor of ranks.data, 3"):
        read_recipe(with_table(recipe, "[ranks]\ndata = 3\nshard = 2"))
    with pytest.raises(TrainError, match=r"ranks\.pipeline is not known"):
        read_recipe(with_table(recipe, "[ranks]\npipeline = 2"))


def test_what_cannot_be_split() -> None:
    """Nothing of the model has changed when it is refused."""
    layer = QWEN3.layers[0]
    joint = replace(QWEN3, layers=(replace(layer, attn=replace(layer.attn, qk_joint=True)),))
    cases: list[tuple[Any, Any, str]] = [
        (DECODERS["gpt2"], 3, "4 heads cannot be split over tensor=3"),
        (DECODERS["llama"], 4, "2 kv_heads cannot be split over tensor=4"),
        (joint, 2, "qk_joint cannot be split over tensor=2"),
    ]
    cases = [(cfg, Ranks(1, tensor), line) for cfg, tensor, line in cases]
    cases += [
        (DECODERS["llama"], Ranks(1, 1, 2), "expert=2 splits experts, and this model has none"),
        (DECODERS["deepseek_v3"], Ranks(1, 1, 3), "8 experts cannot be split over expert=3"),
        (DECODERS["llama"], Ranks(1, 2, 2), "expert=2 splits experts"),
    ]
    for cfg, ranks, line in cases:
        model = tiny(cfg)
        shapes = [p.shape for p in model.parameters()]
        with pytest.raises(UseError, match=line):
            split(model, ranks)
        assert [p.shape for p in model.parameters()] == shapes
    assert any(isinstance(m, HeadsRmsNorm) for m in tiny(joint).modules())


def test_a_fault_of_a_forward_is_no_lost_rank() -> None:
    """Torch's exchanges inside of forwards fail by gloo's name; what else fails there is told as it is."""
    with pytest.raises(RuntimeError, match=r"^shapes$"), Ranks(2, shard=2).computing():
        raise RuntimeError("shapes")


@pytest.mark.parametrize("ranks", ["data = 2", "tensor = 2", "data = 2\ntensor = 2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_rank_and_its_step_have_the_same_bytes(ranks: str, dtype: str, tmp_path: Path) -> None:
    """What a rank holds of weights, gradients and moments is what its step is counted with."""
    path = recipe_of(tmp_path, train__dtype=f'"{dtype}"')
    path.write_text(path.read_text() + f"\n[ranks]\n{ranks}\n")
    made = recipe_bill(path).document()
    lasting = {name: made["rank"][name]["value"] for name in ("weights", "gradients", "moments", "master") if name in made["rank"]}
    assert len(lasting) == (4 if dtype == "bfloat16" else 3)
    assert lasting == {name: made["training"][f"memory.{name}"]["value"] for name in lasting}


def test_the_bill_of_a_recipe_on_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two shards hold half, and send what they gather; in bfloat16 two copies have master weights beside those that are read."""

    def rank(ranks: str, dtype: str = "float32") -> dict[str, int]:
        path = recipe_of(tmp_path, train__dtype=f'"{dtype}"')
        path.write_text(path.read_text() + ranks)
        document = recipe_bill(path).document()
        return {name: n["value"] for name, n in document.get("rank", {}).items()}

    two, shards = rank("\n[ranks]\ndata = 2\n"), rank("\n[ranks]\ndata = 2\nshard = 2\n")
    assert two["sent"] == two["added_up"] == two["weights"] and two["moments"] == 2 * two["weights"] and rank("") == {}
    assert shards["weights"] - two["weights"] // 2 in range(2048) and shards["sent"] == shards["gathered"] + shards["scattered"]
    narrow = rank("\n[ranks]\ndata = 2\n", "bfloat16")
    assert narrow["weights"] * 2 == narrow["master"] == narrow["gradients"] == two["weights"]
    path = recipe_of(tmp_path)
    path.write_text(path.read_text() + "\n[ranks]\ndata = 2\nshard = 2\n")
    assert main(["count", str(path)]) == 0 and "one rank of data=2 tensor=1 shard=2" in capsys.readouterr().out


Running = subprocess.Popen[str]
Started = tuple[Running, dict[int, int]]


@contextmanager
def training(recipe: Path, steps: int, *options: str, program: Sequence[str] = ()) -> Iterator[Started]:
    """Start a run on two ranks and wait until it has taken this many steps. Yields torchrun and the ids of its processes by rank.

    program: a script in the place of pellucid.
    """
    out = recipe.parent / "out"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *(program or ("-m", "pellucid"))]
    command += ["-q", "train", str(recipe), "--out", str(out), *options]
    torchrun = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: (out / "log.jsonl").exists() and (out / "log.jsonl").read_text().count("\n") >= steps, torchrun)
        yield torchrun, {rank_of(pid): pid for pid in children(torchrun.pid)}
    finally:
        if torchrun.poll() is None:
            torchrun.kill()
        torchrun.communicate()


def until(done: Any, torchrun: Running) -> None:
    """Wait until `done()`, while torchrun runs."""
    for _ in range(2400):
        if done():
            return
        assert torchrun.poll() is None, torchrun.communicate()[1]
        time.sleep(0.05)
    raise AssertionError("too late")


def children(pid: int) -> list[int]:
    """Return the ids of a process's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def rank_of(pid: int) -> int:
    """Return the rank of a process that torchrun started."""
    match = re.search(r"(?:^|\0)RANK=(\d+)", Path(f"/proc/{pid}/environ").read_text())
    assert match is not None
    return int(match[1])


def ours(err: str) -> list[str]:
    """Return the lines of stderr that are not torchrun's."""
    return [line for line in err.splitlines() if line.startswith("pellucid: ")]


def gone(pids: dict[int, int]) -> bool:
    """True if none of these processes runs."""
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids.values())


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@contextmanager
def silent(recipe: Path, *program: str) -> Iterator[Started]:
    """Stop rank 1 of a run, so that gloo waits for it as if it did not know of its death, and tell rank 0 to end, as torchrun does."""
    with training(recipe, 3, program=program) as (torchrun, pids):
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(1)
        os.kill(pids[0], signal.SIGTERM)
        yield torchrun, pids


def test_a_rank_that_says_nothing_ends_the_run(recipe: Path) -> None:
    """An exchange that gloo never ends is ended by SIGTERM, in the one line."""
    with silent(recipe) as (torchrun, pids):
        until(lambda: not os.path.exists(f"/proc/{pids[0]}"), torchrun)
        os.kill(pids[1], signal.SIGKILL)
        _, err = torchrun.communicate(timeout=60)
    assert torchrun.returncode and gone(pids)
    assert len(ours(err)) == 1 and "of 2 ranks, no sign of life from 1: SIGTERM" in ours(err)[0], err


def test_without_its_watch_a_rank_waits_on(recipe: Path, tmp_path: Path) -> None:
    """For the time of six signs of life, which are made shorter for this."""
    program = tmp_path / "unwatched.py"
    lines = ["import sys", "from datetime import timedelta", "from pellucid import commands, distributed, signs_of_life"]
    lines += ["signs_of_life.NAMING = timedelta(seconds=0.3)", "distributed.watch_signals = int", "sys.exit(commands.main())"]
    program.write_text("\n".join(lines))
    with silent(recipe, str(program)) as (_, pids):
        time.sleep(2)
        assert os.path.exists(f"/proc/{pids[0]}")
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)


def test_a_rank_that_dies_ends_the_run(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line names it, no process is left, and the run goes on from the state that was saved, on one rank too."""
    with training(recipe, 7) as (torchrun, pids):
        os.kill(pids[1], signal.SIGKILL)
        _, err = torchrun.communicate(timeout=60)
    assert torchrun.returncode and gone(pids)
    assert len(ours(err)) == 1 and "of 2 ranks, no sign of life from 1:" in ours(err)[0], err
    saved = sorted(os.listdir(recipe.parent / "out" / "saves"))[-1]
    with_table(recipe, "")
    given = ["train", str(recipe), "--out", str(recipe.parent / "out")]
    assert main([*given, "--resume"]) == 2
    assert "ranks (data=2 tensor=1 → data=1 tensor=1)" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Screen, "note", lambda screen, text: os.kill(os.getpid(), signal.SIGTERM) if text.startswith("step ") else None)
        assert main([*given, "--allow-inexact"]) == 75
    assert sorted(os.listdir(recipe.parent / "out" / "saves"))[-1] == f"{int(saved) + 1:09d}"


def test_a_signal_saves_the_same_step_on_all_ranks(recipe: Path) -> None:
    """One line, and a state of that step, from which two ranks go on."""
    with training(recipe, 3) as (torchrun, pids):
        for pid in pids.values():
            os.kill(pid, signal.SIGTERM)
        _, err = torchrun.communicate(timeout=60)
    assert gone(pids)
    (line,) = ours(err)
    step = re.search(r"stopped at step (\d+) of 100000; the state is saved", line)
    assert step is not None and sorted(os.listdir(recipe.parent / "out" / "saves"))[-1] == f"{int(step[1]):09d}"
    with training(recipe, int(step[1]) + 2, "--resume") as (torchrun, pids):
        torchrun.send_signal(signal.SIGTERM)
        torchrun.communicate(timeout=60)
    assert gone(pids)
