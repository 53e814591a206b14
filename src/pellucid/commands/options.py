"""Options that several commands share, and their effect: which model, its dtype, the prompt."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.launched import started
from pellucid.messages import say

if TYPE_CHECKING:
    from pellucid.api.model import Model

LARGEST = 1_000_000_000  # bytes of a text


def integer(name: str, help: str, metavar: str = "N") -> Any:
    """Return an option that takes an integer, with our error for anything else."""

    def parsed(text: Any) -> int:
        if not re.fullmatch(r"[+-]?\d{1,18}", str(text)):
            raise UseError("command.whole", name=name, found=text)
        return int(text)

    return typer.Option(name, metavar=metavar, help=help, parser=parsed)


def tokens(name: str, help: str) -> Any:
    """Return an option that takes a number of tokens: 131072, 131,072, or in thousands of 1,024, as models' contexts are named, 128k."""

    def parsed(text: Any) -> int:
        match = re.fullmatch(r"(\d{1,3}(?:[,_]\d{3})+|\d{1,18})([kKmM]?)", str(text))
        if match is None:
            raise UseError("command.tokens", name=name, found=text)
        return int(re.sub("[,_]", "", match[1])) * {"": 1, "k": 2**10, "m": 2**20}[match[2].lower()]

    return typer.Option(name, metavar="N|8k", help=help, parser=parsed)


def real(name: str, help: str) -> Any:
    """Return an option that takes a number."""

    def parsed(text: Any) -> float:
        try:
            return float(text)
        except ValueError:
            raise UseError("command.number", name=name, found=text) from None

    return typer.Option(name, metavar="X", help=help, parser=parsed)


def place(name: str, metavar: str, help: str) -> Any:
    """Return the option that says where a command writes. name: --save or --out; both are taken."""
    return typer.Option(name, "--save" if name == "--out" else "--out", metavar=metavar, help=help)


def dtype() -> Any:
    return typer.Option("--dtype", metavar="DTYPE", help=say("option.dtype"))


def device() -> Any:
    return typer.Option("--device", metavar="NAME", help=say("option.device"))


def typed(ctx: typer.Context) -> set[str]:
    """Return the options that stand on the command line, by their first names; those that every command has are not among them."""
    given = (p for p in ctx.command.params if getattr(ctx.get_parameter_source(str(p.name)), "name", "") == "COMMANDLINE")
    return {p.opts[0] for p in given if p.param_type_name == "option"}


def numbers(device: str) -> str:
    """Return the device. A UseError if it is meta, which has no numbers."""
    if device == "meta":
        raise UseError("command.meta")
    return device


def quant() -> Any:
    return typer.Option("--quant", metavar="int8|int4", help=say("option.quant"))


def kv() -> Any:
    return typer.Option("--kv", metavar="int8", help=say("option.kv"))


def check_kv(model: "Model", name: str | None) -> None:
    """Raise a UseError if the model's keys and values cannot be held in this format."""
    from pellucid.ops import format_for

    format_for(model.config, name)


def speculate() -> Any:
    return typer.Option("--speculate", metavar="ngram", help=say("option.speculate"))


def draft() -> Any:
    return typer.Option("--draft", metavar="MODEL", help=say("option.draft"))


def speculates(given: str | None, draft: str | None) -> bool:
    """True if tokens are to be proposed. A UseError for a way that there is not, and for two."""
    if given not in (None, "ngram"):
        raise UseError("speculate.kind", found=given, allowed="ngram")
    if given is not None and draft is not None:
        raise UseError("speculate.both")
    return given is not None or draft is not None


def check_proposals(model: "Model", draft: "Model | None") -> None:
    """Raise a UseError if the model takes no proposed tokens, or none of this draft's."""
    from pellucid.api.draft_model import draft_for

    draft_for(model, draft)


def ignore_field() -> Any:
    return typer.Option("--ignore-field", metavar="NAME", help=say("option.ignore_field"))


def adapter() -> Any:
    return typer.Option("--adapter", metavar="FOLDER", help=say("option.adapter"))


def check_finite() -> Any:
    return typer.Option("--check-finite", help=say("option.check_finite"))


def ids() -> Any:
    return typer.Option("--ids", help=say("option.ids"))


def steps() -> Any:
    return integer("--steps", say("option.steps"))


def ranks() -> Any:
    return typer.Option("--ranks", metavar="tp=N,experts=N", help=say("option.ranks"))


def loaded(screen: Screen, name: str, finite: bool = False, ranks: str | None = None, **how: Any) -> "Model":
    """Load the model of a name, with a progress bar: of several processes each keeps its part. finite: refuse NaN or infinity.

    ranks: what they share, as `split_of` reads it; heads and neurons where None.
    """
    in_one_process(**{"--device": str(how.get("device", "cpu")) != "cpu"})
    tensor, expert = (started(), 1) if ranks is None else shared_by(ranks)

    from pellucid.api.model import load
    from pellucid.distributed import join

    grid = join(1, tensor, expert)  # before the model is read, so that a rank that dies meanwhile is named
    model = load(name, progress=screen.bar(say("command.loading", name=name)), **how)
    if finite:
        model.check_finite()
    if grid.count > 1:
        model.split(grid)
    return model


def shared_by(text: str) -> tuple[int, int]:
    """Return the tensor and expert ranks of a text such as "tp=2,experts=2". A UseError for what processes do not share here."""
    from pellucid.counting.ranks import split_of

    split = split_of(text)
    if split.pp > 1 or split.ep > 1 or (split.experts > 1 and split.tp not in (1, split.experts)):
        raise UseError("option.ranks.shared", found=text)
    return split.tp, split.experts


def in_one_process(**given: object) -> None:
    """Raise a UseError for the first option that is given although several processes run."""
    for name, value in given.items():
        if value and started() > 1:
            raise UseError("ranks.option", name=name, started=started())


def tell_held(screen: Screen, model: "Model") -> None:
    """Print on stderr the dtype that a model computes in, and why, before the first output."""
    screen.note(say("model.held", model=model.name, held=model.precision_note))


def warn_beyond(screen: Screen, model: "Model", tokens: int) -> None:
    """Warn if a text has more tokens than its model was made for. Learned positions refuse it instead."""
    context = model.config.context
    if context is not None and tokens > context and model.config.positions is None:
        screen.note(say("command.beyond", model=model.name, context=context, tokens=tokens))


def prompt_of(text: str, is_ids: bool) -> str | list[int]:
    """Return a prompt as typed: a text, or with --ids a list of ids."""
    if not is_ids:
        return text
    if not re.fullmatch(r"\s*\d+(\s*[,\s]\s*\d+)*\s*", text):
        raise UseError("command.ids", found=text)
    return [int(i) for i in re.findall(r"\d+", text)]


def more_prompts() -> Any:
    return typer.Option("--prompt", metavar="TEXT", help=say("option.prompt"))


def prompts_file() -> Any:
    return typer.Option("--prompts", metavar="FILE", help=say("option.prompts"))


def prompts_of(first: str | None, more: Sequence[str], file: str | None, is_ids: bool) -> list[str | list[int]]:
    """Return the prompts of a command: the first, those of --prompt, and the lines of a file that are not empty.

    A UseError if a file has none.
    """
    lines = [] if file is None else [line for line in text_of(file).splitlines() if line.strip()]
    if file is not None and not lines:
        raise UseError("option.prompts.none", file=file)
    return [prompt_of(text, is_ids) for text in (*([] if first is None else [first]), *more, *lines)]


def text_of(file: str) -> str:
    """Return the text of a file, or of stdin for "-"; UTF-8 only."""
    try:
        if file != "-" and not Path(file).is_file():
            raise UseError("score.file", file=file)
        raw = sys.stdin.buffer.read(LARGEST + 1) if file == "-" else Path(file).read_bytes()
        if len(raw) > LARGEST:
            raise UseError("score.size", file=file, most=LARGEST)
        return raw.decode("utf-8")
    except UnicodeDecodeError as broken:
        raise UseError("score.encoding", file=file, offset=broken.start) from None
    except OSError as broken:
        raise UseError("score.unread", file=file, reason=broken.strerror) from None
