"""Four tasks of one model: the shares that are read are those of a run of each text alone, and a wrong row reads chance."""

import math

import pytest
import torch

import pellucid
from pellucid.analysis.task_formats import TASKS, TaskText, by_length, fitted, ids_text, parts, read
from pellucid.api.model import Model


@pytest.fixture(scope="module")
def reader() -> Model:
    return pellucid.load("pellucid/reader", dtype="float64")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.quick(4)
def test_a_task_is_done_at_its_row_alone(reader: Model, name: str, language: str) -> None:
    with torch.no_grad():
        own, wrong = (TASKS[name](reader, language, last) for last in (True, False))
    assert own.of == wrong.of and own.chance < own.right and wrong.right < own.right
    assert own.right == own.of or (name, language) == ("classification", "zh")


def test_shares_are_those_of_one_run_each(reader: Model) -> None:
    texts = [TaskText("The key of Alda is", " red"), TaskText("The key of Alda is red. The", " key of Alda is red.")]
    with torch.no_grad():
        got = read(reader, texts)
        for text, shares in zip(texts, got, strict=True):
            given, rest = parts(reader, text)
            assert given + rest == reader.ids(text.text) and len(shares) == len(rest)
            for n, token in enumerate(rest):
                logits = reader(torch.tensor([[*given, *rest[:n]]]))[0, -1]
                assert shares[n] == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-10)
        early = read(reader, texts, last=False)
        assert early[0] != pytest.approx(got[0], abs=1e-3)


def test_batches_keep_the_order(reader: Model) -> None:
    ids = [[1, 2, 3], [4, 5], [6, 7, 8], [9]]
    assert [x.tolist() for x in by_length(ids, lambda batch: batch, reader)] == ids


def test_a_fit_finds_a_linear_rule() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 5, generator=draw, dtype=torch.float64)
    classes = (rows[:, 0] > 0).long()
    right = (fitted(rows[:150], classes[:150], 2, rows[150:]).argmax(-1) == classes[150:]).double().mean()
    assert right > 0.9
    assert math.isclose(float(fitted(rows[:150], classes[:150], 2, rows[150:]).sum(-1).mean()), 1.0, abs_tol=1e-3)


def test_ids_are_written_with_a_line(reader: Model) -> None:
    text = TaskText("The key of Alda is", " red")
    before, after = ids_text(reader, text).split(" | ")
    assert [*map(int, before.split()), int(after)] == reader.ids(text.text) and text.marked == "The key of Alda is | red"
