"""MLA's equations by hand: each is the run's own tensor, with the paper's shapes, and a wrong matrix is seen where it stands."""

import torch

import pellucid
from pellucid.analysis.latent_equations import SYMBOLS, channel_names, equations

PROMPT = "The capital of France is"


def test_each_is_the_runs_tensor() -> None:
    run = pellucid.trace(pellucid.load("pellucid/capitals-deepseek", dtype="float64"), PROMPT, steps=2)
    eleven = equations(run)
    assert tuple(q.symbol for q in eleven) == SYMBOLS and len(eleven) == 11
    assert all(q.gap is None if q.symbol in ("q", "k") else q.gap < 1e-10 for q in eleven)
    assert {q.symbol for q in eleven if q.stored} == {"c^KV", "k^R"}
    sizes = {q.symbol: (q.shape, q.matrix) for q in eleven}
    assert sizes["c^Q"] == ("1 × 5 × 48", "48 × 96") and sizes["q^R"] == ("1 × 5 × 4 × 8", "32 × 48")
    assert sizes["k^R"] == ("1 × 5 × 8", "8 × 96") and sizes["u"] == ("1 × 5 × 96", "96 × 96")
    latent = eleven[4]
    assert torch.tensor(latent.rows(3)).equal(torch.tensor(latent.value[0, :, :3].tolist())) and channel_names(latent.rows(3)) == [
        "0",
        "1",
        "2",
    ]
    assert eleven[1].rows(2) == eleven[1].value[0, :, 0, :2].tolist() and latent.name == "attn.latent"


def test_a_wrong_matrix_is_seen_where_it_stands() -> None:
    model = pellucid.load("pellucid/capitals-deepseek", dtype="float64")
    run = pellucid.trace(model, PROMPT)
    attn = model.module.layers[0].attn
    attn.kv_b.weight.data = attn.kv_b.weight.data.flip(0)
    wrong = {q.symbol for q in equations(run) if q.gap is not None and q.gap > 1e-3}
    assert wrong == {"k^C", "v^C"}


def test_a_key_without_rotation_is_seen() -> None:
    model = pellucid.load("pellucid/capitals-deepseek", dtype="float64")
    run = pellucid.trace(model, PROMPT, edit={"layers.0.attn.k_shared": lambda k: k.flip(-1)})
    wrong = {q.symbol for q in equations(run) if q.gap is not None and q.gap > 1e-3}
    assert "k^R" in wrong and "c^KV" not in wrong
