"""`pellucid score`: how likely a model finds a text, as log-probability, perplexity, and bits a byte."""

import math
from typing import Annotated, Any

import typer

from pellucid.commands import options
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.messages import say

SCHEMA = 1


def add(app: typer.Typer) -> None:
    @command(app, "score", say("score.help"))
    def score(
        ctx: typer.Context,
        model: Annotated[str, typer.Argument(metavar="MODEL", help=say("option.model"))],
        file: Annotated[str, typer.Argument(metavar="FILE", help=say("score.help.file"))],
        source: Annotated[str | None, typer.Option("--source", metavar="FILE", help=say("score.help.source"))] = None,
        window: Annotated[int | None, options.integer("--window", say("score.help.window"))] = None,
        stride: Annotated[int | None, options.integer("--stride", say("score.help.stride"))] = None,
        tokens: Annotated[bool, typer.Option("--tokens", help=say("score.help.tokens"))] = False,
        dtype: Annotated[str | None, options.dtype()] = None,
        device: Annotated[str, options.device()] = "cpu",
        quant: Annotated[str | None, options.quant()] = None,
        kv: Annotated[str | None, options.kv()] = None,
        adapter: Annotated[str | None, options.adapter()] = None,
        ranks: Annotated[str | None, options.ranks()] = None,
        ignore_field: Annotated[list[str] | None, options.ignore_field()] = None,
    ) -> None:
        screen: Screen = ctx.obj
        options.in_one_process(**{"FILE: -": "-" in (file, source)})
        text, source_text = options.text_of(file), None if source is None else options.text_of(source)
        how: dict[str, Any] = {"dtype": dtype, "device": options.numbers(device), "quant": quant, "ignore_fields": ignore_field or ()}
        how["adapter"] = adapter
        loaded = options.loaded(screen, model, ranks=ranks, **how)

        from pellucid.engine.score import bounds
        from pellucid.engine.score import score as scored

        options.check_kv(loaded, kv)
        ids = loaded.tokenizer.encode(text, special=True)
        written_after = () if source_text is None else loaded.tokenizer.encode(source_text, special=True)
        each = scored(loaded.module, ids, window, stride, written_after, kv).tolist()
        plain = each if kv is None else scored(loaded.module, ids, window, stride, written_after).tolist()
        pieces = loaded.tokenizer.pieces(ids)[len(ids) - len(each) :]
        options.tell_held(screen, loaded)
        total, size = math.fsum(each), sum(len(p.raw) for p in pieces)
        windows = bounds(loaded.module, window, stride)
        options.warn_beyond(screen, loaded, min(len(ids), windows[0]))
        document: dict[str, Any] = {
            "schema": SCHEMA, "model": loaded.name, "file": file, "tokens": len(ids), "scored": len(each), "log_probability": total,
            "perplexity": limited(-total / len(each)), "bits_per_byte": -total / math.log(2) / size if size else None,
            "window": windows[0], "stride": windows[1],
        }  # fmt: skip
        if kv is not None:
            document["kv"] = kv_error(kv, each, plain)
        if screen.json:
            rows = [{"id": p.id, "text": p.text, "log_probability": x} for p, x in zip(pieces, each, strict=True)]
            screen.document(document | ({"each": rows} if tokens else {}))
            return
        for p, x in zip(pieces, each, strict=True) if tokens else ():
            screen.text(f"{x:10.4f}  {p.text!r}\n")
        perplexity, bits = document["perplexity"], document["bits_per_byte"]
        figures = {
            "total": f"{total:.4f}",
            "mean": f"{total / len(each):.4f}",
            "perplexity": "∞" if perplexity is None else f"{perplexity:.4g}",
        }
        screen.text(say("score.told", scored=len(each), tokens=len(ids), bits="-" if bits is None else f"{bits:.4f}", **figures) + "\n")
        if kv is not None:
            gaps = {name: "∞" if value is None else f"{value:.4g}" for name, value in document["kv"].items() if name != "format"}
            screen.text(say("score.kv", format=kv, **gaps) + "\n")


def kv_error(kv: str, each: list[float], plain: list[float]) -> dict[str, Any]:
    """Return what a format of keys and values changed: the perplexity without it, and the gaps of the log-probabilities."""
    gaps = [abs(a - b) for a, b in zip(each, plain, strict=True)]
    return {
        "format": kv,
        "plain_perplexity": limited(-math.fsum(plain) / len(plain)),
        "mean_gap": math.fsum(gaps) / len(gaps),
        "largest_gap": max(gaps),
    }


def limited(exponent: float) -> float | None:
    """Return e to the power of this, None if it overflows."""
    return math.exp(exponent) if exponent < 700 else None
