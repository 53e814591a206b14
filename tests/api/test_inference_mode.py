"""torch.inference_mode around any call: what a model keeps serves, and takes gradients, outside it too."""

from collections.abc import Callable

import pytest
import torch

import pellucid
from pellucid.api.model import Model
from tiny import swapped

PROMPT = "The capital of France is"
LAYER = {"pellucid/capitals-t5": "decoder.layers.1.out"}


def gradient(model: Model) -> torch.Tensor:
    """Return the gradient of a logit by a block's rows."""
    ids = torch.tensor([model.tokenizer.encode(PROMPT)])
    path = LAYER.get(model.name, "layers.1.out")
    with pellucid.watch(model, grad=True) as seen:
        model(*[ids] * (1 if model.config.encoder is None else 2))
    return torch.autograd.grad(seen["logits"].value[0, -1, 5], seen[path].value)[0]


def generated(model: Model) -> None:
    model.generate(PROMPT, 3)


def left_early(model: Model) -> None:
    outputs = model.stream([model.tokenizer.encode(PROMPT)], max_new_tokens=3)
    next(outputs)


def lora(model: Model) -> None:
    model.lora(rank=2)


CALLS: dict[str, Callable[[Model], object]] = {
    "generate": generated,
    "stream": left_early,
    "trace": lambda model: pellucid.trace(model, PROMPT),
    "to": lambda model: model.to(torch.float64),
    "lora": lora,
}


def judged(name: str, call: Callable[[Model], object] | None) -> None:
    """Load a model, or call it, in inference mode; then write a text and take a gradient outside, as a model that never saw the mode."""
    if call is None:
        with torch.inference_mode():
            model = pellucid.load(name)
    else:
        model = pellucid.load(name)
        with torch.inference_mode():
            call(model)
    other = pellucid.load(name, dtype=model.dtype)
    assert model.generate(PROMPT, 4) == other.generate(PROMPT, 4)
    assert torch.equal(gradient(model), gradient(other))
    for p in model.module.parameters():
        assert not p.is_inference()


@pytest.mark.parametrize("name", ["pellucid/capitals", "pellucid/capitals-deepseek", "pellucid/capitals-t5"])
@pytest.mark.parametrize("call", ["load", *CALLS])
@pytest.mark.quick(5)
def test_what_is_kept_lasts(name: str, call: str) -> None:
    judged(name, CALLS.get(call))


def test_a_variant_lasts() -> None:
    model = pellucid.load("pellucid/capitals")
    with torch.inference_mode():
        made = [pellucid.variant(model, {"layers.*.attn.kv_heads": 1}), pellucid.low_rank(model, {"layers.*.ffn.up": 8})]
    for other in made:
        assert gradient(other).isfinite().all() and not any(p.is_inference() for p in other.module.parameters())


@pytest.mark.parametrize("call", ["load", "generate", "to", "lora"])
@pytest.mark.quick(2)
def test_mutants(call: str) -> None:
    """Without the step out of the mode, what is kept cannot be used."""
    with swapped(torch, "is_inference_mode_enabled", lambda: False), pytest.raises((RuntimeError, AssertionError)):
        judged("pellucid/capitals", CALLS.get(call))


def test_no_gradients_come_back() -> None:
    """Inside the mode a call returns logits without a graph, as torch does."""
    model = pellucid.load("pellucid/capitals")
    with torch.inference_mode():
        assert not model(torch.tensor([[1, 2]])).requires_grad
