"""A run of training for people: its log and its recorded steps as panels. One step is shown, and every panel follows it."""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypedDict

from pellucid.analysis.rows import mean
from pellucid.analysis.training_film import (
    about,
    curves,
    loads,
    most_moved,
    part_changes,
    patterns,
    percents,
    prompts_at,
    starving,
    thinned,
    token_rows,
    ways,
)
from pellucid.api.run import Run
from pellucid.counting.number import Number
from pellucid.counting.training_memory import training
from pellucid.documents.amount import scaled, seconds
from pellucid.documents.definition import Count
from pellucid.documents.panel_document import PanelDocument, panel
from pellucid.documents.recipe_bill import RecipeBill, recipe_bill
from pellucid.errors import PellucidError
from pellucid.exhibits.panel import LinePanel, MatrixPanel, Panel, PlanePanel, TablePanel, Value, way
from pellucid.messages import say
from pellucid.runs.answers import piece_of, visible
from pellucid.tokenizer.tokenizer import load_tokenizer
from pellucid.training.facts import FactHistory, read_facts
from pellucid.training.meter import peak_of, step_seconds
from pellucid.training.multi_token_loss import PLACE
from pellucid.training.run_folder import RECIPE
from pellucid.training.texts import Texts

SCHEMA: Final = 1
ROWS = 120  # parameters of a picture or a table, questions of another
LAYERS = 4  # of experts
FIGURES = {"reward": "training.reward", "margin": "training.margin", "agreed": "training.agreed"}
"""Of the figures that a criterion logs beside the loss, the one that says how good a run is."""


class TrainingDocument(TypedDict):
    """A run of training at one of its recorded steps."""

    schema: Literal[1]
    name: str
    folder: str
    steps: Annotated[Count, "of the recipe"]
    taken: Annotated[Count, "that are logged"]
    watched: Annotated[list[Count], "recorded steps"]
    step: Annotated[Count | None, "the recorded step that is shown; null: none is recorded"]
    parameters: Annotated[list[str], "whose cells can be explained"]
    shapes: dict[str, list[Count]]
    panels: list[PanelDocument]


def training_document(run: Run, step: int | None = None) -> TrainingDocument:
    """Return a run at a recorded step; the newest where None, or if it is not recorded."""
    log, watched = run.log, list(run.watched)
    shown = step if step in watched else watched[-1] if watched else None
    shapes = {} if shown is None else run.watched[shown].updates
    return {
        "schema": SCHEMA,
        "name": run.recipe.name,
        "folder": str(run.folder),
        "steps": run.recipe.train.steps,
        "taken": int(log[-1]["step"]) if log else 0,
        "watched": watched,
        "step": shown,
        "parameters": list(shapes),
        "shapes": {path: list(x.shape) for path, x in shapes.items()},
        "panels": [panel(p) for p in panels(run, log, watched, shown)],
    }


def panels(run: Run, log: list[dict[str, Any]], watched: list[int], shown: int | None) -> Iterator[Panel]:
    """Yield the pictures of a run, in the order in which they are read."""
    across = say("training.step")
    if any("loss" in entry for entry in log):
        yield curve(say("training.losses"), across, shown, *curves(log))
        for name in FIGURES:
            if any(name in entry for entry in log):
                yield curve(say(FIGURES[name]), across, shown, *curves(log, name, f"held_out_{name}"))
    if modules := [name for name in next((e for e in reversed(log) if "loss" in e), {}) if name.startswith(f"{PLACE}.")]:
        yield looking_ahead(log, modules, across, shown)
    if (facts := read_facts(run.folder)) is not None and facts.steps:
        yield from learnt(facts, across, shown)
    if shown is not None:
        yield from recorded(run, watched, shown, across)
    if log and isinstance(run.recipe.data, Texts):
        with suppress(PellucidError):  # the folder that it starts from may be gone, without which there is no bill
            yield bill_panel(run, log)


def recorded(run: Run, watched: list[int], shown: int, across: str) -> Iterator[Panel]:
    """Yield the pictures of recorded steps."""
    steps = thinned(watched, shown)
    every = [about(run, step)["parameters"] for step in steps]
    yield LinePanel(say("training.parts"), across, steps, part_changes(every), shown)
    yield from experts(run, steps, shown)
    yield from attention(run, watched, shown)
    if points := token_rows(run, steps):
        places, share = ways(points)
        dots = [dot for text, own in places.items() for dot in way([f"{text} {step}" for step in steps], own)]
        yield PlanePanel(say("training.ways", share=share), say("training.first"), say("training.second"), dots)
    changes = percents(every)
    rows = [path for path, own in changes.items() if None not in own][:ROWS]  # a weight that was 0 has no change in percent
    title = say("training.changes", count=len(changes), shown=len(rows))
    axes = (say("training.parameter"), across)
    yield MatrixPanel(title, rows, [str(step) for step in steps], [changes[path] for path in rows], scale="size", axes=axes)
    yield table(every[steps.index(shown)], shown)


def bill_panel(run: Run, log: list[dict[str, Any]]) -> TablePanel:
    """Return the bill of a run's recipe beside what the run took. A forward of the bill has full rows, so the run has not more."""
    bill = bill_of(run.folder / RECIPE, run.about.root)
    counts, took = training(bill.bill, bill.way), step_seconds(log)
    flops = bill.forwards * int(counts["flops.total"])
    peak = peak_of(run.folder)
    parts: list[list[Value]] = [[named(name), scaled(int(n), "B"), None] for name, n in parts_of(counts)]
    rows: list[list[Value]] = [
        [say("training.bill.memory"), scaled(int(counts["memory.total"]), "B"), None if peak is None else scaled(peak, "B")],
        *parts,
        [say("training.bill.flops"), scaled(flops, "FLOP"), None],
        [say("training.bill.seconds"), None, None if took is None else seconds(took)],
        [say("training.bill.rate"), None, scaled(flops / took, "FLOP/s") if took else None],
    ]
    return TablePanel(
        say("training.bill"), [say("training.bill.what"), say("training.bill.predicted"), say("training.bill.measured")], rows
    )


def named(name: str) -> str:
    """Return the label of a kind of memory, or of a moment of the step."""
    match name:
        case "at_loss":
            return say("training.bill.at_loss")
        case "at_backward":
            return say("training.bill.at_backward")
        case "at_embedding":
            return say("training.bill.at_embedding")
        case "at_update":
            return say("training.bill.at_update")
        case "at_reference":
            return say("training.bill.at_reference")
        case "at_draws":
            return say("training.bill.at_draws")
        case "at_teacher":
            return say("training.bill.at_teacher")
        case _:
            return say("training.bill.part", part=name)


def parts_of(counts: dict[str, Number]) -> Iterator[tuple[str, Number]]:
    """Yield the kinds of memory of a bill by their names, and what is held at the moments of a step."""
    yield from ((name.removeprefix("memory."), n) for name, n in counts.items() if name.startswith("memory.") and name != "memory.total")


@cache
def bill_of(path: Path, root: Path) -> RecipeBill:
    """Return the bill of a run's own recipe, which does not change while it is open."""
    return recipe_bill(path, root=root)


def curve(title: str, across: str, shown: int | None, at: list[int], trained: list[float], apart: list[float | None]) -> LinePanel:
    """Return the picture of a figure over the steps, of what is trained and, where it is measured, of what is held out."""
    series = {say("training.loss"): trained} | ({say("training.held_out"): apart} if any(x is not None for x in apart) else {})
    return LinePanel(title, across, at, series, shown)


def looking_ahead(log: list[dict[str, Any]], modules: list[str], across: str, shown: int | None) -> LinePanel:
    """Return the picture of the losses of modules for multi-token prediction, of which the first predicts two tokens ahead."""
    series, at = dict[str, list[float | None]](), list[int]()
    for tokens, name in enumerate(modules, 2):
        at, trained, apart = curves(log, name, f"held_out_{name}")
        series[say("training.ahead", tokens=tokens)] = list(trained)
        if any(x is not None for x in apart):
            series[say("training.ahead.held_out", tokens=tokens)] = apart
    return LinePanel(say("training.multi_token"), across, at, series, shown)


def learnt(facts: FactHistory, across: str, shown: int | None) -> Iterator[Panel]:
    """Yield the share of questions that are right after each evaluation, by relation, and when each question was learnt."""
    names = [f"{q.relation}.{q.language}" for q in facts.questions]
    series = {
        name: [
            mean(100.0 * own[i] for own, other in zip(facts.right, names, strict=True) if other == name) for i in range(len(facts.steps))
        ]
        for name in dict.fromkeys(names)
    }
    near = None if shown is None else max((step for step in facts.steps if step <= shown), default=None)
    yield LinePanel(say("training.facts", count=len(names)), across, facts.steps, series, near)
    first, lost = facts.learnt(), facts.forgotten()
    order = sorted(range(len(names)), key=lambda i: (first[i] is None, first[i] or 0, i))
    chosen = order[:: -(-len(order) // ROWS)]
    title = say("training.learnt", shown=len(chosen), never=sum(step is None for step in first), forgotten=sum(lost))
    values = [[float(x) for x in facts.right[i]] for i in chosen]
    prompts, at = [facts.questions[i].prompt for i in chosen], list(map(str, facts.steps))
    yield MatrixPanel(title, prompts, at, values, scale="share", axes=(say("training.question"), across))


def experts(run: Run, steps: list[int], shown: int) -> Iterator[Panel]:
    """Yield how the choices of each layer of experts are spread over its experts, in the recorded steps."""
    for path, rows in list(loads(run, steps).items())[:LAYERS]:
        starved, even = starving(rows, steps.index(shown))
        title = say("training.loads", path=path, step=shown, starved=starved, even=f"{100 * even:.0f}")
        names, axes = [str(e) for e in range(len(rows))], (say("training.expert"), say("training.step"))
        yield MatrixPanel(title, names, [str(step) for step in steps], rows, scale="size", axes=axes)


def attention(run: Run, watched: list[int], shown: int) -> Iterator[Panel]:
    """Yield the pattern of each prompt's head that training moved most, after the first recorded step and the shown one."""
    tokenizer = load_tokenizer(run.folder)  # not the run's, which builds the run again: another machine refuses that
    first, own, last = (prompts_at(run, step) for step in (watched[0], shown, watched[-1]))
    for before, now, after in zip(first, own, last, strict=False):  # a resumed run may have other prompts
        head = most_moved(patterns(before), patterns(after))
        if head is None or before.ids != now.ids or head[0] not in patterns(now):
            continue
        path, n = head
        pieces = [visible(piece_of(tokenizer, id)) for id in now.ids]
        for step, trace in ((watched[0], before), (shown, now)):
            values = patterns(trace)[path][n].tolist()
            title, axes = say("training.pattern", path=path, head=n, step=step), (say("training.query"), say("training.key"))
            yield MatrixPanel(title, pieces, pieces, values, path, "share", axes=axes)


def table(parameters: dict[str, dict[str, float | None]], step: int) -> TablePanel:
    """Return what a step did to each parameter, the most moved first."""
    order = sorted(parameters, key=lambda path: -(parameters[path]["ratio"] or 0.0))[:ROWS]
    columns = [say("training.parameter"), say("training.norm"), say("training.gradient"), say("training.update")]
    rows = [
        [path, one["norm"], one["gradient"], one["update"], None if one["ratio"] is None else 100 * one["ratio"], one["angle"]]
        for path in order
        for one in (parameters[path],)
    ]
    return TablePanel(say("training.table", step=step), [*columns, say("training.percent"), say("training.angle")], rows)
