"""Public functions given what they do not take: one line that names the argument, never an error from inside.

In the quick form each argument is given half of the wrong values, every other one in turn.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from covering import FULL
from pellucid import arguments
from pellucid.errors import PellucidError, SettingError, UseError
from tiny import swapped

PROMPT = "The capital of France is"
WRONG = [None, 3.5, -1, 10**9, "nix", "", [], {}, object(), float("nan"), [None], ("a", "b", "c"), True]
FUNCTIONS = sorted(n for n in pellucid.__all__ if inspect.isfunction(getattr(pellucid, n)))
# What decides how much is done, or is the caller's own code.
FREE = {
    "model",
    "steps",
    "texts",
    "draws",
    "length",
    "deterministic",
    "keep",
    "choose",
    "value",
    "known",
    "edit",
    "inside",
    "on",
    "out",
    "resume",
}


@pytest.fixture(scope="module")
def model() -> pellucid.Model:
    return pellucid.load("pellucid/capitals")


@pytest.fixture(scope="module")
def right(model: pellucid.Model) -> dict[str, Any]:
    """Return an argument for each parameter that has no default."""
    run = pellucid.trace(model, PROMPT, only="*.out")
    return {
        "model": model, "trace": run, "a": run, "b": run, "other": run, "others": run, "prompt": PROMPT, "clean": PROMPT, "texts": PROMPT,
        "corrupted": "The capital of Japan is", "over": "layers.0.attn.z", "by": "H", "metric": (" Paris", " Tokyo"), "text": PROMPT,
        "trials": {0: pellucid.zero("embed")}, "name": "pellucid/capitals", "path": "layers.0.attn.z", "value": 0.5, "word": " France",
        "senders": "layers.0.attn.z", "receivers": "layers.1.attn.q", "direction": torch.ones(128), "factor": 2.0, "folder": "nix",
        "ranks": {"layers.0.ffn.up": 8}, "switches": {"norm": "none"}, "recipe": "nix.toml",
    }  # fmt: skip


def raw(function: Callable[..., Any], right: dict[str, Any]) -> list[str]:
    """Return what a function raises beside our own errors, where one of its arguments is wrong."""
    out = []
    parameters = {n: p for n, p in inspect.signature(function).parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    given = {n: right[n] for n, p in parameters.items() if p.default is p.empty}
    if function.__name__ == "attribution":
        given["id"] = " Paris"
    for at, name in enumerate(sorted(parameters.keys() - FREE)):
        for wrong in WRONG if FULL else WRONG[at % 2 :: 2]:
            try:
                function(**{**given, name: wrong})
            except Exception as fault:
                if not isinstance(fault, PellucidError) or "\n" in str(fault):
                    out.append(f"{function.__name__}({name}={wrong!r}): {type(fault).__name__}: {fault}")
    return out


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_argument_is_one_line(name: str, right: dict[str, Any]) -> None:
    assert raw(getattr(pellucid, name), right) == []


def test_a_wrong_argument_mutant(right: dict[str, Any]) -> None:
    """If every value is taken for one of the right type, errors come from inside."""
    with swapped(arguments, "fits", lambda value, allowed: True):
        assert raw(pellucid.patch, right) and raw(pellucid.variant, right)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda m: pellucid.trace(m, PROMPT, steps="2"), "trace: steps is of type str; allowed: int"),
        (lambda m: pellucid.variant(m, 3), "variant: switches is of type int; allowed: Mapping[str, Any]"),
        (lambda m: m.generate(PROMPT, draft="capitals"), "generate: draft is of type str; allowed: Model | None"),
        (
            lambda m: pellucid.trace(m, torch.ones(2, 3).long()),
            "a prompt is Tensor [2, 3]; allowed: a text, or one text's ids as a list or a tensor [tokens]",
        ),
        (lambda m: pellucid.lens(m, PROMPT, row=7), "row is 7; allowed are -5 to 4"),
        (lambda m: pellucid.attribution(m, PROMPT, id=" Paris", row=7), "row is 7; allowed are -5 to 4"),
        (
            lambda m: pellucid.trace(m, PROMPT, terms=True)["layers.0.attn.q"].terms((0, 4, 1, 77)),
            "layers.0.attn.q: axis K has no 77; allowed are 0 to 31",
        ),
    ],
)  # fmt: skip
def test_lines(call: Callable[[pellucid.Model], Any], line: str, model: pellucid.Model) -> None:
    with pytest.raises(UseError) as raised:
        call(model)
    assert str(raised.value) == line


def test_an_error_of_the_callers_own_code_comes_as_it_is(model: pellucid.Model) -> None:
    def choose(logits: torch.Tensor) -> int:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pellucid.trace(model, PROMPT, choose=choose)
    with pytest.raises(KeyError, match="mine"):  # an array is a sequence, and not at fault
        pellucid.trace(model, np.array(model.ids(PROMPT)), choose=choose)  # type: ignore[arg-type]
    with pytest.raises(SettingError) as raised:
        pellucid.trace(model, PROMPT, steps="2")  # type: ignore[arg-type]
    assert raised.value.__cause__ is not None


def test_forms_of_a_prompt(model: pellucid.Model) -> None:
    """A prompt is a text, or its ids in a list, a tuple, an array, a tensor, or a batch of one."""
    ids = model.ids(PROMPT)
    forms = (PROMPT, ids, tuple(ids), np.array(ids), torch.tensor(ids), torch.tensor([ids]))
    assert {tuple(pellucid.trace(model, form).ids) for form in forms} == {tuple(ids)}
    first = pellucid.lens(model, PROMPT)[-1][1]
    assert all(torch.equal(pellucid.lens(model, form)[-1][1], first) for form in forms[1:])
    texts = model.generate([PROMPT, "The capital of Japan is"], max_new_tokens=2)
    assert texts == [model.generate(PROMPT, max_new_tokens=2), model.generate("The capital of Japan is", max_new_tokens=2)]
    assert model.generate([], max_new_tokens=2) == []


def test_a_loaded_model_is_counted(model: pellucid.Model) -> None:
    """As it is held: its own dtype, and a variant's own fields."""
    assert pellucid.count(model)["parameters.total"].value == model.num_parameters()
    assert pellucid.count(model).setting.weights == "float32" and pellucid.count(model, dtype="bf16").setting.weights == "bfloat16"
    bare = pellucid.variant(model, {"norm": "none"})
    assert pellucid.count(bare)["parameters.total"].value == bare.num_parameters() < model.num_parameters()
    quantised = pellucid.count(pellucid.load("pellucid/capitals", quant="int8")).setting
    assert (quantised.weights, quantised.cache, quantised.activations) == ("int8", "float32", "float32")
    assert pellucid.load("pellucid/capitals", dtype="bf16").dtype == torch.bfloat16


def test_one_line_each(model: pellucid.Model) -> None:
    terms = pellucid.trace(model, PROMPT, terms=True)["layers.0.attn.q"].terms((4, 1, 7))
    assert repr(terms).startswith("Terms(") and "128 products, bias; sum " in repr(terms)
    assert "BPE, 4,480 ids" in repr(model.tokenizer)
    assert repr(pellucid.heads(model)).startswith("HeadScores(16 heads; induction: layers.")
