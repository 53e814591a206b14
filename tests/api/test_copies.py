"""A model, its tokenizer and what it has recorded are copied and pickled as any object of Python is; a copy shares no weight."""

import copy
import importlib
import pickle
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid import families
from pellucid.api.model import Model
from pellucid.checkpoint.placement import Placed
from pellucid.families import names
from pellucid.ops.blocks import Blocks
from tiny import swapped

PROMPT = "The capital of France is"


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


WAYS = [copy.deepcopy, pickled]


def used(name: str, quant: str | None = None, adapter: bool = False) -> Model:
    """Return a model that has generated, so that it keeps an engine with its pages, locks and kernels."""
    model = pellucid.load(name, quant=quant)
    if adapter:
        model.lora(rank=2)
    model.generate(PROMPT, 3)
    assert model.engines
    return model


def places(model: Model) -> set[int]:
    """Return where the numbers of a model lie in memory."""
    tensors = [t for p in model.module.parameters() for t in ((p.codes, p.scales) if isinstance(p, Blocks) else (p,))]
    return {t.data_ptr() for t in tensors}


CASES = [("pellucid/capitals", None, False), ("pellucid/capitals", "int8", False), ("pellucid/capitals-t5", None, False)]
CASES += [("pellucid/capitals-deepseek", None, True), ("pellucid/capitals", "int8", True)]
CASES_OF_WAYS = [(*case, way) for case in CASES for way in WAYS]


@pytest.mark.parametrize(("name", "quant", "adapter", "way"), CASES_OF_WAYS)
def test_a_copy_is_a_model_of_its_own(name: str, quant: str | None, adapter: bool, way: Callable[[Model], Model]) -> None:
    model = used(name, quant, adapter)
    text = model.generate(PROMPT, 4)
    other = way(model)
    assert type(other) is Model and repr(other) == repr(model) and other.generate(PROMPT, 4) == text
    assert places(model).isdisjoint(places(other))
    with torch.no_grad():
        for name, weight in other.module.named_parameters():
            if name.endswith("norm.weight"):
                weight.zero_()
    assert other.generate(PROMPT, 4) != text == model.generate(PROMPT, 4)


@pytest.mark.parametrize("way", WAYS)
def test_an_adapter_goes_on_in_a_copy(way: Callable[[Model], Model], tmp_path: Path) -> None:
    """It is written, taken off and merged there as on the model, which has its own."""
    model = used("pellucid/capitals", adapter=True)
    text, other = model.generate(PROMPT, 4), way(model)
    model.unadapt()
    other.save_adapter(tmp_path / "adapter")
    assert not model.adapters and [*other.adapters] == ["default"]
    other.merge()
    assert other.generate(PROMPT, 4) == text and not other.adapters
    model.adapt(tmp_path / "adapter")


def test_every_layout_has_a_name_in_a_pickle() -> None:
    """The constants are those of one module, and what its functions return is made again."""
    layouts = {name: value for name, value in vars(names).items() if isinstance(value, names.Layout)}
    assert len(layouts) > 10 and all(pickled(value) is value for value in layouts.values())
    for make, shape in ((names.grouped, (8, 3)), (names.in_columns, (4, 6)), (names.by_head, (2, 4)), (names.a_tensor_a_head, (4,))):
        layout, x = make(2), [torch.rand(shape)] * (2 if make is names.a_tensor_a_head else 1)
        shapes = [(4, 3), (4, 3)] if make is names.grouped else [(8,)]
        both = [one.read(x, shapes) for one in (layout, pickled(layout))]
        assert pickled(layout).pieces == layout.pieces and all(torch.equal(a, b) for a, b in zip(*both, strict=True))
    for module in pkgutil.iter_modules(families.__path__, "pellucid.families."):
        own = vars(importlib.import_module(module.name)).values()
        assert all(value in [*layouts.values()] for value in own if isinstance(value, names.Layout))


@pytest.mark.parametrize("way", WAYS)
def test_a_tokenizer_and_a_trace(way: Callable[[Any], Any]) -> None:
    model = used("pellucid/capitals")
    tokenizer, trace = way(model.tokenizer), way(pellucid.trace(model, PROMPT))
    assert tokenizer.encode(PROMPT) == model.tokenizer.encode(PROMPT) and tokenizer.rows == model.tokenizer.rows
    assert tokenizer.special == model.tokenizer.special
    assert torch.equal(trace["layers.1.out"].value, pellucid.trace(model, PROMPT)["layers.1.out"].value)


def test_mutants() -> None:
    """With its engines a model cannot be copied."""
    model = used("pellucid/capitals")
    with swapped(Placed, "__getstate__", lambda self: self.__dict__), pytest.raises(TypeError):
        copy.deepcopy(model)


def test_a_name_of_the_module_is_said_to_be_there() -> None:
    """Names that torch's users know; one that nothing has is refused as Python does, so that hasattr works."""
    model = pellucid.load("pellucid/capitals", device="meta")
    for name in ("parameters", "train", "half", "state_dict"):
        with pytest.raises(AttributeError, match=rf"model\.module\.{name}"):
            getattr(model, name)
        assert hasattr(model.module, name)
    with pytest.raises(AttributeError, match=r"no attribute nonsense$"):
        getattr(model, "nonsense")  # noqa: B009
    assert not hasattr(model, "nonsense") and getattr(model, "nonsense", 3) == 3
