"""`pellucid patch`: cells of one prompt's run put into another's, one by one, and what becomes of the answer."""

from typing import Annotated

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.messages import say


def add(app: typer.Typer) -> None:
    @command(app, "patch", say("patch.help"))
    def patch(
        ctx: typer.Context,
        name: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        clean: Annotated[str, typer.Argument(metavar="CLEAN", help=say("patch.help.clean"))],
        corrupted: Annotated[str, typer.Argument(metavar="CORRUPTED", help=say("patch.help.corrupted"))],
        metric: Annotated[tuple[str, str], typer.Option("--metric", metavar="WORD WORD", help=say("patch.help.metric"))],
        over: Annotated[str, typer.Option("--over", metavar="PATTERN", help=say("patch.help.over"))] = "layers.*.attn.z",
        by: Annotated[str, typer.Option("--by", metavar="LETTERS", help=say("patch.help.by"))] = "H,T",
        best: Annotated[int, options.integer("--top", say("patch.help.top"))] = 5,
        ids: Annotated[bool, options.ids()] = False,
        dtype: Annotated[str | None, options.dtype()] = None,
        device: Annotated[str, options.device()] = "cpu",
        quant: Annotated[str | None, options.quant()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        prompts = [options.prompt_of(text, ids) for text in (clean, corrupted)]
        model = options.loaded(screen, name, dtype=dtype, device=options.numbers(device), quant=quant)

        from pellucid.api.sweep import patch as run
        from pellucid.documents.sweep import sweep_document
        from pellucid.terminal.sweep_lines import sweep

        swept = run(model, prompts[0], prompts[1], over, by, metric)
        options.tell_held(screen, model)
        if screen.json:
            screen.document(sweep_document(swept, model.name))
        else:
            screen.lines(sweep(swept, best, screen.width, screen.colour))
