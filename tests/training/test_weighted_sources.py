"""Sources with weights, and parquet files: which rows an epoch has, and one line for what is wrong."""

import builtins
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pellucid.errors import TrainError
from pellucid.training import run_recipe
from pellucid.training.recipe import read_recipe
from pellucid.training.run_length import epoch_steps
from pellucid.training.saves import newest
from pellucid.training.shards import Shards, open_shards
from pellucid.training.text_rows import TrainingRows, split_rows
from pellucid.training.texts import MixedSource, Texts, read_documents, read_entries
from text_runs import recipe_of, stories
from tiny import swapped
from training import silent

MIXED = '[{files = ["text/*.txt"], weight = 2.5}, {files = ["b.jsonl"], weight = 0.5}]'


def mixed(folder: Path, **changed: Any) -> tuple[TrainingRows, Shards, Texts]:
    """Return the trained rows of two sources of twenty texts each."""
    recipe = read_recipe(recipe_of(folder, **{"data__files": None, "data__source": MIXED, **changed}))
    assert isinstance(recipe.data, Texts)
    shards = open_shards(recipe.data, recipe.tokenizer, folder / "data", False)
    return split_rows(shards, recipe.data, 1)[0], shards, recipe.data


@pytest.mark.parametrize("pack", ["documents", "stream", "none"])
def test_an_epoch_has_each_source_by_its_weight(pack: str, tmp_path: Path) -> None:
    """No row is of two sources; a row that comes twice in a row is two rows of a forward."""
    rows, shards, data = mixed(tmp_path, data__pack=f'"{pack}"')
    assert data.source == (MixedSource(("text/*.txt",), 2.5), MixedSource(("b.jsonl",), 0.5)) and data.files == ("text/*.txt", "b.jsonl")
    assert shards.index["groups"] == [["text/a.txt"], ["b.jsonl"]]
    of = [{rows.source(number)[0] for number in row} for row in rows.rows]
    assert all(len(names) == 1 for names in of) and len(of) == sum(rows.counts)
    assert rows.drawn == [round(2.5 * rows.counts[0]), round(0.5 * rows.counts[1])]
    epoch = list(islice(rows.steps(0, 1), 2 * sum(rows.drawn)))
    drawn = Counter(rows.source(numbers[0])[0] for numbers in epoch)
    assert [drawn[name] for name in ("text/a.txt", "b.jsonl")] == [2 * n for n in rows.drawn]
    assert next(rows.steps(17, 3)) == list(islice(rows.steps(0, 3), 18))[-1]
    twice = [*rows.rows[0], *rows.rows[0], *rows.rows[-1]]
    assert rows.micro_batches(twice, 1) == [rows.rows[0], rows.rows[0], rows.rows[-1]]
    assert rows.micro_batches(twice, 2) == [[*rows.rows[0], *rows.rows[0]], rows.rows[-1]]


def test_an_epoch_of_sources_has_their_shares(tmp_path: Path) -> None:
    """Its steps and its targets are those of the rows that are drawn, not of those that are there."""
    rows, *_ = mixed(tmp_path, data__pack='"none"')
    assert epoch_steps(rows, 4, 1) == sum(rows.drawn) / 4 != len(rows.rows) / 4
    assert rows.epoch_targets() == pytest.approx(
        2.5 * sum(rows.targets()[: rows.borders[1]]) + 0.5 * sum(rows.targets()[rows.borders[1] :])
    )


def test_a_run_of_sources_resumes_in_the_same_bits(tmp_path: Path) -> None:
    """And a state of other weights is another run's."""
    recipe = recipe_of(tmp_path, data__files=None, data__source=MIXED)
    run_recipe(recipe, tmp_path / "whole", False, 1, silent)
    run_recipe(recipe, tmp_path / "run", False, 1, silent)
    last, _ = newest(tmp_path / "run" / "saves")
    assert last is not None
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    run_recipe(recipe, tmp_path / "run", True, 1, silent)
    for name in ("weights.safetensors", "moments.safetensors"):
        assert (tmp_path / "run" / "saves" / last.name / name).read_bytes() == (
            tmp_path / "whole" / "saves" / last.name / name
        ).read_bytes()
    other = recipe_of(tmp_path, data__files=None, data__source=MIXED.replace("2.5", "2"))
    with pytest.raises(TrainError) as caught:
        run_recipe(other, tmp_path / "run", True, 1, silent)
    assert caught.value.key == "train.differs" and "data.source" in str(caught.value)
    plain = recipe_of(tmp_path, data__files='["text/*.txt", "b.jsonl"]')
    with pytest.raises(TrainError, match=r"data\.source"):
        run_recipe(plain, tmp_path / "run", True, 1, silent)


WRONG: list[tuple[str, str, str | None, str]] = [
    ("recipe.one", "data.files, data.source", '["b.jsonl"]', MIXED),
    ("recipe.field", "data.source", None, "3"),
    ("recipe.field", "data.source", None, "[]"),
    ("recipe.field", "data.source.weight", None, '[{files = ["b.jsonl"], weight = 0}]'),
    ("recipe.field", "data.source.weight", None, '[{files = ["b.jsonl"], weight = "2"}]'),
    ("recipe.missing", "data.source.files", None, "[{weight = 1}]"),
    ("recipe.near", "data.source.weight", None, '[{files = ["b.jsonl"], wieght = 1}]'),
    ("data.sources", "b.jsonl", None, '[{files = ["b.jsonl"]}, {files = ["*.jsonl"]}]'),
    ("data.none", "gone/*.txt", None, '[{files = ["b.jsonl"]}, {files = ["gone/*.txt"]}]'),
]


@pytest.mark.parametrize(("key", "named", "files", "source"), WRONG)
def test_a_wrong_source_is_one_line(key: str, named: str, files: str | None, source: str, tmp_path: Path) -> None:
    with pytest.raises(TrainError) as caught:
        mixed(tmp_path, data__files=files, data__source=source)
    assert caught.value.key == key and named in str(caught.value) and "\n" not in str(caught.value)


# Parquet.


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A parquet file of texts, numbers and chats."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    chat = [{"role": "user", "content": "hi", "name": None}, {"role": "assistant", "content": "ho", "name": "a"}]
    content = {"text": ["eins", "二", "three"], "n": [1, 2, 3], "messages": [chat, chat[:1], None], "gone": ["a", None, "c"]}
    parquet.write_table(pyarrow.table(content), tmp_path / "c.parquet", row_group_size=2)
    return tmp_path / "c.parquet"


def test_a_row_is_a_document(table: Path) -> None:
    """In the order of the file, over its groups; of a chat without the fields that it does not have."""
    assert list(read_documents(table, "text")) == ["eins", "二", "three"]
    entries = list(read_entries(table))
    assert [number for number, _ in entries] == [1, 2, 3] and entries[0][1]["n"] == 1
    assert entries[0][1]["messages"] == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho", "name": "a"}]


@pytest.mark.parametrize(
    ("field", "key", "named"),
    [
        ("body", "data.column", 'c.parquet: no column "body"; found: text, n, messages, gone'),
        ("n", "data.type", 'c.parquet:1: "n" is of the kind number; allowed: string'),
        ("gone", "data.type", 'c.parquet:2: "gone" is of the kind null; allowed: string'),
    ],
)
def test_a_wrong_column_is_named(table: Path, field: str, key: str, named: str) -> None:
    with pytest.raises(TrainError) as caught:
        list(read_documents(table, field))
    assert caught.value.key == key and named in str(caught.value)


@pytest.mark.parametrize("size", [0, 3, 60, 400])
def test_a_damaged_table_is_one_line(table: Path, size: int) -> None:
    table.write_bytes(table.read_bytes()[:size])
    with pytest.raises(TrainError) as caught:
        list(read_documents(table, "text"))
    assert caught.value.key == "data.parquet" and "c.parquet" in str(caught.value) and "\n" not in str(caught.value)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.parquet").write_bytes(b"PAR1")
    own = builtins.__import__

    def without(name: str, *how: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return own(name, *how)

    hidden = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "pyarrow"}
    for name in hidden:
        del sys.modules[name]
    try:
        with swapped(builtins, "__import__", without), pytest.raises(TrainError) as caught:
            list(read_documents(tmp_path / "c.parquet", "text"))
    finally:
        sys.modules.update(hidden)
    assert str(caught.value).endswith("c.parquet needs pyarrow: pip install 'pellucid[data]'")


def test_a_run_of_a_table(table: Path) -> None:
    """Its shards are those of the same texts as lines."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    recipe = recipe_of(table.parent, data__files='["*.parquet"]')
    parquet.write_table(pyarrow.table({"text": stories()}), table)
    data = read_recipe(recipe).data
    assert isinstance(data, Texts)
    shards = open_shards(data, {"size": 400}, table.parent / "data", False)
    lines = recipe_of(table.parent / "lines")
    both = read_recipe(lines).data
    assert isinstance(both, Texts)
    assert shards.tokens.equal(open_shards(both, {"size": 400}, table.parent / "lines" / "data", False).tokens)
