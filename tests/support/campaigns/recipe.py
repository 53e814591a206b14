"""Mutants of recipes: of those that ship, and of one with every table."""

import random
import tomllib
from pathlib import Path
from typing import Any

from campaigns import Attempt, named
from campaigns.mutate import bent, mangled
from pellucid.families import understand
from pellucid.training.recipe import read_recipe
from text_runs import write_texts

ROOT = Path(__file__).parents[3]
EVERY: dict[str, Any] = {
    "name": "every",
    "objective": "reward",
    "model": {"from": "base", "quant": "int8", "template": "chat.jinja"},
    "adapter": {"rank": 4, "alpha": 8, "targets": ["attn.[qv]"], "name": "mine", "scale": "alpha/√r", "dropout": 0.1},
    "data": {"files": ["b.jsonl"], "field": ["prompt", "completion"], "length": 32, "long": "drop", "held_out": 0.1},
    "reward": {"check": "regex", "pattern": "#### ([0-9]+)", "group": 4, "new": 8, "temperature": 0.7, "scaled": True},
    "train": {
        "seed": 1, "steps": 9, "batch": 4, "micro": 2, "learning_rate": 1e-3, "warmup": 2, "optimizer": "muon", "momentum": 0.9,
        "schedule": "wsd", "cooldown": 0.3, "keep": "all", "save_every": 3, "clip": 0.5,
    },
    "eval": {"every": 3},
    "watch": {"every": 3, "first": 2, "tensors": ["layers.*.attn.pattern"], "gradients": False, "tokens": [" a"], "prompts": ["a"]},
}  # fmt: skip


def toml(tree: Any) -> str:
    """Return a tree as TOML; what TOML has no form for, such as None, stands as a word that it refuses."""
    if not isinstance(tree, dict):
        return value(tree)
    plain = {k: v for k, v in tree.items() if not isinstance(v, dict)}
    lines = [f"{key(k)} = {value(v)}" for k, v in plain.items()]
    for name, table in ((k, v) for k, v in tree.items() if isinstance(v, dict)):
        lines += [f"[{key(name)}]", *(f"{key(k)} = {value(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"


def key(name: object) -> str:
    return quoted(str(name))


def quoted(text: str) -> str:
    out = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{out}"'


def value(x: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(x, bool):
        return str(x).lower()
    if isinstance(x, str):
        return quoted(x)
    if isinstance(x, list):
        return f"[{', '.join(map(value, x))}]"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{key(k)} = {value(v)}" for k, v in x.items()) + "}"
    return "null" if x is None else repr(x)


def prepare(folder: Path) -> Attempt:
    write_texts(folder)
    file = folder / "r.toml"
    seeds = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "recipes").glob("*.toml"))] + [EVERY] * 3

    def read() -> None:
        recipe = read_recipe(file)
        if recipe.base is None:
            understand({**recipe.model, "vocab_size": 400}, str(file))

    def attempt(draw: random.Random) -> str:
        tree = draw.choice(seeds)
        raw = mangled(toml(tree).encode(), draw) if draw.random() < 0.3 else toml(bent(tree, draw)).encode("utf-8", "surrogatepass")
        file.write_bytes(raw)
        return named(read, file.name)

    return attempt
