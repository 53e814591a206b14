"""`pellucid try`: one prompt run twice, as the model is and changed, side by side."""

from typing import Annotated

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.messages import say

AXES = "T", "H"  # of rows and heads


def add(app: typer.Typer) -> None:
    @command(app, "try", say("try.help"))
    def try_change(
        ctx: typer.Context,
        name: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        prompt: Annotated[str, typer.Argument(metavar="PROMPT", help=say("explain.help.prompt"))],
        change: Annotated[list[str] | None, typer.Option("--change", metavar="CHANGE", help=say("try.help.change"))] = None,
        switch: Annotated[list[str] | None, typer.Option("--with", metavar="FIELD=VALUE", help=say("try.help.with"))] = None,
        against: Annotated[str | None, typer.Option("--against", metavar="PROMPT", help=say("try.help.against"))] = None,
        steps: Annotated[int, options.steps()] = 1,
        best: Annotated[int, options.integer("--top", say("explain.help.top"))] = 5,
        everything: Annotated[bool, typer.Option("--all", help=say("try.help.all"))] = False,
        by: Annotated[str, typer.Option("--by", metavar="T|H", help=say("try.help.by"))] = "",
        drawn: Annotated[int | None, options.integer("--fresh", say("try.help.fresh"))] = None,
        ids: Annotated[bool, options.ids()] = False,
        dtype: Annotated[str | None, options.dtype()] = None,
        device: Annotated[str, options.device()] = "cpu",
        quant: Annotated[str | None, options.quant()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        texts = change or []
        if not texts and not switch and against is None:
            raise UseError("try.nothing")
        if not prompt or against == "":
            raise UseError("generate.empty", name="prompt")
        if steps < 1:
            raise UseError("explain.steps", found=steps)
        if best < 1:
            raise UseError("explain.top", found=best)
        if by not in ("", *AXES):
            raise UseError("try.axis", found=by)
        if drawn is not None and quant is not None:
            raise UseError("try.fresh")
        prompts = [options.prompt_of(text, ids) for text in (prompt, prompt if against is None else against)]
        model = options.loaded(screen, name, dtype=dtype, device=options.numbers(device), quant=quant)

        from pellucid.analysis.compare import compare
        from pellucid.analysis.depth import by_depth
        from pellucid.api.change_values import changes
        from pellucid.api.fresh_weights import redrawn
        from pellucid.api.trace import trace
        from pellucid.api.variant import varied
        from pellucid.documents.comparison import comparison_document
        from pellucid.terminal.comparison_lines import Detail, Side, comparison

        model = model if drawn is None else redrawn(model, drawn)
        other = varied(model, switch or ())
        edits = changes(other, texts, steps)
        runs = trace(model, prompts[0], steps), trace(other, prompts[1], steps, edit=edits)
        compared, depth = compare(*runs), by_depth(*runs, ([], edits))
        options.tell_held(screen, model)
        if screen.json:
            screen.document(comparison_document(compared, (model, other), ([], texts), best, depth))
        else:
            changed = [*([] if against is None else [against]), *(switch or ()), *texts]
            about = [model.name if against is None else prompt, ", ".join(changed)]
            sides = [Side(one, text) for one, text in zip((model, other), about, strict=True)]
            screen.lines(comparison(compared, sides, Detail(best, screen.width, everything, by), depth))
