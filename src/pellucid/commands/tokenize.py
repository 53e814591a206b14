"""`pellucid tokenize`: a text as tokens, or ids as a text. A folder with only a tokenizer is enough."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import CheckpointError, TokenizerError, UseError
from pellucid.messages import say

if TYPE_CHECKING:
    from pellucid.tokenizer.pieces import Piece
    from pellucid.tokenizer.tokenizer import Tokenizer

SCHEMA = 1


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
        tokenizer = opened(model)
        tokens = tokenizer.encode(prompt, special=special) if isinstance(prompt, str) else prompt
        decoded = tokenizer.decode(tokens, skip_special=not special)
        shown = tokenizer.pieces(tokens)
        if screen.json:
            rows = [{"id": p.id, "piece": tokenizer.piece(p.id), "text": p.text, "bytes": p.raw.hex(), "special": p.special} for p in shown]
            screen.document(
                {"schema": SCHEMA, "model": model, "prompt": prompt if isinstance(prompt, str) else None, "ids": tokens, "tokens": rows,
                 "text": decoded, "vocabulary": tokenizer.size}
            )  # fmt: skip
        else:
            show(screen, shown, tokenizer, None if isinstance(prompt, str) and prompt == decoded else decoded)


def show(screen: Screen, shown: "list[Piece]", tokenizer: "Tokenizer", decoded: str | None) -> None:
    """Print the tokens as a table, and the decoded text if it differs from the given one."""
    from rich.text import Text

    from pellucid.runs.answers import visible
    from pellucid.terminal.table import Cell, Column, prose, table

    titles = [say("explain.position"), say("explain.piece"), say("explain.id"), say("explain.bytes"), ""]
    rows: list[list[Cell]] = [[Text(t, "dim") for t in titles]]
    for place, p in enumerate(shown):
        note = say("tokenize.special") if p.special else "" if p.raw else say("tokenize.unused")
        rows.append([str(place), visible(p), str(p.id), p.raw.hex(" "), note])
    columns = [Column(">", style="dim"), Column(most=max(20, screen.width // 3), style="cyan"), Column(">"), Column(style="dim"), Column()]
    screen.lines(table(rows, columns))
    if decoded is not None:
        screen.lines([Text(), *prose(say("tokenize.decoded", text=repr(decoded)), screen.width)])
    size = sum(len(p.raw) for p in shown)
    screen.lines([Text(), *prose(say("tokenize.told", tokens=len(shown), bytes=size, size=f"{tokenizer.size:,}"), screen.width, "dim")])


def opened(name: str) -> "Tokenizer":
    """Return the tokenizer of a specimen, a folder, a hub id, or a tokenizer.json."""
    from pellucid.api.model import place
    from pellucid.checkpoint.disk import inside
    from pellucid.checkpoint.gguf.gguf_folder import GgufFolder, gguf_of
    from pellucid.checkpoint.hub import fetch_tokenizer, is_hub_id
    from pellucid.checkpoint.json_file import read_object
    from pellucid.counting.published import entry_of
    from pellucid.tokenizer.tokenizer import Tokenizer, load_tokenizer

    path = Path(name)
    if path.exists() and (file := gguf_of(path)) is not None:
        folder_in_file = GgufFolder(file)
        tokenizer = folder_in_file.tokenizer(folder_in_file.rows)
        if tokenizer is None:
            raise CheckpointError("tokenize.none", folder=name)
        return tokenizer
    if path.is_file():
        return Tokenizer.from_file(inside(path.parent, path.name, TokenizerError))
    if not path.is_dir() and entry_of(name) is not None:
        raise UseError("tokenize.catalogue", name=name)
    fetched = is_hub_id(name) and not path.is_dir() and not name.startswith("pellucid/")
    folder = fetch_tokenizer(name) if fetched else place(name)
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        raise CheckpointError("tokenize.none", folder=name)
    config: dict[str, Any] = read_object(inside(folder, "config.json")) if (folder / "config.json").exists() else {}
    rows = config.get("vocab_size")
    return tokenizer.fit(rows) if isinstance(rows, int) and rows > tokenizer.size else tokenizer  # a table is often padded
