"""`pellucid diff`: the first tensor that differs between two recorded traces."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.messages import say

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

        from pellucid.analysis.difference import first_difference
        from pellucid.documents.number import finite
        from pellucid.tracing import load_trace

        left, right = load_trace(a), load_trace(b)
        for torn in (*left.torn, *right.torn):
            screen.note(torn)
        difference = first_difference(left, right, atol, rtol)
        ours, theirs = ({(s.path, s.step, s.call, s.request) for s in t} for t in (left, right))
        result: dict[str, Any] = {"schema": SCHEMA, "equal": difference is None, "compared": len(ours & theirs)}
        result |= {"only_a": len(ours - theirs), "only_b": len(theirs - ours), "difference": None}
        if difference is None:
            sentence = say("diff.equal", count=result["compared"], left=result["only_a"], right=result["only_b"])
        else:
            shapes = [list(next(s.shape for s in t if (s.path, s.step) == (difference.path, difference.step))) for t in (left, right)]
            values = [finite(v) for v in difference.values] if difference.index or shapes[0] == shapes[1] else None
            result["difference"] = {
                "path": difference.path, "step": difference.step, "index": list(difference.index), "values": values, "shapes": shapes,
                "largest": finite(difference.largest),
            }  # fmt: skip
            place = f"{difference.path}[{', '.join(map(str, difference.index))}]"
            if math.isinf(difference.largest) and shapes[0] != shapes[1]:
                sentence = say("diff.shapes", path=difference.path, step=difference.step, a=shapes[0], b=shapes[1])
            else:
                x, y = (f"{v:.9g}" for v in difference.values)
                sentence = say("diff.values", place=place, step=difference.step, a=x, b=y, largest=f"{difference.largest:.3g}")
        if screen.json:
            screen.document(result)
        else:
            screen.text(sentence + "\n")
        return int(difference is not None)
