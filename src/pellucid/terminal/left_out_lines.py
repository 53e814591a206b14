"""A run with some of its documents and without them, as lines of a terminal: losses beside each other, then what became another."""

from rich.text import Text

from pellucid.documents.left_out import LeftOutDocument, LossPair
from pellucid.documents.number import count, number
from pellucid.messages import say
from pellucid.terminal.table import Column, clipped, line, widths

COLUMNS = [Column(most=48), Column(">"), Column(">"), Column(style="dim")]
MOST = 16  # questions that are listed


def left_out_lines(left: LeftOutDocument, width: int) -> list[Text]:
    """Write the lines of `diff RUN --without`."""
    out = [Text(f"{text['source']}  {' '.join(text['text'].split())}") for text in left["texts"]]
    if more := len(left["documents"]) - len(out):
        out.append(Text(say("without.more", count=count(more)), "dim"))
    steps = {"count": count(len(left["steps"])), "first": left["first"], "last": left["last"]}
    out += [Text(say("without.trained", run=left["run"], **steps), "dim"), Text()]
    rows = [["", say("without.own"), say("without.without"), ""], row(say("without.loss"), left["loss"])]
    if left["held_out"] is not None:
        rows.append(row(say("without.held_out"), left["held_out"]))
    for prompt in left["prompts"]:
        answers = [repr(text) for text in (prompt["own"], prompt["without"])]
        rows.append(row(repr(prompt["prompt"]), prompt["loss"], "  →  ".join(dict.fromkeys(answers))))
    if (q := left["questions"]) is not None:
        rows.append([say("without.questions", count=count(q["count"])), count(q["own"]), count(q["without"]), ""])
    sizes = widths(rows, COLUMNS)
    out += [line([Text(cell, "dim") for cell in rows[0]], COLUMNS, sizes, 2, 1), *(line(cells, COLUMNS, sizes, 2, 1) for cells in rows[1:])]
    if q is not None:
        changed = [say("without.lost", prompt=prompt) for prompt in q["lost"]] + [say("without.won", prompt=prompt) for prompt in q["won"]]
        out += [Text(f"   {text}", "dim") for text in changed[:MOST]]
        out += [Text(f"   {say('without.more', count=count(len(changed) - MOST))}", "dim")] if len(changed) > MOST else []
    return clipped(out, width)


def row(name: str, loss: LossPair, about: str = "") -> list[str]:
    """Write a row of two losses."""
    own, without = (number(float("nan") if x is None else x) for x in (loss["own"], loss["without"]))
    return [name, own, without, about]
