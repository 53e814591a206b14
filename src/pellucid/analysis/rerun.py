"""Lines of Python that make runs again, and a cell of one: for a reader to copy."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pellucid.api.change_values import changes
from pellucid.api.model import load
from pellucid.api.trace import trace as record
from pellucid.api.variant import variant
from pellucid.tracing import Trace
from pellucid.watching.records import Seen


@dataclass(frozen=True)
class Rerun:
    """A run as it can be made again. dtype: in which the model computed."""

    model: str
    prompt: str | tuple[int, ...]
    switches: tuple[str, ...]
    changes: tuple[str, ...]
    steps: int
    dtype: str


def lines(runs: Iterable[Rerun]) -> Iterator[str]:
    """Yield the lines of Python that make runs again: a line for each model, each variant and each run."""
    distinct, known = list(dict.fromkeys(runs)), dict[tuple[str, tuple[str, ...]], str]()
    if distinct:
        yield "import pellucid"
    if any(r.changes for r in distinct):
        yield "from pellucid.api.change_values import changes"
    for n, r in enumerate(distinct):
        for switches in dict.fromkeys([(), r.switches]):
            if (r.model, switches) not in known:
                made = known[r.model, switches] = f"model_{len(known)}"
                pairs = dict(one.split("=", 1) for one in switches)
                plain = f"pellucid.load({r.model!r}, dtype={r.dtype!r})"
                yield f"{made} = " + (f"pellucid.variant({known[r.model, ()]}, {pairs!r})" if switches else plain)
        model = known[r.model, r.switches]
        steps = f", steps={r.steps}" if r.steps > 1 else ""
        edit = f", edit=changes({model}, {[*r.changes]!r})" if r.changes else ""
        prompt = r.prompt if isinstance(r.prompt, str) else [*r.prompt]
        yield f"run_{n} = pellucid.trace({model}, {prompt!r}{steps}{edit})"


def cell_lines(run: Rerun, trace: Trace, seen: Seen, cell: Sequence[int]) -> list[str]:
    """Return the lines of Python that make a run again and print one cell of it. seen: one of the trace's records."""
    number = trace.all(seen.path).index(seen)
    value = f"run_0.all({seen.path!r})[{number}].value[{', '.join(map(str, cell))}]"
    return [*lines([run]), f"cell = {value}.item()", "print(cell)"]


def rerun_cell(run: Rerun, trace: Trace, seen: Seen, cell: Sequence[int]) -> float:
    """Do what `cell_lines` say: load the model anew, make the run again, and return the cell's number."""
    model = load(run.model, dtype=run.dtype)
    if run.switches:
        model = variant(model, dict(one.split("=", 1) for one in run.switches))
    prompt = run.prompt if isinstance(run.prompt, str) else list(run.prompt)
    again = record(model, prompt, run.steps, edit=changes(model, list(run.changes)))
    return float(again.all(seen.path)[trace.all(seen.path).index(seen)].value[tuple(cell)])
