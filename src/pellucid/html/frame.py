"""A notebook's output: the page in a frame that runs its own script and reaches nothing else, and plain text where frames are dropped.

The frame has an origin of its own (`sandbox` without allow-same-origin) and the file's policy, so it reads neither notebook nor network.
"""

from pellucid.documents.run import run_document
from pellucid.html.recording import RecordingLimits
from pellucid.runs.kept_run import Run

LIMITS = RecordingLimits(bytes=8_000_000, numbers=125_000, cells=2_000)  # a notebook keeps every output that it has shown
LINES = 40  # of the plain text
HEIGHT = 680  # px
# Viewers that drop frames drop styles too, so that the text shows there alone.
HIDDEN = "<style>.pellucid > pre { display: none; }</style>"
LOOKS = f"width: 100%; height: {HEIGHT}px; border: 1px solid #8886; border-radius: 6px;"


def framed(page: str, plain: str) -> str:
    """Return the output: the page's text within an attribute, and the plain text beside it."""
    frame = f"""<iframe title="Pellucid" sandbox="allow-scripts" style="{LOOKS}" srcdoc='{quoted(page)}'></iframe>"""
    return f'<div class="pellucid">{HIDDEN}<pre>{quoted(plain).replace("<", "&lt;")}</pre>{frame}</div>'


def quoted(text: str) -> str:
    """Escape a text for an attribute in single quotes: a page has mostly double ones."""
    return text.replace("&", "&amp;").replace("'", "&#39;")


def plain(title: str, run: Run) -> str:
    """Return a run as plain text, a line for each tensor of its first step."""
    rows = [(t["path"], t["dims"], "×".join(map(str, t["shape"])), t["dtype"], t["made"]) for t in run_document(run)["tensors"]]
    width = [max((len(row[i]) for row in rows[:LINES]), default=0) for i in range(4)]
    lines = ["  ".join((*(text.ljust(n) for text, n in zip(row, width, strict=False)), row[4])).rstrip() for row in rows[:LINES]]
    return "\n".join([title, *lines, *([f"… {len(rows) - LINES}"] if len(rows) > LINES else [])])
