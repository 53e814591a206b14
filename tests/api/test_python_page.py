"""docs/python.md: each example runs, gives what it says, and every public name has one."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.api.model import Model

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
SHOWN = re.compile(r"^(?P<line>(?P<indent> *)(?P<code>[^#\n]*?))  # (?:[^\n]*?)-> (?P<value>[^\n]*)$", re.M)
METHODS = ["generate", "stream", "logprobs", "to", "save", "weight", "tensors", "adapt", "lora", "unadapt", "num_parameters", "eval"]
SETTINGS = ["only", "keep", "edit", "grad", "request", "inside", "terms", "to"]


def examples(text: str) -> list[str]:
    """The blocks of Python in a page."""
    return re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)


def untrue(text: str, space: dict[str, Any] | None = None) -> list[str]:
    """Run all examples in order, with the names in `space`. Return the lines whose value is not what the page says."""
    space = {} if space is None else space
    out: list[str] = []
    for block in examples(text):
        values = {block[: m.start()].count("\n") + 1: m["value"] for m in SHOWN.finditer(block)}
        for node in ast.parse(block).body:
            if isinstance(node, ast.Expr):
                value = eval(compile(ast.Expression(node.value), str(PAGE), "eval"), space)
                expected = values.pop(node.end_lineno or 0, None)
                if expected is not None and repr(value) != expected:
                    out.append(f"{ast.unparse(node)}: {value!r} for {expected}")
            else:
                exec(compile(ast.Module([node], []), str(PAGE), "exec"), space)
        out += [f"no value stands for {value}" for value in values.values()]
    return out


def unnamed(text: str) -> list[str]:
    """Public names, methods of a model and settings of a watch that no example uses."""
    code = "\n".join(examples(text))
    names = [n for n in pellucid.__all__ if n not in ("Model", "Trace", "Seen")]  # which load, trace and watch give
    used = {f"pellucid.{n}": rf"pellucid\.{n}\b" for n in names}
    used |= {f"model.{n}": rf"\.{n}\(" for n in METHODS} | {n: rf"\b{n}=" for n in (*SETTINGS, "padding", "attention_mask")}
    headings = re.findall(r"^## (\w+)", text, re.M)
    lacking = [n for n, pattern in used.items() if not re.search(pattern, code)]
    return lacking + [n for n in pellucid.__all__ if n not in headings]


def test_every_example_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert untrue(PAGE.read_text(encoding="utf-8")) == []


def test_every_public_name_has_an_example() -> None:
    assert unnamed(PAGE.read_text(encoding="utf-8")) == []
    assert all(hasattr(Model, name) for name in METHODS)


def test_untrue_pages_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value, a name that is gone, a value beside no expression."""
    monkeypatch.chdir(tmp_path)
    assert untrue("```python\n1 + 1  # -> 3\n```\n") == ["1 + 1: 2 for 3"]
    assert untrue("```python\nx = 1  # -> 1\n```\n") == ["no value stands for 1"]
    with pytest.raises(AttributeError):
        untrue("```python\nimport pellucid\npellucid.gone\n```\n")
    text = PAGE.read_text(encoding="utf-8")
    assert unnamed(text.replace("pellucid.lens(", "lens(")) == ["pellucid.lens"] and unnamed(text.replace("## count", "## bill")) == [
        "count"
    ]
    assert unnamed(text.replace("terms=True", "")) == ["terms"]
