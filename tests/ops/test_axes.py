"""The legend of axis letters: the check of shapes, the words for each letter, and every label in the code."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid import axes
from pellucid.axes import LEGEND, bind, letters, parse, show
from pellucid.errors import ShapeError

ROOT = Path(__file__).parents[2]
SUM = r"(?:[A-Z]|\d+)(?:\+(?:[A-Z]|\d+))*"
PRODUCT = rf"\((?:{SUM}|\({SUM}\))(?: (?:{SUM}|\({SUM}\)))*\)"
LABEL = re.compile(rf"(?:{SUM}|{PRODUCT})(?: (?:{SUM}|{PRODUCT}))*")


def test_letters_are_unique() -> None:
    assert len(set(LEGEND)) == len(LEGEND)
    assert all(re.fullmatch("[A-Z]", letter) for letter in LEGEND)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_letter_has_words(language: str) -> None:
    messages = json.loads((ROOT / f"src/pellucid/messages/{language}.json").read_text(encoding="utf-8"))
    assert {key for key in messages if key.startswith("axis.")} == {f"axis.{letter}" for letter in LEGEND}
    meanings = [messages[f"axis.{letter}"] for letter in LEGEND]
    assert len(set(meanings)) == len(meanings)


@pytest.mark.parametrize(
    ("dims", "parsed"),
    [
        ("B T D", ((("B",),), (("T",),), (("D",),))),
        ("K+R", ((("K", "R"),),)),
        ("(H (K+R)) Q", ((("H",), ("K", "R")), (("Q",),))),
        ("D (H K)", ((("D",),), (("H",), ("K",)))),
        ("(C+R) D", ((("C", "R"),), (("D",),))),
        ("B T 1 R", ((("B",),), (("T",),), (("1",),), (("R",),))),
    ],
)
def test_parse(dims: str, parsed: Any) -> None:
    assert parse(dims) == parsed


def test_show() -> None:
    assert [show(axis) for axis in parse("(H (K+R)) K+R D")] == ["H×(K+R)", "K+R", "D"]
    assert letters("(H (K+R)) 1 Q") == set("HKRQ")


def test_bind_learns_and_holds() -> None:
    sizes = {"K": 16}
    bind("q", "B T H K+R", (1, 7, 4, 24), sizes)
    assert sizes == {"B": 1, "T": 7, "H": 4, "K": 16, "R": 8}
    bind("q_b", "(H (K+R)) Q", (96, 5), sizes)
    assert sizes["Q"] == 5
    bind("empty", "B S", (1, 0), sizes)  # no token seen is a size, too


@pytest.mark.parametrize(
    ("dims", "shape", "sizes", "key"),
    [
        ("B T D", (1, 7), {}, "shape.count"),
        ("B T", (1, 7, 8), {}, "shape.count"),
        ("B T D", (1, 7, 8), {"T": 6}, "shape.size"),
        ("(H K) D", (65, 8), {"H": 4, "K": 16}, "shape.size"),
        ("(H (K+R)) D", (95, 8), {"H": 4, "K": 16, "R": 8}, "shape.size"),
        ("T T", (3, 4), {}, "shape.size"),
        ("B 1", (2, 2), {}, "shape.size"),
        ("K+R", (16,), {"K": 16}, "shape.rest"),
        ("K+R", (12,), {"K": 16}, "shape.rest"),
    ],
)
def test_misfit_is_named(dims: str, shape: tuple[int, ...], sizes: dict[str, int], key: str) -> None:
    with pytest.raises(ShapeError) as caught:
        bind("layers.0.attn.q", dims, shape, dict(sizes))
    assert caught.value.key == key
    assert "layers.0.attn.q" in str(caught.value)
    assert str(shape) in str(caught.value)


NAMES = st.lists(st.sampled_from(LEGEND), min_size=1, max_size=3, unique=True)


@given(st.lists(st.lists(NAMES, min_size=1, max_size=2), min_size=1, max_size=4), st.data())
def test_known_sizes_fit_and_any_other_does_not(factors: list[list[list[str]]], data: st.DataObject) -> None:
    """A shape computed from the letters' sizes binds; one axis made longer is refused and named."""
    sizes = {letter: data.draw(st.integers(1, 9)) for axis in factors for factor in axis for letter in factor}
    words, shape = [], []
    for axis in factors:
        sums = ["+".join(f) for f in axis]
        words.append(sums[0] if len(sums) == 1 else "(" + " ".join(f"({s})" if "+" in s else s for s in sums) + ")")
        n = 1
        for factor in axis:
            n *= sum(sizes[letter] for letter in factor)
        shape.append(n)
    dims = " ".join(words)
    bind("x", dims, shape, dict(sizes))
    at = data.draw(st.integers(0, len(shape) - 1))
    shape[at] += 1
    with pytest.raises(ShapeError):
        bind("x", dims, shape, dict(sizes))


def fault(dims: str, tensor: bool = True) -> str:
    """Return a label's fault, or "": its grammar, an unknown letter, or a tensor's letter that occurs twice."""
    if not LABEL.fullmatch(dims):
        return "is not axes of letters, sums and products"
    if strange := letters(dims) - set(LEGEND):
        return f"has {sorted(strange)[0]}, which the legend lacks"
    return "has a letter twice" if tensor and sum(c.isalpha() for c in dims) != len(letters(dims)) else ""


def text_of(node: ast.AST) -> str | None:
    """Return a literal's text, with a new letter for each value of an f-string; None for anything else."""
    if isinstance(node, ast.JoinedStr):
        constant = "".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values)
        name, sign, dims = constant.partition(": ")
        constant = name.replace("\0", "x") + sign + dims if sign else constant  # a name that is put in is a path
        free = (letter for letter in LEGEND if letter not in constant.rpartition(": ")[2])
        return re.sub("\0", lambda _: next(free), constant)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def labels(package: Path) -> Iterator[tuple[str, str | None, str]]:
    """Yield place, name (None in a table of weights) and axes of every `tap(x, "name: axes")` and every entry of an `axes` table."""
    for file in sorted(package.rglob("*.py")):
        text, name = file.read_text(encoding="utf-8"), file.relative_to(package)
        for node in ast.walk(ast.parse(text)) if re.search(r"\btap\(|\baxes\b", text) else ():
            if isinstance(node, ast.Call) and last_name(node.func) == "tap":
                tensor, _, dims = (text_of(node.args[1]) or "").partition(": ")
                yield f"{name}:{node.lineno}", tensor, dims
            elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(last_name(t) == "axes" for t in targets):
                    table = [v for k, v in zip(node.value.keys, node.value.values, strict=True) if k is not None]  # None: **another
                    yield from ((f"{name}:{node.lineno}", None, text_of(v) or "") for v in table)


def last_name(node: ast.expr) -> str:
    """Return the last word of a name with or without dots, "" for other expressions."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def faults(package: Path) -> list[str]:
    """Return the labels that break the legend, and taps whose name is no plain path."""
    every = list(labels(package))
    wrong_labels = [f"{where}: {dims!r} {wrong}" for where, n, dims in every if (wrong := fault(dims, n is not None))]
    return wrong_labels + [f"{w}: the name {n!r} is no path" for w, n, _ in every if n is not None and not re.fullmatch(r"[a-z_.]+", n)]


def test_every_label_of_the_code() -> None:
    package = ROOT / "src/pellucid"
    assert len(list(labels(package))) > 60  # found at all
    assert faults(package) == []


@pytest.mark.parametrize(
    "line",
    [
        'tap(x, "q: B T H Z")',
        'tap(x, "q: b t d")',
        'tap(x, "q: BT D")',
        'tap(x, "q: B  T")',
        'tap(x, "q: B T (H")',
        'tap(x, "q: B T T")',
        'tap(x, "q B T")',
        'tap(x, "Q!: B T")',
        "tap(x, label)",
        'tap(x, f"k: B {length} G Z")',
        'axes = {"q": "(H K) Z"}',
        'class A:\n    axes: dict[str, str] = {"q": "(H K D"}',
        'self.axes = {"q": "H*K D"}',
    ],
)
def test_wrong_label_is_seen(line: str, tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text(line)
    assert faults(tmp_path)


def test_sound_label_passes(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text('tap(x, "q: B T H K+R")\ntap(x, f"k: B {length} G K")\naxes = {"q_b": "(H (K+R)) Q", **Mlp.axes}\n')
    assert faults(tmp_path) == []


def test_a_check_that_learns_everything_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant forgets a summand of a total and no longer refuses a misfit."""
    monkeypatch.setattr(axes, "total", lambda summands, sizes: sum([sizes[x] for x in summands][:1]))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_misfit_is_named("(H (K+R)) D", (64, 8), {"H": 4, "K": 16, "R": 8}, "shape.size")
