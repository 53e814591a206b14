"""An exhibit as JSON: what is often said, what is so, its panels, claims and runs, in the reader's language."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypedDict

from pellucid.analysis.rerun import lines
from pellucid.documents.definition import Count
from pellucid.documents.number import count, finite, number
from pellucid.documents.panel_document import PanelDocument, panel
from pellucid.exhibits import CHAPTERS, find
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, ExhibitResult
from pellucid.messages import say

SCHEMA: Final = 1


class ClaimDocument(TypedDict):
    """A claim, its numbers as the sentence has them, and whether it holds."""

    key: str
    text: str
    numbers: dict[str, str | float | None]
    holds: bool


class ControlDocument(TypedDict):
    """What a visitor may set."""

    name: str
    title: str
    value: str | float
    options: Annotated[list[str | float], "all that it may be; none: any"]


class ExhibitRunDocument(TypedDict):
    """A run behind an exhibit, as it can be made again."""

    model: str
    prompt: str
    switches: list[str]
    changes: list[str]
    steps: Count
    dtype: str


class ExhibitHeadDocument(TypedDict):
    """An exhibit before it is run."""

    name: str
    chapter: str
    title: str
    said: Annotated[str, "what is often said"]
    true: Annotated[str, "what is so"]
    model: Annotated[str, 'its specimen; "": it takes no model']
    controls: list[ControlDocument]


class ExhibitListDocument(TypedDict):
    """Every exhibit, chapter by chapter."""

    schema: Literal[1]
    chapters: Annotated[dict[str, str], "titles"]
    exhibits: list[ExhibitHeadDocument]


class ExhibitDocument(TypedDict):
    """An exhibit as it was run."""

    schema: Literal[1]
    head: ExhibitHeadDocument
    model: Annotated[str, '"": it takes none']
    dtype: Annotated[str, 'that the model computed in; "": it takes none']
    panels: list[PanelDocument]
    claims: list[ClaimDocument]
    runs: list[ExhibitRunDocument]
    python: Annotated[list[str], "lines that make the runs again"]


def exhibit_list() -> ExhibitListDocument:
    """Return every exhibit with its texts; none is run."""
    heads = [head(find(name), {}) for names in CHAPTERS.values() for name in names]
    return {"schema": SCHEMA, "chapters": {chapter: say(f"exhibit.chapter.{chapter}") for chapter in CHAPTERS}, "exhibits": heads}


def exhibit_document(shown: ExhibitResult) -> ExhibitDocument:
    """Return an exhibit that was run, with its texts."""
    name = shown.exhibit.name
    return {
        "schema": SCHEMA,
        "head": head(shown.exhibit, shown.settings),
        "model": shown.model,
        "dtype": shown.dtype,
        "panels": [panel(p) for p in shown.panels],
        "claims": [claim(name, c) for c in shown.claims],
        "runs": [
            {
                "model": r.model,
                "prompt": str(r.prompt),
                "switches": [*r.switches],
                "changes": [*r.changes],
                "steps": r.steps,
                "dtype": r.dtype,
            }
            for r in shown.runs
        ],
        "python": list(lines(shown.runs)),
    }


def head(shown: Exhibit, settings: Mapping[str, str | float]) -> ExhibitHeadDocument:
    """Return the texts and controls of an exhibit. settings: values that differ from the controls' own."""
    name = shown.name
    return {
        "name": name,
        "chapter": next(chapter for chapter, names in CHAPTERS.items() if name in names),
        "title": say(f"exhibit.{name}.title"),
        "said": say(f"exhibit.{name}.said"),
        "true": say(f"exhibit.{name}.true"),
        "model": "" if shown.own else shown.model,
        "controls": [control(name, c, settings.get(c.name, c.value)) for c in shown.controls],
    }


def control(name: str, c: Control, value: str | float) -> ControlDocument:
    """Return a control of the exhibit `name` with its value."""
    return {"name": c.name, "title": say(f"exhibit.{name}.control.{c.name}"), "value": value, "options": [*c.options]}


def claim(name: str, c: Claim) -> ClaimDocument:
    """Return a claim of the exhibit `name` as a sentence."""
    shown = {k: shown_value(v) for k, v in c.numbers.items()}
    numbers: dict[str, str | float | None] = {k: v if isinstance(v, str) else finite(v) for k, v in c.numbers.items()}
    return {"key": c.key, "text": say(f"exhibit.{name}.claim.{c.key}", **shown), "numbers": numbers, "holds": c.holds}


def shown_value(value: str | float | None) -> str:
    """Write a value of a claim or a table: a text as it is, a count with its thousands apart, nothing for None."""
    return "" if value is None else value if isinstance(value, str) else count(value) if isinstance(value, int) else number(value)
