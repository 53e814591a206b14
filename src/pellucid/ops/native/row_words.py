"""The words of a plan that count its rows, so that a plan that was recorded for n rows runs for fewer.

    recorded for 64 rows     rotate  rows 64     norm  rows 896     gate  n 311296     linear_int8  rows 32, then rows 32
    for 40 rows                      rows 40           rows 560           n 194560                  rows 32, then rows 8

A tensor keeps its place, and what lies behind the rows that run is what an earlier step has left there.
"""

from typing import NamedTuple

import numpy as np

from pellucid.ops.native.plan import Plan, Unplannable

HEAD = 3  # words of a call before its fields
ROWS, NUMBERS = "rows", "n"  # a kernel without the former counts the numbers of its rows by the latter


class RowWord(NamedTuple):
    """A word that counts rows. place: among a plan's words.  each: what it counts for one row.

    skipped, most: of the plan's rows those before this call's own, and how many these are. A product may take several calls.
    """

    place: int
    each: int
    skipped: int
    most: int


class RowWords:
    """The words of some of a plan's calls that depend on their number of rows, n when it was recorded.

    Raises Unplannable for a call whose rows are neither a multiple of n, nor a part of n with which a product goes on.
    """

    def __init__(self, plan: Plan, n: int, calls: slice) -> None:
        counting, done = list[RowWord](), 0
        start = sum(len(call.words) // 8 for call in plan.calls[: calls.start])
        product: tuple[str, int] | None = None  # of the call before: its kernel and weight
        for call in plan.calls[calls]:
            words, fields = np.frombuffer(call.words, np.int64), call.op.fields
            name = ROWS if ROWS in fields else NUMBERS
            if name not in fields:
                raise Unplannable("plan.rows", op=call.op.name, rows=0, n=n)
            place = HEAD + fields.index(name)
            count, own = int(words[place]), (call.op.name, int(words[HEAD + fields.index("w")])) if "w" in fields else None
            if count % n == 0:
                counting.append(RowWord(start + place, count // n, 0, n))
                done = 0
            else:
                done = done if own == product and done < n else 0
                if own is None or done + count > n:
                    raise Unplannable("plan.rows", op=call.op.name, rows=count, n=n)
                counting.append(RowWord(start + place, 1, done, count))
                done += count
            product, start = own, start + len(words)
        self.words = np.ctypeslib.as_array(plan.words).view(np.int64)
        self.places, self.each, self.skipped, self.most = np.array(counting, np.int64).T
        self.rows = n

    def set(self, rows: int) -> None:
        """Let the plan run for this number of rows, from the first on."""
        if rows != self.rows:
            self.words[self.places] = np.clip(rows - self.skipped, 0, self.most) * self.each
            self.rows = rows
