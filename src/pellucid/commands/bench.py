"""`pellucid bench`: the limits of this machine, and on it a model's prefill and decode compared with their bounds, its first token cold
and warm, a batch of requests, and another library in turns with ours.
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
from pellucid.messages import say

if TYPE_CHECKING:
    from pellucid.bench.batch_load import Progress
    from pellucid.bench.peers import Against
    from pellucid.counting import Bill
    from pellucid.nn.transformer import Decoder

MOST, CROWD = 4096, 1024  # steps, requests


def add(app: typer.Typer) -> None:
    @command(app, "bench", say("bench.help"))
    def bench(
        ctx: typer.Context,
        model: Annotated[str | None, typer.Argument(metavar="MODEL", help=say("bench.help.model"))] = None,
        limits: Annotated[bool, typer.Option("--limits", help=say("bench.help.limits"))] = False,
        context: Annotated[int | None, options.tokens("--context", say("bench.help.context"))] = None,
        new: Annotated[int, options.integer("--new", say("bench.help.new"))] = 32,
        dtype: Annotated[str | None, typer.Option("--dtype", metavar="DTYPE", help=say("bench.help.dtype"))] = None,
        quant: Annotated[str | None, options.quant()] = None,
        batch: Annotated[int | None, options.integer("--crowd", say("bench.help.crowd"))] = None,
        against: Annotated[str | None, typer.Option("--against", metavar="transformers|llama.cpp", help=say("bench.help.against"))] = None,
        threads: Annotated[int | None, options.integer("--threads", say("bench.help.threads"))] = None,
        device: Annotated[str, typer.Option("--device", metavar="cpu", help=say("bench.help.device"))] = "cpu",
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        if (model is None) != limits:
            raise UseError("bench.what")
        if device != "cpu":
            raise UseError("bench.device", found=device)
        for name, given, most in (("--new", new, MOST), ("--crowd", batch, CROWD), ("--threads", threads, os.cpu_count() or 1)):
            if given is not None and not 1 <= given <= most:
                raise UseError("count.number", name=name, found=given, most=most)

        import torch

        from pellucid.bench import last_measured
        from pellucid.bench.idle import Watchman
        from pellucid.bench.machine_limits import BLOCKS, Gauge, block_for, threaded
        from pellucid.counting.bounds import moved
        from pellucid.documents import bench as bench_document
        from pellucid.terminal import bench as drawing

        threads = threads or torch.get_num_threads()
        if model is None:
            screen.note(say("bench.measuring"))
            machine_limits = Gauge(threads, blocks=BLOCKS).measure().limits
            file = last_measured.keep(machine_limits)
            if screen.json:
                screen.document({"schema": bench_document.SCHEMA, "limits": last_measured.document(machine_limits), "file": str(file)})
            else:
                screen.lines([*drawing.limits(machine_limits), *drawing.kept(file)])
            return

        from pellucid.bench.batch_load import batch_load, first
        from pellucid.bench.peers import Served
        from pellucid.bench.progress_stages import Stages
        from pellucid.bench.timing import against_bounds, decode, prefill

        beside_us = None if against is None else ready(against, model)
        module, bill = subject(screen, model, context, new, dtype, ignore_field or (), quant)
        writes = "flops.decode" in bill
        if not writes and (batch, against) != (None, None):
            raise UseError("generate.encoder")
        gauge, watchman = Gauge(threads, block_for(moved(bill))), Watchman()
        screen.note(say("bench.measuring"))
        stage = Stages(screen.bar(say("bench.bar")), 3 + 2 * writes + (batch is not None) + (against is not None))
        with threaded(threads):
            stage(gauge.measure)
            times = [stage(lambda: prefill(module, bill))] + ([stage(lambda: decode(module, bill, new))] if writes else [])
            served = Served(
                stage(lambda: first(module, bill.setting.context, progress=stage.progress)) if writes else None,
                None if batch is None else stage(lambda: batch_load(module, batch, progress=stage.progress)),
                None if beside_us is None else stage(lambda: beside_us(module, bill, new, threads, stage.progress)),
            )
            measured = stage(gauge.measure).limits
        phases = [(t, *against_bounds(bill, t, measured.device)) for t in times]
        random, idle = not has_weights(model), watchman.verdict(measured)
        if screen.json:
            measurement = bench_document.document(bill, random, phases, measured.device, served, idle)
            screen.document({"schema": bench_document.SCHEMA, "limits": last_measured.document(measured), **measurement})
        else:
            screen.lines([*drawing.limits(measured), *drawing.drawn(bill, random, phases, measured.device, served, idle, screen.width)])


def ready(peer: str, name: str) -> "Callable[[Decoder, Bill, int, int, Progress], Against]":
    """Return a function that times the context's tokens and `new` + 1 more in turns with another library. A UseError if it cannot run."""
    from pellucid.api.count import config_of
    from pellucid.api.model import place
    from pellucid.bench import peers
    from pellucid.bench.timing import tokens
    from pellucid.checkpoint.folder import GGUF
    from pellucid.counting.published import entry_of
    from pellucid.engine.engine import Engine

    peers.require(peer)
    folder = place(name) if has_weights(name) else None
    file = None if peer != "llama.cpp" else Path(name) if name.endswith(GGUF) and Path(name).is_file() else peers.gguf_of(folder, name)

    def fields() -> dict[str, Any]:
        entry = entry_of(name)
        return {} if folder is not None else config_of(name)[0] if entry is None else entry.get("config", {})

    def run(module: "Decoder", bill: "Bill", new: int, threads: int, progress: "Progress") -> "Against":
        ids, dtype = tokens(bill), next(module.parameters()).dtype
        mine = peers.our_turn(Engine.of(module, len(ids) + new + 1, prefix_cache=False), ids, new + 1)
        if file is not None:
            other = peers.llama_turn(file, threads, bill.config.vocab, ids, new + 1)
        else:
            other = peers.their_turn(peers.their_model(name, folder, fields(), dtype), ids, new + 1)
        return peers.pairs(peer, mine, other, new + 1, progress)

    return run


def has_weights(name: str) -> bool:
    """True if a name has weights: a specimen, a folder with some, a hub id."""
    from pellucid import catalog
    from pellucid.checkpoint.hub import is_hub_id

    path = Path(name)
    if path.exists():
        return any(path.glob("*.safetensors"))
    return catalog.find(catalog.models(), name) is None and is_hub_id(name)


def subject(
    screen: Screen, name: str, context: int | None, new: int, dtype: str | None, ignore: Iterable[str], quant: str | None = None
) -> "tuple[Decoder, Bill]":
    """Return the model of a name, and its bill for the context."""
    import torch

    from pellucid.api.count import described
    from pellucid.bench.benched_model import check, random_weights, reach
    from pellucid.bench.timing import WARM
    from pellucid.checkpoint.default_dtype import precision
    from pellucid.checkpoint.packing import check_quant
    from pellucid.counting import Setting, counted
    from pellucid.counting.meta_run import meta_model

    check_quant(quant)
    if has_weights(name):
        loaded = options.loaded(screen, name, dtype=dtype, quant=quant, ignore_fields=ignore)
        family, cfg, dtype_held = loaded.family.name, loaded.config, loaded.dtype
    else:
        family, cfg = described(name, ignore=ignore)
        loaded, dtype_held = (
            None,
            precision(dtype, torch.bfloat16, sum(p.numel() for p in meta_model(cfg, torch.bfloat16).parameters())).dtype,
        )
    context = reach(cfg, context, new + WARM)
    check(name, cfg, context, new + WARM, dtype_held)
    spelled = str(dtype_held).removeprefix("torch.")
    module: Any = random_weights(name, cfg, dtype_held, quant) if loaded is None else loaded.module
    weights = (quant if loaded is None else loaded.quant) or spelled
    return module, counted(cfg, name, family, Setting(context, 1, None, weights, spelled, spelled))
