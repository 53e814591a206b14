"""Each distinct layer run once is the whole model run, for the published models: every fifteenth here, all of them by

PELLUCID_FULL=1 pytest tests/counting/test_whole.py
"""

import os
import warnings

import pytest
import torch

from pellucid import catalog
from pellucid.api.count import described
from pellucid.counting import Setting, counted
from pellucid.counting.meta_run import meta_model, run

COUNTED = [name for name, entry in catalog.models().items() if "config" in entry or "literal" in entry]
ASKED = COUNTED if os.environ.get("PELLUCID_FULL") else COUNTED[::15]


def test_most_of_the_catalogue_is_counted() -> None:
    assert len(COUNTED) == 106 and len(catalog.models()) == 114
    assert all("statements" in catalog.models()[name] for name in catalog.models().keys() - set(COUNTED))


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.quick(11)
def test_the_reduced_model_is_the_whole(name: str) -> None:
    """Parameters and products, with all layers built and run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        family, cfg = described(name, {})
    bill, full = counted(cfg, name, family, Setting(context=3)), meta_model(cfg, torch.bfloat16)
    assert int(bill["parameters.total"]) == sum(p.numel() for p in full.parameters())
    assert int(bill["flops.prefill"]) == sum(run(full, 3 if cfg.encoder is None else 1, 0, 1, 3).flops.values())
