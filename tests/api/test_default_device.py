"""A default device of torch around any call: it decides where the caller's tensors are, not where Pellucid's are.

"meta" stands for a GPU: what is made there by mistake has no numbers, and fails.
"""

from collections.abc import Callable, Iterator

import pytest
import torch

import pellucid
from pellucid.api import model as api
from pellucid.api.model import Model

PROMPT = "The capital of France is"


@pytest.fixture
def elsewhere() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def forward(model: Model) -> object:
    return float(model(torch.tensor([model.tokenizer.encode(PROMPT)], device="cpu")).double().sum())


CALLS: dict[str, Callable[[Model], object]] = {
    "forward": forward,
    "generate": lambda model: model.generate(PROMPT, 3),
    "a draw": lambda model: model.generate(PROMPT, 3, temperature=1.0, seed=2),
    "deterministic": lambda model: model.generate(PROMPT, 3, deterministic=True),
    "stream": lambda model: [output.token for output in model.stream(PROMPT, 3)],
    "a cell": lambda model: pellucid.trace(model, PROMPT, terms=True)["layers.0.attn.q"].terms((0, 4, 1, 7)).total(),
    "lens": lambda model: str(pellucid.lens(model, PROMPT)),
    "variant": lambda model: pellucid.variant(model, {"norm": "none"}).generate(PROMPT, 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_as_without(name: str, elsewhere: None) -> None:
    model = pellucid.load("pellucid/capitals")
    got = CALLS[name](model)
    torch.set_default_device(None)
    assert got == CALLS[name](pellucid.load("pellucid/capitals")) and model.device == torch.device("cpu")


def test_a_call_that_is_reached_is_found(elsewhere: None) -> None:
    bare = api.load.__wrapped__.__wrapped__  # type: ignore[attr-defined]
    with pytest.raises((TypeError, NotImplementedError, RuntimeError)):
        bare("pellucid/capitals")


def test_a_device_that_is_named_is_kept(elsewhere: None) -> None:
    assert pellucid.load("pellucid/capitals", device="meta").device == torch.device("meta")
