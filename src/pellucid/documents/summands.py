"""The terms of a cell as people read them: factors and added numbers by the names of their operands, and numbers put into the formula.

scores     q · k · scale         (0.310·-1.200 + 0.500·0.200 + … ) / √32
pattern    e^(3.139 − 3.139) / Σ e^… = 1.000 / 1.101
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress

from pellucid.documents.formula import BROKEN, RecordOperands
from pellucid.documents.number import number
from pellucid.messages import say
from pellucid.ops.experts import EXPERT
from pellucid.ops.gate import E_NUMBERS
from pellucid.ops.kinds import KINDS, Label, plain, scale_label
from pellucid.watching.records import Seen
from pellucid.watching.terms import Terms

# The labels of terms that all ops share; an op's own labels stand in its OpKind.
LABELS: dict[str, Label] = {
    "x": lambda m: m.x,
    "y": lambda m: m.inputs[1],
    "weight": lambda m: m.weights[0],
    "bias": lambda m: m.biases[0] if m.biases else "bias",
    "scale": scale_label,
}
ADAPTED = re.compile(r"addition (\d+)")

HIDDEN = "formula.hidden"


def labels(seen: Seen, dims: Mapping[str, str]) -> Callable[[str], str]:
    """Return the function that labels an op's factors and summands: "weight" of a product is W_q."""
    made, kind = RecordOperands(seen, dims), KINDS.get(seen.op or "")

    def label(name: str) -> str:
        if (match := ADAPTED.fullmatch(name)) is not None:
            return made.additions[int(match[1])]
        write = (kind and kind.labels.get(name)) or LABELS.get(name)
        with suppress(*BROKEN):
            return name if write is None else write(made)
        return name

    return label


def template(seen: Seen) -> str:
    """Return the template for the numbers of a record's cells; "" if its products say it all."""
    kind = KINDS.get(seen.op or "")
    with suppress(*BROKEN):
        return kind.template(RecordOperands(seen, {})) if kind is not None and kind.template is not None else ""
    return ""


def needed(text: str) -> list[str]:
    """Return the names of the numbers that a template needs."""
    return ["expert", "score"] if text == EXPERT else re.findall(r"\{(\w+)\}", text)


def values(terms: Terms) -> dict[str, float]:
    """Return the numbers of a cell by the names of its op: factors of one row, added numbers, and what the terms are about."""
    return {name: float(f[0]) for name, f in terms.factors.items() if len(f) == 1} | terms.added | terms.about


def put(text: str, numbers: Mapping[str, float]) -> str:
    """Fill a template with its numbers, as people read them."""
    texts = {name: number(x) for name, x in numbers.items()}
    if text == E_NUMBERS and numbers.get("x") == float("-inf"):
        return say(HIDDEN)
    if text == EXPERT:
        return say("formula.expert", expert=plain(numbers["expert"]), score=texts["score"])
    written = re.sub(r"\{(\w+)\}", lambda match: texts.get(match[1], "…"), text)
    return written.replace("+ -", "− ").replace("− -", "+ ")
