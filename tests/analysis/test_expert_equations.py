"""The equations of a layer of experts by hand: each is the run's own tensor, and a wrong part is seen where it stands."""

from dataclasses import replace

import pytest
import torch

import pellucid
from pellucid.analysis.expert_equations import DRAWN, SYMBOLS, equations, highest, route
from pellucid.analysis.expert_scores import scores
from pellucid.ops import experts
from pellucid.tracing import Trace

NAME, PROMPT = "pellucid/capitals-deepseek", "The capital of France is"


def run(**switches: object) -> Trace:
    model = pellucid.load(NAME, dtype="float64")
    return pellucid.trace(pellucid.variant(model, {f"layers.*.ffn.{k}": v for k, v in switches.items()}), PROMPT)


def wrong(seen: Trace, block: int = 1) -> set[str]:
    """Return the symbols whose equation does not give the run's tensor."""
    return {q.symbol for q in equations(seen, block) if q.gap > 1e-10}


@pytest.mark.parametrize("switches", [{}, {"scale": 2.5}, {"corrected": False}, {"groups": 1, "groups_chosen": 1}, {"groups_chosen": 3}])
def test_each_is_the_runs_tensor(switches: dict[str, object]) -> None:
    seen = run(**switches)
    assert all(wrong(seen, block) == set() for block in (1, 2, 3))
    four = equations(seen, 1)
    assert tuple(q.symbol for q in four) == SYMBOLS and [q.shape for q in four] == ["1 × 5 × 8", "1 × 5 × 2", "1 × 5 × 2", "1 × 5 × 96"]
    assert [q.matrix for q in four] == ["8 × 96", "", "", "8 × 64 × 96, 8 × 64 × 96, 8 × 96 × 64"]
    assert four[0].rows(3) == seen["layers.1.ffn.affinity"].value[0, :, :3].tolist()


def test_a_wrong_part_is_seen_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutants: another router, a share of all experts, a correction that counts, experts' outputs in another order."""
    seen = run()
    seen.runner.module.layers[1].ffn.router.weight.data = seen.runner.module.layers[1].ffn.router.weight.data.flip(0)
    assert wrong(seen) == {"s"}
    seen = run()
    seen.runner.module.layers[1].ffn.down.data = seen.runner.module.layers[1].ffn.down.data.flip(0)
    assert wrong(seen) == {"y"}
    shares, best = experts.shares, experts.best
    monkeypatch.setattr("pellucid.ops.shares", lambda affinity, chosen, spec: shares(affinity, chosen, replace(spec, normalised=False)))
    assert wrong(run()) == {"g"}
    monkeypatch.setattr("pellucid.ops.shares", shares)
    monkeypatch.setattr("pellucid.ops.best", lambda ranked, spec: best(-ranked, spec))
    assert wrong(run()) == {"e"}


def test_the_way_of_a_row() -> None:
    seen = run()
    for row in range(5):
        way, own = route(seen, 1, row), scores(seen, 1, row)
        ranks = torch.tensor([s.ranked for s in own]).view(4, 2).sum(-1)
        assert list(way.groups) == sorted(ranks.topk(2)[1].tolist())
        assert way.groups == {g: [2 * g, 2 * g + 1] for g in way.groups}
        assert way.shares == {s.expert: s.share for s in own if s.share is not None}
        assert {n for group in way.groups.values() for n in group} >= way.shares.keys()


def test_groups_by_hand() -> None:
    """Two groups of nine: the second wins by its best two, and has the three best of them."""
    ranked = torch.tensor([9.0, *[0.0] * 8, *range(9)])
    assert highest(ranked, 3, 2, 1, 2).tolist() == [17, 16, 15] and highest(ranked, 1, 2, 1, 1).tolist() == [0]
    assert DRAWN < 9
