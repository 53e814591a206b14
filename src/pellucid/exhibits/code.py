"""The code behind a number: the op's source and the part's, and the lines of Python that make the number again."""

from collections.abc import Iterator

from pellucid.analysis.needs import TENSORED
from pellucid.analysis.op_source import op_source, part_source, rerun_gap
from pellucid.analysis.rerun import cell_lines, rerun_cell
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TextPanel
from pellucid.messages import say

PROMPT = "The capital of France is"
TENSORS = ("layers.0.attn.q", "layers.0.attn", "layers.0.mid", "layers.0.ffn.up", "layers.0.ffn")
CELL, NEIGHBOUR = (0, 1, 2), (0, 1, 3)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    run = e.trace(e.text("prompt"))
    seen = run[e.text("tensor")]
    op, part = op_source(seen, e.model), part_source(seen, e.model)
    assert op is not None and part is not None
    yield TextPanel(say("exhibit.code.op", name=op.name, file=op.file, first=op.first, last=op.last), op.text.splitlines())
    yield TextPanel(say("exhibit.code.part", name=part.name, file=part.file, first=part.first, last=part.last), part.text.splitlines())
    cell, other = (where[: len(seen.shape)] if len(seen.shape) < 4 else (*where[:2], 0, where[2]) for where in (CELL, NEIGHBOUR))
    yield TextPanel(say("exhibit.code.lines"), cell_lines(e.runs[-1], run, seen, cell))
    number, again = seen.value[cell].item(), rerun_cell(e.runs[-1], run, seen, e.on(cell, other))
    gap = rerun_gap(e.model, run, seen, op)
    yield e.claim("cell", again == number, path=seen.path, number=number, again=again)
    yield e.claim("op", e.same(gap), name=op.name, path=seen.path, gap=gap)


EXHIBIT = Exhibit("code", show, controls=(Control("prompt", PROMPT, tokens=2), Control("tensor", TENSORS[0], TENSORS)), needs=TENSORED)
