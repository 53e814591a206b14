"""One head's attention as a table of shares in percent: queries down, keys across, each row adds up to 100."""

from collections.abc import Sequence

from rich.style import Style
from rich.text import Text
from torch import Tensor

from pellucid.terminal.sparkline import shade, tint
from pellucid.terminal.table import fitted, measure

CELL = 6  # characters of a share with its space


def heat(share: Tensor, queries: Sequence[str], keys: Sequence[str], width: int, colour: bool) -> list[Text]:
    """Draw share [T S]. A hidden key's cell stays empty; of more keys than fit, the last are shown."""
    label = min(max(map(measure, queries), default=0), max(8, width // 5))
    fits = max(1, (width - label - 3) // CELL)
    start = max(0, len(keys) - fits)
    out = [Text(" " * (label + 2)) + Text("").join([fitted(k, CELL - 1, ">", "dim") + Text(" ") for k in keys[start:]])]
    for query, row in zip(queries, share.tolist(), strict=False):
        line = Text(" ") + fitted(query, label, ">", "dim") + Text(" ")
        for x in row[start:]:
            words = f"{100 * x:.0f}".rjust(CELL - 2) + " " if x else " " * (CELL - 1)
            if colour and x:
                dark = x > 0.55
                line.append(words, Style(color="white" if dark else "black", bgcolor=tint(x, 1.0)))
                line.append(" ")
            else:
                line.append((shade(x, 1.0) if x else " ") + words)
        if not colour:
            line.rstrip()
        out.append(line)
    return out
