"""The scores, shares and choices of a router, by hand."""

import pytest
import torch

import pellucid
from pellucid.analysis.expert_scores import choices_changed, scores, share_gap, sparse, sum_gap
from pellucid.ops import experts
from pellucid.tracing import Trace

NAME = "pellucid/capitals-deepseek"


def run(**switches: object) -> Trace:
    model = pellucid.load(NAME, dtype="float64")
    return pellucid.trace(pellucid.variant(model, {f"layers.*.ffn.{k}": v for k, v in switches.items()}), "The capital of France is")


def test_scores_by_hand() -> None:
    plain = run()
    module = plain.runner.module.layers[2].ffn
    affinity = torch.sigmoid(plain["layers.2.ffn_norm"].value[0, -1] @ module.router.weight.T)
    own = scores(plain, 2)
    assert [s.expert for s in own] == list(range(8)) and [s.group for s in own] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [s.affinity for s in own] == pytest.approx(affinity.tolist(), abs=1e-10)
    assert [s.ranked for s in own] == pytest.approx((affinity + module.correction).tolist(), abs=1e-10)
    chosen = [s for s in own if s.share is not None]
    total = sum(s.affinity for s in chosen)
    assert len(chosen) == 2 and [s.share for s in chosen] == pytest.approx([s.affinity / total for s in chosen], abs=1e-10)


def test_gaps() -> None:
    plain, scaled = run(), run(scale=2.5)
    assert sparse(plain.runner.config) == [1, 2, 3]
    assert share_gap(plain, "affinity") < 1e-10 < 1e-3 < share_gap(plain, "corrected")
    assert sum_gap(plain, 1.0) < 1e-10 and sum_gap(scaled, 2.5) < 1e-10 and sum_gap(scaled, 1.0) == pytest.approx(1.5)
    assert choices_changed(plain, plain) == (0, 15)
    assert choices_changed(plain, run(corrected=False))[0] > 0


def test_a_correction_that_counts_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = experts.shares
    monkeypatch.setattr("pellucid.ops.shares", lambda affinity, chosen, spec: shares(affinity + torch.arange(8) / 8, chosen, spec))
    assert share_gap(run(), "affinity") > 1e-3
