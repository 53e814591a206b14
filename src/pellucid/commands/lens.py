"""`pellucid lens`: what a model would say next if it ended after each block."""

from typing import Annotated

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.messages import say


def add(app: typer.Typer) -> None:
    @command(app, "lens", say("lens.help"))
    def lens(
        ctx: typer.Context,
        name: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        prompt: Annotated[str, typer.Argument(metavar="PROMPT", help=say("explain.help.prompt"))],
        row: Annotated[int, options.integer("--row", say("lens.help.row"))] = -1,
        follow: Annotated[str | None, typer.Option("--follow", metavar="WORD", help=say("lens.help.follow"))] = None,
        best: Annotated[int, options.integer("--top", say("explain.help.top"))] = 3,
        ids: Annotated[bool, options.ids()] = False,
        dtype: Annotated[str | None, options.dtype()] = None,
        device: Annotated[str, options.device()] = "cpu",
        quant: Annotated[str | None, options.quant()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        if not prompt:
            raise UseError("generate.empty", name="prompt")
        if best < 1:
            raise UseError("explain.top", found=best)
        text = options.prompt_of(prompt, ids)
        model = options.loaded(screen, name, dtype=dtype, device=options.numbers(device), quant=quant)

        from pellucid.analysis.attribution import one_id
        from pellucid.api.trace import trace
        from pellucid.documents.lens import read_document
        from pellucid.terminal.lens_lines import lens_lines

        document = read_document(model, trace(model, text), row, None if follow is None else one_id(model, follow), best)
        options.tell_held(screen, model)
        if screen.json:
            screen.document(document)
        else:
            screen.lines(lens_lines(document, screen.width))
