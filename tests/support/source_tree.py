"""A small project for laws that read sources, and the trees of Python sources, which several laws read."""

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

Found = TypeVar("Found", bound=Callable[..., Any])
FORGOTTEN: list[Callable[[], None]] = []


def write(root: Path, texts: dict[str, str]) -> Path:
    """Write each text under its path below `root`, and return `root`."""
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def shared(find: Found) -> Found:
    """Return a function that remembers its results until `forget`."""
    remembering = cache(find)
    FORGOTTEN.append(remembering.cache_clear)
    return cast(Found, remembering)


def forget() -> None:
    """Drop all trees and what was found in them: those of the package are some hundred MB."""
    for clear in FORGOTTEN:
        clear()


@shared
def parsed(text: str) -> ast.Module:
    """Return the tree of a text, which its readers do not change."""
    return ast.parse(text)


@shared
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a tree, as `ast.walk` yields them."""
    return tuple(ast.walk(tree))
