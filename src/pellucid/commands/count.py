"""`pellucid count`: every parameter, byte and FLOP of models, exactly, with the formula; nothing is downloaded but a config.json."""

from typing import Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.words import say


def add(app: typer.Typer) -> None:
    @command(app, "count", say("count.help"))
    def count(
        ctx: typer.Context,
        models: Annotated[list[str], typer.Argument(metavar="MODEL...", help=say("count.help.models"))],
        context: Annotated[int | None, options.whole("--context", say("count.help.context"))] = None,
        batch: Annotated[int, options.whole("--batch", say("count.help.batch"))] = 1,
        dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help=say("count.help.dtype"))] = "bfloat16",
        cache: Annotated[str | None, typer.Option("--cache-dtype", metavar="DTYPE", help=say("count.help.cache"))] = None,
        device: Annotated[str | None, typer.Option("--device", metavar="NAME", help=say("count.help.device"))] = None,
        source: Annotated[int | None, options.whole("--source", say("count.help.source"))] = None,
        why: Annotated[str | None, typer.Option("--why", metavar="PATH", help=say("count.help.why"))] = None,
        fields: Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help=say("count.help.set"))] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj

        from pellucid.billing import count as counted
        from pellucid.draw import bill as drawing

        how: dict[str, Any] = {"context": context, "batch": batch, "dtype": dtype, "cache": cache, "device": device, "source": source}
        bills = [counted(m, **how, fields=given(fields or ()), ignore_fields=ignore_field or ()) for m in models]
        if why is not None:
            for b in bills:
                number = b[why]
                screen.text(f"{b.model}  {why}\n  {number.formula}\n")
                for path in number.of:
                    screen.text(f"    {path}  {b[path].formula}\n" if path in b else "")
        elif screen.json:
            documents = [drawing.document(b) for b in bills]
            screen.document(documents[0] if len(documents) == 1 else {"schema": drawing.SCHEMA, "models": documents})
        else:
            for b in bills:
                screen.lines(drawing.drawn(b, screen.width))


def given(fields: Any) -> dict[str, Any]:
    """FIELD=VALUE, where VALUE is JSON, or a text."""
    import json

    out: dict[str, Any] = {}
    for pair in fields:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise UseError("count.pair", found=pair)
        try:
            out[name] = json.loads(value)
        except ValueError:
            out[name] = value
    return out
