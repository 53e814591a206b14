"""A text over a cache and from its start: the same logits in float64, fewer rows, and earlier rows that stay; mutants of each."""

import pytest
import torch

import pellucid
from pellucid.analysis import reused_rows as reused

TEXT = "The capital of France is"


@pytest.mark.parametrize("name", ["capitals", "capitals-llama"])
def test_a_cache_gives_what_a_fresh_run_gives(name: str) -> None:
    """The mutants: the text fed with two tokens swapped, and a fresh run of one token less."""
    model = pellucid.load(f"pellucid/{name}", dtype="float64")
    ids = model.ids(TEXT)
    own, again = reused.cached(model, ids), [reused.recomputed(model, ids[:end]) for end in range(1, len(ids) + 1)]
    with torch.no_grad():
        want = model(torch.tensor([ids]))[0]
    for t, (a, b) in enumerate(zip(own, again, strict=True)):
        assert float((a.logits - want[t]).abs().max()) < 1e-10 and reused.apart(a, b) < 1e-10
        assert (a.rows, b.rows) == (1, t + 1) and (a.flops < b.flops or t == 0)
    swapped = reused.cached(model, [ids[1], ids[0], *ids[2:]])
    assert reused.apart(swapped[-1], again[-1]) > 1e-3 and reused.apart(own[-1], again[-2]) > 1e-3


def test_earlier_rows_stay_under_a_causal_mask_alone() -> None:
    """The mutants: a model without the mask, and another first token."""
    model = pellucid.load("pellucid/capitals", dtype="float64")
    ids = model.ids(TEXT)
    short, long = (reused.recomputed(model, own) for own in (ids[:-1], ids))
    assert len(short.leaves) == 1 + len(model.config.layers) and reused.earlier_rows(short, long) < 1e-10
    assert reused.earlier_rows(short, reused.recomputed(model, [ids[1], *ids[1:]])) > 1e-3
    bare = pellucid.variant(model, {"layers.*.attn.causal": False})
    assert reused.earlier_rows(*(reused.recomputed(bare, own) for own in (ids[:-1], ids))) > 1e-3


def test_bytes_of_a_row() -> None:
    model = pellucid.load("pellucid/capitals-llama", dtype="float64")
    attn, run = model.config.layers[0].attn, pellucid.trace(model, TEXT)
    assert reused.bytes_of_a_row(run, ["layers.0.attn.k", "layers.0.attn.v"]) == 2 * attn.kv_heads * attn.width * 8
    assert reused.last_attention(run) == f"layers.{len(model.config.layers) - 1}.attn"
