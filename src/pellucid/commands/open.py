"""`pellucid open`: the page in the browser, served to this machine alone."""

import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from pellucid import catalog
from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.explain import SPECIMEN
from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.messages import All, say

SCHEMA = 1


def add(app: typer.Typer) -> None:
    @command(app, "open", say("open.help"))
    def open_(
        ctx: typer.Context,
        model: Annotated[str, typer.Argument(metavar="[MODEL|TRACE|RUN]", help=say("open.help.model"))] = SPECIMEN,
        recorded_by: Annotated[str | None, typer.Option("--model", metavar="MODEL", help=say("open.help.beside"))] = None,
        port: Annotated[int, options.integer("--port", say("open.help.port"))] = 0,
        no_browser: Annotated[bool, typer.Option("--no-browser", help=say("open.help.no_browser"))] = False,
        device: Annotated[str, typer.Option("--device", metavar="NAME", help=say("open.help.device"))] = "cpu",
        dtype: Annotated[str | None, options.dtype()] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        judge(model, ignore_field or ())

        from pellucid.server.browser import browse
        from pellucid.server.listen import serve

        def ready(address: str) -> None:
            if screen.json:
                screen.document({"schema": SCHEMA, "model": model, "address": address})
            else:
                screen.text(say("open.ready", address=address) + "\n")
            if not no_browser:
                browse(address, end)

        with ExitStack() as end:
            ended = serve(port, model, ready, recorded_by=recorded_by, device=device, dtype=dtype, ignore_fields=tuple(ignore_field or ()))
        if not ended:  # at the interpreter's end a thread inside torch would abort the process
            sys.stdout.flush()
            os._exit(0)


def judge(name: str, ignore: Iterable[str] = ()) -> None:
    """Raise an error for a name, folder or file that cannot be opened, before the address is printed. ignore: fields left aside.

    Of a model its configuration is read, and no weights.
    """
    path = Path(name)
    if not path.exists():
        from pellucid.checkpoint.hub import is_hub_id
        from pellucid.checkpoint.opening import place

        if catalog.find(catalog.models(), name) is None and (name.startswith("pellucid/") or not is_hub_id(name)):
            place(name)  # raises; a hub id may take minutes to come, and the page shows that
        return
    from pellucid.api.open_tokenizer import open_tokenizer, tokenizer_alone
    from pellucid.checkpoint.folder import TRACE
    from pellucid.checkpoint.gguf.gguf_folder import gguf_of
    from pellucid.training.pipeline import DATA, LOCK
    from pellucid.training.run_folder import RUN

    files = sorted(os.listdir(name)) if path.is_dir() else []
    if {TRACE, RUN} & set(files):
        return
    if tokenizer_alone(path):
        open_tokenizer(name)
    elif path.is_file() or "config.json" in files or gguf_of(path) is not None:
        from pellucid.api.count import config_of
        from pellucid.families import understand

        understand(*config_of(name, ignore), ignore)
    elif LOCK in files and {LOCK, DATA}.issuperset(files):
        raise UseError("open.unbegun", folder=name)
    else:
        raise UseError("open.folder", folder=name, index=TRACE, run=RUN, found=All(files[:10]) if files else say("open.empty"))
