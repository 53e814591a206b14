"""`model(ids, rows=)`: the logits of some rows alone."""

import pytest
import torch

from judge import judge
from pellucid.api.model import load
from pellucid.errors import UseError
from tiny import far


def test_rows_alone() -> None:
    """They have the numbers of the full table, from wherever they are counted."""
    llama, t5 = (load(judge(family).folder, dtype="float64") for family in ("llama", "t5"))
    ids = torch.arange(12).view(2, 6)
    for call in (lambda **how: llama(ids, **how), lambda **how: t5(ids, ids[:, :4], **how)):
        full = call()
        assert far(call(rows=-1), full[:, -1:]) < 1e-12 and far(call(rows=[0, -2]), full[:, [0, full.shape[1] - 2]]) < 1e-12
        for wrong in (6, -7, [], [0, 9], True):
            with pytest.raises(UseError) as caught:
                call(rows=wrong)
            assert caught.value.key == "model.rows"
    encoder = load("pellucid/capitals-bert", dtype="float64")
    assert far(encoder(ids, rows=2), encoder(ids)[:, 2:3]) < 1e-12
