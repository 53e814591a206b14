"""`pellucid verify`: a folder's model compared with transformers' own, module by module; exit code 1 if they differ."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.messages import say

if TYPE_CHECKING:
    from pellucid.analysis.verify import Compared

SCHEMA = 1


def add(app: typer.Typer) -> None:
    @command(app, "verify", say("verify.help"))
    def verify(
        ctx: typer.Context,
        model: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        against: Annotated[str | None, typer.Option("--against", metavar="MODEL", help=say("verify.help.against"))] = None,
        dtype: Annotated[str | None, typer.Option("--dtype", metavar="DTYPE", help=say("verify.help.dtype"))] = None,
        device: Annotated[str, options.device()] = "cpu",
        prompt: Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help=say("verify.help.prompt"))] = None,
        everything: Annotated[bool, typer.Option("--all", help=say("verify.help.all"))] = False,
        server: Annotated[str | None, typer.Option("--server", metavar="URL", help=say("verify.help.server"))] = None,
        served: Annotated[str | None, typer.Option("--served", metavar="NAME", help=say("verify.help.served"))] = None,
        tolerance: Annotated[float | None, typer.Option("--tolerance", metavar="NUMBER", help=say("verify.help.tolerance"))] = None,
        stretches: Annotated[int | None, options.integer("--stretches", say("verify.help.stretches"))] = None,
    ) -> int:
        screen: Screen = ctx.obj

        of_modules = {"--against": against, "--all": everything or None}
        if server is not None:
            refuse_option("verify.server.option", of_modules | {"--stretches": stretches})
            return of_server(screen, model, server, served, dtype, prompt, tolerance, options.numbers(device))
        refuse_option("verify.served.option", {"--served": served, "--tolerance": tolerance})
        if stretches is not None or (Path(model) / "run.json").is_file():
            moved = device if "--device" in options.typed(ctx) else None
            refuse_option("verify.run.option", of_modules | {"--dtype": dtype, "--prompt": prompt, "--device": moved})
            return of_run(screen, model, 3 if stretches is None else stretches)

        from pellucid.analysis.verify import verify as verified
        from pellucid.documents.number import finite

        dtype = dtype or "float64"
        report = verified(model, against, dtype, prompt, options.numbers(device))
        first = report.first
        first_json = (
            None if first is None else {"path": first.path, "theirs": first.theirs, "side": first.side, "error": finite(first.error)}
        )
        if screen.json:
            rows = [{"path": c.path, "theirs": c.theirs, "error": finite(c.error)} for c in report.modules]
            screen.document(
                {"schema": SCHEMA, "model": report.model, "against": report.against, "dtype": dtype, "tolerance": report.tolerance,
                 "agrees": report.agrees, "logits": finite(report.logits), "first": first_json, "modules": rows,
                 "tied": None if report.tied is None else asdict(report.tied)}
            )  # fmt: skip
            return int(not report.agrees)
        for c in report.modules if everything else folded(report.modules):
            screen.text(f"{c.error:9.1e}  {c.path or say('verify.whole')}  ({c.theirs or say('verify.whole')})\n")
        if report.agrees:
            screen.text(say("verify.agrees", dtype=dtype, logits=f"{report.logits:.1e}", tolerance=f"{report.tolerance:.0e}") + "\n")
        elif first is None:
            screen.text(say("verify.logits", logits=f"{report.logits:.1e}", tolerance=f"{report.tolerance:.0e}") + "\n")
        else:
            side = say("verify.input") if first.side == "input" else say("verify.output")
            screen.text(say("verify.differs", side=side, path=first.path, theirs=first.theirs, error=f"{first.error:.1e}") + "\n")
            if report.tied is not None:
                screen.text(say("verify.tied", path=report.tied.path, rows=report.tied.rows) + "\n")
        return int(not report.agrees)


def refuse_option(sentence: str, given: Mapping[str, object]) -> None:
    """Raise a UseError with the first of these options that is given."""
    for name, value in given.items():
        if value is not None:
            raise UseError(sentence, name=name)


def of_server(
    screen: Screen,
    model: str,
    server: str,
    served: str | None,
    dtype: str | None,
    prompt: str | None,
    tolerance: float | None,
    device: str,
) -> int:
    """Print how the log-probabilities of a server differ from those of the folder `model`."""
    if tolerance is not None and not tolerance >= 0:
        raise UseError("verify.tolerance", found=tolerance)

    from pellucid.analysis.verify_server import TOLERANCE, verify_server
    from pellucid.documents.number import finite

    r = verify_server(model, server, served, dtype, prompt, TOLERANCE if tolerance is None else tolerance, device)
    if screen.json:
        first = None if r.first is None else {**asdict(r.first), "ours": finite(r.first.ours), "theirs": finite(r.first.theirs)}
        screen.document(
            {"schema": SCHEMA, **asdict(r), "largest": finite(r.largest), "mean": finite(r.mean), "first": first, "agrees": r.first is None}
        )
        return int(r.first is not None)
    values = {"engine": r.engine, "served": r.served, "tokens": r.tokens, "largest": f"{r.largest:.1e}", "mean": f"{r.mean:.1e}"}
    screen.text(say("verify.server", **values, tolerance=f"{r.tolerance:g}") + "\n")
    if r.first is not None:
        at = {"position": r.first.position, "id": r.first.id, "ours": f"{r.first.ours:.4f}", "theirs": f"{r.first.theirs:.4f}"}
        screen.text(say("verify.server.differs", text=r.first.text, **at) + "\n")
    return int(r.first is not None)


def of_run(screen: Screen, folder: str, count: int) -> int:
    """Print what becomes of random stretches of the run in `folder` when they are taken again."""
    if count < 1:
        raise UseError("verify.stretches", found=count)

    from pellucid.training.replay import Replay
    from pellucid.training.stretches import verify_stretches

    stretches = verify_stretches(Replay(folder), count)
    agrees = bool(stretches) and all(s.fault is None for s in stretches)
    if screen.json:
        rows = [{"first": s.first, "last": s.last, "fault": s.fault} for s in stretches]
        screen.document({"schema": SCHEMA, "run": folder, "agrees": agrees, "stretches": rows})
        return int(not agrees)
    for s in stretches:
        screen.text((say("verify.stretch", first=s.first, last=s.last) if s.fault is None else s.fault) + "\n")
    if not stretches:
        screen.text(say("verify.none", folder=folder) + "\n")
    return int(not agrees)


def folded(rows: "list[Compared]") -> "list[Compared]":
    """Return the blocks and what is outside of them."""
    return [c for c in rows if not re.search(r"layers\.\d+\.", c.path)]
