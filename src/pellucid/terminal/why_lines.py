"""Why a weight moved, as lines of a terminal: the tokens of its gradient, their sum, and the parts of the move."""

from rich.text import Text

from pellucid.documents.number import count, number
from pellucid.documents.why import WhyDocument, WhyTokenDocument
from pellucid.messages import say
from pellucid.terminal.cell_lines import precise
from pellucid.terminal.table import Column, clipped, line, widths

COLUMNS = [Column(">"), Column(">"), Column(">"), Column(">"), Column(), Column(most=24), Column(style="dim")]


def why_lines(why: WhyDocument, width: int) -> list[Text]:
    """Write the lines of `explain --weight`."""
    place = f"{why['path']}[{', '.join(map(str, why['index']))}]"
    out = [Text.assemble((place, "bold"), (f"  {say('why.step', run=why['run'], step=why['step'])}", "dim")), Text()]
    titles = [say("why.product"), "x", "δ", say("explain.position"), say("explain.piece"), say("why.document"), ""]
    texts = {text["number"]: text for text in why["documents"]}
    body = [row(token, texts[token["document"]]["source"], texts[token["document"]]["text"]) for token in why["tokens"]]
    sizes = widths([titles, *body], COLUMNS)
    out += [line([Text(title, "dim") for title in titles], COLUMNS, sizes, 2, 1), *(line(cells, COLUMNS, sizes, 2, 1) for cells in body)]
    if more := why["count"] - len(body):
        out.append(Text(" " + say("why.more", count=count(more), sum=precise(why["rest"] or 0.0)), "dim"))
    out += [Text(), Text(" " + say("why.total", count=count(why["count"]), total=precise(why["total"] or 0.0)), "bold")]
    out.append(Text(" " + say("why.gradient", gradient=precise(why["gradient"] or 0.0))))
    if len(why["uses"]) > 1:
        out.append(Text(" " + say("why.uses", uses=", ".join(f"{use['path']} {precise(use['sum'] or 0.0)}" for use in why["uses"]))))
    if why["others"]:
        out.append(Text(" " + say("why.others", paths=", ".join(why["others"])), "dim"))
    move = {name: precise(value or 0.0) for name, value in why["move"].items() if isinstance(value, float)}
    out += [Text(), Text(" " + say("why.move", weight=precise(why["weight"] or 0.0), total=move["total"]), "bold")]
    out += [Text("   " + say("why.move.gradient", value=move["gradient"], clip=move["clip"]))]
    out += [Text("   " + say("why.move.momentum", value=move["momentum"])), Text("   " + say("why.move.decay", value=move["decay"]))]
    return clipped(out, width)


def row(token: WhyTokenDocument, source: str, text: str) -> list[str]:
    """Write a token's row. Of several dependent numbers, such as those of a norm, x and δ are left out."""
    x, delta = (number(values[0] or 0.0) if len(values) == 1 else "…" for values in (token["x"], token["delta"]))
    piece = token["piece"] or ""
    return [precise(token["product"] or 0.0), x, delta, str(token["position"]), piece, source, " ".join(text.split())]
