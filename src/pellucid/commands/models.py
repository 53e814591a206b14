"""`pellucid models`: the values of MODEL: specimens that ship, hub ids in the cache, and the families of folders."""

from typing import Annotated, Any

import typer

from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.messages import say

SCHEMA = 1


def add(app: typer.Typer) -> None:
    @command(app, "models", say("models.help"))
    def models(
        ctx: typer.Context,
        names: Annotated[bool, typer.Option("--names", help=say("models.help.names"))] = False,
    ) -> None:
        screen: Screen = ctx.obj

        from pellucid import catalog
        from pellucid.api.model import specimens
        from pellucid.checkpoint.opening import recorded_runs
        from pellucid.families import known
        from pellucid.terminal.tables import parameters

        shipped = specimens()
        in_cache = cached()
        if names:
            screen.text("".join(f"{name}\n" for name in [*shipped, *recorded_runs(), *in_cache]))
            return
        rows: list[dict[str, Any]] = []
        for name in shipped:
            bill = parameters(name)
            rows.append({"name": name, "family": bill.family, "parameters": int(bill["parameters.total"]), "bytes": size(name)})
        published = list(catalog.models())
        if screen.json:
            screen.document(
                {
                    "schema": SCHEMA,
                    "specimens": rows,
                    "runs": list(recorded_runs()),
                    "cached": in_cache,
                    "families": known(),
                    "catalogue": published,
                }
            )
            return

        from rich.text import Text

        from pellucid.terminal.table import Cell, Column, prose, table

        titles: list[Cell] = [
            Text(t, "dim") for t in (say("models.name"), say("models.family"), say("models.parameters"), say("models.bytes"))
        ]
        lines: list[list[Cell]] = [[r["name"], r["family"], f"{r['parameters']:,}", f"{r['bytes'] / 1e6:.1f} MB"] for r in rows]
        screen.lines([Text(say("models.specimens")), *table([titles, *lines], [Column(), Column(), Column(">"), Column(">")])])
        screen.lines([Text(say("models.runs")), *(Text(f" {name}") for name in recorded_runs())])
        screen.lines([Text(say("models.cached") if in_cache else say("models.uncached")), *(Text(f" {name}") for name in in_cache)])
        screen.lines([Text(say("models.catalogue", count=len(published))), *prose(", ".join(published), screen.width)])
        screen.lines([Text(say("models.families", count=len(known()))), *prose(", ".join(known()), screen.width)])


def size(name: str) -> int:
    """Return the bytes of a model's weights on disk."""
    from pellucid.api.model import place

    return sum(f.stat().st_size for f in place(name).glob("*.safetensors"))


def cached() -> list[str]:
    """Return the hub ids in the hub library's cache that have a config.json."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    return sorted(r.repo_id for r in repos if any(f.file_name == "config.json" for v in r.revisions for f in v.files))
