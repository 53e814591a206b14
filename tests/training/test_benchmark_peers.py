"""Another trainer beside ours: sides take steps in turn, the peer in a process of its own, and a row without one says why."""

import argparse
import time
from pathlib import Path
from typing import Any

import pytest

from training import ROOT

SHAPE = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 4, "vocab_size": 64}
MODEL = """
import torch
class GPTConfig:
    def __init__(self, **given):
        self.given = given
class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.table = torch.nn.Embedding(config.given["vocab_size"], config.given["n_embd"])
    def init_weights(self):
        print("words of its own")
        torch.nn.init.normal_(self.table.weight)
    def setup_optimizer(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
    def forward(self, x, y):
        return self.table(x).sum()
"""


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import peer_process
    import train

    return peer_process, train


def checkout(folder: Path, text: str) -> Path:
    """Write a checkout of a trainer that is already there."""
    (folder / "nanochat" / "nanochat").mkdir(parents=True)
    (folder / "nanochat" / "nanochat" / "gpt.py").write_text(text, encoding="utf-8")
    (folder / "nanochat" / ".made").touch()
    return folder


def test_a_peer_takes_steps(modules: Any, tmp_path: Path) -> None:
    """Its own words are no answers; a process that ends gives its last line; one that cannot be made gives the command's."""
    peer_process, _ = modules
    with peer_process.Peer("nanochat", checkout(tmp_path / "right", MODEL), SHAPE, 2) as peer:
        assert peer.about["parameters"] == 8 * 64 and peer() is None and peer() is None
    broken = checkout(tmp_path / "broken", MODEL.replace("self.table(x).sum()", "self.absent"))
    with peer_process.Peer("nanochat", broken, SHAPE, 2) as peer, pytest.raises(peer_process.MissingError, match="absent"):
        peer()
    with pytest.raises(peer_process.MissingError, match="no such command: No such file"):
        peer_process.command("no such command")
    with pytest.raises(peer_process.MissingError, match=r"^git clone"):
        peer_process.command("git", "clone", tmp_path / "none", tmp_path / "made")


def test_a_missing_peer_is_a_row(modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer_process, train = modules
    monkeypatch.setattr(peer_process, "NANOCHAT", str(tmp_path / "none"))
    row = train.nanochat(argparse.Namespace(peers=tmp_path, threads=1, pairs=1, steps=1, dtypes=["float32"]), tmp_path)
    assert list(row) == ["missing"] and "git clone" in row["missing"]


def test_sides_take_turns(modules: Any) -> None:
    """One side sleeps twice as long as ours; each takes a step before it is measured."""
    _, train = modules
    order: list[str] = []

    def side(name: str, naps: int) -> Any:
        return lambda: (order.append(name), time.sleep(0.02 * naps))

    rows = train.in_turn(side("own", 1), {"slow": side("slow", 3), "even": side("even", 1)}, 3, 1)
    assert order == ["own", "slow", "even"] * 4
    assert rows["slow"]["ratio"] > 1.5 > rows["even"]["ratio"] and rows["slow"]["theirs"] < rows["slow"]["ours"]


def test_litgpt_has_the_model_that_is_ours(modules: Any) -> None:
    """GPT-NeoX's form of the rows' shape has tied tables, four times as wide neurons, and biases."""
    from pellucid.families import understand
    from pellucid.nn.transformer import build

    _, train = modules
    d, layers, ids = 384, 6, 50304
    parameters = sum(p.numel() for p in build(understand(train.neox())[1]).parameters())
    assert parameters == ids * d + layers * (12 * d * d + 13 * d) + 2 * d
