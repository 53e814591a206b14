"""Where the numbers of a count come from: the catalogue's entry of a model, with what its makers published and notes, and of a device."""

from collections.abc import Iterator
from pathlib import Path

from pellucid import catalog
from pellucid.bench import last_measured
from pellucid.counting.published import entry_of
from pellucid.messages import say

INSIDE = "  "


def sources(name: str | Path, device: str | None) -> Iterator[str]:
    """Yield lines: the source of a model's config, its published figures, the catalogue's notes; and those of a device."""
    entry = entry_of(name)
    if entry is None:
        yield say("count.sources.own", name=name)
    else:
        yield say(
            "count.sources.model", name=entry["name"], who=entry["organisation"], released=entry["released"], source=catalog.source(entry)
        )
        published = entry.get("published", {}).items()
        yield from (INSIDE + say("count.sources.published", what=what, value=value) for what, value in published)
        yield from (INSIDE + say("count.sources.note", note=note) for note in catalog.notes(entry))
    if device is not None and (known := last_measured.device(device)) is not None:
        yield say("count.sources.device", name=known.name, source=known.source)
        if known.memory_source:
            yield INSIDE + say("count.sources.of_memory", source=known.memory_source)
        if known.link_source:
            yield INSIDE + say("count.sources.link", source=known.link_source)
