"""The views of the page stand in one list, web/src/views.ts: each component once, and imported nowhere else."""

import re
from pathlib import Path

import pytest

from pellucid.messages import phrases

SOURCES = Path(__file__).parents[2] / "web" / "src"
PARTS = {"Tile"}  # files of web/src/views that are no view


def complaints(sources: dict[str, str]) -> list[str]:
    """Return a complaint for each breach of the rule. sources: the texts of web/src by their paths."""
    registry = sources["views.ts"]
    components = {Path(path).stem for path in sources if path.startswith("views/")} - PARTS
    wrong = [f"{name} is in no view" for name in sorted(components) if len(re.findall(rf"component: {name} ", registry)) != 1]
    for path, text in sources.items():
        if path != "views.ts":
            wrong += [f"{path} imports {name}" for name in sorted(components) if re.search(rf"import {name}\b", text)]
    names = re.findall(r'\{ name: "(\w+)"', registry)
    wrong += [f"{name} stands twice" for name in sorted(set(names)) if names.count(name) > 1]
    titles = set(re.findall(r'"(page\.view\.\w+)"', registry))
    return wrong + [f"{key} is no message in {lang}" for lang in ("en", "zh") for key in sorted(titles - phrases(lang).keys())]


def sources() -> dict[str, str]:
    """Return the page's sources by path."""
    files = (f for f in SOURCES.rglob("*") if f.suffix in {".ts", ".svelte"})
    return {f.relative_to(SOURCES).as_posix(): f.read_text(encoding="utf-8") for f in files}


def test_views_stand_in_one_list() -> None:
    assert complaints(sources()) == []


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("views/Heads.svelte", "", "<p></p>"),
        ("App.svelte", "<script", '<script>import Cache from "./views/Cache.svelte";</script><script'),
        ("views.ts", 'name: "cache"', 'name: "next"'),
        ("views.ts", '"page.view.cache"', '"page.view.store"'),
    ],
)
def test_the_law_sees(path: str, old: str, new: str) -> None:
    texts = sources()
    texts[path] = texts[path].replace(old, new, 1) if path in texts else new
    assert complaints(texts)
