"""`pellucid convert`: a model as a GGUF file, or as a folder of safetensors."""

from pathlib import Path
from typing import Annotated

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.messages import say

SCHEMA = 1


def add(app: typer.Typer) -> None:
    @command(app, "convert", say("convert.help"))
    def convert(
        ctx: typer.Context,
        model: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        to: Annotated[str, typer.Option("--to", metavar="gguf|safetensors", help=say("convert.help.to"))] = "gguf",
        quant: Annotated[str | None, typer.Option("--quant", metavar="TYPE", help=say("convert.help.quant"))] = None,
        out: Annotated[Path | None, options.place("--out", "PATH", say("convert.help.out"))] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        if out is None:
            raise UseError("command.missing", name="--out")

        from pellucid.api.convert import convert as converted

        made = converted(model, out, to, quant, ignore_field or (), screen.bar(say("command.loading", name=model)))
        if screen.json:
            screen.document(
                {"schema": SCHEMA, "model": model, "to": to, "quant": quant, "path": str(out), "tensors": made.tensors, "bytes": made.bytes}
            )
        elif not screen.quiet:
            screen.text(say("convert.done", model=model, tensors=made.tensors, size=f"{made.bytes:,}", path=out) + "\n")
