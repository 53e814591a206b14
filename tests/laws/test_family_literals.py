"""Each families/<model_type>.py ends in one literal `FAMILY = Family(...)` whose keywords are fields of `Family`; the guide lists them."""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from pellucid import families
from pellucid.families.family import Family

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src" / "pellucid" / "families"
FIELDS = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(Family) if f.name != "name"}  # {field: required}


def unfinished(folder: Path) -> Iterator[str]:
    """Yield a complaint for each family's file that does not end in its literal, by file and field."""
    for file in sorted(folder.glob("*.py")):
        if file.stem in families.NOT_FAMILIES:
            continue
        last = ast.parse(file.read_text(encoding="utf-8")).body[-1]
        if not (
            isinstance(last, ast.Assign) and ast.unparse(last.targets[0]) == "FAMILY"
            and isinstance(last.value, ast.Call) and ast.unparse(last.value.func) == "Family"
        ):  # fmt: skip
            yield f"{file.name} does not end in FAMILY = Family(...)"
            continue
        given = [k.arg for k in last.value.keywords]
        yield from (f"{file.name}: Family has no field {name}" for name in given if name not in FIELDS)
        yield from (f"{file.name}: {name} is missing" for name, required in FIELDS.items() if required and name not in given)
        if last.value.args:
            yield f"{file.name}: a field without its name"


def unlisted(guide: str) -> set[str]:
    """Return the fields that the guide's table lacks, and those that it has and `Family` does not."""
    table = guide.partition("## The literal")[2].partition("\n## ")[0]
    return FIELDS.keys() ^ set(re.findall(r"^\| `(\w+)", table, re.M))


HEAD = "from pellucid.families import llama\nfrom pellucid.families.family import Family\n"
LINES = 100  # fewer than these has the file of a family


def long(folder: Path) -> dict[str, int]:
    """Return the families' files that are too long, with their lines."""
    lines = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in folder.glob("*.py")}
    return {name: n for name, n in lines.items() if n >= LINES and name.removesuffix(".py") not in families.NOT_FAMILIES}


def test_every_family_has_fewer_than_a_hundred_lines(tmp_path: Path) -> None:
    assert not long(FOLDER)
    for name, n in (("lantern.py", LINES), ("candle.py", LINES - 1), ("names.py", LINES)):
        (tmp_path / name).write_text("x = 1\n" * n, encoding="utf-8")
    assert long(tmp_path) == {"lantern.py": LINES}


MUTANTS = {
    "none": "from pellucid.families import llama\n\nconfig, RULES = llama.config, llama.RULES\n",
    "unknown": f"{HEAD}FAMILY = Family(config=llama.config, rules=llama.RULES, ignore=llama.IGNORED)\n",
    "lacking": f"{HEAD}FAMILY = Family(config=llama.config)\n",
    "borrowed": f"{HEAD}FAMILY = llama.FAMILY\n",
    "other": f"{HEAD}FAMILY = llama.config\n",
}


def test_every_family_ends_in_its_literal() -> None:
    assert not [*unfinished(FOLDER)]


@pytest.mark.parametrize("kind", MUTANTS)
def test_a_file_without_its_literal_is_named(kind: str, tmp_path: Path) -> None:
    (tmp_path / "lantern.py").write_text(MUTANTS[kind], encoding="utf-8")
    assert any("lantern.py" in complaint for complaint in unfinished(tmp_path))


@pytest.mark.parametrize(("kind", "error", "words"), [
    ("none", AttributeError, "lantern.*FAMILY"), ("unknown", TypeError, "ignore"), ("lacking", TypeError, "rules"),
    ("other", TypeError, r"lantern\.py: FAMILY: function"),
])  # fmt: skip
def test_the_registry_refuses_it_too(
    kind: str, error: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lantern.py").write_text(MUTANTS[kind], encoding="utf-8")
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    try:
        with pytest.raises(error, match=words):
            families.family("lantern")
    finally:
        sys.modules.pop("pellucid.families.lantern", None)


def test_the_guide_lists_the_fields() -> None:
    guide = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    assert not unlisted(guide)
    assert unlisted(guide.replace("| `respell(name)` ", "| `spell(name)` ")) == {"respell", "spell"}
