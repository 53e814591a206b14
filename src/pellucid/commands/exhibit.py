"""`pellucid exhibit`: one exhibit, or all of them, run and judged by their own claims."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.messages import say

SCHEMA = 1


def add(app: typer.Typer) -> None:
    @command(app, "exhibit", say("exhibit.help"))
    def exhibit(
        ctx: typer.Context,
        name: Annotated[str | None, typer.Argument(metavar="[NAME]", help=say("exhibit.help.name"))] = None,
        model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help=say("exhibit.help.model"))] = None,
        settings: Annotated[list[str] | None, typer.Option("--set", metavar="CONTROL=VALUE", help=say("exhibit.help.set"))] = None,
        save: Annotated[Path | None, options.place("--save", "FILE", say("exhibit.help.save"))] = None,
        dtype: Annotated[str | None, options.dtype()] = None,
        device: Annotated[str, options.device()] = "cpu",
    ) -> None:
        screen: Screen = ctx.obj
        given = settings_of(settings or ())
        if name is None and (given or model or save):
            raise UseError("exhibit.alone")

        from pellucid.documents.exhibit import exhibit_document
        from pellucid.exhibits import find
        from pellucid.exhibits.exhibit import run_exhibit
        from pellucid.terminal.exhibit_lines import exhibit_lines

        if name is None:
            gallery(screen)
            return
        shown = find(name)
        if shown.own and (model or dtype):
            raise UseError("exhibit.own", exhibit=name, found=model or dtype)
        own = options.loaded(screen, model or shown.model, dtype=dtype or (None if model else "float32"), device=options.numbers(device))
        document = exhibit_document(run_exhibit(shown, None if shown.own else own, given))
        if save is not None:
            from pellucid.html import exhibit_html, keep

            keep(exhibit_html(document, own, model or "", given), save)
            screen.note(say("exhibit.saved", file=save))
        if screen.json:
            screen.document(document)
        else:
            screen.lines(exhibit_lines(document, screen.width, screen.colour))


def settings_of(texts: Any) -> dict[str, str]:
    """Return the controls that texts of the form CONTROL=VALUE set."""
    pairs = {}
    for text in texts:
        control, equals, value = text.partition("=")
        if not (control and equals):
            raise UseError("exhibit.text", found=text)
        pairs[control.strip()] = value
    return pairs


def gallery(screen: Screen) -> None:
    """Run every exhibit on its own specimen, and write how many of its claims hold. A UseError at the end if one does not."""
    from rich.text import Text

    from pellucid.documents.exhibit import exhibit_document
    from pellucid.exhibits import CHAPTERS, find
    from pellucid.exhibits.exhibit import Opened, run_exhibit
    from pellucid.terminal.table import Column, line

    opened, failed, documents = Opened(), list[str](), list[Any]()
    for chapter, names in CHAPTERS.items():
        if not screen.json:
            screen.lines([Text(say(f"exhibit.chapter.{chapter}"), "bold")])
        for name in names:
            start = time.perf_counter()
            document = exhibit_document(run_exhibit(find(name), open_model=opened))
            seconds = time.perf_counter() - start
            claims = document["claims"]
            failed += [] if all(c["holds"] for c in claims) else [name]
            documents.append(document)
            if not screen.json:
                cells = [name, f"{sum(c['holds'] for c in claims)}/{len(claims)}", f"{seconds:.2f} s", document["head"]["title"]]
                screen.lines([line(cells, [Column(style="cyan"), Column(">"), Column(">"), Column()], [16, 5, 7, 60], 2, 1)])
    if screen.json:
        screen.document({"schema": SCHEMA, "exhibits": documents})
    if failed:
        raise UseError("exhibit.failed", names=", ".join(failed))
