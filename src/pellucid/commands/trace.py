"""`pellucid trace`: record tensors of a run in a folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import TraceError, UseError
from pellucid.messages import say

if TYPE_CHECKING:
    from pellucid.tracing import Trace

SCHEMA = 1


def add(app: typer.Typer) -> None:
    @command(app, "trace", say("trace.help"))
    def trace(
        ctx: typer.Context,
        model: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help=say("explain.help.prompt"))] = None,
        save: Annotated[Path | None, options.place("--save", "FOLDER", say("trace.help.save"))] = None,
        step: Annotated[int | None, options.integer("--step", say("trace.help.step"))] = None,
        only: Annotated[list[str] | None, typer.Option("--only", metavar="PATTERN", help=say("trace.help.only"))] = None,
        steps: Annotated[int, options.steps()] = 1,
        ids: Annotated[bool, options.ids()] = False,
        dtype: Annotated[str | None, options.dtype()] = None,
        device: Annotated[str, options.device()] = "cpu",
        adapter: Annotated[str | None, options.adapter()] = None,
        ranks: Annotated[str | None, options.ranks()] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        if save is None:
            raise UseError("command.missing", name="--save")
        if (prompt is None) == (step is None):
            raise UseError("trace.step") if prompt is not None else UseError("command.missing", name="PROMPT")
        text = options.prompt_of(prompt or "", ids)
        options.in_one_process(**{"--step": step is not None})
        if step is not None:
            given = {"--dtype": dtype, "--adapter": adapter, "--ranks": ranks, "--ignore-field": ignore_field, "--ids": ids}
            given |= {"--steps": steps != 1, "--device": device != "cpu"}
            if (extra := next((name for name, value in given.items() if value), None)) is not None:
                raise UseError("trace.step.option", name=extra)
            return of_step(screen, model, step, save, only)
        if not text:
            raise UseError("generate.empty", name="prompt")
        if steps < 1:
            raise UseError("explain.steps", found=steps)
        require_empty(save)
        how: dict[str, Any] = {"dtype": dtype, "device": options.numbers(device), "ignore_fields": ignore_field or (), "adapter": adapter}
        loaded = options.loaded(screen, model, ranks=ranks, **how)

        from pellucid.api.trace import trace as run

        recorded = run(loaded, text, steps, only=only or "*")
        if not len(recorded):
            raise TraceError("trace.nothing", patterns=", ".join(only or ()))
        options.warn_beyond(screen, loaded, len(recorded.ids) + recorded.steps - 1)
        if loaded.sharding.ranks.first:
            recorded.save(save)
        options.tell_held(screen, loaded)
        show_saved(screen, loaded.name, recorded, save)


def of_step(screen: Screen, folder: str, step: int, save: Path, only: list[str] | None) -> None:
    """Take a step of the run in `folder` again, and save it with the gradients of its tensors."""
    require_empty(save)

    from pellucid.api.run import Run
    from pellucid.training.watched import save_step

    recorded = Run(folder).replay(step, only or "*")
    save_step(recorded, save)
    show_saved(screen, recorded.model, recorded, save)


def require_empty(save: Path) -> None:
    """Raise a TraceError for a folder in which a trace cannot be saved."""
    if save.is_file() or (save.is_dir() and any(save.iterdir())):
        from pellucid.checkpoint.folder import TRACE

        problem = "trace.exists" if (save / TRACE).exists() else "trace.full" if save.is_dir() else "trace.file"
        raise TraceError(problem, folder=save)


def show_saved(screen: Screen, name: str, recorded: "Trace", save: Path) -> None:
    """Print what was saved."""
    size = sum(s.value.nbytes for s in recorded)
    result = {"schema": SCHEMA, "model": name, "folder": str(save), "tensors": len(recorded), "steps": recorded.steps, "bytes": size}
    if screen.json:
        screen.document(result)
    elif not screen.quiet:
        screen.text(say("trace.saved", count=len(recorded), steps=recorded.steps, size=f"{size:,}", folder=save) + "\n")
