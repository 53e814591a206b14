"""`pellucid heads`: which heads look at the token before, at the first, at the same one earlier, and at what came after that."""

from typing import Annotated

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.messages import say


def add(app: typer.Typer) -> None:
    @command(app, "heads", say("heads.help"))
    def heads(
        ctx: typer.Context,
        name: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        length: Annotated[int, options.integer("--length", say("heads.help.length"))] = 20,
        best: Annotated[int, options.integer("--top", say("patch.help.top"))] = 5,
        dtype: Annotated[str | None, options.dtype()] = None,
        device: Annotated[str, options.device()] = "cpu",
        quant: Annotated[str | None, options.quant()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        model = options.loaded(screen, name, dtype=dtype, device=options.numbers(device), quant=quant)

        from pellucid.analysis.heads import heads as score
        from pellucid.documents.sweep import heads_document
        from pellucid.terminal.sweep_lines import head_scores

        scores = score(model, length)
        options.tell_held(screen, model)
        if screen.json:
            screen.document(heads_document(scores, model.name))
        else:
            screen.lines(head_scores(scores, best, screen.width))
