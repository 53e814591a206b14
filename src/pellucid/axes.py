"""The legend of axis letters, and the check of a tensor's shape against its label.

    sizes = {"K": 16}
    bind("layers.0.attn.q", "B T H K+R", (1, 7, 4, 24), sizes)      # sizes now holds B 1, T 7, H 4, R 8

One letter has one size within a part's call. In a sum with one unknown letter, the size gives that letter; a weight's axis may be a
product of sums, `(H (K+R)) Q`. The meaning of a letter is the message `axis.<letter>`.
"""

import re
from collections.abc import Iterable, MutableMapping
from functools import cache
from math import prod

from pellucid.errors import ShapeError, UseError

LEGEND = "BTSDHGKWRCQFEANVPUYLJ"

Axis = tuple[tuple[str, ...], ...]  # a product of sums: (("H",), ("K", "R"))


@cache
def parse(dims: str) -> tuple[Axis, ...]:
    """Return the axes of a label, each a product of sums of letters: "(H (K+R)) Q" -> ((("H",), ("K", "R")), (("Q",),))."""
    axes, depth, word = [], 0, ""
    for c in dims + " ":
        depth += (c == "(") - (c == ")")
        if c == " " and depth == 0:
            axes.append(word)
            word = ""
        else:
            word += c
    return tuple(tuple(tuple(s.split("+")) for s in re.findall(r"[A-Z0-9]+(?:\+[A-Z0-9]+)*", axis)) for axis in axes if axis)


def letters(dims: str) -> set[str]:
    """Return the letters in a label."""
    return {x for axis in parse(dims) for factor in axis for x in factor if not x.isdigit()}


def show(axis: Axis) -> str:
    """Return one axis as text: "H×(K+R)"."""
    return "×".join(f"({'+'.join(f)})" if len(f) > 1 and len(axis) > 1 else "+".join(f) for f in axis)


def total(summands: Iterable[str], sizes: MutableMapping[str, int]) -> int:
    """Return the size of a sum of letters and numbers."""
    return sum(int(x) if x.isdigit() else sizes[x] for x in summands)


def bind(path: str, dims: str, shape: Iterable[int], sizes: MutableMapping[str, int]) -> None:
    """Check a shape against its label, and add the letters that it determines to `sizes`. A ShapeError naming `path` if it does not fit."""
    axes, sizes_there = parse(dims), tuple(shape)
    if len(axes) != len(sizes_there):
        raise ShapeError("shape.count", path=path, dims=dims, found=len(sizes_there), shape=sizes_there)
    for axis, n in zip(axes, sizes_there, strict=True):
        unknown = [x for factor in axis for x in factor if not x.isdigit() and x not in sizes]
        if len(unknown) == 1 and len(axis) == 1:
            rest = n - total((x for x in axis[0] if x != unknown[0]), sizes)
            if rest < 0 or (rest == 0 and len(axis[0]) > 1):
                raise ShapeError("shape.rest", path=path, dims=dims, shape=sizes_there, letter=unknown[0], rest=rest)
            sizes[unknown[0]] = rest
        elif not unknown and (expected := prod(total(factor, sizes) for factor in axis)) != n:
            raise ShapeError("shape.size", path=path, dims=dims, shape=sizes_there, axis=show(axis), expected=expected)


def index_of(path: str, dims: str, shape: tuple[int, ...], given: str | Iterable[object]) -> tuple[int, ...]:
    """Return the index of a cell, given as a text or as numbers: "0,1,3,2"; the batch may be left out, negative numbers count from the end.

    A UseError for one outside of the tensor.
    """
    text = given if isinstance(given, str) else ",".join(map(str, given))
    if not re.fullmatch(r"\s*-?\d+(\s*[, ]\s*-?\d+)*\s*", text):
        raise UseError("cell.index", path=path, found=text, dims=dims)
    at = [int(i) for i in re.findall(r"-?\d+", text)]
    if len(at) == len(shape) - 1 and dims.startswith("B ") and shape[0] == 1:
        at = [0, *at]
    if len(at) != len(shape):
        raise UseError("cell.count", path=path, found=len(at), dims=dims, shape=shape)
    for i, n, axis in zip(at, shape, parse(dims), strict=True):
        if not -n <= i < n:
            raise UseError("cell.range", path=path, axis=show(axis), found=i, last=n - 1)
    return tuple(i % n for i, n in zip(at, shape, strict=True))
