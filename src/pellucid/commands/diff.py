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
        found = first_difference(left, right, atol, rtol)
        ours, theirs = ({(s.path, s.step, s.call, s.request) for s in t} for t in (left, right))
        told: dict[str, Any] = {"schema": SCHEMA, "equal": found is None, "compared": len(ours & theirs)}
        told |= {"only_a": len(ours - theirs), "only_b": len(theirs - ours), "difference": None}
        if found is None:
            sentence = say("diff.equal", count=told["compared"], left=told["only_a"], right=told["only_b"])
        else:
            shapes = [list(next(s.shape for s in t if (s.path, s.step) == (found.path, found.step))) for t in (left, right)]
            values = [finite(v) for v in found.values] if found.index or shapes[0] == shapes[1] else None
            told["difference"] = {
                "path": found.path, "step": found.step, "index": list(found.index), "values": values, "shapes": shapes,
                "largest": finite(found.largest),
            }  # fmt: skip
            place = f"{found.path}[{', '.join(map(str, found.index))}]"
            if math.isinf(found.largest) and shapes[0] != shapes[1]:
                sentence = say("diff.shapes", path=found.path, step=found.step, a=shapes[0], b=shapes[1])
            else:
                x, y = (f"{v:.9g}" for v in found.values)
                sentence = say("diff.values", place=place, step=found.step, a=x, b=y, largest=f"{found.largest:.3g}")
        if screen.json:
            screen.document(told)
        else:
            screen.text(sentence + "\n")
        return int(found is not None)
