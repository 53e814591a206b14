"""A head's scores by one matrix, and rows that attention moves, against the records of a run."""

import pytest
import torch

import pellucid
from pellucid.analysis import bilinear


@pytest.fixture(scope="module")
def run() -> pellucid.Trace:
    return pellucid.trace(pellucid.load("pellucid/capitals", dtype="float64"), "The capital of France is")


def test_scores(run: pellucid.Trace) -> None:
    for head in range(4):
        assert bilinear.score_gap(run, head, bilinear.score_matrix(run, head)) < 1e-10
    own = bilinear.score_matrix(run, 2)
    assert bilinear.score_gap(run, 2, own.T) > 0.1 and bilinear.score_gap(run, 1, own) > 0.1
    attn = run.runner.module.layers[0].attn
    assert float(own[-1, -1]) == pytest.approx(float(attn.q.bias[64:96] @ attn.k.bias[64:96]), abs=1e-10)


def test_rows_move_by_the_output(run: pellucid.Trace) -> None:
    before, after, share = bilinear.moves(run)
    start, out = run["start"].value[0], run["layers.0.attn"].value[0]
    assert bilinear.sum_gap(run) < 1e-10 and 0 < share < 100
    rows = torch.cat([start, start + out])
    sizes = torch.linalg.eigvalsh((rows - rows.mean(0)).T @ (rows - rows.mean(0))).flip(0)
    assert share == round(100 * float(sizes[:2].sum() / sizes.sum()))
    assert float(torch.cat([before, after]).pow(2).sum()) == pytest.approx(float(sizes[:2].sum()), abs=1e-8)


def test_a_table_that_changes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pellucid.load("pellucid/capitals", dtype="float64")
    assert bilinear.embedding_gap(model, [3, 4]) == 0.0

    def write(self: object, ids: torch.Tensor) -> None:
        with torch.no_grad():
            model.module.get_parameter("embed.weight")[0, 0] += 0.5

    monkeypatch.setattr(pellucid.Model, "__call__", write)
    assert bilinear.embedding_gap(model, [3, 4]) == 0.5
