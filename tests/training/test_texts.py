"""Texts as data: which files a recipe names, what a document is, and one line for each fault."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pellucid.errors import TrainError
from pellucid.messages import phrases
from pellucid.training import shards
from pellucid.training.recipe import read_recipe
from pellucid.training.shards import source_digest
from pellucid.training.texts import Texts, read_documents, read_entries, sources
from test_recipe import written
from tiny import swapped

TEXTS: dict[str, str | None] = {"folder": None, "data__files": '["text/*.txt"]'}


def test_files_of_patterns(tmp_path: Path) -> None:
    """In the order of the patterns, sorted in each, and each once."""
    for name in ("text/b.txt", "text/a.txt", "c.jsonl", "text/deep/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    data = Texts(tmp_path, ("c.jsonl", "text/*.txt", "text/**/*.txt", f"{tmp_path}/text/a.txt"))
    assert [data.name(f) for f in sources(data)] == ["c.jsonl", "text/a.txt", "text/b.txt", "text/deep/d.txt"]
    (tmp_path / "e.pdf").write_text("x")
    for pattern, key in (("none/*.txt", "data.none"), ("text/", "data.pattern"), ("e.pdf", "data.kind"), ("..txt/**.txt", "data.none")):
        with pytest.raises(TrainError) as caught:
            sources(replace(data, files=("c.jsonl", pattern)))
        assert caught.value.key == key and "\n" not in str(caught.value)


DOCUMENTS: dict[str, tuple[bytes, list[str]]] = {
    "one.txt": (b"a\n\nb\n", ["a\n\nb"]),
    "windows.txt": (b"\xef\xbb\xbfa\r\nb\r\n", ["a\nb"]),
    "several.txt": ("  one\n<|endoftext|>\n<|endoftext|>\n二\n<|endoftext|>\n".encode(), ["  one", "二"]),
    "inside.txt": (b"a <|endoftext|> b", ["a <|endoftext|> b"]),
    "lines.jsonl": (b'{"text": "a\\r\\nb", "id": 3}\n\n{"text": "c"}', ["a\r\nb", "c"]),
    "LOUD.TXT": (b"one\n", ["one"]),
    "marks.md": ("# 标题\n\n- one\n".encode(), ["# 标题\n\n- one"]),
    "cells.csv": ('\ufefftext,id\r\n"a, ""b""\r\nc",1\r\n\r\n二,2\r\n'.encode(), ['a, "b"\r\nc', "二"]),
    "long.csv": (b'id,text\n1,"' + b"x" * 200_000 + b'"\n', ["x" * 200_000]),
    "mark.jsonl": (b'\xef\xbb\xbf{"text": "a"}\n', ["a"]),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents(name: str, tmp_path: Path) -> None:
    content, wanted = DOCUMENTS[name]
    (tmp_path / name).write_bytes(content)
    assert list(read_documents(tmp_path / name, "text")) == wanted


FAULTS: list[tuple[str, bytes, str, str]] = [
    ("a.txt", b"", "data.empty", "a.txt"),
    ("a.txt", b"\n\n<|endoftext|>\n", "data.empty", "a.txt"),
    ("b.jsonl", b"\n", "data.empty", "b.jsonl"),
    ("c.csv", b"text\n", "data.empty", "c.csv"),
    ("c.csv", b"", "data.column", 'c.csv: no column "text"; found: -'),
    ("c.csv", b"text,text\na,b\n", "data.column", 'c.csv: no column "text"; found: text, text'),
    ("c.csv", b"text;id\na;1\n", "data.column", 'c.csv: no column "text"; found: text;id'),
    ("c.csv", b"text,id\na,1\nb\n", "data.cells", "c.csv:3: 1 cell in a row; the first row names 2 columns"),
    ("c.csv", b'text\n"a\nb\n', "data.csv", "c.csv:3: no CSV: unexpected end of data"),
    ("c.csv", b"text\na\n\xff\n", "data.encoding", "c.csv: byte ff at offset 7"),
    ("c.csv", b'text\n""\n', "data.blank", 'c.csv:2: "text" is an empty text'),
    ("a.txt", b"x" * 1023 + b"\n\xff", "data.encoding", "a.txt: byte ff at offset 1,024"),
    ("b.jsonl", b'{"text": "a"}\n{"text": "\xe4"}', "data.encoding", "b.jsonl: byte e4 at offset 24"),
    ("b.jsonl", b'{"text": "a"}\n{"text": }', "data.json", "b.jsonl:2:10: "),
    ("b.jsonl", b'{"text": "a"}\n["text"]', "data.json", "b.jsonl:2:1: "),
    ("b.jsonl", b'{"text": "a", "text": "b"}', "json.twice", "b.jsonl:1"),
    ("b.jsonl", b"[" * 100, "json.depth", "b.jsonl:1"),
    ("b.jsonl", b'{"text": "\\ud800"}', "json.surrogate", "b.jsonl:1"),
    ("b.jsonl", b'{"id": 1, "body": "x"}', "data.field", 'b.jsonl:1: "text" is missing; found: id, body'),
    ("b.jsonl", b"{}", "data.field", 'b.jsonl:1: "text" is missing; found: -'),
    ("b.jsonl", b'\n{"text": 3}', "data.type", 'b.jsonl:2: "text" is of the kind number'),
    ("b.jsonl", b'{"text": ""}', "data.blank", 'b.jsonl:1: "text"'),
]


@pytest.mark.parametrize(("name", "content", "key", "named"), FAULTS)
def test_faults(name: str, content: bytes, key: str, named: str, tmp_path: Path) -> None:
    """One line with the place, in both languages."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TrainError) as caught:
        list(read_documents(tmp_path / name, "text"))
    assert caught.value.key == key and named in str(caught.value) and "\n" not in str(caught.value)
    assert phrases("zh")[key] != phrases("en")[key]


def test_pairs_of_a_table(tmp_path: Path) -> None:
    """Each row of a CSV file has the fields of a line of JSON, and the number of the line that it ends in."""
    (tmp_path / "p.csv").write_text('prompt,chosen,rejected\na,"b\nc",d\ne,f,g\n', encoding="utf-8")
    rows = [{"prompt": "a", "chosen": "b\nc", "rejected": "d"}, {"prompt": "e", "chosen": "f", "rejected": "g"}]
    assert list(read_entries(tmp_path / "p.csv")) == [(3, rows[0]), (4, rows[1])]
    (tmp_path / "a.md").write_text("a")
    with pytest.raises(TrainError, match=r"allowed: \.jsonl, \.csv, \.parquet"):
        list(read_entries(tmp_path / "a.md"))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TrainError):
        list(read_documents(tmp_path / "gone.txt", "text"))


RECIPES: list[tuple[str, str, dict[str, str | None]]] = [
    ("recipe.near", "data.fields", {"data__fields": "1"}),
    ("recipe.unknown", "data.folder", {"folder": '"corpus"'}),
    ("recipe.unknown", "data.root", {"data__root": '"x"'}),
    ("recipe.field", "objective", {"objective": '"masked"'}),
    ("recipe.field", "data.files", {"data__files": '"a.txt"'}),
    ("recipe.field", "data.files", {"data__files": "[]"}),
    ("recipe.field", "data.files", {"data__files": '[""]'}),
    ("recipe.field", "data.length", {"data__length": "1"}),
    ("recipe.field", "data.length", {"data__length": "true"}),
    ("recipe.field", "data.field", {"data__field": "3"}),
    ("recipe.field", "data.pack", {"data__pack": '"rows"'}),
    ("recipe.field", "data.pack", {"data__pack": "[1]"}),
    ("recipe.field", "data.long", {"data__long": '"keep"'}),
    ("recipe.field", "data.held_out", {"data__held_out": "0.9"}),
    ("recipe.field", "data.held_out", {"data__held_out": "nan"}),
    ("recipe.missing", "tokenizer.size", {"size": None}),
    ("recipe.field", "tokenizer.sample_bytes", {"tokenizer__sample_bytes": "0"}),
    ("recipe.field", "tokenizer.from", {"size": None, "tokenizer__from": "3"}),
    ("recipe.one", "tokenizer.from", {"tokenizer__from": '"x"'}),
]


@pytest.mark.parametrize(("key", "named", "changed"), RECIPES)
def test_recipe_errors(key: str, named: str, changed: dict[str, str | None], tmp_path: Path) -> None:
    assert read_recipe(written(tmp_path / "good.toml", **TEXTS)).data == Texts(tmp_path, ("text/*.txt",))
    with pytest.raises(TrainError) as caught:
        read_recipe(written(tmp_path / "r.toml", **{**TEXTS, **changed}))
    assert caught.value.key == key and named in str(caught.value) and "r.toml" in str(caught.value) and "\n" not in str(caught.value)


def test_recipe_of_texts(tmp_path: Path) -> None:
    given: dict[str, Any] = {"field": '"body"', "length": "64", "pack": '"stream"', "long": '"cut"', "held_out": "0.1"}
    path = written(tmp_path / "r.toml", **TEXTS, **{f"data__{k}": v for k, v in given.items()}, tokenizer__sample_bytes="1000")
    recipe = read_recipe(path)
    assert recipe.data == Texts(tmp_path, ("text/*.txt",), "body", 64, "stream", "cut", 0.1) and recipe.tokenizer["sample_bytes"] == 1000
    with pytest.raises(TrainError, match=r"tokenizer\.from"):  # a corpus of facts trains its own
        read_recipe(written(tmp_path / "r.toml", size=None, tokenizer__from='"x"'))


def waits(file: Path) -> bool:
    """True if the digest of a source, a pipe that has no writer, is waited for; what it raises is checked."""
    raised = list[str]()

    def read() -> None:
        try:
            source_digest(file)
        except TrainError as fault:
            raised.append(fault.key)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(0.5)
    waited = reader.is_alive()
    if waited:
        os.close(os.open(file, os.O_WRONLY))
    reader.join()
    assert waited or raised == ["file.kind"]
    return waited


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """It is no source, and a run of its folder says so; plain opening would wait for ever."""
    os.mkfifo(pipe := tmp_path / "pipe.txt")

    @contextmanager
    def opened(file: Path, error: object) -> Iterator[int]:
        with file.open("rb") as f:
            yield f.fileno()

    assert not waits(pipe)
    with swapped(shards, "regular", opened):
        assert waits(pipe)
