"""Several ranks and one: the same training, the same states, traces, texts and bytes, in float64 at 1e-10, and mutants that are far off.

Parts of `tests/support`, trained_on_ranks.py and others, measure on forked ranks; the tests here read what they wrote.
"""

from collections.abc import Callable

import pytest

from rank_grids import FULL, OF_EXPERTS, Measured
from traced_on_ranks import COUNTED
from trained_on_ranks import FAMILIES, families_of

BOUND = 1e-10


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("data", "tensor"), [(2, 1), (1, 2), (2, 2), (4, 1)])
def test_ranks_train_as_one_does(measured: Callable[[str, int], Measured], family: str, data: int, tensor: int) -> None:
    """Steps with a clip that bites, of batches that are not shared out evenly: gradients, losses, norms and weights. Ten in a full run."""
    if family not in families_of(data, tensor, 1):
        pytest.skip("PELLUCID_FULL=1")
    got = measured("trained", data * tensor)[f"{family} data={data} tensor={tensor}"]
    assert got.pop("tokens") == 0
    assert max(got.values()) < BOUND, got


@pytest.mark.parametrize(("data", "tensor"), [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("family", OF_EXPERTS)
def test_ranks_of_experts_train_as_one_does(measured: Callable[[str, int], Measured], family: str, data: int, tensor: int) -> None:
    """Each of two ranks has half of every layer's experts, complete, with attention whole or split too; and two data ranks of such."""
    if family not in families_of(data, tensor, 2):
        pytest.skip("PELLUCID_FULL=1")
    got = measured("trained", 2 * data)[f"{family} data={data} tensor={tensor} expert=2"]
    assert got.pop("tokens") == 0
    assert max(got.values()) < BOUND, got


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("grid", ["data=2 tensor=1 shard=2", "data=2 tensor=2 shard=2", "data=4 tensor=1 shard=2"])
def test_data_ranks_that_share_weights_out_train_as_one_does(measured: Callable[[str, int], Measured], grid: str, family: str) -> None:
    """Each has half of the rows of every weight, gradient and moment, beside its heads or another copy; GPT-2's table is its head, too.

    Of three documents that four ranks share one rank has none, and runs one that counts nothing.
    """
    processes = 2 if grid == "data=2 tensor=1 shard=2" else 4
    if family not in families_of(4 if "4" in grid else 2, 2 if "tensor=2" in grid else 1, 1, 2):
        pytest.skip("PELLUCID_FULL=1")
    got = measured("trained", processes)[f"{family} {grid}"]
    assert got.pop("tokens") == 0
    assert max(got.values()) < BOUND, got


def test_weights_of_every_neuron_train_as_on_one_rank(measured: Callable[[str, int], Measured]) -> None:
    """Apertus' activation has two learned numbers, of which each rank's neurons give a part of the gradient."""
    got = measured("trained", 2)["apertus data=1 tensor=2"]
    assert got.pop("tokens") == 0
    assert max(got.values()) < BOUND, got


MUTANTS = (
    "latent attention shares nothing", "experts share nothing", "the vocabulary shares nothing", "a norm of each head is trained alone",
    "gradients are averaged", "a rank divides by its own targets", "a split weight's norm is one rank's",
    "complete experts share nothing", "an expert's bias is added in part", "experts run other experts' rows",
    "the norm of experts is one rank's", "a rank draws by a seed of its own",
    "shards are averaged", "the norm of rows is one rank's",
)  # fmt: skip


@pytest.mark.parametrize("mutant", ["none", *MUTANTS])
def test_a_wrong_exchange_is_seen(measured: Callable[[str, int], Measured], mutant: str) -> None:
    got = measured("trained", 2)[mutant]
    worst = max(got["gradients"], got["gradient"], got["loss"])
    assert worst < BOUND if mutant == "none" else worst > 1e-3


@pytest.mark.parametrize("case", ["deepseek_v3 adamw", "llama adamw", "deepseek_v3 muon"])
def test_a_state_is_the_same_bytes_on_any_ranks(measured: Callable[[str, int], Measured], case: str) -> None:
    """Saved on 2 x 2 ranks, loaded and saved on 4 of which two have a copy, on 4 that have one each, and on one: one file.

    The grid's change is told. DeepSeek-V3's also on 2 data x 2 expert ranks, and on 2 x 2 ranks with one copy.
    """
    got = measured("trained", 4)
    assert got[f"{case} weights.safetensors"] == got[f"{case} moments.safetensors"] == 1
    assert got[f"{case} says"] == "ranks (data=4 tensor=1 → data=1 tensor=1)" and got[f"{case} goes on"] == 4


@pytest.mark.parametrize("grid", ["data=2 tensor=1", "data=1 tensor=2", "data=1 tensor=1 expert=2", "data=2 tensor=1 shard=2"])
def test_a_run_goes_on_bit_for_bit(measured: Callable[[str, int], Measured], grid: str) -> None:
    """In float32, from a state of the same number of ranks: weights, corrections and moments."""
    assert measured("trained", 2)["resumed"][grid] == []


SHARED = [
    "pellucid/capitals data=1 tensor=2",
    *(f"pellucid/capitals-deepseek data=1 {grid}" for grid in ("tensor=2", "tensor=1 expert=2", "tensor=2 expert=2")[0 if FULL else 1 :]),
]


@pytest.mark.parametrize("name", [*SHARED, "qwen3_next data=1 tensor=2"])
@pytest.mark.quick(2)
def test_a_trace_of_two_ranks_is_that_of_one(measured: Callable[[str, int], Measured], name: str) -> None:
    """Every record with its shape, its rows, its value, its op, operands, weights and FLOPs, of a prompt and a token."""
    got = measured("traced", 2)
    assert got[f"{name} values"] < BOUND and not got[f"{name} shapes"] and not got[f"{name} made"] and not got[f"{name} rows"]


@pytest.mark.parametrize("name", SHARED)
def test_texts_of_two_ranks_are_those_of_one(measured: Callable[[str, int], Measured], name: str) -> None:
    """Greedy and sampled, several at once, with preemption, and again from the prefix cache."""
    got = measured("traced", 2)[f"{name} texts"]
    assert got["equal"] and got["preempted"] > 2 and got["from the cache"] > 20


def test_rows_in_another_order_are_seen(measured: Callable[[str, int], Measured]) -> None:
    assert measured("traced", 2)["backwards"] > 1e-3


def test_texts_of_expert_ranks_beside_plans(measured: Callable[[str, int], Measured]) -> None:
    """In float32, where one process replays its decode steps."""
    assert measured("traced", 2)["float32 texts"]


REFUSED = {
    "falcon": "1 kv_heads cannot be split over tensor=2",
    "olmo2": "qk_joint cannot be split over tensor=2",
}


def test_other_parts_are_split_as_well(measured: Callable[[str, int], Measured]) -> None:
    got = measured("traced", 2)["forwards"]
    assert {family: reason for family, reason in got.items() if isinstance(reason, str)} == REFUSED
    assert len(got) == 19 and max(x for x in got.values() if isinstance(x, float)) < BOUND, got


HELD = {
    "data=1 tensor=2": ("gpt2", "llama", "deepseek_v3", "qwen2_moe", "qwen3_next"),
    "data=1 tensor=1 expert=2": COUNTED,
    "data=1 tensor=2 expert=2": ("deepseek_v3", "qwen2_moe"),
}


@pytest.mark.parametrize(("grid", "family"), [(grid, family) for grid, families in HELD.items() for family in families])
def test_count_knows_the_bytes_of_a_rank(measured: Callable[[str, int], Measured], grid: str, family: str) -> None:
    """Weights, parameters and cache to the byte; and what a rank gives to the sums and the logits of a prompt and of a token."""
    for what, pair in measured("traced", 2)["bytes"][grid][family].items():
        assert not pair or pair[0] == pair[1], (what, pair)
