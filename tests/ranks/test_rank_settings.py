"""Settings and objectives on several ranks beside one: bfloat16, recomputation, skipped steps, preference and distillation."""

from collections.abc import Callable
from typing import Any

import pytest

from rank_grids import FULL, Measured

GRIDS = ["data=2 tensor=1", "data=1 tensor=2", "data=1 tensor=1 expert=2", "data=2 tensor=1 shard=2"]
BOUND = 1e-10
Of = Callable[[str, int], Measured]


@pytest.fixture
def settings(measured: Of) -> dict[str, Any]:
    return measured("settings", 2)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.quick(4)
def test_recomputed_blocks_exchange_again(settings: dict[str, Any], grid: str) -> None:
    """The second forward of a block has the exchanges of the first, on every rank in the same order."""
    assert settings["recompute"][grid] == {"far": pytest.approx(0, abs=BOUND), "skipped": []}


@pytest.mark.parametrize("grid", GRIDS)
def test_muon_has_complete_matrices_on_all_ranks(settings: dict[str, Any], grid: str) -> None:
    """Muon, whose orthogonal matrix is none of its parts': mutants make each rank's part orthogonal."""
    assert settings["muon"][grid]["far"] < BOUND and min(settings["muon"]["mutants"]) > 1e-2


@pytest.mark.parametrize("grid", GRIDS)
def test_ranks_skip_the_same_steps(settings: dict[str, Any], grid: str) -> None:
    """A loss or a gradient that is not finite, on one of two data ranks and in one of several forwards: the log of one rank."""
    assert settings["skip"][grid] == {"far": pytest.approx(0, abs=BOUND), "skipped": [1, 7, 8]}


@pytest.mark.parametrize("grid", GRIDS[1:])
def test_a_rank_that_alone_finds_a_broken_tensor_does_not_leave_the_others(settings: dict[str, Any], grid: str) -> None:
    """Without the agreement rank 0 waits in the next forward until its patience ends."""
    assert settings["disagreeing"][grid] == pytest.approx(settings["first loss"], abs=BOUND)


def test_data_ranks_in_bfloat16_are_micro_batches_of_one(settings: dict[str, Any]) -> None:
    """Bit for bit, since either adds the gradients of two forwards in float32. Added in bfloat16 they are others.

    With weights shared out all but the norm of the clip is the same, which is a float64 sum there.
    """
    assert settings["narrow"][f"{GRIDS[0]} far"] == 0 < settings["narrow"]["rounded far"]
    assert settings["narrow"]["shards far"] < 1e-5 < settings["narrow"]["rounded far"]


@pytest.mark.parametrize("grid", GRIDS[1:3])
def test_bfloat16_is_as_exact_on_ranks_of_a_model(settings: dict[str, Any], grid: str) -> None:
    """The gradients are as far from those of float64 as one rank's, which rounds as often."""
    on_ranks, alone = settings["narrow"][f"{grid} errors"]
    assert 0 < on_ranks < 1.1 * alone


def test_a_state_in_bfloat16_is_the_same_bytes_on_any_ranks(settings: dict[str, Any]) -> None:
    """Saved on two data ranks, loaded and saved on two tensor ranks, and on one: float32 masters and moments."""
    of_data, of_tensor, alone = (settings["narrow"][f"{grid} state"] for grid in (*GRIDS[:2], "alone"))
    assert of_data == of_tensor == alone


@pytest.mark.parametrize("grid", [*GRIDS[:2], GRIDS[3]])
@pytest.mark.parametrize("objective", ["prefer", "distil"])
def test_other_objectives_train_as_on_one_rank(settings: dict[str, Any], objective: str, grid: str) -> None:
    """Five steps of pairs, or of rows that a teacher reads, of which two ranks have unequal shares, with a clip that bites."""
    got = settings["objectives"][f"{objective} {grid}"]
    assert got["far"] < BOUND and got["gradient"] > 0.05
    assert {"prefer": "margin", "distil": "agreed"}[objective] in got["log"]


def test_count_knows_what_a_rank_of_a_run_holds_and_sends(settings: dict[str, Any]) -> None:
    """Weights, gradients and moments to the byte, and what a step sends, which a recorder of torch's exchanges counts.

    To data ranks, and to those that share a model: in forwards, in backward passes, with recomputed blocks, and after them. The mutant is
    off by what attention does not share.
    """
    bills = settings["bills"]
    counted_of_mutant, measured_of_mutant = bills.pop("mutant")
    for name, pairs in bills.items():
        assert all(counted == measured for counted, measured in pairs.values()), (name, pairs)
    assert counted_of_mutant > measured_of_mutant > 0
    assert len(bills) == (29 if FULL else 16) and "scattered" in bills[f"gpt2 {GRIDS[3]}"]
    assert "matrices" in bills[f"muon {GRIDS[1]}"] and "matrices" in bills[f"muon {GRIDS[3]}"]
    assert {"summed", "shared", "logits", "partial"} <= bills[f"qwen3_moe {GRIDS[1]}"].keys() and "both" in bills[
        f"qwen3_moe {GRIDS[2]} again"
    ]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_count_knows_a_data_rank_of_an_adapter(settings: dict[str, Any], optimizer: str) -> None:
    """Frozen weights, A and B with their gradients and moments, of which Muon has one, and the sum of those gradients."""
    bill = settings["adapter bill"][optimizer]
    assert bill.keys() == {"weights", "adapters", "gradients", "moments", "added_up", "sent"} and bill["sent"][0] > 0
    assert all(counted == measured for counted, measured in bill.values()), bill


def test_tables_that_blocks_share_are_complete_on_each_rank(settings: dict[str, Any]) -> None:
    """T5's distances, of which no block is the owner: their gradient is summed after the backward pass."""
    stacks = ("encoder", "decoder")
    assert settings["tables"] == {
        "far": pytest.approx(0, abs=BOUND),
        "complete": [f"{stack}.layers.0.attn.relative.weight" for stack in stacks],
    }


def test_adapters_train_on_ranks_of_a_model(settings: dict[str, Any]) -> None:
    """B's rows or A's columns as their matrix is split, with a sum of the gradients of an A that all use; and with one copy between two
    data ranks, frozen weights too. Joined in float32.
    """
    cases = settings["adapters"]
    assert cases.pop("mutant") > 1e-3 and len(cases) == 5
    for name, got in cases.items():
        assert got["far"] < BOUND and got["joined"] < 1e-7 and got["gradient"] > 0.05, name
