"""`pellucid diff`: the first tensor that differs between two recorded traces, or the step at which two runs of training part."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.documents.number import finite
from pellucid.messages import say

if TYPE_CHECKING:
    from pellucid.analysis.difference import Difference

SCHEMA = 1


def add(app: typer.Typer) -> None:
    @command(app, "diff", say("diff.help"))
    def diff(
        ctx: typer.Context,
        a: Annotated[Path, typer.Argument(metavar="A", help=say("diff.help.a"))],
        b: Annotated[Path, typer.Argument(metavar="B", help=say("diff.help.b"))],
        atol: Annotated[float, options.real("--atol", say("diff.help.atol"))] = 0.0,
        rtol: Annotated[float, options.real("--rtol", say("diff.help.rtol"))] = 0.0,
    ) -> int:
        screen: Screen = ctx.obj

        from pellucid.training.run_folder import RUN

        if all((folder / RUN).is_file() for folder in (a, b)):
            result, sentence = of_runs(a, b, atol, rtol)
        else:
            result, sentence = of_traces(screen, a, b, atol, rtol)
        if screen.json:
            screen.document(result)
        else:
            screen.text(sentence + "\n")
        return int(not result["equal"])


def of_traces(screen: Screen, a: Path, b: Path, atol: float, rtol: float) -> tuple[dict[str, Any], str]:
    """Return the first difference of two traces as JSON and as a sentence."""
    from pellucid.analysis.difference import first_difference
    from pellucid.tracing import load_trace

    left, right = load_trace(a), load_trace(b)
    for torn in (*left.torn, *right.torn):
        screen.note(torn)
    difference = first_difference(left, right, atol, rtol)
    ours, theirs = ({(s.path, s.step, s.call, s.request) for s in t} for t in (left, right))
    result: dict[str, Any] = {"schema": SCHEMA, "equal": difference is None, "compared": len(ours & theirs)}
    result |= {"only_a": len(ours - theirs), "only_b": len(theirs - ours), "difference": None}
    if difference is None:
        return result, say("diff.equal", count=result["compared"], left=result["only_a"], right=result["only_b"])
    shapes = [list(next(s.shape for s in t if (s.path, s.step) == (difference.path, difference.step))) for t in (left, right)]
    values = [finite(v) for v in difference.values] if difference.index or shapes[0] == shapes[1] else None
    result["difference"] = {
        "path": difference.path, "step": difference.step, "index": list(difference.index), "values": values, "shapes": shapes,
        "largest": finite(difference.largest),
    }  # fmt: skip
    if math.isinf(difference.largest) and shapes[0] != shapes[1]:
        return result, say("diff.shapes", path=difference.path, step=difference.step, a=shapes[0], b=shapes[1])
    return result, tensor_sentence(difference, difference.step)


def tensor_sentence(difference: "Difference", step: int) -> str:
    """Return the sentence of a tensor that differs in values."""
    place = f"{difference.path}[{', '.join(map(str, difference.index))}]"
    x, y = (f"{v:.9g}" for v in difference.values)
    return say("diff.values", place=place, step=step, a=x, b=y, largest=f"{difference.largest:.3g}")


def of_runs(a: Path, b: Path, atol: float, rtol: float) -> tuple[dict[str, Any], str]:
    """Return the first step at which two runs of training part, as JSON and as sentences."""
    from pellucid.analysis.run_difference import first_parting
    from pellucid.api.run import Run

    left, right = Run(a), Run(b)
    parting = first_parting(left, right, atol, rtol)
    ours, theirs = ({entry["step"] for entry in run.log} for run in (left, right))
    result: dict[str, Any] = {"schema": SCHEMA, "equal": parting is None, "compared": len(ours & theirs)}
    result |= {"only_a": len(ours - theirs), "only_b": len(theirs - ours), "difference": None, "parting": None}
    if parting is None:
        return result, say("diff.runs", count=result["compared"], left=result["only_a"], right=result["only_b"])
    tensor = parting.difference
    result["parting"] = {"step": parting.step, "field": parting.field, "values": list(parting.values), "tensor": None}
    sentence = say("diff.step", step=parting.step, field=parting.field, a=parting.values[0], b=parting.values[1])
    if tensor is None:
        return result, sentence
    result["parting"]["tensor"] = {"path": tensor.path, "index": list(tensor.index), "largest": finite(tensor.largest)}
    if not tensor.index:
        return result, f"{sentence}\n{say('diff.path', path=tensor.path)}"
    return result, f"{sentence}\n{tensor_sentence(tensor, parting.step)}"
