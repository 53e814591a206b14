"""`pellucid bench`: what this machine gives, and a model's prefill and decode on it beside the bound that follows from that."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.words import say

if TYPE_CHECKING:
    from pellucid.counting import Bill
    from pellucid.models import Decoder

SCHEMA = 1
MOST = 4096  # steps


def add(app: typer.Typer) -> None:
    @command(app, "bench", say("bench.help"))
    def bench(
        ctx: typer.Context,
        model: Annotated[str | None, typer.Argument(metavar="MODEL", help=say("bench.help.model"))] = None,
        limits: Annotated[bool, typer.Option("--limits", help=say("bench.help.limits"))] = False,
        context: Annotated[int | None, options.whole("--context", say("bench.help.context"))] = None,
        new: Annotated[int, options.whole("--new", say("bench.help.new"))] = 32,
        dtype: Annotated[str | None, typer.Option("--dtype", metavar="DTYPE", help=say("bench.help.dtype"))] = None,
        quant: Annotated[str | None, options.quant()] = None,
        threads: Annotated[int | None, options.whole("--threads", say("bench.help.threads"))] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        if (model is None) != limits:
            raise UseError("bench.what")
        for name, given, most in (("--new", new, MOST), ("--threads", 1 if threads is None else threads, os.cpu_count() or 1)):
            if not 1 <= given <= most:
                raise UseError("count.number", name=name, found=given, most=most)

        import torch

        from pellucid.draw import bench as drawing
        from pellucid.measuring import kept
        from pellucid.measuring.limits import Gauge, threaded

        threads = threads or torch.get_num_threads()
        if model is None:
            screen.note(say("bench.measuring"))
            found = Gauge(threads).measure().limits
            file = kept.keep(found)
            if screen.json:
                screen.document({"schema": SCHEMA, "limits": kept.document(found), "file": str(file)})
            else:
                screen.lines([*drawing.limits(found), *drawing.kept(file)])
            return

        from pellucid.measuring.timing import beside, decode, moved, prefill

        module, bill = subject(screen, model, context, new, dtype, ignore_field or (), quant)
        gauge = Gauge(threads, int(moved(bill)))
        screen.note(say("bench.measuring"))
        gauge.measure()
        with threaded(threads):
            times = [prefill(module, bill)] + ([decode(module, bill, new)] if "flops.decode" in bill else [])
        measured = gauge.measure().limits
        phases = [(t, *beside(bill, t, measured.device)) for t in times]
        random = not has_weights(model)
        if screen.json:
            screen.document({"schema": SCHEMA, "limits": kept.document(measured), **drawing.document(bill, random, phases)})
        else:
            screen.lines([*drawing.limits(measured), *drawing.drawn(bill, random, phases, screen.width)])


def has_weights(name: str) -> bool:
    """Whether a name brings weights: a specimen, a folder with some, a hub id."""
    from pellucid import catalog
    from pellucid.checkpoint.hub import is_hub_id

    path = Path(name)
    if path.exists():
        return any(path.glob("*.safetensors"))
    return catalog.find(catalog.models(), name) is None and is_hub_id(name)


def subject(
    screen: Screen, name: str, context: int | None, new: int, dtype: str | None, ignore: Iterable[str], quant: str | None = None
) -> "tuple[Decoder, Bill]":
    """The model of a name, and its bill for the context."""
    from pellucid.billing import described
    from pellucid.counting import Setting, counted
    from pellucid.measuring.subject import check, random_weights, reach
    from pellucid.measuring.timing import WARM
    from pellucid.model import DTYPES, check_quant

    check_quant(quant)
    if has_weights(name):
        loaded = options.loaded(screen, name, dtype=dtype, quant=quant, ignore_fields=ignore)
        family, cfg, held = loaded.family.name, loaded.config, loaded.dtype
    else:
        family, cfg = described(name, ignore=ignore)
        if dtype not in (None, *DTYPES):
            raise UseError("model.dtype", found=dtype, allowed="float32, bfloat16")
        loaded, held = None, DTYPES[dtype or "bfloat16"]
    context = reach(cfg, context, new + WARM)
    check(name, cfg, context, new + WARM, held)
    spelled = str(held).removeprefix("torch.")
    module: Any = random_weights(name, cfg, held, quant) if loaded is None else loaded.module
    weights = (quant if loaded is None else loaded.quant) or spelled
    return module, counted(cfg, name, family, Setting(context, 1, None, weights, spelled, spelled))
