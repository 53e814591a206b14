"""Direct attribution: a cell of any recorded tensor as the sum of the contributions of what it was made of.

    logit = row of the head · norm(start + head 0 of block 0 + head 1 + ... + ffn of the last block) + bias

A norm divides by a scale that depends on all parts. With the scale of this run constant the norm is linear, and the logit is a sum over
parts; so is every other cell, with the attention pattern and the gates of this run constant too (`walk_back`). A score is the product of
two sums, a query's and a key's: its parts are pairs.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pellucid.analysis.lens import plain, row_of
from pellucid.analysis.walk_back import PartKey, Walk
from pellucid.api.trace import traced
from pellucid.arguments import checked
from pellucid.axes import index_of
from pellucid.engine.requests import check_ids
from pellucid.errors import UseError
from pellucid.tracing import Trace, module_of
from pellucid.watching.records import Seen

LETTERS = "HSEF"  # what parts may be split by


@dataclass(frozen=True)
class Share:
    """A tensor's contribution to a cell. of: the tensor, and what of it.  key: of a part of a score, the key's; `of` is the query's."""

    of: PartKey
    value: float
    key: PartKey | None = None

    @property
    def path(self) -> str:
        """Return the tensor's path."""
        return self.of.path

    @property
    def row(self) -> int | None:
        """Return the tensor's position in the text, None for a weight."""
        return self.of.row

    @property
    def head(self) -> int | None:
        """Return the head of the part, None for all."""
        return self.of.head

    @property
    def source(self) -> int | None:
        """Return the position that the head reads, None for all."""
        return self.of.source

    @property
    def expert(self) -> int | None:
        """Return the expert of the part, None for all."""
        return self.of.expert


@dataclass
class Attribution:
    """A cell and its parts. path: its tensor's; of a logit with a soft cap, the cap's input.  value: the number.

    parts: heads, feed-forward parts, experts, neurons, or pairs of a score.  rest: all other summands: embedding, positions, biases, ends.
    constant: what was taken as constant: "norm" scales, attention's "pattern", "gate" factors, the choice of "experts".
    """

    path: str
    value: float
    parts: list[Share] = field(default_factory=list)
    rest: list[Share] = field(default_factory=list)
    constant: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """Return the sum of all parts, the value up to rounding."""
        return sum(s.value for s in (*self.parts, *self.rest))

    def largest(self, count: int) -> list[Share]:
        """Return the `count` shares of largest size, of parts and rest."""
        return sorted((*self.parts, *self.rest), key=lambda s: -abs(s.value))[:count]


@checked
def attribution(
    model: Any,
    trace: Trace | str,
    id: int | str | None = None,
    step: int = 0,
    row: int = -1,
    value: Callable[[Seen], Tensor] = plain,
    cell: tuple[str, str | Sequence[int] | Tensor] | None = None,
    by: Iterable[str] = "H",
) -> Attribution:
    """Return the parts of a token's logit in one row of a step, or of any cell; sums are taken in float64.

    trace: a trace, or a text or ids, which are then traced.
    id: of the token, or its text, which must be one token.  cell: in place of `id` and `row`, a path and an index: ("layers.1.out", "4,7").
    by: letters of what parts are split by: H heads, S positions read, E experts, F neurons. The part that a cell is in is split by all.
    value: returns the value of a record that has dropped it.
    """
    letters = set(by)
    if not letters <= set(LETTERS):
        raise UseError("attribution.by", found=" ".join(sorted(letters)), allowed=" ".join(LETTERS))
    if (id is None) == (cell is None):
        raise UseError("attribution.cell")
    trace = traced(model, trace)
    records = [s for s in trace if s.step <= step]
    here = {s.path: s for s in reversed(records) if s.step == step}
    if cell is not None:
        seen = here.get(cell[0]) or trace.all(cell[0])[0]
        place = index_of(seen.path, seen.dims, seen.shape, cell[1])
    else:
        token = one_id(model, id) if isinstance(id, str) else int(id or 0)
        if "logits" not in here:
            raise UseError("lens.missing", path="logits") if model.config.head else UseError("lens.head", model=model.name)
        seen = here["uncapped"] if "uncapped" in here else here["logits"]
        check_ids([token], seen.shape[2])
        place = (0, row_of(row, seen), token)
        if here["logits"].source != "edited" and not all(path in here for path in seen.inputs):
            raise UseError("lens.missing", path=seen.inputs[0])
    with torch.no_grad():
        return attributed(module_of(model), records, seen, place, value, letters)


def attributed(
    module: Any, records: Sequence[Seen], seen: Seen, place: Sequence[int], value: Callable[[Seen], Tensor], by: Iterable[str]
) -> Attribution:
    """Return the parts of the cell of a record at `place`."""
    result = Attribution(seen.path, float(value(seen)[tuple(place)]))
    axes = seen.dims.split()
    if seen.op == "last row" and (logits := next((s for s in records if (s.step, s.path) == (seen.step, seen.inputs[0])), None)):
        return attributed(module, records, logits, (0, logits.shape[1] - 1, *place), value, by)
    if seen.op == "scores" and seen.source != "edited" and (pairs := score_parts(module, records, seen, place, value, by)) is not None:
        return pairs
    if axes[0] not in "BN" or axes[1:2] == ["H"] or (axes[0] == "B" and len(axes) < 3) or not value(seen).is_floating_point():
        result.rest.append(Share(PartKey(seen.path), result.value))  # a pattern, a choice: linear in nothing
        return result
    at = 1 if axes[0] == "B" else 0
    shape = seen.shape[at + 1 :]
    g = torch.zeros(1, 1, *shape, dtype=torch.float64)
    g[(0, 0, *place[at + 1 :])] = 1.0
    walk = Walk(module, records, value, by)
    walk.start(seen, torch.tensor([place[at]]), g.flatten(2))
    result.parts = [Share(of, float(x)) for of, x in walk.parts.items()]
    result.rest = [Share(of, float(x)) for of, x in walk.rest.items()]
    result.constant = tuple(walk.constant)
    return result


def score_parts(
    module: Any, records: Sequence[Seen], seen: Seen, place: Sequence[int], value: Callable[[Seen], Tensor], by: Iterable[str]
) -> Attribution | None:
    """Return the parts of a score: scale · a part of the query · a part of the key, for each pair, inside a soft cap if there is one.

    None if a query or a key was not recorded. A latent attention has two products, whose sum is one product of longer rows.
    """
    _, head, t, s = place
    at = {(one.step, one.path): one for one in reversed(records)}
    half = len(seen.inputs) // 2
    walks = Walk(module, records, value, by), Walk(module, records, value, by)
    sides: list[dict[PartKey, Tensor]] = []
    made = [one for path in seen.inputs if (one := at.get((seen.step, path)) or newest(records, path)) is not None]
    if half == 0 or len(made) < len(seen.inputs):
        return None
    widths = [one.shape[-1] for one in made[half:]]
    for walk, ones, row, keys in ((walks[0], made[:half], t, False), (walks[1], made[half:], s, True)):
        start = 0
        for one, width in zip(ones, widths, strict=True):
            heads = one.shape[2] if len(one.shape) == 4 else 1
            g = torch.zeros(sum(widths), 1, heads, one.shape[-1], dtype=torch.float64)
            n = torch.arange(width)
            g[start + n, 0, head * heads // seen.shape[1], n] = 1.0
            if not keys:
                walk.back(one, torch.tensor([row]), g.flatten(2))
            elif (stored := walk.stored(one, seen.shape[3])) is None:
                return None
            else:
                for record, own, numbers in stored:
                    if (hit := (numbers == row).nonzero()[:, 0]).numel():
                        walk.back(record, own[hit], g.flatten(2))
            start += width
        sides.append(walk.parts | walk.rest)
    queries, keys_ = (torch.stack(list(side.values())) for side in sides)  # [P N], [Q N]
    products = queries @ keys_.T * float(seen.settings["scale"])
    raw, score = float(products.sum()), float(value(seen)[tuple(place)])
    constant = dict.fromkeys([*walks[0].constant, *walks[1].constant])
    if (cap := seen.settings.get("cap")) is not None:
        capped = cap * float(torch.tanh(torch.tensor(raw / cap, dtype=torch.float64)))
        products, raw = products * (capped / raw if raw else 1.0), capped
        constant["gate"] = None
    pairs = [Share(q, float(products[i, j]), k) for i, q in enumerate(sides[0]) for j, k in enumerate(sides[1])]
    result = Attribution(seen.path, score, pairs, [], tuple(constant))
    if seen.weights or seen.settings.get("slopes") is not None:  # what depends on the distance alone
        result.rest.append(Share(PartKey(seen.weights[0] if seen.weights else seen.path), score - raw))
    return result


def newest(records: Sequence[Seen], path: str) -> Seen | None:
    """Return the last record of a path. None if there is none: keys of an encoder's rows are made in the first step alone."""
    return next((one for one in reversed(records) if one.path == path), None)


def one_id(model: Any, text: str) -> int:
    """Return the id of a text that is one token. A UseError if it is not."""
    ids = model.tokenizer.encode(text, special=False)
    if len(ids) != 1:
        raise UseError("attribution.token", text=text, count=len(ids))
    return int(ids[0])
