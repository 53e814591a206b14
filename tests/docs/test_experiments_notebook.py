"""examples/experiments.ipynb: it runs offline, no cell is longer than five lines, and what it shows is what it says."""

import re
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "experiments.ipynb"
LINES, SECONDS = 5, 120
# {a title: what the cells below it print}
SHOWN = {
    "Induction": r"\('layers\.1\.attn\.pattern', 1, 0\.7",
    "Logit lens": r"\('layers\.3\.out', ' Paris'\)",
    "Direct attribution": r"15\.2843\d+,\s+15\.2843",
    "Activation patching": r"'layers\.0\.attn\.z', \{'H': 3, 'T': 4\}, 15\.57",
    "Ablation": r"'layers\.0\.ffn': 0",
    "Steering": r"' Tokyo'",
    "sparse autoencoder": r"layers\.0\.out\.coder\.features",
    "Causal tracing": r"torch\.float64",
}


def executed() -> Any:
    start = time.monotonic()
    client = NotebookClient(nbformat.read(NOTEBOOK, as_version=4), timeout=SECONDS, kernel_name="python3")
    notebook = client.execute()
    assert time.monotonic() - start < 5 * SECONDS  # a bound of a hang, and no measure of speed
    return notebook


def shown(notebook: Any, title: str) -> str:
    """Return what the cells below a title print."""
    out, below = "", False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            below = title in cell.source if cell.source.startswith("#") or below is False else below
        elif below:
            out += "".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in cell.outputs)
    return out


def test_cells_are_short_and_hold_no_output() -> None:
    cells = [c for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.cell_type == "code"]
    assert len(cells) > 15 and max(len(c.source.splitlines()) for c in cells) <= LINES
    assert not any(c.outputs or c.execution_count for c in cells)


def test_it_runs_and_shows_what_it_says() -> None:
    """One test, as every process that has a part of it would run the notebook again."""
    notebook = executed()
    for title, pattern in SHOWN.items():
        assert re.search(pattern, shown(notebook, title)), shown(notebook, title)
    right, most = map(float, re.findall(r"\d\.\d+", shown(notebook, "A probe"))[-2:])
    assert right > 0.9 > 0.5 > most
    answers = re.findall(r"'([^']*)'", shown(notebook, "Induction"))[-3:]
    assert answers[0] == " red" != answers[2]
    streams = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs if o.output_type == "stream" and o.name == "stderr"]
    assert streams == []
