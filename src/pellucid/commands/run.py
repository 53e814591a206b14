"""`pellucid run`: text from a model, streamed as it comes; without a prompt on a terminal, line by line."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.words import say

if TYPE_CHECKING:
    from pellucid.model import Model

SCHEMA = 1
NEW = 128  # tokens, where nobody asks for a number


def add(app: typer.Typer) -> None:
    @command(app, "run", say("run.help"))
    def run(
        ctx: typer.Context,
        model: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        prompt: Annotated[str | None, typer.Argument(metavar="[PROMPT]", help=say("run.help.prompt"))] = None,
        new: Annotated[int | None, options.whole("--max-new-tokens", say("run.help.new", count=NEW))] = None,
        temperature: Annotated[float, options.real("--temperature", say("run.help.temperature"))] = 0.0,
        seed: Annotated[int | None, options.whole("--seed", say("run.help.seed"))] = None,
        ids: Annotated[bool, options.ids()] = False,
        dtype: Annotated[str | None, options.dtype()] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        loaded = options.loaded(screen, model, dtype=dtype, ignore_fields=ignore_field or ())
        how: dict[str, Any] = {"new": new, "temperature": temperature, "seed": seed}
        if prompt is None and sys.stdin.isatty():
            talk(screen, loaded, how)
            return
        text = sys.stdin.read().removesuffix("\n") if prompt is None else prompt
        told = answer(screen, loaded, options.prompt_of(text, ids), stream=not screen.json, **how)
        if screen.json:
            screen.document(told)


def answer(
    screen: Screen, model: "Model", prompt: str | list[int], stream: bool, new: int | None, temperature: float, seed: int | None
) -> dict[str, Any]:
    """Generate after one prompt, streaming the text as it comes; returns what was generated."""
    if not prompt:
        raise UseError("generate.empty", name="prompt")
    tokenizer = model.tokenizer
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    rows = model.config.positions
    room = NEW if rows is None or model.config.starts is not None else max(0, min(NEW, rows - len(ids)))
    out, got, text = tokenizer.stream(skip_special=True), list[int](), ""
    for (token,) in model.stream([ids], room if new is None else new, temperature, model.stops, seed):
        if token is None:
            break
        got.append(token)
        text += (piece := out.feed(token))
        if stream:
            screen.text(piece)
    text += (rest := out.end())
    if stream:
        screen.text(rest + "\n")
    asked = prompt if isinstance(prompt, str) else None
    stopped = bool(got) and got[-1] in model.stops
    return {"schema": SCHEMA, "model": model.name, "prompt": asked, "ids": ids, "new": got, "text": text, "stopped": stopped}


def talk(screen: Screen, model: "Model", how: dict[str, Any]) -> None:
    """Line after line, each a prompt of its own, until Ctrl-D."""
    screen.note(say("run.talk", model=model.name))
    while True:
        try:
            line = input("> ")
        except EOFError:
            screen.text("\n")
            return
        if line:
            told = answer(screen, model, line, stream=not screen.json, **how)
            if screen.json:
                screen.document(told)
