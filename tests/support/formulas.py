"""A reader of formulas: computes the value of a record's text from the text and the tensors that its names mean, and from nothing else.

The text is shown to people. Its grammar is sums, products, quotients, a raised ᵀ for a product of rows and columns, names of operands, and
the functions of formula_functions.py. Nothing here calls an op of the model, and no terms of an op are read.

Tensors carry their axes' letters. An operand's row T is a key's row S where a transposed operand stands beside a query; heads G are
repeated for heads H; N rows are the rows of a token's chosen experts, sorted by expert.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from formula_functions import FAR, FUNCTIONS, Named, UnresolvedError, named, pair, repeated, spelt
from pellucid.axes import parse, show
from pellucid.watching.records import Seen

TOKEN = re.compile(r"\s*(Σ_[A-Z]|[A-Za-z](?:[A-Za-z0-9_]|\.(?=[A-Za-z0-9]))*|\d+(?:\.\d+)?(?:e[+-]?\d+)?|[μσᵀₙ√·/+−()\[\]|,:⌊⌋≤<=-])")

WITHIN = dict.fromkeys(("attend", "attend latent"), ("pattern", "v")) | dict.fromkeys(("delta rule", "ssd", "selective scan"), ("state",))


@dataclass
class Run:
    """A model's tensors of one forward: its records by path, its weights with their axes, its inputs."""

    records: Mapping[str, Seen]
    weights: Mapping[str, tuple[Tensor, str]]
    ids: Mapping[str, Tensor]  # of "source" and "embed", by the record that looks them up
    types: Tensor | None = None
    kv_cache: Mapping[str, list[Seen]] = field(default_factory=dict)  # the records of earlier steps, by path
    before: int = 0  # rows in the cache before this step


@dataclass
class Reader:
    """One record's text, read from left to right."""

    run: Run
    seen: Seen
    text: str
    at: int = 0
    words: list[str] = field(default_factory=list)
    signs: set[str] = field(default_factory=set)  # names that are no operand and no weight: the legend must explain them

    def __post_init__(self) -> None:
        end = 0
        while self.text[end:].strip():
            token = TOKEN.match(self.text, end)
            if token is None:
                raise UnresolvedError(f"{self.text!r} at {end}")
            self.words.append(token[1])
            end = token.end()

    def peek(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def take(self, *wanted: str) -> str:
        word = self.peek()
        if wanted and word not in wanted:
            raise UnresolvedError(f"{self.text!r}: {word!r} where one of {wanted} belongs")
        self.at += 1
        return word

    def value(self) -> Tensor:
        """Return the value of the text, as a tensor of the record's shape."""
        result = self.sum()
        if self.peek():
            raise UnresolvedError(f"{self.text!r}: {self.peek()!r} is left")
        return self.shaped(result)

    def shaped(self, result: Named) -> Tensor:
        want = tuple(show(a) for a in parse(self.seen.dims))
        if set(result.axes) == set(want):
            return result.over(want)
        if want[0] == "B" and result.axes in (want[1:], want[2:]):  # the same for every text of the batch, or for every token
            return result.x.expand(self.seen.shape)
        return result.x.reshape(self.seen.shape)  # a product's last axis (H K), as heads and their width

    # Sums, products, factors

    def sum(self) -> Named:
        sign = self.take() if self.peek() in ("−", "-") else "+"
        total = self.product()
        total = Named(-total.x, total.axes) if sign != "+" else total
        while self.peek() in ("+", "−"):
            sign, other = self.take(), self.product()
            total = self.joined(total, other)
            other = self.joined(other, total)
            if "S" in total.axes and "S" not in self.seen.dims.split():  # an encoder's rows, which a decoder calls S
                total = Named(total.x, tuple("T" if a == "S" else a for a in total.axes))
            a, b, axes = pair(total, other)
            total = Named(a + b if sign == "+" else a - b, axes)
        return total

    def joined(self, a: Named, b: Named) -> Named:
        """Return `a`, its last axis split as b's last two if it is their flat form."""
        if not a.axes or a.axes[-1] in b.axes or len(b.axes) < 2:
            return a
        if a.axes[-1] == f"({b.axes[-2]}×{b.axes[-1]})":
            return Named(a.x.unflatten(-1, b.x.shape[-2:]), (*a.axes[:-1], *b.axes[-2:]))
        return a

    def product(self) -> Named:
        total = self.factor()
        while self.peek() in ("·", "/"):
            sign = self.take()
            other = self.factor()
            total = self.times(total, other) if sign == "·" else self.over(total, other)
        return total

    def over(self, a: Named, b: Named) -> Named:
        x, y, axes = pair(a, b)
        return Named(x / y, axes)

    def times(self, a: Named, b: Named) -> Named:
        """Multiply cell by cell; row by column if `b` is transposed, or if a's columns are b's rows."""
        if b.axes and b.axes[-1] == "ᵀ":
            return self.matrix(a, Named(b.x, b.axes[:-1], b.path))
        if a.axes and a.axes[-1] == "S" and "S" not in b.axes and "T" in b.axes:
            b = self.stored(b)
            b = Named(b.x, tuple("S" if x == "T" else x for x in b.axes))
        if a.axes and a.axes[-1] == "S" and b.axes and b.axes[-1] != "S":
            return self.mixed(a, b)
        if "A" in a.axes and "N" in b.axes:
            b = self.by_token(b)
        if "A" in a.axes and "N" in self.seen.dims.split():
            a, b = self.by_expert(a), self.by_expert(b)
        x, y, axes = pair(a, self.joined(b, a))
        return Named(x * y, axes)

    def mixed(self, a: Named, b: Named) -> Named:
        """Mix values `b` [B S G W] by shares `a` [B H T S]."""
        b = repeated(b, a.x.shape[a.axes.index("H")])
        return Named(torch.einsum("bhts,bshw->bthw", a.over(("B", "H", "T", "S")), b.x), ("B", "T", "H", b.axes[-1]))

    def matrix(self, a: Named, b: Named) -> Named:
        """Multiply `a` by the transposed `b`: over a weight's last axis, or queries with keys."""
        if "B" in b.axes:  # keys
            heads, b = a.x.shape[a.axes.index("H")], self.stored(b)
            b = repeated(Named(b.x, tuple("S" if x == "T" else x for x in b.axes)), heads)
            if b.axes == ("B", "S", b.axes[-1]):
                b = Named(b.x[:, :, None].expand(-1, -1, heads, -1), ("B", "S", "H", b.axes[-1]))
            return Named(torch.einsum("bthk,bshk->bhts", a.over(("B", "T", "H", a.axes[-1])), b.x), ("B", "H", "T", "S"))
        if b.axes[:2] == ("T", "S"):  # a key for each distance
            width = a.x.shape[-1]
            keys = b.x.unflatten(-1, (-1, width))
            return Named(torch.einsum("bthk,tshk->bhts", a.x, keys), ("B", "H", "T", "S"))
        if b.axes[0] == "N":  # each row its expert's matrix
            return Named(torch.einsum("ni,noi->no", a.x, b.x), ("N", b.axes[1]))
        a = self.stored(a) if "S" in self.seen.dims.split() and a.path in self.run.kv_cache else a
        rows, lead = a.x, list(a.axes)
        while rows.shape[-1] < b.x.shape[-1]:
            rows, lead = rows.flatten(-2), lead[:-1]
        return Named(rows @ b.x.T, (*lead[:-1], b.axes[0]))

    def factor(self) -> Named:
        value = self.atom()
        while self.peek() in ("ᵀ", "["):
            if self.take() == "ᵀ":
                value = Named(value.x, (*value.axes, "ᵀ"), value.path)
            else:
                value = self.indexed(value)
                self.take("]")
        return value

    def atom(self) -> Named:
        word = self.take()
        if re.fullmatch(r"[\d.]+(e[+-]?\d+)?", word):
            return Named(torch.tensor(float(word), dtype=torch.float64))
        if word == "(":
            value = self.sum()
            self.take(")")
            return value
        if word == "√":
            value = self.atom()
            return Named(value.x.sqrt(), value.axes)
        if word == "|":
            value = self.sum()
            self.take("|")
            return Named(value.x.abs(), value.axes)
        if word == "⌊":
            value = self.sum()
            self.take("⌋")
            return Named(value.x.floor(), value.axes)
        if word.startswith("Σ_"):
            self.signs.add(word)
            return self.product_of_sum(word[2:])
        if word in ("−", "-"):
            value = self.atom()
            return Named(-value.x, value.axes)
        if self.peek() == "(" and word in FUNCTIONS:
            self.signs.add(word)
            self.take("(")
            given = [self.sum()]
            while self.peek() == ",":
                self.take()
                given.append(self.sum())
            self.take(")")
            return FUNCTIONS[word](self, *given)
        return self.name(word)

    def product_of_sum(self, letter: str) -> Named:
        """Return Σ over `letter` of the product behind it, up to the next quotient."""
        total = self.factor()
        while self.peek() == "·":
            self.take()
            total = self.times(total, self.factor())
        if "N" in total.axes:
            total = self.by_token(total)
        at = total.axes.index(letter)
        return Named(total.x.sum(at), total.axes[:at] + total.axes[at + 1 :])

    # Names

    def name(self, word: str) -> Named:
        """Return the value of a name: an operand, a weight, a size, a position, or a setting of the record."""
        own = self.seen.settings
        paths = [p for p in self.seen.inputs if p == word or p.endswith(f".{word}")]
        if len(set(paths)) > 1:
            raise UnresolvedError(f"{self.seen.path}: {word} is {paths}")
        if paths:
            return self.record(paths[0])
        if weights := sorted({p for p in self.seen.weights if word in spelt(p)}):
            if len(weights) > 1:
                raise UnresolvedError(f"{self.seen.path}: {word} is {weights}")
            return named(*self.run.weights[weights[0]])
        if word in WITHIN.get(self.seen.op, ()):
            return self.record(f"{self.seen.path.rpartition('.')[0]}.{word}")
        self.signs.add(word)
        if word in ("t", "s"):
            return self.places(word)
        if word == "h":
            return Named(torch.arange(self.size("H")), ("H",))
        if word == "id":
            return Named(self.run.ids.get(self.seen.path, self.run.ids["embed"]), ("B", "S" if " S " in self.seen.dims else "T"))
        if word == "type":
            return Named(self.run.types if self.run.types is not None else torch.zeros_like(self.run.ids["embed"]), ("B", "T"))
        if word in ("μ", "σ"):
            x = self.record(self.seen.inputs[0]).x
            moment = x.mean(-1) if word == "μ" else (x.var(-1, unbiased=False) + own["eps"]).sqrt()
            return Named(moment, self.record(self.seen.inputs[0]).axes[:-1])
        if word == "m" and "slopes" in own:
            return Named(torch.tensor(own["slopes"], dtype=torch.float64), ("H",))
        if word == "mask" and own.get("mask"):
            return self.mask(own["mask"])
        if word == "scale" and "scale" in own:
            return Named(torch.tensor(own["scale"], dtype=torch.float64))
        if word in ("H", "K"):
            return Named(torch.tensor(float(self.size(word)), dtype=torch.float64))
        raise UnresolvedError(f"{self.seen.path}: {word} in {self.text!r}")

    def record(self, path: str) -> Named:
        s = self.run.records[path]
        tensor = named(s.value, s.dims)
        return Named(tensor.x, tensor.axes, path)

    def stored(self, x: Named) -> Named:
        """Return keys or values of all steps so far, in the order of their rows."""
        rows = self.seen if "S" in self.seen.dims.split() else self.run.records[f"{self.seen.path.rpartition('.')[0]}.pattern"]
        if "T" not in x.axes or x.x.shape[1] == rows.shape[rows.dims.split().index("S")]:
            return x
        return Named(torch.cat([*(s.value.double() for s in self.run.kv_cache[x.path]), x.x], 1), x.axes, x.path)

    def size(self, letter: str) -> int:
        """Return the size of an axis of the record or of an operand."""
        for s in (self.seen, *(self.run.records[p] for p in self.seen.inputs)):
            if letter in s.dims.split():
                return s.shape[s.dims.split().index(letter)]
        raise UnresolvedError(f"{self.seen.path}: {letter}")

    def places(self, word: str) -> Named:
        letter = "S" if word == "s" or " T" not in f" {self.seen.dims}" else "T"
        first = self.run.before if letter == "T" else 0
        return Named(torch.arange(first, first + self.size(letter), dtype=torch.float64), (letter,))

    def mask(self, condition: str) -> Named:
        """Return 0 where the condition holds, −∞ elsewhere."""
        if condition == "chosen":
            path = next(p for p in self.seen.inputs if p.endswith(".chosen"))
            x = self.record(path)
            return Named(torch.where(x.x, 0.0, FAR).double(), x.axes)
        t, s = (self.places(w).over(("T", "S")) for w in "ts")
        holds = torch.ones(t.shape[0], s.shape[1], dtype=torch.bool)
        for part in re.split(r" and ", condition):
            met = torch.zeros_like(holds)
            for either in part.strip("()").split(" or "):
                left, sign, right = re.fullmatch(r"(.+?) (≤|<|=) (.+)", either).groups()  # type: ignore[union-attr]
                a, b = (Reader(self.run, self.seen, side).sum().over(("T", "S")) for side in (left, right))
                met = met | (a <= b if sign == "≤" else a < b if sign == "<" else a == b)
            holds = holds & met
        return Named(torch.where(holds, 0.0, FAR).double(), ("T", "S"))

    def indexed(self, x: Named) -> Named:
        """Index `x` by the brackets: a row by number, channels of a sum of axes, rows of a token's experts, the last row."""
        if self.peek() == "tₙ" or (self.peek() == "t" and self.words[self.at + 1] == "ₙ"):
            self.at += 2
            self.signs.add("tₙ")
            token, _ = self.sorted()
            return Named(x.x.flatten(0, 1)[token], ("N", *x.axes[2:]))
        if self.peek() == "e" and self.words[self.at + 1] == "ₙ":
            self.at += 2
            self.signs.add("eₙ")
            _, expert = self.sorted()
            return Named(x.x[expert], ("N", *x.axes[1:]))
        if self.peek() in ("−", "-"):
            self.take(), self.take("1")
            self.signs.add("[−1]")
            return Named(x.x[0, -1], x.axes[2:])
        if ":" in self.words[self.at : self.at + 2]:
            first = self.take() != ":"
            letter = self.words[self.at - 1] if first else self.take()
            if first:
                self.take(":")
            return self.channels(x, letter, first)
        given = [self.sum()]
        while self.peek() == ",":
            self.take()
            given.append(self.sum())
        if len(given) == 2:
            rows, heads = given
            return Named(x.x[rows.over(("T", "S")).long()][..., heads.x], ("T", "S", "H"))
        if x.axes[-1] == "E" and len(x.axes) > 1:  # affinities of the chosen
            return Named(x.x.gather(-1, given[0].x), (*x.axes[:-1], "A"))
        return Named(x.x[given[0].x.long()], (*given[0].axes, *x.axes[1:]))

    def channels(self, x: Named, letter: str, rest: bool) -> Named:
        """Return the first or the last summand of an axis that is a sum: q[:K] of "K+R", rows W_kv_b[K:] of "(H×(K+W))"."""
        at = next((i for i, a in enumerate(x.axes) if "+" in a), None)
        if at is None:
            raise UnresolvedError(f"{self.text!r}: no axis of {x.axes} is a sum")
        summed = re.search(r"([A-Z])\+([A-Z])", x.axes[at])
        assert summed is not None and summed[1] == letter
        first, second = (summed[1], summed[2])
        if "×" not in x.axes[at]:
            n = self.width(first, second, x.x.shape[at])
            out = x.x.narrow(at, n, x.x.shape[at] - n) if rest else x.x.narrow(at, 0, n)
            return Named(out, (*x.axes[:at], second if rest else first, *x.axes[at + 1 :]))
        heads = self.seen.shape[self.seen.dims.split().index("H")]
        per = x.x.unflatten(at, (heads, -1))
        mine = self.seen.shape[-1]
        per = per.narrow(at + 1, per.shape[at + 1] - mine, mine) if rest else per.narrow(at + 1, 0, mine)
        return Named(per.flatten(at, at + 1), (f"(H×{second if rest else first})", *x.axes[at + 1 :]))

    def width(self, first: str, second: str, total: int) -> int:
        """Return the size of the first of two summands, from a tensor of the record that has one of them alone."""
        for s in (self.seen, *(self.run.records[p] for p in self.seen.inputs)):
            for letter, size in zip(s.dims.split(), s.shape, strict=True):
                if letter in (first, second):
                    return size if letter == first else total - size
        raise UnresolvedError(f"{self.seen.path}: how wide {first} is")

    # Rows by expert

    def sorted(self) -> tuple[Tensor, Tensor]:
        """Return the token and the expert of each row by expert."""
        chosen = self.chosen()
        order = chosen.flatten().argsort(stable=True)
        token = order // chosen.shape[-1]
        assert self.seen.rows is None or torch.equal(token, self.seen.rows)
        return token, chosen.flatten()[order]

    def chosen(self) -> Tensor:
        if "N" not in self.seen.dims.split():
            return self.combined_choice()
        return self.run.records[self.seen.path.rpartition(".")[0] + ".chosen"].value

    def combined_choice(self) -> Tensor:
        """Return the choice of the part whose rows are combined by token here."""
        part = next(p for p in self.seen.inputs if p.endswith(".down")).rpartition(".")[0]
        x: Tensor = self.run.records[f"{part}.chosen"].value
        return x

    def by_token(self, x: Named) -> Named:
        """Return rows by expert as rows of tokens and their choices [B T A …]."""
        chosen = self.chosen()
        back = chosen.flatten().argsort(stable=True).argsort()
        return Named(x.x[back].unflatten(0, tuple(chosen.shape)), ("B", "T", "A", *x.axes[1:]))

    def by_expert(self, x: Named) -> Named:
        """Return rows of tokens and their choices as rows by expert."""
        if "N" in x.axes or "A" not in x.axes:
            return x
        order = self.chosen().flatten().argsort(stable=True)
        return Named(x.x.flatten(0, 2)[order], ("N", *x.axes[3:]))


def evaluated(run: Run, seen: Seen, text: str) -> Tensor:
    """Return the value of a record's text, of the record's shape."""
    return Reader(run, seen, text).value()


def signs(run: Run, seen: Seen, text: str) -> set[str]:
    """Return the names and functions of a text that are no operand, no weight and no arithmetic."""
    reader = Reader(run, seen, text)
    reader.value()
    return reader.signs - {"min", "max", "tanh", "ln"}
