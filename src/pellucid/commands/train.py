"""`pellucid train`: a model from a recipe."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.messages import say

SCHEMA = 1


def add(app: typer.Typer) -> None:
    @command(app, "train", say("train.help"))
    def train(
        ctx: typer.Context,
        recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help=say("train.help.recipe"))],
        out: Annotated[Path | None, options.place("--out", "FOLDER", say("train.help.out"))] = None,
        resume: Annotated[bool, typer.Option("--resume", help=say("train.help.resume"))] = False,
        restart: Annotated[bool, typer.Option("--restart", help=say("train.help.restart"))] = False,
        inexact: Annotated[bool, typer.Option("--allow-inexact", help=say("train.help.inexact"))] = False,
        sets: Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help=say("train.help.set"))] = None,
        prepare: Annotated[bool, typer.Option("--prepare", help=say("train.help.prepare"))] = False,
        threads: Annotated[int | None, options.integer("--threads", say("train.help.threads"))] = None,
    ) -> None:
        screen: Screen = ctx.obj

        from pellucid.training import prepare_data, run_recipe
        from pellucid.training.recipe_changes import changed
        from pellucid.training.run_folder import recipe_place

        def progress(entry: dict[str, Any]) -> None:
            screen.note("  ".join(f"{key} {figure(value)}" for key, value in entry.items()))

        from pellucid.documents.recipe_bill import require_memory

        recipe = recipe_place(recipe)
        with changed(recipe, sets or ()) as path:
            if not prepare:
                require_memory(path, recipe.parent)
            if prepare:
                made = prepare_data(path, out, recipe.parent)
            else:
                made = run_recipe(path, out, resume, threads, progress, restart, inexact, root=recipe.parent)
        if screen.json:
            screen.document({"schema": SCHEMA, made.name: str(made)})
        else:
            screen.text(f"{made}\n")


def figure(value: object) -> str:
    """Return a log entry's value as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
