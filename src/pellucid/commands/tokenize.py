"""`pellucid tokenize`: a text as tokens, or ids as a text. A folder with only a tokenizer is enough."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.messages import paragraph, say

if TYPE_CHECKING:
    from pellucid.documents.tokens import TokensDocument


def add(app: typer.Typer) -> None:
    @command(app, "tokenize", say("tokenize.help"))
    def tokenize(
        ctx: typer.Context,
        model: Annotated[str, typer.Argument(metavar="MODEL", help=say("tokenize.help.model"))],
        text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help=say("tokenize.help.text"))] = None,
        ids: Annotated[bool, typer.Option("--ids", help=say("tokenize.help.ids"))] = False,
        special: Annotated[bool, typer.Option("--special/--no-special", help=say("tokenize.help.special"))] = True,
    ) -> None:
        screen: Screen = ctx.obj
        given = sys.stdin.read().removesuffix("\n") if text is None else text
        prompt = options.prompt_of(given, ids)
        from pellucid.api.open_tokenizer import open_tokenizer
        from pellucid.documents.tokens import tokens_document

        document = tokens_document(model, open_tokenizer(model), prompt, special)
        if screen.json:
            screen.document(document)
        else:
            show(screen, document)


def show(screen: Screen, document: "TokensDocument") -> None:
    """Print the tokens as a table, and the decoded text if it differs from the given one."""
    from rich.text import Text

    from pellucid.documents.number import number
    from pellucid.terminal.table import Cell, Column, prose, table

    titles = [say("explain.position"), say("explain.piece"), say("explain.id"), say("explain.bytes"), ""]
    rows: list[list[Cell]] = [[Text(t, "dim") for t in titles]]
    for place, p in enumerate(document["tokens"]):
        raw = bytes.fromhex(p["bytes"])
        note = say("tokenize.special") if p["special"] else "" if raw else say("tokenize.unused")
        rows.append([str(place), p["shown"], str(p["id"]), raw.hex(" "), note])
    columns = [Column(">", style="dim"), Column(most=max(20, screen.width // 3), style="cyan"), Column(">"), Column(style="dim"), Column()]
    screen.lines(table(rows, columns))
    if document["prompt"] != document["text"]:
        screen.lines([Text(), *prose(say("tokenize.decoded", text=repr(document["text"])), screen.width)])
    counts = say("page.tokens.told", tokens=len(document["ids"]), bytes=document["bytes"], size=f"{document['vocabulary']:,}")
    rate = "" if document["rate"] is None else say("page.tokens.rate", rate=number(document["rate"]))
    screen.lines([Text(), *prose(paragraph(counts, rate), screen.width, "dim")])
