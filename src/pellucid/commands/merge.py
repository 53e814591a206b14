"""`pellucid merge`: an adapter folded into a model's weights, as a model folder of its own."""

from pathlib import Path
from typing import Annotated

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.messages import say

SCHEMA = 1


def add(app: typer.Typer) -> None:
    @command(app, "merge", say("merge.help"))
    def merge(
        ctx: typer.Context,
        model: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        adapter: Annotated[str, typer.Argument(metavar="ADAPTER", help=say("merge.help.adapter"))],
        save: Annotated[Path, options.place("--save", "FOLDER", say("merge.help.save"))],
        quant: Annotated[str | None, typer.Option("--quant", metavar="int8|int4", help=say("merge.help.quant"))] = None,
        dtype: Annotated[str | None, typer.Option("--dtype", metavar="DTYPE", help=say("merge.help.dtype"))] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj

        from pellucid.checkpoint.default_dtype import named
        from pellucid.checkpoint.folder import TOKENIZER_FILES

        if dtype is not None:
            named(dtype)  # refused before a weight is read
        made = options.loaded(screen, model, dtype="float32", quant=quant, ignore_fields=ignore_field or (), adapter=adapter)
        made.merge(dequantise=quant is not None)
        own = Path(adapter)
        made.files |= {name: (own / name).read_bytes() for name in TOKENIZER_FILES if (own / name).is_file()}
        made.to(dtype=dtype or made.precision.stored).save(save)
        if screen.json:
            screen.document({"schema": SCHEMA, "model": str(save)})
        else:
            screen.text(f"{save}\n")
