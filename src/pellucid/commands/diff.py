"""`pellucid diff`: the first tensor that differs between two recorded traces, the step at which two runs of training part, or what a run
would be without a document.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.documents.number import finite
from pellucid.errors import UseError
from pellucid.messages import say

if TYPE_CHECKING:
    from pellucid.analysis.difference import Difference

SCHEMA = 1


def add(app: typer.Typer) -> None:
    @command(app, "diff", say("diff.help"))
    def diff(
        ctx: typer.Context,
        a: Annotated[Path, typer.Argument(metavar="A", help=say("diff.help.a"))],
        b: Annotated[Path | None, typer.Argument(metavar="B", help=say("diff.help.b"))] = None,
        without: Annotated[list[str] | None, typer.Option("--without", metavar="NUMBER|TEXT", help=say("diff.help.without"))] = None,
        since: Annotated[int, options.integer("--since", say("diff.help.since"))] = 0,
        step: Annotated[int | None, options.integer("--step", say("diff.help.step"))] = None,
        prompt: Annotated[list[str] | None, typer.Option("--prompt", metavar="TEXT", help=say("diff.help.prompt"))] = None,
        atol: Annotated[float, options.real("--atol", say("diff.help.atol"))] = 0.0,
        rtol: Annotated[float, options.real("--rtol", say("diff.help.rtol"))] = 0.0,
    ) -> int:
        screen: Screen = ctx.obj
        if without:
            if b is not None or options.typed(ctx) & {"--atol", "--rtol"}:
                raise UseError("diff.without")
            of_documents(screen, a, without, since, step, prompt)
            return 0
        if b is None:
            raise UseError("command.missing", name="B")
        if since or step is not None or prompt:
            raise UseError("command.missing", name="--without")

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


def of_documents(screen: Screen, folder: Path, given: list[str], since: int, step: int | None, prompts: list[str] | None) -> None:
    """Print what becomes of the run in `folder` without some of its documents."""
    from pellucid.api.run import Run
    from pellucid.documents.left_out import left_out_document
    from pellucid.terminal.left_out_lines import left_out_lines

    if len(given) > 1 and not all(one.isdecimal() for one in given):
        raise UseError("diff.several")
    run = Run(folder)
    left = run.without([int(one) for one in given] if given[0].isdecimal() else given[0], since, step, prompts)
    document = left_out_document(run, left)
    if screen.json:
        result = {"schema": SCHEMA, "equal": left.equal, "compared": left.last - left.first, "only_a": 0, "only_b": 0, "difference": None}
        screen.document({**result, "without": document})
    else:
        screen.lines(left_out_lines(document, screen.width))
