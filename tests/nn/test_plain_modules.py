"""No module holds a method of its own, so a dropped model frees its weights at once and a copied one is independent."""

import copy
import gc
import re
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pellucid
from pellucid.batch.step import Step
from pellucid.nn.attention import Attention
from pellucid.ops import native
from pellucid.watching.watch import watch
from test_orders import SHAPES as MIDDLE
from test_orders_early import SHAPES as EARLY
from test_orders_late import POOLED
from test_orders_late import SHAPES as LATE
from tiny import FAMILIES, D, far, ids, swapped, tiny

SHAPES = FAMILIES | EARLY | MIDDLE | LATE | {"pooled": POOLED}
OPTIONAL = ("rope", "rms_eps", "temperature", "cap", "alibi", "q_norm", "sinks", "distance")  # what an attention may lack


def outputs(shape: str, model: Any) -> Tensor:
    given = (ids(1, 7, seed=1), ids(1, 9)) if SHAPES[shape].encoder is not None else (ids(1, 9),)
    with torch.no_grad():
        return model(*given)  # type: ignore[no-any-return]


def methods(value: object) -> bool:
    """Return True if a value is a bound method or holds one."""
    if isinstance(value, list | tuple | dict):
        return any(map(methods, value.values() if isinstance(value, dict) else value))
    return isinstance(value, types.MethodType)


def holding(model: nn.Module) -> list[str]:
    """Return the attributes of a model's parts that hold a method."""
    return [f"{path}.{name}" for path, m in model.named_modules() for name, x in vars(m).items() if methods(x)]


@pytest.mark.parametrize("shape", SHAPES)
def test_no_attribute_holds_a_method(shape: str) -> None:
    model = tiny(SHAPES[shape])
    assert holding(model) == []
    part = next(m for m in model.modules() if hasattr(m, "mask"))
    part.steps = [part.mask]  # the mutant
    assert [name.rpartition(".")[2] for name in holding(model)] == ["steps"]


def outliving(shape: str, change: Callable[[nn.Module], None] = lambda part: None) -> int:
    """Return the number of parameters that outlive a model that has run and was watched, without the garbage collector."""
    model = tiny(SHAPES[shape])
    change(next(m for m in model.modules() if hasattr(m, "mask")))
    outputs(shape, model)
    with watch(model, only="*.out"):
        outputs(shape, model)
    weights = [weakref.ref(p) for p in model.parameters()]
    gc.collect()
    gc.disable()
    try:
        del model
        return sum(weight() is not None for weight in weights)
    finally:
        gc.enable()


def circled(part: nn.Module) -> None:
    """Return a part that holds its own method."""
    part.steps = [part.forward]  # type: ignore[assignment]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.quick(15)
def test_a_dropped_model_frees_its_weights(shape: str) -> None:
    assert outliving(shape) == 0
    assert outliving(shape, circled) > 0


def left_by_generation() -> int:
    """Return the number of parameters that outlive a specimen that has generated, without the garbage collector."""
    model = pellucid.load("pellucid/capitals")
    model.generate(ids(1, 5), 3)
    weights = [weakref.ref(p) for p in model.module.parameters()]
    gc.collect()
    gc.disable()
    try:
        del model
        return sum(weight() is not None for weight in weights)
    finally:
        gc.enable()


def drawn_before_its_norm(model: nn.Module) -> list[str]:
    """Return the parts of blocks whose weights a seed draws before those of the part's norm."""
    order = [name for name, _ in model.named_modules()]
    parts = [n for n in order if re.search(r"layers\.\d+\.\w+$", n) and f"{n}_norm" in order]
    return [n for n in parts if order.index(n) < order.index(f"{n}_norm")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_draws_a_norm_before_its_part(family: str) -> None:
    """Another order gives a recipe's seed other first weights. The mutant has a norm behind its part."""
    model = tiny(family)
    assert drawn_before_its_norm(model) == []
    block = next(m for m in model.modules() if "ffn_norm" in m._modules)
    block._modules["ffn_norm"] = block._modules.pop("ffn_norm")
    assert drawn_before_its_norm(model)


def test_a_model_that_has_generated_frees_its_weights() -> None:
    assert left_by_generation() == 0


@pytest.mark.skipif(not native.available(), reason="without kernels no plan holds segments")
def test_a_segment_that_holds_its_step_mutant() -> None:
    right = Step._page

    def circled(self: Step, *args: Any) -> Any:
        segment: Any = right(self, *args)
        segment.step = self
        return segment

    with swapped(Step, "_page", circled):
        assert left_by_generation() > 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.quick(5)
def test_a_deep_copy_is_independent(shape: str) -> None:
    model = tiny(SHAPES[shape])
    want, twin = outputs(shape, model), copy.deepcopy(model)
    assert torch.equal(outputs(shape, twin), want)
    for p in twin.parameters():
        p.data.mul_(1.5).add_(0.1)
    assert torch.equal(outputs(shape, model), want) and far(outputs(shape, twin), want) > 1e-6


def attention(shape: str, name: str) -> Any:
    """Return the first attention of a model that has this step; None if none has."""
    parts = (m for m in tiny(SHAPES[shape]).modules() if type(m) is Attention)
    return next((m for m in parts if getattr(m, name) is not None), None)


PRESENT = [(shape, name) for shape in SHAPES for name in OPTIONAL if attention(shape, name) is not None]


def reaches_the_original(part: Any, name: str) -> bool:
    """Return whether removing the step from a copy changes the original, and the copy."""
    x = torch.randn(1, 9, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with torch.no_grad():
        want, twin = part(x, Step.plain(ids(1, 9))), copy.copy(part)
        twin._modules, twin._parameters = dict(part._modules), dict(part._parameters)  # torch shares them between shallow copies
        setattr(twin, name, None)
        got, again = twin(x, Step.plain(ids(1, 9))), part(x, Step.plain(ids(1, 9)))
    return not torch.equal(want, again) or far(got, want) < 1e-9


@pytest.mark.parametrize(("shape", "name"), PRESENT)
def test_a_copied_attention_is_independent(shape: str, name: str) -> None:
    assert not reaches_the_original(attention(shape, name), name)


def test_a_copy_with_the_methods_of_the_original_mutant() -> None:
    part = attention(next(shape for shape, name in PRESENT if name == "cap"), "cap")
    part.mask = part.mask
    assert reaches_the_original(part, "cap")


def test_every_step_that_may_be_absent_is_tried() -> None:
    assert {name for _, name in PRESENT} == {*OPTIONAL}
