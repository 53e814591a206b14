"""A model on the meta device has shapes and no numbers: what needs numbers is refused in one line, whichever call asks for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.api.model import Model
from pellucid.checkpoint import placement
from pellucid.errors import UseError
from tiny import swapped

PROMPT = "The capital of France is"
CALLS: dict[str, Callable[[Model, Path], Any]] = {
    "generate": lambda model, _: model.generate(PROMPT, 2),
    "stream": lambda model, _: list(model.stream([model.ids(PROMPT)], 2)),
    "trace": lambda model, _: pellucid.trace(model, PROMPT),
    "lens": lambda model, _: pellucid.lens(model, PROMPT),
    "heads": lambda model, _: pellucid.heads(model),
    "save": lambda model, folder: model.save(folder / "saved"),
    "to": lambda model, _: model.to("cpu"),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_number_is_asked_of_shapes(name: str, tmp_path: Path) -> None:
    model = pellucid.load("pellucid/capitals", device="meta")
    with pytest.raises(UseError) as refused:
        CALLS[name](model, tmp_path)
    assert refused.value.key == "model.meta" and not list(tmp_path.iterdir())


def test_shapes_keep_what_they_can_do() -> None:
    model = pellucid.load("pellucid/capitals", device="meta")
    assert model.to("meta").to(torch.float64).dtype is torch.float64
    assert model(torch.tensor([[1, 2]], device="meta")).shape == (1, 2, 4480) and model.num_parameters() > 1e6


def test_a_call_that_does_not_ask_is_seen() -> None:
    model = pellucid.load("pellucid/capitals", device="meta")
    with swapped(placement, "need_numbers", lambda module: None), pytest.raises(NotImplementedError):
        model.to("cpu")
