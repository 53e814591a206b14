"""Measures of attention by hand: products and their spread, masks that leak, heads that are split and joined."""

import pytest
import torch

import pellucid
from pellucid.analysis import mask_leak, score_spread, split_heads
from pellucid.analysis.quality import quality


@pytest.fixture(scope="module")
def run() -> pellucid.Trace:
    return pellucid.trace(pellucid.load("pellucid/capitals", dtype="float64"), "The capital of France is")


def test_products() -> None:
    q, k = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]])
    assert score_spread.products(q, k).tolist() == [[11.0, 17.0]]
    assert score_spread.halvings(12) == [1, 3, 6, 12]
    assert score_spread.largest_error([1.1, 1.8], [1.0, 2.0]) == pytest.approx(0.1)


def test_real_variance_is_that_of_the_scores(run: pellucid.Trace) -> None:
    """All channels give the scores times √K before the mask; of those below the diagonal that the run made."""
    q, k = run["layers.1.attn.q"].value[0, :, 2], run["layers.1.attn.k"].value[0, :, 2]
    made = run["layers.1.attn.scores"].value[0, 2].tril() * 32**0.5
    assert torch.allclose(score_spread.products(q, k).tril(), made.nan_to_num(0.0, neginf=0.0), atol=1e-10)
    used, width, gap = score_spread.scale_of(run)
    assert used == pytest.approx(32**-0.5) and width == 32 and gap < 1e-10
    first = [[run[f"layers.{i}.attn.{name}"].value[0, :, h, :1] for i in range(4) for h in range(4)] for name in "qk"]
    single = torch.stack([score_spread.products(q, k).var() for q, k in zip(*first, strict=True)])
    assert score_spread.real_variance(run, 1) == pytest.approx(float(single.mean()), abs=1e-10)


def test_future_shares(run: pellucid.Trace) -> None:
    assert mask_leak.future_shares(run) == [0.0] * 16
    leaky = pellucid.trace(pellucid.variant(run.runner, {"layers.*.attn.fill": 0.0}), run.ids)
    assert mask_leak.future_shares(leaky)[5] == pytest.approx(1 - float(leaky["layers.1.attn.pattern"].value[0, 1, 0, 0]), abs=1e-10)
    assert mask_leak.replaced([3, 4]) == [3, 3] and mask_leak.replaced([3, 3]) == [3, 2] and mask_leak.replaced([5]) == [4]


def test_row_gap_sees_a_leak(run: pellucid.Trace) -> None:
    other = mask_leak.replaced(run.ids)
    assert mask_leak.row_gap(run.runner, run.ids, other) == 0.0
    assert mask_leak.row_gap(pellucid.variant(run.runner, {"layers.*.attn.fill": 0.0}), run.ids, other) > 0.1


def test_heads_by_hand() -> None:
    table = split_heads.ramp(1, 2, 4)  # two rows of two heads of two channels
    heads = split_heads.split(table, 2)
    assert heads.tolist() == [[[[0, 1], [4, 5]], [[2, 3], [6, 7]]]]
    assert split_heads.join(heads).tolist() == table.tolist()
    assert split_heads.join_by_reshape(heads).tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7]]]
    assert split_heads.moved_rows(split_heads.join, 2, 2, 2) == 0 and split_heads.moved_rows(split_heads.join_by_reshape, 2, 2, 2) == 2
    steps = split_heads.stages(split_heads.named_cells(2, 4), 2)
    assert [split_heads.shape(x) for x in steps] == ["[1, 2, 4]", "[1, 2, 2, 2]", "[1, 2, 2, 2]", "[1, 2, 2, 2]", "[1, 2, 4]", "[1, 2, 4]"]
    assert split_heads.as_table(steps[2], "HT") == (["H=0 T=0", "H=0 T=1", "H=1 T=0", "H=1 T=1"], [[0, 1], [10, 11], [2, 3], [12, 13]])
    assert steps[-2].equal(steps[0]) and split_heads.as_table(steps[-1], "T") == (["T=0", "T=1"], [[0, 1, 10, 11], [2, 3, 12, 13]])
    assert [split_heads.place(x, 11) for x in steps] == [
        "[0, 1, 1]",
        *["[0, 1, 0, 1]", "[0, 0, 1, 1]", "[0, 1, 0, 1]"],
        "[0, 1, 1]",
        "[0, 0, 3]",
    ]
    assert split_heads.number_at(1, 2, 5, 16, 512) == int(split_heads.ramp(4, 16, 512)[1, 2, 5])
    assert split_heads.parameters(8, 2) == 4 * (8 * 8 + 8)


def test_one_map_for_all_heads(run: pellucid.Trace) -> None:
    """The mutants: every head keeps its own map; the last head's map is taken."""
    right = []
    for head in (0, -1):
        with pellucid.watch(run.runner, only=(), edit={"layers.*.attn.pattern": lambda p, h=head: torch.stack([p[:, h]] * p.shape[1], 1)}):
            right.append(quality(run.runner))
    one, plain = split_heads.with_one_map(run.runner), quality(run.runner)
    assert one.loss == right[0].loss != right[1].loss and plain.loss != one.loss and one.right < plain.right == 194
    assert split_heads.head_slice(512, 8) == "64 × 512"


def test_the_model_joins_as_here(run: pellucid.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit that joins in the right way changes nothing."""
    monkeypatch.setattr(split_heads, "join_by_reshape", split_heads.join)
    assert split_heads.joined_by_reshape(run.runner).right == 194
