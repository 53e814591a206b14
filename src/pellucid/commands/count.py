"""`pellucid count`: every parameter, byte and FLOP of models, exactly, with the formula; it downloads at most a config.json."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.commands.serving_demand import Wanted
from pellucid.errors import UseError
from pellucid.messages import say

if TYPE_CHECKING:
    from pellucid.counting import Bill
    from pellucid.documents.count import Scenario
    from pellucid.terminal.grid import Grid

MOST_TURNS = 1000
LONGEST = 2**20  # tokens that a request is written
NOT_WITH_USERS = {"--device", "--dtype", "--ranks", "--price", "--table", "--why", "--svg", "--batch", "--draft"}
NOT_WITH_USERS |= {"--train", "--lora", "--recompute", "--shards"}
PICTURES = ("treemap", "cache", "roofline")


def add(app: typer.Typer) -> None:
    @command(app, "count", say("count.help"))
    def count(
        ctx: typer.Context,
        models: Annotated[list[str] | None, typer.Argument(metavar="MODEL...", help=say("count.help.models"))] = None,
        context: Annotated[int | None, options.tokens("--context", say("count.help.context"))] = None,
        batch: Annotated[int, options.integer("--batch", say("count.help.batch"))] = 1,
        dtype: Annotated[str | None, typer.Option("--dtype", metavar="DTYPE", help=say("count.help.dtype"))] = None,
        cache: Annotated[str | None, typer.Option("--cache-dtype", metavar="DTYPE", help=say("count.help.cache"))] = None,
        kv: Annotated[str | None, typer.Option("--kv", metavar="int8", help=say("count.help.kv"))] = None,
        device: Annotated[str | None, typer.Option("--device", metavar="NAME", help=say("count.help.device"))] = None,
        price: Annotated[float | None, options.real("--price", say("count.help.price"))] = None,
        source: Annotated[int | None, options.tokens("--source", say("count.help.source"))] = None,
        why: Annotated[str | None, typer.Option("--why", metavar="PATH", help=say("count.help.why"))] = None,
        fields: Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help=say("count.help.set"))] = None,
        attn: Annotated[str | None, typer.Option("--attn", metavar="KIND", help=say("count.help.attn"))] = None,
        experts: Annotated[str | None, typer.Option("--experts", metavar="N:A", help=say("count.help.experts"))] = None,
        train: Annotated[bool, typer.Option("--train", help=say("count.help.train"))] = False,
        lora: Annotated[int | None, options.integer("--lora", say("count.help.lora"))] = None,
        recompute: Annotated[bool, typer.Option("--recompute", help=say("count.help.recompute"))] = False,
        shards: Annotated[int, options.integer("--shards", say("count.help.shards"))] = 1,
        ranks: Annotated[str | None, typer.Option("--ranks", metavar="tp=N,pp=N,ep=N", help=say("count.help.ranks"))] = None,
        draft: Annotated[str | None, typer.Option("--draft", metavar="MODEL", help=say("count.help.draft"))] = None,
        accepted: Annotated[float | None, options.real("--accepted", say("count.help.accepted"))] = None,
        users: Annotated[int | None, options.integer("--users", say("count.help.users"))] = None,
        ttft: Annotated[str | None, typer.Option("--ttft", metavar="TIME", help=say("count.help.ttft"))] = None,
        tpot: Annotated[str | None, typer.Option("--tpot", metavar="TIME", help=say("count.help.tpot"))] = None,
        devices: Annotated[str | None, typer.Option("--devices", metavar="A,B", help=say("count.help.devices"))] = None,
        formats: Annotated[str | None, typer.Option("--formats", metavar="A,B", help=say("count.help.formats"))] = None,
        prices: Annotated[str | None, typer.Option("--prices", metavar="A=X,B=X", help=say("count.help.prices"))] = None,
        efficiency: Annotated[float | None, options.real("--efficiency", say("count.help.efficiency"))] = None,
        table: Annotated[str | None, typer.Option("--table", metavar="NAME", help=say("count.help.table"))] = None,
        csv: Annotated[bool, typer.Option("--csv", help=say("count.help.csv"))] = False,
        markdown: Annotated[bool, typer.Option("--markdown", help=say("count.help.markdown"))] = False,
        svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help=say("count.help.svg"))] = None,
        picture: Annotated[str, typer.Option("--picture", metavar="NAME", help=say("count.help.picture"))] = "treemap",
        turns: Annotated[int | None, options.integer("--turns", say("count.help.turns"))] = None,
        written: Annotated[int | None, options.tokens("--written", say("count.help.written"))] = None,
        reader: Annotated[str | None, typer.Option("--reader", metavar="NAME", help=say("count.help.reader"))] = None,
        assume: Annotated[str | None, typer.Option("--assume", metavar="TYPE", help=say("count.help.assume"))] = None,
        sources: Annotated[bool, typer.Option("--sources", help=say("count.help.sources"))] = False,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        if not models and table is None:
            raise UseError("command.missing", name="MODEL...")

        if models and models[0].endswith(".toml"):
            if len(models) > 1 or options.typed(ctx) - {"--device", "--price"}:
                raise UseError("count.recipe.alone", path=models[0])
            of_recipe(screen, Path(models[0]), device, price)
            return

        from pellucid.api.count import count as counted
        from pellucid.documents import count as bill_json
        from pellucid.terminal import tables

        how: dict[str, Any] = {"context": context, "batch": batch, "dtype": dtype, "cache": cache, "device": device, "source": source}
        how |= {"fields": given(fields or ()), "attn": attn, "experts": experts, "ignore_fields": ignore_field or ()}
        how |= {} if assume is None else {"assume": assume}
        how |= {} if kv is None else {"kv": kv}
        model_alone: dict[str, Any] = {"source": None, "fields": {}, "attn": None, "experts": None, "assume": None, "kv": None}
        of_draft = None if draft is None else counted(draft, **how | model_alone)
        scenario = bill_json.scenario(device, price, train, lora, recompute, shards, ranks, of_draft, accepted, efficiency)
        trains = scenario.way is not None  # then the efficiency is training's
        wanted = Wanted(users, ttft, tpot, devices, formats, prices, None if trains else efficiency)
        if reader is not None and written is None:
            raise UseError("count.apart.need")
        if written is not None:
            named = reading_apart(models or [], written, reader, ranks, prices, efficiency, how)
        elif wanted.any:
            named = wanted.table(models or [], how, sorted(options.typed(ctx) & NOT_WITH_USERS))
        elif turns is not None:
            named = conversation(models or [], turns, how)
        elif table is not None:
            named = table, tables.table(table, context, lambda: counted(table, **how))
        else:
            bills = [counted(m, **how) for m in models or ()]
            if svg is not None:
                save(screen, bills, svg, picture)
            if sources:
                print_sources(screen, models or [], bills)
            elif why is not None and not screen.json:
                print_reasons(screen, bills, why)
            else:
                print_bills(screen, bills, scenario, price, why, csv, markdown)
            return
        show_or_write(screen, named, csv, markdown)


def print_sources(screen: Screen, names: Sequence[str], bills: "Sequence[Bill]") -> None:
    """Print where the numbers of models and of their devices come from."""
    from pellucid.documents.count_sources import sources as sources_of

    for name, bill in zip(names, bills, strict=True):
        screen.text("".join(f"{line}\n" for line in sources_of(name, bill.setting.device)))


def print_reasons(screen: Screen, bills: "Sequence[Bill]", path: str) -> None:
    """Print the formula of one number of each bill, and of the numbers in it."""
    from pellucid.documents.count import reasons

    for bill in bills:
        first, *rest = reasons(bill, path)
        screen.text(f"{bill.model}  {first['path']}\n  {first['formula']}\n")
        screen.text("".join(f"    {r['path']}  {r['formula']}\n" for r in rest))


def print_bills(
    screen: Screen, bills: "Sequence[Bill]", scenario: "Scenario", price: float | None, why: str | None, csv: bool, markdown: bool
) -> None:
    """Print one bill whole, several side by side. why: a number whose formula a JSON document has as well."""
    from pellucid.documents import count as bill_json
    from pellucid.terminal import bill as drawing
    from pellucid.terminal import columns

    if screen.json:
        documents = [bill_json.document(b, scenario) | ({} if why is None else {"why": bill_json.reasons(b, why)}) for b in bills]
        screen.document(documents[0] if len(documents) == 1 else documents)
    elif len(bills) == 1 and not csv and not markdown:
        screen.lines(drawing.drawn(bills[0], screen.width, scenario))
    elif scenario.draft is not None:
        raise UseError("count.draft.one")
    else:
        show(screen, columns.compare(bills, price), csv, markdown)


def conversation(models: list[str], turns: int, how: dict[str, Any]) -> "tuple[str, Grid]":
    """Return the name and the table of a conversation's turns with one model."""
    from pellucid.api.count import count as counted
    from pellucid.counting.conversation_turns import turns as by_turn
    from pellucid.documents.count import device_of
    from pellucid.terminal.turn_table import turn_table

    if len(models) != 1:
        raise UseError("count.turns.one", found=len(models))
    bill = counted(models[0], **how)
    context = bill.setting.context
    if not 1 <= turns <= min(context, MOST_TURNS) or "flops.decode" not in bill:
        raise UseError("count.turns.range", found=turns, most=min(context, MOST_TURNS))
    every = list(by_turn(lambda n: counted(models[0], **how | {"context": n}), turns, context, device_of(bill)))
    return "turns", turn_table(bill.model, every, how["device"])


def reading_apart(
    models: list[str],
    written: int,
    reader: str | None,
    ranks: str | None,
    prices: str | None,
    efficiency: float | None,
    how: dict[str, Any],
) -> "tuple[str, Grid]":
    """Return the name and the table of prompts read on one kind of machine and answers written on another."""
    from pellucid.api.count import count as counted
    from pellucid.commands.serving_demand import devices_of, hourly_prices
    from pellucid.counting.ranks import Split, split_of
    from pellucid.counting.reading_apart import apart
    from pellucid.terminal.apart_table import apart_table

    name, share = how["device"], 1.0 if efficiency is None else efficiency
    split = Split() if ranks is None else split_of(ranks)
    if len(models) != 1 or name is None or not 1 <= written < LONGEST or not 0 < share <= 1 or split.pp > 1:
        raise UseError("count.apart.one", found=len(models), most=LONGEST - 1)
    both = devices_of((reader or name, name))
    one = counted(models[0], **how | {"batch": 1})
    if "flops.decode" not in one:
        raise UseError("count.offers.encoder", model=one.model)
    mean = one.setting.context + written // 2
    texts = counted(models[0], **how | {"context": mean})
    estimate = apart(one, texts, written, both[reader or name], both[name], split, share)
    return "apart", apart_table(one.model, one.setting.context, estimate, reader or name, name, hourly_prices(prices, both))


def of_recipe(screen: Screen, path: Path, device: str | None, price: float | None) -> None:
    """Print the bill of a recipe."""
    from pellucid.documents.recipe_bill import recipe_bill
    from pellucid.terminal.recipe_run import drawn_recipe

    made = recipe_bill(path, device, price)
    if screen.json:
        screen.document(made.document())
    else:
        screen.lines(drawn_recipe(made, screen.width))


def show_or_write(screen: Screen, named: "tuple[str, Grid]", csv: bool, markdown: bool) -> None:
    """Print a table with its name as JSON if that is asked for, else as `show` does."""
    name, grid = named
    if screen.json:
        screen.document(grid.document(name))
    else:
        show(screen, grid, csv, markdown)


def show(screen: Screen, table: "Grid", csv: bool, markdown: bool) -> None:
    """Print a table as CSV, Markdown or text."""
    if csv or markdown:
        screen.text(table.csv() if csv else table.markdown())
    else:
        screen.lines(table.lines(screen.width))


def save(screen: Screen, bills: "list[Bill]", file: Path, name: str) -> None:
    """Write a picture to a file."""
    from pellucid.documents.count import device_of

    if name not in PICTURES:
        raise UseError("count.picture", found=name, allowed=", ".join(PICTURES))
    if name != "cache" and len(bills) > 1:
        raise UseError("count.picture.one", name=name, found=len(bills))
    if name == "cache":
        from pellucid.terminal.growth import growth

        text = growth(bills)
    elif name == "treemap":
        from pellucid.terminal.treemap import treemap

        text = treemap(bills[0])
    else:
        from pellucid.terminal.roofline import roofline

        device = device_of(bills[0])
        if device is None:
            raise UseError("count.picture.device")
        text = roofline(bills[0], device)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as wrong:
        raise UseError("count.picture.file", file=file, reason=wrong.strerror) from None
    screen.note(say("count.picture.saved", file=file))


def given(fields: Any) -> dict[str, Any]:
    """Return {FIELD: VALUE} of FIELD=VALUE arguments; VALUE is JSON, or a text."""
    import json

    out: dict[str, Any] = {}
    for pair in fields:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise UseError("count.pair", found=pair)
        try:
            out[name] = json.loads(value)
        except ValueError:
            out[name] = value
    return out
