"""The typer application: its commands, its help in the chosen language, and wrong uses as our own errors.

typer brings its own click or uses an installed one, by its version; so exceptions are known here by their names and fields.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from pellucid import __version__
from pellucid.commands.screen import Screen
from pellucid.errors import UseError
from pellucid.messages import say

EXAMPLE = "The capital of France is"
COMMANDS = (
    "explain", "try", "patch", "heads", "lens", "exhibit", "open", "page", "serve", "run", "count", "bench", "score", "trace", "diff",
    "verify", "show", "tokenize", "models", "convert", "train", "merge", "env",
)  # fmt: skip
USAGE: type[Exception] = typer.BadParameter.__mro__[1]  # click's UsageError, whether typer brings click or not
PACKAGE = str(Path(__file__).parents[1])


class Command(TyperCommand):
    """A command with our help, which refuses unknown arguments."""

    def get_help(self, ctx: Any) -> str:
        own = [p for p in self.params if p.name != "help"]
        usage = " ".join(["pellucid", str(self.name), *(metavar(p) for p in own if p.param_type_name == "argument")])
        lines = [say("command.usage", usage=usage), "", f"  {self.help}", ""]
        lines += columns([(named(p), meaning(p)) for p in own if getattr(p, "help", None)])
        return "\n".join([*lines, "", say("command.everywhere"), *columns(everywhere())])

    def invoke(self, ctx: Any) -> Any:
        if ctx.args:
            prompted = any(p.name == "prompt" for p in self.params)
            raise UseError("command.extra" if prompted else "command.words", found=" ".join(ctx.args), name=str(self.name))
        return super().invoke(ctx)


class CommandGroup(TyperGroup):
    """The group of all commands."""

    def get_help(self, ctx: Any) -> str:
        rows = [(name, str(c.help).partition(": ")[0].partition("：")[0]) for name, c in self.commands.items()]
        title = f"pellucid {__version__}  {say('command.title')}"
        lines = [title, "", say("command.usage", usage="pellucid COMMAND ..."), "", *columns(rows), "", say("command.everywhere")]
        return "\n".join([*lines, *columns(everywhere()), "", say("command.example", example=f'pellucid explain "{EXAMPLE}"')])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise UseError("command.unknown", found=args[0], known=", ".join(self.commands))
        return super().resolve_command(ctx, args)


def build(chosen: str = "") -> Any:
    """Return the application, in the current language: with the chosen command alone, with all of them if there is none of that name."""
    app = typer.Typer(cls=CommandGroup, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    for name in (chosen,) if chosen in COMMANDS else COMMANDS:
        importlib.import_module(f"pellucid.commands.{name}").add(app)
    return typer.main.get_group(app)


def command(app: typer.Typer, name: str, help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator that adds a function to the application as a command."""
    return app.command(name, cls=Command, help=help, context_settings={"help_option_names": ["-h", "--help"], "allow_extra_args": True})


def run(app: Any, arguments: list[str], screen: Screen) -> int:
    """Run a command line; return the exit code."""
    if arguments[:1] == ["--version"]:
        screen.text(f"pellucid {__version__}\n")
        return 0
    if not arguments or arguments[0] in ("-h", "--help"):
        text = app.get_help(None) + "\n"
        (sys.stdout if arguments else sys.stderr).write(text)
        return 0 if arguments else 2
    with warnings.catch_warnings():
        warnings.showwarning = shown(screen)
        try:
            code = app.main(args=arguments, prog_name="pellucid", standalone_mode=False, obj=screen)
        except typer.Abort:
            return 130
        except USAGE as wrong:
            raise mended(wrong) from None
    sys.stdout.flush()
    return int(code or 0)


def shown(screen: Screen) -> Any:
    """Return a `showwarning` that prints our own warnings as notes and drops those of other packages."""

    def show(message: Warning | str, category: type[Warning], filename: str, *rest: object) -> None:
        if filename.startswith(PACKAGE):
            screen.note(str(message))

    return show


def mended(wrong: Any) -> UseError:
    """Return a UseError for one of click's usage errors."""
    kind, name = type(wrong).__name__, hint(wrong)
    if kind == "NoSuchOption":
        near = ", ".join(name for name in wrong.possibilities or () if name != "--help")
        return UseError("command.option.near" if near else "command.option", found=wrong.option_name, near=near)
    if kind == "BadOptionUsage":
        return UseError("command.argument", name=wrong.option_name)
    if kind == "MissingParameter":
        return UseError("command.missing", name=name)
    return UseError("command.wrong", reason=wrong.format_message())


def hint(wrong: Any) -> str:
    """Return the parameter at fault in a usage error."""
    param = getattr(wrong, "param", None)
    return "" if param is None else metavar(param) if param.param_type_name == "argument" else param.opts[0]


def metavar(param: Any) -> str:
    """Return the name of a parameter's value."""
    return str(param.metavar or str(param.name).upper())


def named(param: Any) -> str:
    """Return a parameter as typed: "--steps N"."""
    if param.param_type_name == "argument":
        return metavar(param)
    return ", ".join([*param.opts, *param.secondary_opts]) + ("" if getattr(param, "is_flag", False) else f" {metavar(param)}")


def meaning(param: Any) -> str:
    """Return a parameter's help, with its default if it has one."""
    default = None if getattr(param, "is_flag", False) or callable(param.default) else param.default
    return str(param.help) + ("" if default in (None, "", [], ()) else f" [{default}]")


def everywhere() -> list[tuple[str, str]]:
    """Return the options that every command has."""
    return [
        ("--json", say("command.json")), ("-q, --quiet", say("command.quiet")),
        ("--lang en|zh", say("command.language")), ("-h, --help", say("command.help")),
    ]  # fmt: skip


def columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines of two columns."""
    wide = max((len(left) for left, _ in rows), default=0)
    return [f"  {left:<{wide}}  {right}".rstrip() for left, right in rows]
