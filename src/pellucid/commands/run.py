"""`pellucid run`: text from a model, streamed as it comes; without a prompt on a terminal, a chat.

A chat is put together by the template of the model's folder; a model without one goes on from each line by itself.
"""

import re
import sys
import time
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.errors import PellucidError, UseError
from pellucid.messages import say

if TYPE_CHECKING:
    from pellucid.api.model import Model
    from pellucid.engine.thread_choice import ThreadChoice
    from pellucid.ops.sampling.settings import Sampling
    from pellucid.tokenizer.pieces import Stream

SCHEMA = 1
NEW = 128  # tokens, unless --max-new-tokens says otherwise
ENDS = ("/exit", "/quit")  # what ends a chat
SAMPLED = {"top_k", "top_p", "min_p"}  # settings that do nothing where the likeliest token is taken


def add(app: typer.Typer) -> None:
    @command(app, "run", say("run.help"))
    def run(
        ctx: typer.Context,
        model: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        prompt: Annotated[str | None, typer.Argument(metavar="[PROMPT]", help=say("run.help.prompt"))] = None,
        new: Annotated[int | None, options.integer("--max-new-tokens", say("run.help.new", count=NEW))] = None,
        temperature: Annotated[float | None, options.real("--temperature", say("run.help.temperature"))] = None,
        top_k: Annotated[int | None, options.integer("--top-k", say("run.help.top_k"))] = None,
        top_p: Annotated[float | None, options.real("--top-p", say("run.help.top_p"))] = None,
        min_p: Annotated[float | None, options.real("--min-p", say("run.help.min_p"))] = None,
        repetition: Annotated[float | None, options.real("--repetition", say("run.help.repetition"))] = None,
        presence: Annotated[float | None, options.real("--presence", say("run.help.presence"))] = None,
        frequency: Annotated[float | None, options.real("--frequency", say("run.help.frequency"))] = None,
        seed: Annotated[int | None, options.integer("--seed", say("run.help.seed"))] = None,
        stop: Annotated[list[str] | None, typer.Option("--stop", metavar="TEXT", help=say("run.help.stop"))] = None,
        past_stop: Annotated[bool, typer.Option("--past-stop", help=say("run.help.past_stop"))] = False,
        chat: Annotated[bool, typer.Option("--chat", help=say("run.help.chat"))] = False,
        ids: Annotated[bool, options.ids()] = False,
        dtype: Annotated[str | None, options.dtype()] = None,
        device: Annotated[str, options.device()] = "cpu",
        quant: Annotated[str | None, options.quant()] = None,
        kv: Annotated[str | None, options.kv()] = None,
        ranks: Annotated[str | None, options.ranks()] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
        adapter: Annotated[str | None, options.adapter()] = None,
        finite: Annotated[bool, options.check_finite()] = False,
        deterministic: Annotated[bool, typer.Option("--deterministic", help=say("run.help.deterministic"))] = False,
        speculate: Annotated[str | None, options.speculate()] = None,
        draft: Annotated[str | None, options.draft()] = None,
        verbose: Annotated[bool, typer.Option("-v", "--verbose", help=say("run.help.verbose"))] = False,
        more: Annotated[list[str] | None, options.more_prompts()] = None,
        file: Annotated[str | None, options.prompts_file()] = None,
    ) -> None:
        if chat and ids:
            raise UseError("run.chat_ids")
        several = [] if not more and file is None else options.prompts_of(prompt, more or (), file, ids)
        if several and chat:
            raise UseError("run.several")
        if past_stop and (chat or (prompt is None and not several and sys.stdin.isatty())):
            raise UseError("run.past_stop")
        options.in_one_process(
            **{"--chat": chat, "--draft": draft, "--deterministic": deterministic, "PROMPT: -": prompt is None and not several}
        )
        given = {
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "repetition": repetition, "presence": presence,
            "frequency": frequency, "seed": seed,
        }  # fmt: skip
        given = {name: value for name, value in given.items() if value is not None}
        judge(given, stop or [])
        speculates = options.speculates(speculate, draft)
        screen: Screen = ctx.obj
        loaded = options.loaded(
            screen,
            model,
            finite,
            ranks,
            dtype=dtype,
            device=options.numbers(device),
            quant=quant,
            ignore_fields=ignore_field or (),
            adapter=adapter,
        )
        how: dict[str, Any] = {"new": new, "sampling": settled(screen, loaded, given), "until": stop or [], "timed": verbose}
        other = None if draft is None else options.loaded(screen, draft, dtype=dtype, device=device, quant=quant)
        options.check_kv(loaded, kv)
        if speculates:
            options.check_proposals(loaded, other)
        how |= {"deterministic": deterministic, "speculate": speculates, "draft": other, "kv": kv}
        if several:
            answer_each(screen, loaded, several, past_stop, **how)
            return
        if prompt is None and sys.stdin.isatty():
            talk(screen, loaded, how)
            return
        text = sys.stdin.read().removesuffix("\n") if prompt is None else prompt
        result = (
            turn(screen, loaded, [user(text)], Origin.of(how["sampling"]), how)
            if chat
            else answer(screen, loaded, options.prompt_of(text, ids), past_stop=past_stop, **how)
        )
        if screen.json:
            screen.document(result)
        if result["interrupted"]:
            raise KeyboardInterrupt


def judge(given: dict[str, Any], stop: list[str]) -> None:
    """Refuse wrong settings before a model is read."""
    from pellucid.engine.text import check_stops
    from pellucid.ops.sampling.settings import Sampling

    Sampling.of(given)
    check_stops(stop)


def settled(screen: Screen, model: "Model", given: dict[str, Any]) -> "Sampling":
    """Return the settings given over those of generation_config.json, with notes on settings that do nothing."""
    from pellucid.engine.defaults import UNSUPPORTED_ALWAYS, defaults
    from pellucid.ops.sampling.settings import Sampling
    from pellucid.ops.sampling.uniform import fresh

    own, undone = defaults(model.generation, model.name)
    sampling = replace(own, **given)
    idle = SAMPLED if sampling.greedy else set()
    defaults_used = {
        name: value for name, value in asdict(own).items() if name not in {*given, *idle} and value != getattr(Sampling(), name)
    }
    if defaults_used:
        screen.note(say("run.samples", model=model.name, settings=as_text(defaults_used)))
    undone = {name: value for name, value in undone.items() if name in UNSUPPORTED_ALWAYS or not sampling.greedy}
    if undone:
        screen.note(say("run.undone", model=model.name, settings=as_text(undone)))
    if wasted := sorted(idle & given.keys()):
        screen.note(say("run.idle", names=", ".join("--" + name.replace("_", "-") for name in wasted)))
    return sampling if sampling.greedy or sampling.seed is not None else replace(sampling, seed=model.sharding.ranks.agreed(fresh()))


def as_text(settings: dict[str, Any]) -> str:
    """Return settings as text: "temperature=0.7, top_p=0.8"."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def answer(
    screen: Screen,
    model: "Model",
    prompt: str | list[int],
    new: int | None,
    sampling: "Sampling",
    until: list[str],
    timed: bool,
    stops: tuple[int, ...] = (),
    deterministic: bool = False,
    speculate: bool = False,
    draft: "Model | None" = None,
    kv: str | None = None,
    how_held: bool = True,
    past_stop: bool = False,
) -> dict[str, Any]:
    """Generate after one prompt, streaming the text; return what was generated, partly after Ctrl-C.

    until: strings that end the text and are not shown.  timed: tells the speed.  stops: more tokens that end it than the model's own.
    how_held: say on stderr what the model computes in.  speculate, draft, kv: see Model.stream.
    past_stop: no token ends it.
    """
    from pellucid.engine.text import Text

    if not prompt:
        raise UseError("generate.empty", name="prompt")
    ids = model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    rows = model.config.positions
    most = NEW if rows is None or model.config.starts is not None else max(0, min(NEW, rows - len(ids)))
    stops = () if past_stop else (*model.stops, *stops)
    options.warn_beyond(screen, model, len(ids))
    out, got, interrupted = Text(stream(model, until, ids if isinstance(prompt, str) else []), until), list[int](), False
    clock, same_step, proposed = [time.perf_counter()], 0, 0
    how: dict[str, Any] = {"deterministic": deterministic, "speculate": speculate, "draft": draft, "kv": kv}
    try:
        for output in model.stream([ids], most if new is None else new, sampling, stops, True, **how):
            if output.token is None:
                break
            if not got and how_held:
                options.tell_held(screen, model)
            got.append(output.token.id)
            same_step, proposed = same_step + output.same_step, proposed + output.proposed
            clock.append(time.perf_counter())
            piece = out.feed(got[-1])
            if not screen.json:
                screen.text(piece)
            if out.stop is not None:
                break
    except KeyboardInterrupt:
        interrupted = True
    rest = out.end()
    if not screen.json:
        screen.text(rest + "\n")
    if model.config.starts is None and len(ids) <= (model.config.context or 0):
        options.warn_beyond(screen, model, len(ids) + len(got))
    if timed and got:
        rate = f"{(len(got) - 1) / (clock[-1] - clock[1]):.3g}" if len(got) > 1 else "-"
        if speculate:
            screen.note(say("run.speculated", count=same_step, proposed=proposed, new=len(got)))
        for choice in threads_of(model):
            screen.note(say("run.threads", threads=choice.number(0), most=choice.most, share=f"{choice.share:.0%}"))
        screen.note(say("run.speed", tokens=len(ids), first=f"{clock[1] - clock[0]:.2f}", new=len(got), rate=rate))
    stopped = out.stop is not None or (bool(got) and got[-1] in stops)
    if new is not None and stopped and len(got) < new:
        by = out.stop if out.stop is not None else str(got[-1]) if model._tokenizer is None else model.tokenizer.piece(got[-1])
        screen.note(say("run.stopped", piece=by, count=len(got), asked=new))
    text_given = prompt if isinstance(prompt, str) else None
    settings = {name: value for name, value in asdict(sampling).items() if name != "bias"}
    return {
        "schema": SCHEMA, "model": model.name, "prompt": text_given, "ids": ids, "new": got, "text": out.shown, "stopped": stopped,
        "stop": out.stop, "interrupted": interrupted, "sampling": settings, "date": None, "template_seed": None,
    }  # fmt: skip


def answer_each(
    screen: Screen,
    model: "Model",
    prompts: list[str | list[int]],
    past_stop: bool,
    new: int | None,
    sampling: "Sampling",
    until: list[str],
    timed: bool,
    **how: Any,
) -> None:
    """Generate after several prompts in one batch, and write each answer. The settings are those of `answer`."""
    from pellucid.commands import run_batch
    from pellucid.engine.text import Text

    ids = [model.prompt_ids(prompt) for prompt in prompts]
    longest = max(map(len, ids))
    rows = model.config.positions
    most = NEW if rows is None or model.config.starts is not None else max(0, min(NEW, rows - longest))
    options.warn_beyond(screen, model, longest)
    texts = [Text(stream(model, until, own if isinstance(prompt, str) else []), until) for prompt, own in zip(prompts, ids, strict=True)]
    began = time.perf_counter()
    made = run_batch.answers(
        screen, model, prompts, most if new is None else new, sampling, texts, () if past_stop else tuple(model.stops), how
    )
    run_batch.written(screen, made)
    if timed:
        count, seconds = sum(len(one["new"]) for one in made), time.perf_counter() - began
        screen.note(say("run.batch.speed", prompts=len(made), new=count, rate=f"{count / seconds:.3g}"))
    if made[0]["interrupted"]:
        raise KeyboardInterrupt


def threads_of(model: "Model") -> "list[ThreadChoice]":
    """Return the choice of threads that the last text ran with, if other processes were seen to take processors."""
    from pellucid.engine.forward import Forward
    from pellucid.engine.thread_choice import BUSY

    forwards = [engine.run for engine in model.engines[-1:] if isinstance(engine.run, Forward)]
    return [forward.threads for forward in forwards if forward.threads.share > BUSY]


def stream(model: "Model", until: list[str], before: list[int]) -> "Stream":
    """Return what makes text of ids: the model's tokenizer, or the ids themselves if its folder has none and none is needed.

    before: a prompt's ids, from whose text it goes on; none for a chat's or for ids without a text. From a source no text goes on.
    """
    from pellucid.tokenizer.pieces import Stream

    if model._tokenizer is not None or until:
        return model.tokenizer.after(before if model.config.encoder is None else [], skip_special=True)
    return Stream(lambda id, first: f"{'' if first else ' '}{id}".encode(), 0)


def user(text: str) -> dict[str, Any]:
    """Return a user's message."""
    return {"role": "user", "content": text}


@dataclass(frozen=True)
class Origin:
    """The date and seed that a chat's template may use. All turns share them, and so their start."""

    now: datetime
    seed: int

    @staticmethod
    def of(sampling: "Sampling") -> "Origin":
        """Return this moment, and the sampling's seed."""
        from pellucid.ops.sampling.uniform import fresh

        return Origin(datetime.now(), fresh() if sampling.seed is None else sampling.seed)


def turn(screen: Screen, model: "Model", messages: list[dict[str, Any]], origin: Origin, how: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to a conversation, with the date and seed if the template used them."""
    tokenizer = model.tokenizer
    ids = tokenizer.chat(messages, now=origin.now, seed=origin.seed)
    stops = tuple(id for name, id in tokenizer.special.items() if name == "eos")
    result = answer(screen, model, ids, **how, stops=stops)
    dated, random = (any(getattr(t, used) for t in tokenizer.templates.values()) for used in ("dated", "random"))
    date, seed = origin.now.isoformat() if dated else None, origin.seed if random else None
    return result | {"prompt": messages[-1]["content"], "date": date, "template_seed": seed}


def reseeded(sampling: "Sampling", index: int) -> "Sampling":
    """Return the sampling of a chat's reply, with a seed of its own."""
    from pellucid.ops.sampling.uniform import sibling

    return sampling if sampling.seed is None else replace(sampling, seed=sibling(sampling.seed, index))


def run_chat_command(screen: Screen, word: str) -> None:
    """Run a line that begins with a slash: /help, /reset, or an error."""
    if word == "/help":
        print(say("run.commands"), file=sys.stderr, flush=True)
    elif word == "/reset":
        screen.note(say("run.reset"))
    else:
        screen.fault(say("run.command", found=word, known=", ".join(("/help", "/reset", *ENDS))))


def talk(screen: Screen, model: "Model", how: dict[str, Any]) -> None:
    """Chat until Ctrl-D; Ctrl-C stops a reply. Without a template, each line is a prompt of its own.

    A line that begins with a slash and a word is for the chat itself; two slashes begin a text that begins with one.
    """
    chats, origin = bool(model.tokenizer.templates), Origin.of(how["sampling"])
    options.tell_held(screen, model)
    screen.note(say("run.chat" if chats else "run.talk", model=model.name))
    history: list[dict[str, Any]] = []
    while True:
        try:
            line = input("> ")
        except EOFError:
            screen.text("\n")
            return
        except KeyboardInterrupt:
            screen.text("\n")  # the terminal's next prompt begins a line
            raise
        if not line:
            continue
        if chat_command := re.match(r"/[A-Za-z]+(?!\S)", line):
            if chat_command[0] in ENDS:
                return
            history = history if chat_command[0] != "/reset" else []
            run_chat_command(screen, chat_command[0])
            continue
        line = line.removeprefix("/") if line.startswith("//") else line
        try:
            own = how | {"how_held": False, "sampling": reseeded(how["sampling"], len(history) // 2)}
            result = turn(screen, model, [*history, user(line)], origin, own) if chats else answer(screen, model, line, **own)
        except PellucidError as wrong:  # as where the positions are used up; the line is forgotten, the chat goes on
            screen.fault(str(wrong))
            continue
        history += [user(line), {"role": "assistant", "content": result["text"]}]
        if screen.json:
            screen.document(result)
