"""Exhibits: pages that teach by contrast, each run live. The chapters, in the order in which they are read."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pellucid.notebook import checked

if TYPE_CHECKING:
    from pellucid.api.model import Model
    from pellucid.exhibits.exhibit import Exhibit, ExhibitResult

CHAPTERS: dict[str, tuple[str, ...]] = {
    "attention": ("order",),
    "blocks": ("norms", "residual"),
}


def names() -> Iterator[str]:
    """Yield the name of every exhibit, chapter by chapter."""
    for chapter in CHAPTERS.values():
        yield from chapter


def find(name: str) -> "Exhibit":
    """Return an exhibit by its name. A UseError if there is none."""
    from pellucid.exhibits.exhibit import refuse_name

    if name not in names():
        raise refuse_name(name, list(names()))
    shown: Exhibit = import_module(f"pellucid.exhibits.{name}").EXHIBIT
    return shown


@checked
def exhibit(name: str, model: "Model | None" = None, settings: Mapping[str, Any] | None = None) -> "ExhibitResult":
    """Run an exhibit on its own specimen, or on `model`, and return its panels and claims.

    settings: {control: value}, such as {"prompt": "The capital of Japan is"}. A UseError names an exhibit or a control that does not
    exist, a value that is not allowed, and a model that cannot show it.
    """
    from pellucid.exhibits.exhibit import run_exhibit

    return run_exhibit(find(name), model, settings)
