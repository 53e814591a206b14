"""A bill in short: one line, the main numbers, and an HTML table for a notebook.

parameters.total       671,026,404,352
cache.bytes_per_token  70,272
"""

from collections.abc import Mapping
from html import escape
from typing import Protocol

from pellucid.counting.number import Number, figure

MAIN = (
    "parameters.total", "parameters.active", "bytes.total", "cache.bytes_per_token", "cache.bytes_per_text", "cache.bytes",
    "flops.prefill", "flops.decode",
)  # fmt: skip
CELL = "text-align:left;padding:.1em 1em .1em 0;white-space:nowrap"
MOST = 120  # characters of a formula


class CountSetting(Protocol):
    """The setting of a bill, as far as it is shown here."""

    @property
    def context(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def weights(self) -> str: ...
    @property
    def device(self) -> str | None: ...


def line(model: str, family: str, setting: CountSetting, numbers: Mapping[str, Number]) -> str:
    """Return one line: the model, its size, and the setting."""
    facts = [family, f"context={setting.context:,}", f"batch={setting.batch:,}", setting.weights]
    facts += [setting.device] if setting.device else []
    if "parameters.total" in numbers:
        facts.insert(1, f"{int(numbers['parameters.total']):,} parameters")
    return f"Bill({model!r}, {', '.join(facts)})"


def main(numbers: Mapping[str, Number]) -> dict[str, Number]:
    """Return the main numbers, as far as there are any."""
    return {path: numbers[path] for path in MAIN if path in numbers}


def text(head: str, numbers: Mapping[str, Number]) -> str:
    """Return the line, with the main numbers below it."""
    shown = main(numbers)
    width = max(map(len, shown), default=0)
    return "\n".join([head, *(f"{path:{width}}  {figure(n.value)}" for path, n in shown.items())])


def html(head: str, numbers: Mapping[str, Number], notes: list[str]) -> str:
    """Return the same as a table, each number with its formula; a long formula is cut, with the full text as its title."""
    rows = []
    for path, n in main(numbers).items():
        full = " = ".join(part for part in (n.symbols, n.filled) if part)
        short = full if len(full) <= MOST else full[:MOST].rpartition(" ")[0] + " …"
        formula = f'<td style="{CELL}" title="{escape(full)}">{escape(short)}</td>'
        value = f'<td style="{CELL};text-align:right">{figure(n.value)}</td>'
        rows.append(f'<tr><th scope="row" style="{CELL}"><code>{escape(path)}</code></th>{value}{formula}</tr>')
    below = "".join(f"<div>{escape(note)}</div>" for note in notes)
    return f"<div><div><code>{escape(head)}</code></div><table>{''.join(rows)}</table>{below}</div>"
