"""Tests' files have names of their own: pytest imports each by its name alone, and does not start where two are alike."""

from collections import defaultdict
from pathlib import Path

from source_tree import write

ROOT = Path(__file__).parents[2]


def alike(root: Path) -> dict[str, list[str]]:
    """Return the names that several files of a project's tests have, and the folders of each."""
    folders: dict[str, list[str]] = defaultdict(list)
    for file in sorted((root / "tests").rglob("*.py")):
        if file.name not in {"__init__.py", "conftest.py"} and not (file.parent / "__init__.py").exists():
            folders[file.stem].append(file.parent.name)
    return {name: each for name, each in folders.items() if len(each) > 1}


def test_names_of_tests_are_their_own() -> None:
    assert alike(ROOT) == {}


def test_mutant_is_seen(tmp_path: Path) -> None:
    write(tmp_path, {"tests/docs/test_examples.py": "", "tests/server/test_examples.py": "", "tests/server/test_stop.py": ""})
    assert alike(tmp_path) == {"test_examples": ["docs", "server"]}
