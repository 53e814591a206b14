"""Mutants of what is trained on: texts, lines of JSON, chats and pairs, and the shards that are made of them."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from campaigns import Attempt, named
from campaigns.mutate import bent, mangled, text
from pellucid.api.model import place
from pellucid.tokenizer import limited_process
from pellucid.training.chats import Chats
from pellucid.training.pairs import Pairs
from pellucid.training.shards import open_shards, read_index, read_shards
from pellucid.training.text_rows import split_rows
from pellucid.training.texts import Texts
from text_runs import NAMES, THINGS, stories

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def prepare(folder: Path) -> Attempt:
    limited_process.SECONDS, limited_process.PATIENCE = 0.5, 5.0
    base = folder / "base"
    shutil.copytree(place("pellucid/capitals"), base, ignore=lambda _, names: [n for n in names if n.endswith(".safetensors")])
    (folder / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    chats = [
        {"messages": [{"role": "user", "content": f"What has {n}?"}, {"role": "assistant", "content": THINGS[i % 5]}], "tools": None}
        for i, n in enumerate(NAMES)
    ]
    pairs = [{"prompt": f"{n} has", "chosen": f" {THINGS[i % 5]}", "rejected": f" {THINGS[(i + 1) % 5]}"} for i, n in enumerate(NAMES)]
    plain = "\n<|endoftext|>\n".join(stories()[:12]).encode()
    table = {"from": str(base), "template": "chat.jinja"}

    def written(name: str, entries: list[Any], draw: random.Random) -> Path:
        path, lines = folder / name, [text(entry) for entry in entries]
        at = draw.randrange(len(lines))
        lines[at] = text(bent(entries[at], draw)) if draw.random() < 0.6 else mangled(lines[at], draw)
        path.write_bytes(b"\n".join(lines))
        return path

    def made(data: Texts, table: dict[str, Any]) -> Callable[[], None]:
        def work() -> None:
            shutil.rmtree(folder / "data", ignore_errors=True)
            shards = open_shards(data, table, folder / "data", False)
            trained, out = split_rows(shards, data, 1)
            for rows in (trained, out):
                rows.check(1 << 20)
                list(rows)

        return work

    ready = folder / "ready"
    (folder / "a.txt").write_bytes(plain)
    open_shards(Texts(folder, ("a.txt",)), {"from": str(base)}, ready, False)
    files = sorted(ready.iterdir())
    contents = {file: file.read_bytes() for file in files}

    def shards(draw: random.Random) -> str:
        """Read shards of which one file is another."""
        file = draw.choice(files)
        raw = contents[file]
        bend = file.suffix == ".json" and len(raw) < 10_000 and draw.random() < 0.7
        file.write_bytes(text(bent(json.loads(raw), draw)) if bend else mangled(raw, draw))
        try:
            return named(lambda: read_shards(ready, read_index(ready)) and None, "ready")
        finally:
            file.write_bytes(raw)

    def attempt(draw: random.Random) -> str:
        match draw.randrange(6):
            case 0:
                (folder / "t.txt").write_bytes(mangled(plain, draw))
                long = draw.choice(("split", "drop", "cut", "refuse"))
                pack = draw.choice(("documents", "stream", "none"))
                return named(made(Texts(folder, ("t.txt",), length=64, pack=pack, long=long, held_out=0.1), {"from": str(base)}), "")
            case 1:
                written("t.jsonl", [{"text": one} for one in stories()[:12]], draw)
                return named(made(Texts(folder, ("t.jsonl",), length=64), {"from": str(base)}), "")
            case 2:
                written("c.jsonl", chats, draw)
                return named(made(Chats(folder, ("c.jsonl",), length=64, long=draw.choice(("refuse", "drop", "cut"))), table), "")
            case 3:
                written("p.jsonl", pairs, draw)
                return named(made(Pairs(folder, ("p.jsonl",), length=64), table), "")
            case _:
                return shards(draw)

    return attempt
