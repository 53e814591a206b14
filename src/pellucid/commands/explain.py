"""`pellucid explain`: the life of a prompt, from its ids to the next token."""

import os
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.messages import say

if TYPE_CHECKING:
    from pellucid.api.model import Model

SPECIMEN = "pellucid/capitals"
OF_A_BATCH = "--top", "--ids", "--dtype", "--device", "--quant", "--ignore-field", "--adapter", "--check-finite"


def add(app: typer.Typer) -> None:
    @command(app, "explain", say("explain.help"))
    def explain(
        ctx: typer.Context,
        first: Annotated[str, typer.Argument(metavar="[MODEL]", help=say("explain.help.model", model=SPECIMEN))],
        second: Annotated[str | None, typer.Argument(metavar="PROMPT", help=say("explain.help.prompt"))] = None,
        layer: Annotated[list[int] | None, options.integer("--layer", say("explain.help.layer"))] = None,
        head: Annotated[int | None, options.integer("--head", say("explain.help.head"))] = None,
        everything: Annotated[bool, typer.Option("--all", help=say("explain.help.all"))] = False,
        cell: Annotated[tuple[str, str] | None, typer.Option("--cell", metavar="PATH I,J,...", help=say("explain.help.cell"))] = None,
        parts: Annotated[bool, typer.Option("--parts", help=say("explain.help.parts"))] = False,
        weight: Annotated[tuple[str, str] | None, typer.Option("--weight", metavar="PATH I,J", help=say("explain.help.weight"))] = None,
        step: Annotated[int | None, options.integer("--step", say("explain.help.step"))] = None,
        steps: Annotated[int, options.steps()] = 1,
        best: Annotated[int, options.integer("--top", say("explain.help.top"))] = 5,
        reference: Annotated[bool, typer.Option("--reference", help=say("explain.help.reference"))] = False,
        ids: Annotated[bool, options.ids()] = False,
        dtype: Annotated[str | None, options.dtype()] = None,
        device: Annotated[str, options.device()] = "cpu",
        quant: Annotated[str | None, options.quant()] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
        adapter: Annotated[str | None, options.adapter()] = None,
        finite: Annotated[bool, options.check_finite()] = False,
        more: Annotated[list[str] | None, options.more_prompts()] = None,
        file: Annotated[str | None, options.prompts_file()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        if weight is not None or step is not None:
            return of_weight(screen, first, second, weight, step)
        how: dict[str, Any] = {"dtype": dtype, "device": device, "quant": quant, "ignore_fields": ignore_field or (), "adapter": adapter}
        if more or file is not None:
            if idle := sorted(options.typed(ctx) - {"--prompt", "--prompts", *OF_A_BATCH}):
                raise UseError("explain.batch", found=idle[0], allowed=", ".join(OF_A_BATCH))
            options.numbers(device)
            prompts = options.prompts_of(second, more or (), file, ids)
            return of_batch(screen, options.loaded(screen, first, finite, **how), prompts, best)
        if second is None and (first.startswith("pellucid/") or os.path.isfile(os.path.join(first, "config.json"))):
            raise UseError("explain.prompt", model=first, specimen=SPECIMEN)
        if os.path.isdir(first):
            refuse_trace(first)
        name, text = (SPECIMEN, first) if second is None else (first, second)
        prompt = options.prompt_of(text, ids)
        if device == "meta" and (cell is not None or head is not None or finite or adapter is not None):
            raise UseError("explain.numbers")
        if parts and cell is None:
            raise UseError("explain.parts")
        model = options.loaded(screen, name, finite, **how)

        from pellucid.documents.cell import cell as cell_of
        from pellucid.documents.cell import document
        from pellucid.documents.cell_parts import cell_parts
        from pellucid.documents.run import run_document
        from pellucid.documents.run_view import explain as explained
        from pellucid.terminal import cell_lines, run_lines

        view = explained(model, prompt, steps, best, terms=cell is not None, inside="reference" if reference else "beside")
        options.warn_beyond(screen, model, len(view.trace.ids) + view.trace.steps - 1)
        shown = run_lines.Display(screen.width, screen.colour, tuple(layer or ()), head, everything, not screen.quiet)
        selected = cell_of(view.trace, *cell) if cell is not None else None
        dims = {s.path: s.dims for s in view.trace}
        lines = cell_lines.account(selected, dims, shown.width, everything) if selected is not None else run_lines.story(view, shown)
        made = cell_parts(model, view.trace, selected.seen.path, selected.index) if selected is not None and parts else None
        lines += cell_lines.made_of(made, shown.width) if made is not None else []
        if screen.json:
            data = run_document(view.run, view.trace.steps)
            if selected is not None:
                data["cell"] = document(selected, dims)
            if made is not None:
                data["parts"] = made
            screen.document(data)
        else:
            screen.lines(lines)


def refuse_trace(folder: str) -> None:
    """Raise a UseError if `folder` is one that `trace --save` wrote, whose name would be read as a prompt."""
    from pellucid.checkpoint.folder import TRACE

    if os.path.isfile(os.path.join(folder, TRACE)):
        raise UseError("explain.trace", path=folder)


def of_batch(screen: Screen, model: "Model", prompts: list[str | list[int]], best: int) -> None:
    """Print several prompts in one batch: their rows, the padded table that holds them, and each answer."""
    if best < 1:
        raise UseError("explain.top", found=best)

    from pellucid.analysis.prompt_batch import batched
    from pellucid.documents.prompt_batch import prompt_batch_document
    from pellucid.terminal.prompt_batch_lines import prompt_batch_lines

    document = prompt_batch_document(batched(model, prompts), model, best)
    if screen.json:
        screen.document(document)
    else:
        screen.lines(prompt_batch_lines(document, screen.width))


def of_weight(screen: Screen, folder: str, prompt: str | None, weight: tuple[str, str] | None, step: int | None) -> None:
    """Print why a weight moved in a step of the run in `folder`."""
    if weight is None or step is None or prompt is not None:
        raise UseError("explain.weight")
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", weight[1]):
        raise UseError("explain.weight.cell", found=weight[1])

    from pellucid.api.run import Run
    from pellucid.documents.why import why_document
    from pellucid.terminal.why_lines import why_lines

    document = why_document(Run(folder), step, weight[0], tuple(map(int, weight[1].split(","))))
    if screen.json:
        screen.document(document)
    else:
        screen.lines(why_lines(document, screen.width))
