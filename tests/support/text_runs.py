"""A tiny recipe of texts: two files of two kinds, and the shards of it."""

import json
from pathlib import Path
from typing import Any

from pellucid.training.recipe import read_recipe
from pellucid.training.shards import Shards, open_shards
from pellucid.training.texts import Texts

NAMES = ("Ann", "Ben", "Cho", "Dan", "Eve", "Fay", "Gil")
THINGS = ("a red ball", "an old map", "the small boat", "一只小船", "his hat")


def stories() -> list[str]:
    """Return 40 short texts of unequal length."""
    return [
        " ".join(f"{NAMES[(i + j) % 7]} has {THINGS[(i * j) % 5]} and gives it to {NAMES[(i * 3 + j) % 7]}." for j in range(1 + i % 5))
        for i in range(40)
    ]


def write_texts(folder: Path) -> Path:
    """Write the texts below `folder`: half as text/a.txt, half as b.jsonl."""
    texts = stories()
    (folder / "text").mkdir(parents=True, exist_ok=True)
    (folder / "text" / "a.txt").write_text("\n<|endoftext|>\n".join(texts[:20]) + "\n", encoding="utf-8")
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[20:]), encoding="utf-8")
    return folder


def recipe_of(folder: Path, **changed: Any) -> Path:
    """Write the texts and a recipe of them; `data__x`, `train__x` add fields."""
    from test_recipe import written

    write_texts(folder)
    given = {"data__files": '["text/*.txt", "b.jsonl"]', "data__length": "32", "data__held_out": "0.1", "folder": None, **changed}
    return written(folder / "r.toml", **given)


def shards_of(folder: Path, **changed: Any) -> tuple[Shards, Texts]:
    """Return the shards of such a recipe, and its data."""
    recipe = read_recipe(recipe_of(folder, **changed))
    assert isinstance(recipe.data, Texts)
    return open_shards(recipe.data, recipe.tokenizer, folder / "data", False), recipe.data
