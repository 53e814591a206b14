"""Exhibits: pages that teach by contrast, each run live. The chapters, in the order in which they are read."""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from pellucid.errors import UseError, nearest

if TYPE_CHECKING:
    from pellucid.exhibits.exhibit import Exhibit

CHAPTERS: dict[str, tuple[str, ...]] = {
    "words": ("pieces", "places", "turns", "analogy", "context"),
    "attention": (
        "order",
        "sights",
        "mask",
        "ragged",
        "scale",
        "additive",
        "heads",
        "patterns",
        "equation",
        "distance",
        "translation",
        "reasons",
        "layouts",
    ),
    "blocks": (
        "norms",
        "residual",
        "rows",
        "activations",
        "facts",
        "neurons",
        "rank",
        "architectures",
        "recurrent",
        "convolution",
        "library",
        "rewrites",
    ),
    "cache": ("reuse", "kinds", "latent", "absorbed", "conversation"),
    "experts": ("routing", "groups", "balance"),
    "output": ("softmax", "steps", "acting", "formats", "forcing", "second"),
    "learning": ("learning", "trajectory", "gradient", "adapter", "ladder", "depth"),
    "tables": ("sizes", "memory", "timeline", "releases", "reasoning", "code", "glossary", "errata"),
}


def names() -> Iterator[str]:
    """Yield the name of every exhibit, chapter by chapter."""
    for chapter in CHAPTERS.values():
        yield from chapter


def find(name: str) -> "Exhibit":
    """Return an exhibit by its name. A UseError if there is none."""
    if name not in names():
        raise UseError("exhibit.unknown", found=name, near=nearest(name, list(names())), allowed=", ".join(names()))
    shown: Exhibit = import_module(f"pellucid.exhibits.{name}").EXHIBIT
    return shown
