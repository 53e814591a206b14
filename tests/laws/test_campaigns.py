"""The campaigns in their quick form find no fault, and each kind of fault is found."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from campaigns import FULL, Tally, Watcher, campaign, impatient, one
from pellucid.errors import PellucidError

QUICK = {"safetensors": 600, "gguf": 200, "config": 250, "trace": 200, "tokenizer": 60, "template": 40, "pages": 20, "engine": 20}
QUICK |= {"requests": 150, "recipe": 300, "data": 60, "kills": 2}
UNREFUSED = {"kills"}  # its attempts are runs, and no files that could be wrong
WATCHER: list[Watcher] = []  # an audit hook stays for the life of a process: one is enough


def watcher(folder: Path) -> Watcher:
    if not WATCHER:
        WATCHER.append(Watcher(folder))
    WATCHER[0].folder = str(folder)
    return WATCHER[0]


@pytest.mark.parametrize("name", FULL)
@pytest.mark.quick(7)
def test_every_mutant_loads_or_is_refused(name: str, tmp_path: Path) -> None:
    tally = campaign(name, 7, range(QUICK[name]), tmp_path, watcher(tmp_path))
    assert set(tally.outcomes) <= {"loaded", "refused"}, tally.faults
    assert tally.outcomes["refused"] > QUICK[name] // 20 or name in UNREFUSED


def out(attempt: Callable[[random.Random], str], folder: Path) -> str:
    return one(attempt, random.Random(0), watcher(folder))[0]


def test_what_a_campaign_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Foreign exceptions, errors of two lines or without a file's name, hangs, processes and writes elsewhere are faults."""

    class TwoLinesError(PellucidError):
        def __str__(self) -> str:
            return "there\nis"

    def refuse(draw: random.Random) -> str:
        raise TwoLinesError("generate.encoder")

    def process(draw: random.Random) -> str:
        os.system("true")
        return ""

    def write(draw: random.Random) -> str:
        (tmp_path.parent / "elsewhere").write_text("x")
        return ""

    def hang(draw: random.Random) -> str:
        while True:
            pass

    def sleep(draw: random.Random) -> str:
        time.sleep(60)
        return ""

    monkeypatch.setattr("campaigns.LIMIT", 0.2)
    assert out(lambda draw: "", tmp_path) == "loaded"
    assert out(lambda draw: str([][1]), tmp_path) == "foreign"
    assert out(lambda draw: "names no file", tmp_path) == "foreign"
    assert out(refuse, tmp_path) == "foreign"
    assert out(process, tmp_path) == "forbidden"
    assert out(write, tmp_path) == "forbidden"
    with impatient():
        assert out(hang, tmp_path) == "hang"
        monkeypatch.setattr("campaigns.PATIENCE", 0.2)
        assert out(sleep, tmp_path) == "hang"
    tally = Tally()
    tally.add(3, "hang")
    assert tally.faults == [{"attempt": 3, "outcome": "hang", "told": ""}]
