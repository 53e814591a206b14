"""Reasoning models of the catalogue beside the models that they were trained from: the same parts, longer answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pellucid import catalog
from pellucid.analysis.catalogue import StoredBytes, built, stored
from pellucid.api.count import described

PAIRS: Mapping[str, str] = {"deepseek-r1": "deepseek-v3", "qwq-32b": "qwen2.5-32b"}
"""A reasoning model: the model from which its makers trained it."""
CLOSED = "o1"
THOUGHTS = (100, 1_000, 10_000, 30_000)  # tokens of an answer


@dataclass(frozen=True)
class ReasoningPair:
    """A reasoning model beside its start. released: of both.  equal: every field of their configurations is.  parameters: of both."""

    name: str
    start: str
    released: tuple[str, str]
    equal: bool
    parameters: tuple[int, int]


def compared(pairs: Mapping[str, str]) -> Iterator[ReasoningPair]:
    """Yield the pairs {name: name} of the catalogue, each model built on shapes alone and counted."""
    for pair in pairs.items():
        (a, b), entries = (described(name)[1] for name in pair), [catalog.models()[name] for name in pair]
        first, start = entries
        yield ReasoningPair(first["name"], start["name"], (first["released"], start["released"]), a == b, (built(pair[0]), built(pair[1])))


def caches(names: Sequence[str]) -> list[StoredBytes]:
    """Return what each of these models stores."""
    return [stored(name) for name in names]


def statements(name: str) -> tuple[str, list[str], bool]:
    """Return a model's name, its makers' and others' statements, each with its status, and whether its configuration is published."""
    entry = catalog.models()[name]
    return entry["name"], [f"{one['claim']} ({one['status']})" for one in catalog.statements(entry)], "config" in entry
