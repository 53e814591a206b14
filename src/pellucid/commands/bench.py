"""`pellucid bench`: what this machine gives, and on it a model's prefill and decode beside the bound that follows from that, its first
token cold and warm, a crowd of requests, and another library in turns with ours.
"""

import os
from collections.abc import Callable, Iterable
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
    from pellucid.measuring.against import Against
    from pellucid.measuring.crowd import Tell
    from pellucid.models import Decoder

MOST, CROWD = 4096, 1024  # steps, requests


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
        crowd: Annotated[int | None, options.whole("--crowd", say("bench.help.crowd"))] = None,
        against: Annotated[str | None, typer.Option("--against", metavar="transformers|llama.cpp", help=say("bench.help.against"))] = None,
        threads: Annotated[int | None, options.whole("--threads", say("bench.help.threads"))] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        if (model is None) != limits:
            raise UseError("bench.what")
        for name, given, most in (("--new", new, MOST), ("--crowd", crowd, CROWD), ("--threads", threads, os.cpu_count() or 1)):
            if given is not None and not 1 <= given <= most:
                raise UseError("count.number", name=name, found=given, most=most)

        import torch

        from pellucid.counting.bounds import moved
        from pellucid.draw import bench as drawing
        from pellucid.measuring import kept
        from pellucid.measuring.idle import Watchman
        from pellucid.measuring.limits import BLOCKS, Gauge, block_for, threaded

        threads = threads or torch.get_num_threads()
        if model is None:
            screen.note(say("bench.measuring"))
            found = Gauge(threads, blocks=BLOCKS).measure().limits
            file = kept.keep(found)
            if screen.json:
                screen.document({"schema": drawing.SCHEMA, "limits": kept.document(found), "file": str(file)})
            else:
                screen.lines([*drawing.limits(found), *drawing.kept(file)])
            return

        from pellucid.measuring.against import Served
        from pellucid.measuring.crowd import crowd as crowded
        from pellucid.measuring.crowd import first
        from pellucid.measuring.stages import Stages
        from pellucid.measuring.timing import beside, decode, prefill

        beside_us = None if against is None else ready(against, model)
        module, bill = subject(screen, model, context, new, dtype, ignore_field or (), quant)
        writes = "flops.decode" in bill
        if not writes and (crowd, against) != (None, None):
            raise UseError("generate.encoder")
        gauge, watchman = Gauge(threads, block_for(moved(bill))), Watchman()
        screen.note(say("bench.measuring"))
        stage = Stages(screen.bar(say("bench.bar")), 3 + 2 * writes + (crowd is not None) + (against is not None))
        with threaded(threads):
            stage(gauge.measure)
            times = [stage(lambda: prefill(module, bill))] + ([stage(lambda: decode(module, bill, new))] if writes else [])
            served = Served(
                stage(lambda: first(module, bill.setting.context, tell=stage.tell)) if writes else None,
                None if crowd is None else stage(lambda: crowded(module, crowd, tell=stage.tell)),
                None if beside_us is None else stage(lambda: beside_us(module, bill, new, threads, stage.tell)),
            )
            measured = stage(gauge.measure).limits
        phases = [(t, *beside(bill, t, measured.device)) for t in times]
        random, idle = not has_weights(model), watchman.verdict(measured)
        if screen.json:
            told = drawing.document(bill, random, phases, measured.device, served, idle)
            screen.document({"schema": drawing.SCHEMA, "limits": kept.document(measured), **told})
        else:
            screen.lines([*drawing.limits(measured), *drawing.drawn(bill, random, phases, measured.device, served, idle, screen.width)])


def ready(peer: str, name: str) -> "Callable[[Decoder, Bill, int, int, Tell], Against]":
    """What runs the context's tokens, and one more new one than steps are timed, in turns with another library; refused where it cannot."""
    from pellucid import catalog
    from pellucid.billing import config_of
    from pellucid.engine.engine import Engine
    from pellucid.measuring import against
    from pellucid.measuring.timing import tokens
    from pellucid.model import place

    against.require(peer)
    folder = place(name) if has_weights(name) else None
    file = against.gguf_of(folder, name) if peer == "llama.cpp" else None

    def fields() -> dict[str, Any]:
        entry = None if Path(name).exists() else catalog.find(catalog.models(), name)
        return {} if folder is not None else config_of(name)[0] if entry is None else entry.get("config", {})

    def run(module: "Decoder", bill: "Bill", new: int, threads: int, tell: "Tell") -> "Against":
        ids, dtype = tokens(bill), next(module.parameters()).dtype
        mine = against.our_turn(Engine.of(module, len(ids) + new + 1, cached=False), ids, new + 1)
        if file is not None:
            other = against.llama_turn(file, threads, bill.config.vocab, ids, new + 1)
        else:
            other = against.their_turn(against.their_model(name, folder, fields(), dtype), ids, new + 1)
        return against.pairs(peer, mine, other, new + 1, tell)

    return run


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
    import torch

    from pellucid.billing import described
    from pellucid.checkpoint.packing import check_quant
    from pellucid.checkpoint.precision import precision
    from pellucid.counting import Setting, counted
    from pellucid.counting.ghost import ghost
    from pellucid.measuring.subject import check, random_weights, reach
    from pellucid.measuring.timing import WARM

    check_quant(quant)
    if has_weights(name):
        loaded = options.loaded(screen, name, dtype=dtype, quant=quant, ignore_fields=ignore)
        family, cfg, held = loaded.family.name, loaded.config, loaded.dtype
    else:
        family, cfg = described(name, ignore=ignore)
        loaded, held = None, precision(dtype, torch.bfloat16, sum(p.numel() for p in ghost(cfg, torch.bfloat16).parameters())).dtype
    context = reach(cfg, context, new + WARM)
    check(name, cfg, context, new + WARM, held)
    spelled = str(held).removeprefix("torch.")
    module: Any = random_weights(name, cfg, held, quant) if loaded is None else loaded.module
    weights = (quant if loaded is None else loaded.quant) or spelled
    return module, counted(cfg, name, family, Setting(context, 1, None, weights, spelled, spelled))
