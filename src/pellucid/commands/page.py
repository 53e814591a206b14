"""`pellucid page`: a model and its page in one HTML file or a folder, which any browser runs without Python."""

from pathlib import Path
from typing import Annotated

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.messages import say

SCHEMA = 1


def add(app: typer.Typer) -> None:
    @command(app, "page", say("live.help"))
    def page(
        ctx: typer.Context,
        name: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        out: Annotated[Path, options.place("--out", "FILE.html|FOLDER", say("live.help.out"))],
        quant: Annotated[str | None, options.quant()] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        model = options.loaded(screen, name, dtype="float32", quant=quant, ignore_fields=ignore_field or ())
        if out.suffix.lower() not in (".html", ".htm"):
            from pellucid.html.live_folder import live_folder

            made = live_folder(model, out)
            if screen.json:
                known = {"folder": str(out), "chunks": made.chunks, "bytes": made.bytes, "memory": made.memory}
                screen.document({"schema": SCHEMA, "model": model.name, **known})
            else:
                sizes = {"size": f"{made.bytes / 1e6:.1f} MB", "memory": f"{made.memory / 1e6:.0f} MB"}
                screen.text(say("live.written.folder", folder=out, chunks=made.chunks, **sizes) + "\n")
            return

        from pellucid.html import keep
        from pellucid.html.live import live_page

        text = live_page(model)
        keep(text, out)
        size = len(text.encode())
        if screen.json:
            screen.document({"schema": SCHEMA, "model": model.name, "file": str(out), "bytes": size})
        else:
            screen.text(say("live.written", file=out, size=f"{size / 1e6:.1f} MB") + "\n")
