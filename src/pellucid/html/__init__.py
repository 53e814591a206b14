"""A run, a tensor or a model as the page in one HTML file, and in a notebook's cell.

The page is the one that the server serves; the server's answers to its requests stand in the file, made by the same functions.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from pellucid.api.model import Model
from pellucid.checkpoint.disk import replacing
from pellucid.documents.exhibit import ExhibitDocument, exhibit_list
from pellucid.errors import TraceError
from pellucid.html import frame
from pellucid.html.file import written
from pellucid.html.recording import RecordingLimits, recording
from pellucid.html.shown import Subject, subject, title

LIMITS = RecordingLimits(bytes=64_000_000, numbers=2_000_000, cells=20_000)


def html(thing: Subject, most: int = LIMITS.bytes, cells: int = LIMITS.cells) -> str:
    """Return the page of a trace, of a tensor, or of a model without values, as the text of one HTML file.

    most: bytes of the recording; beyond it tensors are left out, the largest first, and the page says so.
    cells: the most cells with terms, if the trace was made with terms=True: those of the last token first, in a tensor the greatest.
    """
    run, place = subject(thing)
    return written(recording(run, place, RecordingLimits(most, LIMITS.numbers, cells)))


def save(thing: Subject, path: str | Path, **how: int) -> None:
    """Write `html` to a file that only its owner may read, atomically."""
    keep(html(thing, **how), path)


def keep(text: str, path: str | Path) -> None:
    """Write a page to a file that only its owner may read, atomically."""
    with replacing(Path(path), TraceError) as part:
        part.touch(0o600)
        part.write_text(text, encoding="utf-8")


def exhibit_html(document: ExhibitDocument, model: Model, on: str = "", settings: Mapping[str, str | float] | None = None) -> str:
    """Return the page of an exhibit that was run, as the text of one HTML file; beside it the model's shapes and counts.

    model: that it ran on.  on: its name, "" for the exhibit's own specimen.  settings: of its controls, as they were given.
    """
    run, _ = subject(model)
    name, controls = document["head"]["name"], request_text(dict(settings or {}))
    place = {"view": "exhibits", "exhibit": name} | ({"on": on} if on else {}) | ({"controls": controls} if settings else {})
    content = recording(run, place, LIMITS)
    request = request_text({"model": on, "settings": dict(settings or {})})
    content["answers"] |= {"exhibits": exhibit_list(), f"exhibits/{name} {request}": document}
    return written(content)


def request_text(body: Mapping[str, object]) -> str:
    """Write the body of a request as the page does, by which it finds the answer."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def cell(thing: Subject) -> str:
    """Return the page of `thing` as a notebook's output."""
    run, place = subject(thing)
    return frame.framed(written(recording(run, place, frame.LIMITS)), frame.plain(title(thing), run))
