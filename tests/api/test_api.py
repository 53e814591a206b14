"""The Python API as its users find it: names that TAB shows, signatures that say every setting, calls that work or say why not."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.api.model import Model
from pellucid.arguments import checked
from pellucid.errors import PellucidError, SettingError, ShapeError, TraceError, UseError, nearest
from tiny import far

PROMPT = "The capital of France is"
METHODS = {
    Model: ("__call__", "generate", "stream", "logprobs", "save", "adapt", "unadapt", "merge", "save_adapter", "to", "eval", "save_html"),
    pellucid.Trace: ("all", "paths", "save", "last_logits", "save_html"),
}


@pytest.fixture
def own() -> Model:
    """A model of the test's own."""
    return pellucid.load("pellucid/capitals")


def started(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_tab_shows_every_public_name() -> None:
    """All of `__all__` before anything is imported, and torch is not among what that needs."""
    assert started("import pellucid, sys; print(*dir(pellucid), 'torch' in sys.modules)").split() == [*dir(pellucid), "False"]
    assert {*pellucid.__all__, "__version__"} == set(dir(pellucid))
    assert {"load", "trace", "watch", "count", "lens", "attribution"} <= set(dir(pellucid))
    assert started(
        "import sys, pellucid.commands as c\ntry: c.main(['--help'])\nexcept SystemExit: 0\nprint('torch' in sys.modules)"
    ).endswith("False")


def vague() -> Iterator[str]:
    """Public functions and methods with a setting that their signature does not name or type. Axis letters are typed alone."""
    functions = {name: function for name in pellucid.__all__ if inspect.isfunction(function := getattr(pellucid, name))}
    functions |= {f"{owner.__name__}.{name}": getattr(owner, name) for owner, names in METHODS.items() for name in names}
    for name, function in functions.items():
        for p in inspect.signature(function).parameters.values():
            if (p.kind is p.VAR_KEYWORD and p.annotation in (Any, "Any")) or (p.annotation is p.empty and p.name != "self"):
                yield f"{name}: {p}"
        if not function.__doc__:
            yield f"{name} says nothing"


def test_signatures_say_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(vague()) == []

    def trace(model: Model, **how: Any) -> None:
        """A mutant."""

    monkeypatch.setattr(pellucid, "trace", trace)
    assert list(vague()) == ["trace: **how: Any"] or list(vague()) == ["trace: **how: 'Any'"]


WRONG: dict[str, Callable[[Model], object]] = {
    "dtype": lambda m: pellucid.load("pellucid/capitals", dtyp="float32"),  # type: ignore[call-arg]
    "max_new_tokens": lambda m: m.generate([[1]], max_new_token=3),  # type: ignore[call-arg]
    "temperature": lambda m: m.generate([[1]], temprature=1.0),  # type: ignore[call-arg]
    "only": lambda m: pellucid.watch(m, onyl="*"),  # type: ignore[call-arg]
    "steps": lambda m: pellucid.trace(m, "x", step=3),  # type: ignore[call-arg]
    "context": lambda m: pellucid.count("gpt2-small", contxt=3),  # type: ignore[call-arg]
    "overwrite": lambda m: m.save("nowhere", overwite=True),  # type: ignore[call-arg]
    "padding": lambda m: m(torch.tensor([[1]]), paddding=None),  # type: ignore[call-arg]
    "atol": lambda m: pellucid.first_difference(None, None, atool=1),  # type: ignore[call-arg, arg-type]
    "cells": lambda m: m.save_html("nowhere", cels=1),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("near", WRONG)
def test_a_misspelt_setting_offers_the_nearest(near: str, specimen: Model) -> None:
    """As a TypeError, which Python's own would be, of one line."""
    with pytest.raises(SettingError) as caught:
        WRONG[near](specimen)
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, UseError)
    assert near in str(caught.value).split("; all")[0] and "\n" not in str(caught.value)


def test_a_checked_function_is_itself() -> None:
    def f(a: int, *, b: int = 2) -> int:
        """Adds."""
        return a + b

    assert checked(f)(1, b=3) == 4 and inspect.signature(checked(f)) == inspect.signature(f) and checked(f).__doc__ == "Adds."
    with pytest.raises(TypeError, match="missing"):
        checked(f)()  # type: ignore[call-arg]


def test_types_are_installed() -> None:
    """A type checker asks for them; what it then sees is in typed_settings.py."""
    assert (Path(pellucid.__file__).parent / "py.typed").is_file()


def test_prompts_of_every_kind(specimen: Model) -> None:
    """A text gives a text, ids give ids; all of them the same tokens."""
    ids = specimen.tokenizer.encode(PROMPT)
    new = specimen.generate([ids], 4)[0]
    assert specimen.generate(ids, 4) == new and specimen.generate(torch.tensor([ids]), 4).tolist() == [new]
    assert specimen.generate(PROMPT, 4) == specimen.tokenizer.decode(new, skip_special=True) and "Paris" in specimen.generate(PROMPT, 4)
    assert specimen.generate([ids, ids[:2]], 4)[0] == new


def test_padding_by_its_other_name(specimen: Model) -> None:
    """transformers' attention_mask is padding; the tokens of a padded row are generated from alone."""
    ids = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    assert torch.equal(specimen(ids, attention_mask=mask), specimen(ids, padding=mask))
    assert far(specimen(ids, padding=mask)[:1, 2:], specimen(ids[:1, 2:])) < 1e-3
    new = specimen.generate(ids, 3, eos=None, attention_mask=mask)
    assert new.tolist() == [specimen.generate(row, 3, eos=None) for row in ([5, 6], [7, 8, 9, 10])]


def test_to_and_eval(own: Model) -> None:
    ids = torch.tensor([own.tokenizer.encode(PROMPT)])
    first, text = own(ids), own.generate(PROMPT, 3)
    assert own.eval() is own and own.to("cpu") is own and own.dtype == torch.float32
    assert own.to(torch.float64).dtype == own(ids).dtype == torch.float64 and far(own(ids), first) < 1e-3
    assert own.generate(PROMPT, 3) == text and "float64" in repr(own)
    assert own.to(dtype="bfloat16").dtype == torch.bfloat16 and own.to("cpu", torch.float32).dtype == torch.float32
    with pytest.raises(UseError, match="int8"):
        own.to("cpu", "int8")
    with pytest.raises(UseError, match="int8"):
        pellucid.load("pellucid/capitals", quant="int8").to(torch.float64)


FAULTS: dict[str, tuple[Callable[[Model], object], type[PellucidError], str]] = {
    "a name for a model": (lambda m: pellucid.trace("pellucid/capitals", "x"), UseError, "pellucid.load"),  # type: ignore[arg-type]
    "a name for a watched": (lambda m: pellucid.watch("pellucid/capitals").__enter__(), UseError, "pellucid.load"),
    "a name for a lens": (lambda m: pellucid.lens("x", pellucid.Trace()), UseError, "pellucid.load"),
    "a number for a prompt": (lambda m: m.generate(5), UseError, "a text"),  # type: ignore[type-var]
    "a mask of another shape": (lambda m: m(torch.tensor([[1]]), attention_mask=torch.ones(1, 2)), UseError, "(1, 2)"),
    "two masks": (lambda m: m(torch.tensor([[1]]), padding=torch.ones(1, 1), attention_mask=torch.ones(1, 1)), UseError, "attention_mask"),
    "a list with a mask": (lambda m: m.generate([[1]], attention_mask=torch.ones(1, 1)), UseError, "padded"),
    "a text of two tokens": (lambda m: pellucid.attribution(m, pellucid.Trace(), " Paris is"), UseError, "2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_is_one_line(fault: str, specimen: Model) -> None:
    call, kind, message = FAULTS[fault]
    with pytest.raises(kind) as caught:
        call(specimen)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def near(model: Model, **how: Any) -> str:
    """What the error of a watch offers."""
    with pytest.raises(TraceError) as caught, pellucid.watch(model, **how):
        model(torch.tensor([[1, 2, 3]]))
    return str(caught.value.values["near"])


def test_a_pattern_that_meets_nothing_raises(specimen: Model) -> None:
    assert "layers.0.attn.pattern" in near(specimen, only="layers.*.atn.pattern")
    assert "layers.0.attn.pattern" in near(specimen, only=["*.out", "patern"])
    assert near(specimen, only="zzzzzz") == "-"
    assert near(specimen, edit={"embedd": lambda x: x}).split(", ")[0] == "embed"
    with pellucid.watch(specimen, only="zzzzzz"):
        pass  # nothing ran, so nothing was missed
    with pellucid.watch(specimen, only="zzzzzz", request=7):
        specimen.generate([[1, 2]], 1)  # the request never came


def test_a_failure_within_is_not_hidden(specimen: Model) -> None:
    with pytest.raises(ShapeError), pellucid.watch(specimen, only="zzzz", edit={"embed": lambda x: x[:, :1]}):
        specimen(torch.tensor([[1, 2, 3]]))


def test_nearest() -> None:
    known = ["embed", "layers.0.out", "layers.3.out", "layers.0.attn.pattern"]
    assert nearest("start", known) == "-"  # and not layers.3.out
    assert nearest("pattern", known) == "layers.0.attn.pattern" and nearest("layers.3.ot", known, 1) == "layers.3.out"


def test_gradients_reach_the_recorded_tensor(own: Model) -> None:
    """With grad=True the value is the tensor that the forward went on with; without, it holds no graph."""
    ids = torch.tensor([own.tokenizer.encode(PROMPT)])
    with pellucid.watch(own, grad=True) as seen:
        own(ids)
    (gradient,) = torch.autograd.grad(seen["logits"].value[0, -1, 386], seen["layers.1.mid"].value, retain_graph=True)
    seen["logits"].value[0, -1, 386].backward()
    assert float(gradient.norm()) > 0 and torch.equal(seen["layers.1.mid"].grad, gradient)  # type: ignore[arg-type]
    with pellucid.watch(own) as plain:
        own(ids)
    assert not plain["layers.1.mid"].value.requires_grad and far(plain["layers.1.mid"].value, seen["layers.1.mid"].value) < 1e-4
    with pellucid.watch(own, grad=True, only="*.mid", keep=lambda x: x.requires_grad) as kept:
        own(ids)
    assert all(s.value for s in kept)


def test_attribution_takes_a_text(specimen: Model) -> None:
    recorded = pellucid.trace(specimen, PROMPT)
    (paris,) = specimen.tokenizer.encode(" Paris", special=False)
    assert pellucid.attribution(specimen, recorded, " Paris") == pellucid.attribution(specimen, recorded, paris)
