"""`pellucid serve`: OpenAI's API on the engine, for any client, on this machine or with a key on others."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid import __version__
from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.messages import say

if TYPE_CHECKING:
    from pellucid.server.openai.served_model import ServedModel

SCHEMA = 1
KEY = "PELLUCID_API_KEY"


def add(app: typer.Typer) -> None:
    @command(app, "serve", say("serve.help"))
    def serve(
        ctx: typer.Context,
        models: Annotated[list[str], typer.Argument(metavar="MODEL...", help=say("serve.help.models"))],
        host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help=say("serve.help.host"))] = "127.0.0.1",
        port: Annotated[int, options.integer("--port", say("serve.help.port"))] = 8000,
        adapter: Annotated[list[str] | None, typer.Option("--adapter", metavar="NAME=FOLDER", help=say("serve.help.adapter"))] = None,
        api_key: Annotated[str | None, typer.Option("--api-key", metavar="KEY", help=say("serve.help.key"))] = None,
        api_key_file: Annotated[str | None, typer.Option("--api-key-file", metavar="FILE", help=say("serve.help.key_file"))] = None,
        cert: Annotated[str | None, typer.Option("--cert", metavar="FILE", help=say("serve.help.cert"))] = None,
        key: Annotated[str | None, typer.Option("--key", metavar="FILE", help=say("serve.help.cert_key"))] = None,
        insecure: Annotated[bool, typer.Option("--insecure", help=say("serve.help.insecure"))] = False,
        allow_host: Annotated[list[str] | None, typer.Option("--allow-host", metavar="NAME", help=say("serve.help.allow"))] = None,
        max_queue: Annotated[int, options.integer("--max-queue", say("serve.help.queue"))] = 256,
        tokens: Annotated[int | None, options.tokens("--tokens", say("serve.help.tokens"))] = None,
        api_only: Annotated[bool, typer.Option("--api-only", help=say("serve.help.api_only"))] = False,
        deterministic: Annotated[bool, typer.Option("--deterministic", help=say("serve.help.deterministic"))] = False,
        speculate: Annotated[str | None, options.speculate()] = None,
        draft: Annotated[str | None, options.draft()] = None,
        dtype: Annotated[str | None, options.dtype()] = None,
        device: Annotated[str, options.device()] = "cpu",
        quant: Annotated[str | None, options.quant()] = None,
        kv: Annotated[str | None, options.kv()] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        names = names_of(models)
        adapters = names_of(adapter or [])
        if both := names.keys() & adapters.keys():
            raise UseError("serve.twice", name=min(both))
        if max_queue < 1:
            raise UseError("serve.least", name="--max-queue", found=max_queue)
        if tokens is not None and tokens < 1:
            raise UseError("serve.least", name="--tokens", found=tokens)
        speculates = options.speculates(speculate, draft)

        from pellucid.commands.run import as_text
        from pellucid.engine.defaults import defaults
        from pellucid.server.openai.serving import Address, serve_models

        if (cert is None) != (key is None):
            raise UseError("serve.pair")
        if api_key is not None and api_key_file is not None:
            raise UseError("serve.keys")
        own_key = key_in(api_key_file) if api_key_file is not None else os.environ.get(KEY) if api_key is None else api_key
        pair = None if cert is None or key is None else (cert, key)
        where = Address(host, port, own_key or None, insecure, tuple(allow_host or ()), pair)

        def load() -> "list[ServedModel]":
            from pellucid.server.openai.adapters import adapted
            from pellucid.server.openai.served_model import ServedModel

            how: dict[str, Any] = {"dtype": dtype, "device": options.numbers(device), "quant": quant, "ignore_fields": ignore_field or ()}
            loaded = {name: options.loaded(screen, at, **how) for name, at in names.items()}
            for name, model in loaded.items():
                if undone := defaults(model.generation, name)[1]:
                    screen.note(say("run.undone", model=name, settings=as_text(undone)))
            places = {name: Path(at) for name, at in names.items() if Path(at).is_dir()}
            base = next(iter(names))
            loaded |= {name: adapted(loaded[base], at, name) for name, at in adapters.items()}
            bases = dict.fromkeys(adapters, base)
            other = None if draft is None else options.loaded(screen, draft, dtype=dtype, device=device, quant=quant)
            return [
                ServedModel(
                    name, model, tokens, max_queue, __version__, deterministic, places.get(name), bases.get(name), speculates, other, kv
                )
                for name, model in loaded.items()
            ]

        def ready(address: str) -> None:
            if screen.json:
                screen.document({"schema": SCHEMA, "address": address, "models": [*names, *adapters]})
            else:
                shown = "" if api_only else say("serve.page", address=address) + "\n"
                screen.text(say("serve.ready", address=address, names=", ".join([*names, *adapters])) + "\n" + shown)

        ended = serve_models(where, __version__, load, ready, quiet=screen.quiet, page=not api_only)
        sys.stdout.flush()
        if not ended:  # a thread is inside torch, and at the interpreter's end it would abort the process
            os._exit(130)


def key_in(file: str) -> str:
    """Return the API key in a file: its one line. A UseError for a file that has none, or cannot be read."""
    try:
        lines = Path(file).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as broken:
        reason = broken.strerror if isinstance(broken, OSError) else "UTF-8"
        raise UseError("serve.key.file", file=file, reason=reason) from None
    if len(lines) != 1:
        raise UseError("serve.key.lines", file=file)
    return lines[0]


def names_of(models: list[str]) -> dict[str, str]:
    """Return what each model is called by, and its place: NAME=FOLDER, or the folder's own name, or a name with a slash as it is."""
    out: dict[str, str] = {}
    for given in models:
        name, equals, place = given.partition("=")
        if not equals or Path(given).exists():
            name, place = (Path(given).resolve().name if Path(given).is_dir() else given), given
        if not name or not place:
            raise UseError("serve.name", found=given)
        if name in out:
            raise UseError("serve.twice", name=name)
        out[name] = place
    return out
