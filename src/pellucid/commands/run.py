"""`pellucid run`: text from a model, streamed as it comes; without a prompt on a terminal, a chat.

A chat is put together by the template of the model's folder; a model without one goes on from each line by itself.
"""

import math
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import ConfigError, PellucidError, UseError
from pellucid.words import say

if TYPE_CHECKING:
    from pellucid.model import Model

SCHEMA = 1
NEW = 128  # tokens, where nobody asks for a number
# What generation_config.json may ask of sampling that is not done here, and where it asks for nothing.
UNDONE = {"top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "repetition_penalty": 1}


def add(app: typer.Typer) -> None:
    @command(app, "run", say("run.help"))
    def run(
        ctx: typer.Context,
        model: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        prompt: Annotated[str | None, typer.Argument(metavar="[PROMPT]", help=say("run.help.prompt"))] = None,
        new: Annotated[int | None, options.whole("--max-new-tokens", say("run.help.new", count=NEW))] = None,
        temperature: Annotated[float | None, options.real("--temperature", say("run.help.temperature"))] = None,
        seed: Annotated[int | None, options.whole("--seed", say("run.help.seed"))] = None,
        chat: Annotated[bool, typer.Option("--chat", help=say("run.help.chat"))] = False,
        ids: Annotated[bool, options.ids()] = False,
        dtype: Annotated[str | None, options.dtype()] = None,
        quant: Annotated[str | None, options.quant()] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
        adapter: Annotated[str | None, options.adapter()] = None,
        finite: Annotated[bool, options.check_finite()] = False,
    ) -> None:
        screen: Screen = ctx.obj
        loaded = options.loaded(screen, model, finite, dtype=dtype, quant=quant, ignore_fields=ignore_field or (), adapter=adapter)
        if chat and ids:
            raise UseError("run.chat_ids")
        how: dict[str, Any] = {"new": new, "temperature": warmth(screen, loaded, temperature), "seed": seed}
        if prompt is None and sys.stdin.isatty():
            talk(screen, loaded, how)
            return
        text = sys.stdin.read().removesuffix("\n") if prompt is None else prompt
        now = datetime.now()
        told = turn(screen, loaded, [user(text)], now, how) if chat else answer(screen, loaded, options.prompt_of(text, ids), **how)
        if screen.json:
            screen.document(told)


def warmth(screen: Screen, model: "Model", asked: float | None) -> float:
    """The temperature that was asked for, else generation_config.json's if it samples, else none; says what of its sampling is not done."""
    told = model.generation
    if asked is not None or told.get("do_sample") is not True:
        return asked or 0.0
    found = told.get("temperature", 1.0)
    if type(found) not in (int, float) or not (math.isfinite(found) and found >= 0):
        raise ConfigError("run.temperature", model=model.name, found=found)
    undone = [f"{name}={told[name]}" for name, nothing in UNDONE.items() if told.get(name) not in (None, nothing)]
    key = "run.samples_part" if undone else "run.samples"
    screen.note(say(key, model=model.name, temperature=found, undone=", ".join(undone)))
    return float(found)


def answer(
    screen: Screen,
    model: "Model",
    prompt: str | list[int],
    new: int | None,
    temperature: float,
    seed: int | None,
    stops: tuple[int, ...] = (),
    ends: tuple[type[BaseException], ...] = (),
) -> dict[str, Any]:
    """Generate after one prompt, streaming the text as it comes; returns what was generated.

    stops: more tokens that end it than the model's own.  ends: exceptions that end it too, KeyboardInterrupt in a chat.
    """
    if not prompt:
        raise UseError("generate.empty", name="prompt")
    tokenizer = model.tokenizer
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    rows = model.config.positions
    room = NEW if rows is None or model.config.starts is not None else max(0, min(NEW, rows - len(ids)))
    stops = (*model.stops, *stops)
    out, got, text = tokenizer.stream(skip_special=True), list[int](), ""
    try:
        for (token,) in model.stream([ids], room if new is None else new, temperature, stops, seed):
            if token is None:
                break
            got.append(token)
            text += (piece := out.feed(token))
            if not screen.json:
                screen.text(piece)
    except ends:
        pass
    text += (rest := out.end())
    if not screen.json:
        screen.text(rest + "\n")
    asked = prompt if isinstance(prompt, str) else None
    stopped = bool(got) and got[-1] in stops
    return {
        "schema": SCHEMA, "model": model.name, "prompt": asked, "ids": ids, "new": got, "text": text, "stopped": stopped, "date": None,
    }  # fmt: skip


def user(text: str) -> dict[str, Any]:
    """What a person says."""
    return {"role": "user", "content": text}


def turn(
    screen: Screen,
    model: "Model",
    messages: list[dict[str, Any]],
    now: datetime,
    how: dict[str, Any],
    ends: tuple[type[BaseException], ...] = (),
) -> dict[str, Any]:
    """The reply to a conversation. now: what its template tells as the date; one moment for all turns, so that they share their start."""
    tokenizer = model.tokenizer
    ids = tokenizer.chat(messages, now=now)
    stops = tuple(id for name, id in tokenizer.special.items() if name == "eos")
    told = answer(screen, model, ids, **how, stops=stops, ends=ends)
    dated = any(template.dated for template in tokenizer.templates.values())
    return told | {"prompt": messages[-1]["content"], "date": now.isoformat() if dated else None}


def talk(screen: Screen, model: "Model", how: dict[str, Any]) -> None:
    """A chat until Ctrl-D, Ctrl-C stops a reply; without a template, line after line, each a prompt of its own."""
    chats, now = bool(model.tokenizer.templates), datetime.now()
    screen.note(say("run.chat" if chats else "run.talk", model=model.name))
    said: list[dict[str, Any]] = []
    while True:
        try:
            line = input("> ")
        except EOFError:
            screen.text("\n")
            return
        if not line:
            continue
        try:
            stop = (KeyboardInterrupt,)
            told = turn(screen, model, [*said, user(line)], now, how, stop) if chats else answer(screen, model, line, **how, ends=stop)
        except PellucidError as wrong:  # as where the positions are used up; the line is forgotten, the chat goes on
            screen.fault(str(wrong))
            continue
        said += [user(line), {"role": "assistant", "content": told["text"]}]
        if screen.json:
            screen.document(told)
