"""Exhibits: pages that teach by contrast, each run live. The chapters, in the order in which they are read."""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from pellucid.errors import UseError, nearest

if TYPE_CHECKING:
    from pellucid.exhibits.exhibit import Exhibit

CHAPTERS: dict[str, tuple[str, ...]] = {
    "words": ("pieces", "places", "analogy"),
    "attention": ("order", "mask", "scale", "heads", "equation", "distance"),
    "blocks": ("norms", "residual", "rows", "activations", "facts", "rank", "architectures", "library"),
    "cache": ("kinds", "latent"),
    "experts": ("routing",),
    "output": ("softmax", "steps", "forcing"),
    "learning": ("adapter",),
    "tables": ("sizes", "memory", "timeline"),
}


def names() -> Iterator[str]:
    """Yield the name of every exhibit, chapter by chapter."""
    for chapter in CHAPTERS.values():
        yield from chapter


def find(name: str) -> "Exhibit":
    """Return an exhibit by its name. A UseError if there is none."""
    if name not in names():
        raise UseError("exhibit.unknown", found=name, near=nearest(name, list(names())))
    shown: Exhibit = import_module(f"pellucid.exhibits.{name}").EXHIBIT
    return shown
