"""`pellucid try`: one prompt run twice, as the model is and changed, side by side."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.messages import say

if TYPE_CHECKING:
    from pellucid.api.model import Model

AXES = "T", "H"  # of rows and heads
OF_ONE = {"--against", "--all", "--by", "--fresh"}  # options that are for one prompt
MOST = 64  # seeds of one call


def add(app: typer.Typer) -> None:
    @command(app, "try", say("try.help"))
    def try_change(
        ctx: typer.Context,
        name: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        prompt: Annotated[str, typer.Argument(metavar="PROMPT", help=say("explain.help.prompt"))],
        change: Annotated[list[str] | None, typer.Option("--change", metavar="CHANGE", help=say("try.help.change"))] = None,
        switch: Annotated[list[str] | None, typer.Option("--with", metavar="FIELD=VALUE", help=say("try.help.with"))] = None,
        against: Annotated[str | None, typer.Option("--against", metavar="PROMPT", help=say("try.help.against"))] = None,
        steps: Annotated[int, options.steps()] = 1,
        best: Annotated[int, options.integer("--top", say("explain.help.top"))] = 5,
        everything: Annotated[bool, typer.Option("--all", help=say("try.help.all"))] = False,
        by: Annotated[str, typer.Option("--by", metavar="T|H", help=say("try.help.by"))] = "",
        fresh: Annotated[str | None, typer.Option("--fresh", metavar="SEEDS", help=say("try.help.fresh"))] = None,
        ids: Annotated[bool, options.ids()] = False,
        dtype: Annotated[str | None, options.dtype()] = None,
        device: Annotated[str, options.device()] = "cpu",
        quant: Annotated[str | None, options.quant()] = None,
        more: Annotated[list[str] | None, options.more_prompts()] = None,
        file: Annotated[str | None, options.prompts_file()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        several = bool(more) or file is not None
        if several and (idle := sorted(options.typed(ctx) & OF_ONE)):
            raise UseError("try.several", found=idle[0])
        texts = change or []
        if not texts and not switch and against is None:
            raise UseError("try.nothing")
        if not prompt or against == "":
            raise UseError("generate.empty", name="prompt")
        if steps < 1:
            raise UseError("explain.steps", found=steps)
        if best < 1:
            raise UseError("explain.top", found=best)
        if by not in ("", *AXES):
            raise UseError("try.axis", found=by)
        seeds = [] if fresh is None else seeds_of(fresh)
        if seeds and quant is not None:
            raise UseError("try.fresh")
        prompts = [options.prompt_of(text, ids) for text in (prompt, prompt if against is None else against)]
        each = options.prompts_of(prompt, more or (), file, ids) if several else []
        model = options.loaded(screen, name, dtype=dtype, device=options.numbers(device), quant=quant)

        from pellucid.analysis.compare import compare
        from pellucid.analysis.depth import by_depth
        from pellucid.analysis.seed_spread import SeedRun, divergence, measured, over_seeds
        from pellucid.api.change_values import changes
        from pellucid.api.fresh_weights import redrawn
        from pellucid.api.trace import trace
        from pellucid.api.variant import varied
        from pellucid.documents.comparison import comparison_document
        from pellucid.documents.seed_table import seed_document
        from pellucid.terminal.comparison_lines import Detail, Side, comparison
        from pellucid.terminal.seed_lines import seed_lines

        if several:
            return of_each(screen, model, varied(model, switch or ()), each, texts, steps, best)
        measures = list[SeedRun]()
        for own in (redrawn(model, seed) for seed in reversed(seeds)) if seeds else (model,):  # the first seed's runs are the ones shown
            other = varied(own, switch or ())
            edits = changes(other, texts, steps)
            runs = trace(own, prompts[0], steps), trace(other, prompts[1], steps, edit=edits)
            compared, depth, sides = compare(*runs), by_depth(*runs, ([], edits)), (own, other)
            measures.insert(0, measured(compared, depth))
        spread = (over_seeds(measures), divergence(measures)) if len(measures) > 1 else None
        options.tell_held(screen, sides[0])
        if screen.json:
            screen.document(comparison_document(compared, sides, ([], texts), best, depth, spread and seed_document(seeds, *spread)))
        else:
            changed = [*([] if against is None else [against]), *(switch or ()), *texts]
            about = [sides[0].name if against is None else prompt, ", ".join(changed)]
            both = [Side(one, text) for one, text in zip(sides, about, strict=True)]
            screen.lines(comparison(compared, both, Detail(best, screen.width, everything, by), depth))
            if spread is not None:
                screen.lines(seed_lines(seeds, *spread, screen.width))


def of_each(
    screen: Screen, own: "Model", other: "Model", prompts: "list[str | list[int]]", texts: list[str], steps: int, best: int
) -> None:
    """Run each of several prompts twice; print a line of both answers for each, or with --json a document a line."""
    from rich.text import Text

    from pellucid.analysis.compare import compare
    from pellucid.analysis.depth import by_depth
    from pellucid.api.change_values import changes
    from pellucid.api.trace import trace
    from pellucid.documents.comparison import comparison_document
    from pellucid.terminal.comparison_lines import each_answer

    if not all(prompts):
        raise UseError("generate.empty", name="prompt")
    edits, compared = changes(other, texts, steps), []
    for prompt in prompts:
        runs = trace(own, prompt, steps), trace(other, prompt, steps, edit=edits)
        compared.append(compare(*runs))
        if screen.json:
            depth = by_depth(*runs, ([], edits))
            screen.document(comparison_document(compared[-1], (own, other), ([], texts), best, depth, None))
    options.tell_held(screen, own)
    if not screen.json:
        screen.lines([*each_answer(compared, (own, other), screen.width), Text()])


def seeds_of(text: str) -> list[int]:
    """Return the seeds of a text such as "3" or "0,1,2", each once and in order."""
    if not re.fullmatch(r"\d{1,18}(,\d{1,18})*", text) or text.count(",") >= MOST:
        raise UseError("try.seeds", found=text, most=MOST)
    return list(dict.fromkeys(map(int, text.split(","))))
