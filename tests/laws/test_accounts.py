"""The account of a cell: its factors and summands have names of the formula, and numbers that give the cell.

60 random cells of every family, 1,000 with PELLUCID_FULL=1: the JSON to 1e-10, the terminal's lines and the numbers put into a formula
as far as their figures go.
"""

import random
import re
from collections.abc import Iterator
from contextlib import ExitStack
from copy import copy
from typing import Any

import pytest
import torch

import pellucid
from formula_functions import UnresolvedError
from formulas import TOKEN, Reader, Run
from kinds import KINDS
from pellucid.documents import cell as cells
from pellucid.documents import summands as puts
from pellucid.documents.cell import Cell, cell_of, document
from pellucid.documents.formula import formula
from pellucid.documents.notation import notes, sentences
from pellucid.documents.summands import HIDDEN, put, template, values
from pellucid.ops.experts import EXPERT
from pellucid.terminal import cell_lines as accounts
from pellucid.terminal.cell_lines import account
from pellucid.watching.records import Seen
from pellucid.watching.terms import Terms
from pellucid.watching.watch import watch
from test_formulas import FULL, MADE, SPECIMENS, read
from tiny import ids, swapped, tiny

CELLS = 1000 if FULL else 60
NAMELESS = {"exp", "inverse", "act", "row", "value", "summand", "factor", "weight", "x", "y", "expert"}
ARITHMETIC = {"max", "min", "e", "cos", "sin", "n", "s", "t", "h"}


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def recorded(cfg: Any, length: int = 9) -> list[Seen]:
    """Return a random model's records with the terms of their cells."""
    model = tiny(cfg)
    given = (ids(2, length),) if cfg.encoder is None else (ids(2, 7, seed=1), ids(2, length))
    with watch(model, inside="reference", terms=True) as seen:
        model(*given)
    return list(seen)


def some(records: list[Seen], count: int, seed: int = 0) -> Iterator[tuple[Seen, Cell]]:
    """Yield about `count` random cells, the same number of each tensor and one at least."""
    draw = random.Random(seed)
    each = -(-count // len(records))
    for s in records:
        for _ in range(each):
            yield s, cell_of(s, ",".join(str(draw.randrange(n)) for n in s.shape))


def strays(s: Seen, dims: dict[str, str]) -> set[str]:
    """Return the names of an account that neither the formula nor its notes have."""
    text = formula(s, dims)
    known = {*words(text), *words(" ".join(sentences(notes(s, dims)))), *(w.rpartition(".")[2] for w in s.inputs)} | ARITHMETIC
    assert s.terms is not None
    account_of_cell = document(cell_of(s, ",".join("0" * len(s.shape))), dims)
    return {w for label in (*account_of_cell["factors"], *account_of_cell["added"]) for w in words(label) - known} | (
        NAMELESS & {*account_of_cell["factors"], *account_of_cell["added"]}
    ) - known


def words(text: str) -> set[str]:
    """Return the names in a text."""
    return {w for w in TOKEN.findall(text) if re.match(r"[A-Za-zμσ]", w)}


def astray(records: list[Seen], count: int = CELLS) -> list[str]:
    """Return a complaint for each cell whose account does not give its number."""
    dims, wrong = {s.path: s.dims for s in records}, []
    for s, c in some(records, count):
        account_of_cell, place = document(c, dims), f"{s.path}{list(c.index)} = {formula(s, dims)}"
        columns = [*account_of_cell["factors"].values()]
        products = [1.0] * len(columns[0]) if columns else []
        for column in columns:
            products = [p * f for p, f in zip(products, column, strict=True)]
        summands = [*products, *account_of_cell["added"].values()]
        if any(x is None for x in (*summands, account_of_cell["value"])):  # an infinity: a key that the mask hides, a token that was cut
            continue
        size = max([1.0, *map(abs, summands)])
        if len(summands) != len(account_of_cell["summands"]) or abs(sum(summands) - c.value) > 1e-10 * size:
            wrong.append(f"{place}: {sum(summands)} is not {c.value}")
        if not abs(filled(s, c) - c.value) <= 1e-9 * size:
            wrong.append(f"{place}: {put(template(s), values(c.terms))} comes to {filled(s, c)}, not {c.value}")
        wrong += [f"{place}: {line}" for line in misprinted(c, dims)]
    return wrong


def filled(s: Seen, c: Cell) -> float:
    """Return the value of the formula with its numbers put in, with all their figures; the cell itself if no formula is filled."""
    text = template(s)
    if text in ("", EXPERT, HIDDEN) or values(c.terms).get("x") == float("-inf"):
        return c.value
    with swapped(puts, "number", repr):
        parts = put(text, values(c.terms)).split(" = ")
    try:
        results = [float(Reader(Run({}, {}, {}), s, p).sum().x) for p in parts if "Σ e^…" not in p]
    except UnresolvedError:  # a number that the terms lack
        return float("nan")
    assert max(results) - min(results) < 1e-9 * max([1.0, *map(abs, results)]), parts
    return results[-1]


def misprinted(c: Cell, dims: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the terminal's account whose numbers do not agree, to the figures that they have."""
    lines = [line.plain for line in account(c, dims, 400)]
    for line in lines:
        if match := re.fullmatch(r" +\d+ +(-?[\d.e-]+(?: +× +-?[\d.e-]+)*) += +(-?[\d.e-]+)", line):
            factors = [float(x) for x in match[1].split("×")]
            product, slack = 1.0, 0.0
            for f in factors:
                slack = slack * (abs(f) + figure(f)) + abs(product) * figure(f)
                product *= f
            if abs(product - float(match[2])) > slack + figure(float(match[2])):
                yield line
    totals = [float(match[1]) for line in lines[-2:] if (match := re.search(r"(?: to|holds) (-?\d[\d.]*(?:e[+-]?\d+)?)", line))]
    if len(totals) == 2 and abs(totals[0] - totals[1]) > 1e-7 * max([1.0, *(abs(x) for _, x in c.rows)]):
        yield lines[-2]


def figure(x: float) -> float:
    """Return the largest rounding error of a printed number: half of its last figure, of a small number half of its second."""
    a = abs(x)
    return max(0.0005 if a < 10 else 0.005 if a < 100 else 0.05 if a < 1000 else 0.5, 0.05 * a if a < 0.0005 or a > 99999 else 0.0) * 1.01


@pytest.mark.parametrize("name", [*MADE, *KINDS])
@pytest.mark.quick(22)
def test_accounts_come_to_their_cells(name: str) -> None:
    records = recorded(MADE[name] if name in MADE else read(name, "plain"))
    assert not (wrong := astray(records)), wrong[:5]
    dims = {s.path: s.dims for s in records}
    assert not (nameless := {(s.path, w) for s in records for w in strays(s, dims)}), nameless


@pytest.mark.parametrize("name", SPECIMENS)
@pytest.mark.quick(4)
def test_accounts_of_specimens(name: str) -> None:
    model = pellucid.load(f"pellucid/{name}", dtype="float64")
    prompt = "The capital of France is [MASK]." if model.config.bidirectional else "The capital of France is"
    records = list(pellucid.trace(model, prompt, 1, inside="reference", terms=True))
    assert not (wrong := astray(records)), wrong[:5]


def test_what_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A softmax has both sides of its quotient, a hidden key its sentence, a choice the expert and its score."""
    records = {s.path: s for s in recorded(MADE["deepseek_v3"])}
    pattern, chosen = records["layers.1.attn.pattern"], records["layers.1.ffn.chosen"]
    hidden, seen = cell_of(pattern, "0,0,2,5"), cell_of(pattern, "0,0,5,2")
    assert put(template(pattern), values(hidden.terms)) == "hidden by the mask"
    assert re.fullmatch(r"e\^\(-?[\d.]+ [−+] [\d.]+\) / Σ e\^… = [\d.e-]+ / [\d.]+", put(template(pattern), values(seen.terms)))
    first = cell_of(chosen, "0,3,0")
    score = float(records["layers.1.ffn.corrected"].value[0, 3, int(first.value)])
    assert put(template(chosen), values(first.terms)) == f"expert {int(first.value)}, score {score:.3f}"
    monkeypatch.setenv("PELLUCID_LANG", "zh")
    corrected = document(cell_of(records["layers.1.ffn.corrected"], "0,3,1"), {})
    assert corrected["factors"] == {} and list(corrected["added"]) == ["layers.1.ffn.affinity".rpartition(".")[2], "correction"]


unbiased = copy(puts.KINDS["layer norm"])
object.__setattr__(unbiased, "template", lambda m: "({x} − {mean}) / {deviation}")

MUTANTS: dict[str, Any] = {
    "a summand that the document forgets": (Terms, "plus", lambda self, **added: self),
    "a product of other rows": (cells, "finite", lambda x: None if x is None else x * 1.001),
    "a template without its bias": (puts, "KINDS", puts.KINDS | {"layer norm": unbiased}),
    "a printed product that is another's": (accounts, "number", lambda x: f"{x + 0.01:.3f}"),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_seen(mutant: str) -> None:
    records = recorded(MADE["gpt2"])
    with ExitStack() as both:
        both.enter_context(swapped(*MUTANTS[mutant]))
        if mutant == "a summand that the document forgets":
            records = recorded(MADE["gpt2"])
        assert astray(records)


def test_a_factor_of_no_name_mutant() -> None:
    """Factors with the names of the op instead of their operands' are seen."""
    records = recorded(MADE["gpt2"])
    dims = {s.path: s.dims for s in records}
    with swapped(cells, "labels", lambda seen, dims: lambda name: name):
        assert {w for s in records for w in strays(s, dims)} >= {"x", "weight", "act"}
