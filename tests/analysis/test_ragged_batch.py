"""Rows of a batch and their logits: in the engine, in a masked rectangle, and where the mask is dropped."""

import pytest
import torch

import pellucid
from pellucid.analysis import ragged_batch as ragged
from pellucid.analysis.needs import UNPADDED, unmet

TEXTS = "France", "The capital of France is", "The name of the capital city of Japan is"


@pytest.mark.parametrize("name", ["capitals", "capitals-llama", "capitals-deepseek"])
def test_rows_and_logits(name: str) -> None:
    model = pellucid.load(f"pellucid/{name}", dtype="float64")
    prompts = [model.ids(text) for text in TEXTS]
    with torch.no_grad():
        single, engine, masked, bare = (
            ragged.alone(model, prompts),
            ragged.in_engine(model, prompts),
            ragged.padded(model, prompts),
            ragged.padded(model, prompts, masked=False),
        )
        want = torch.stack([model(torch.tensor([own]))[0, -1] for own in prompts])
    assert ragged.present(prompts) == single.rows == engine.rows == sum(map(len, prompts))
    assert masked.rows == bare.rows == 3 * max(map(len, prompts))
    assert float((single.logits - want).abs().max()) < 1e-10  # one row of the head or all of them: other sums in torch
    assert ragged.apart(engine, single) < 1e-10 and ragged.apart(masked, single) < 1e-10
    assert ragged.apart(bare, single) > 1e-3 and float((bare.logits - single.logits)[2].abs().max()) < 1e-10  # the longest has no padding


def test_the_window_is_the_models() -> None:
    assert ragged.window_rows(pellucid.load("pellucid/capitals"), [[1], [2, 3]]) == (64, 128)
    assert unmet(UNPADDED, pellucid.load("pellucid/capitals-prefix").config)
