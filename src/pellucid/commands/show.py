"""`pellucid show`: what a model is made of; no weights are read."""

from typing import Annotated

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.messages import say


def add(app: typer.Typer) -> None:
    @command(app, "show", say("show.help"))
    def show(
        ctx: typer.Context,
        model: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        everything: Annotated[bool, typer.Option("--all", help=say("show.help.all"))] = False,
        adapter: Annotated[str | None, options.adapter()] = None,
        dtype: Annotated[str | None, options.dtype()] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        loaded = options.loaded(screen, model, dtype=dtype, device="meta", ignore_fields=ignore_field or (), adapter=adapter)

        from pellucid.terminal import structure

        if screen.json:
            screen.document(structure.document(loaded))
        else:
            screen.lines(structure.drawn(loaded, screen.width, everything))
