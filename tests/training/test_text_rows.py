"""Rows of texts: how documents are cut, held out, packed and ordered, and that those which share a row do not see each other."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pellucid.batch.step import Step
from pellucid.errors import TrainError
from pellucid.training import text_rows
from pellucid.training.criterion import loss_of
from pellucid.training.objectives import Document
from pellucid.training.shards import Shards
from pellucid.training.text_objective import packed_batch
from pellucid.training.text_rows import TrainingRows, cut, packed, split_rows
from pellucid.training.texts import Texts
from text_runs import shards_of
from tiny import DECODERS, V, swapped, tiny


def of_sizes(*sizes: int, **settings: Any) -> tuple[Shards, Texts]:
    """Shards of documents of these numbers of tokens, 0, 1, 2 ... end to end."""
    starts = torch.tensor([0, *np.cumsum(sizes)])
    index = {"documents": {"a.txt": 1, "b.txt": len(sizes) - 1}, "sources": {}, "shards": {}, "tokenizer_hash": ""}
    tokens = torch.arange(sum(sizes)).to(torch.uint16)
    return Shards(None, "", tokens, starts, index), Texts(Path(), ("a.txt",), **settings)  # type: ignore[arg-type]


def spans(shards: Shards, data: Texts) -> list[tuple[int, int]]:
    begins, ends = cut(shards, data)
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def test_long_documents() -> None:
    """Split, dropped, cut or refused; where split, a part begins with the last token of the one before."""
    shards, data = of_sizes(5, 6, 12, 1, length=4)
    assert spans(shards, data) == [(0, 5), (5, 10), (9, 11), (11, 16), (15, 20), (19, 23)]
    assert spans(shards, replace(data, long="drop")) == [(0, 5)]
    assert spans(shards, replace(data, long="cut")) == [(0, 5), (5, 10), (11, 16)]
    assert spans(shards, replace(data, pack="stream")) == [(i, min(i + 5, 24)) for i in range(0, 23, 4)]
    with pytest.raises(TrainError, match=r"b.txt, document 1, has 6 tokens; a row takes 5"):
        cut(shards, replace(data, long="refuse"))


@pytest.mark.parametrize("pack", ["documents", "stream", "none"])
@pytest.mark.parametrize("length", [2, 7, 32, 1000])
def test_each_token_is_predicted_once(pack: str, length: int) -> None:
    """By no example or two where nothing is dropped: all but the first of each document, or of the stream."""
    sizes = [2 + i * 7 % 40 for i in range(30)]
    shards, data = of_sizes(*sizes, length=length, pack=pack)
    counted = Counter(t for b, e in spans(shards, data) for t in range(b + 1, e))
    first = {0} if pack == "stream" else set(shards.starts[:-1].tolist())
    assert counted == Counter(set(range(sum(sizes))) - first)


@pytest.mark.parametrize("length", [12, 64])
def test_packed_rows(length: int) -> None:
    """Each document in one row, no row above its length, and little is idle."""
    sizes = [1 + i * 5 % 12 for i in range(500)]
    rows = packed(sizes, length, range(500))
    assert sorted(number for row in rows for number in row) == list(range(500))
    used = [sum(sizes[i] for i in row) for row in rows]
    assert max(used) <= length and sum(used) / (length * len(rows)) > 0.97


def rows_of(**changed: Any) -> TrainingRows:
    shards, data = of_sizes(*[2 + i * 7 % 40 for i in range(60)], **{"length": 32, "held_out": 0.0, **changed})
    return split_rows(shards, data, 5)[0]


@pytest.mark.parametrize("pack", ["documents", "stream", "none"])
def test_each_document_once_an_epoch(pack: str) -> None:
    """Across the borders of epochs, which steps do not heed; and a step computed alone is the step that was reached."""
    rows = rows_of(pack=pack)
    steps = list(islice(rows.steps(0, 7), 3 * len(rows.rows)))
    assert all(next(rows.steps(step, 7)) == steps[step] for step in (0, 1, 9, len(rows.rows), 2 * len(rows.rows) + 3))
    flat, size = [number for step in steps for number in step], len(rows)
    for epoch in range(3):
        assert sorted(flat[epoch * size : (epoch + 1) * size]) == list(range(size))
    assert flat[:size] != flat[size : 2 * size]


def test_a_tail_that_comes_again_is_seen() -> None:
    def tail(step: int, batch: int, count: int, seed: int) -> list[int]:
        return [min(step * batch + i, count - 1) for i in range(batch)]

    with swapped(text_rows, "rows_of_step", tail), pytest.raises(AssertionError):
        test_each_document_once_an_epoch("documents")


@pytest.mark.parametrize("micro", [1, 2, 5, None])
def test_micro_batches_have_whole_rows(micro: int | None) -> None:
    rows = rows_of()
    step = next(rows.steps(3, 10))
    groups = rows.micro_batches(step, micro)
    assert [number for group in groups for number in group] == step and len(groups) == (-(-10 // micro) if micro else 1)
    assert all(len({int(rows.row_of[i]) for i in group}) == (micro or 10) for group in groups)


def test_held_out(tmp_path: Path) -> None:
    """The share that the recipe asks for, the same for every seed, and equal examples lie on one side."""
    shards, data = shards_of(tmp_path)
    trained, out = split_rows(shards, data, 1)
    assert len(out) >= round(0.1 * (len(out) + len(trained))) and [*split_rows(shards, data, 2)[1]] == [*out]
    assert not {tuple(d.target) for d in out} & {tuple(d.target) for d in trained}
    assert len(split_rows(shards, replace(data, held_out=0.0), 1)[1]) == 0
    assert len(split_rows(shards, replace(data, held_out=1e-9), 1)[1]) >= 1


def test_rows_longer_than_the_model() -> None:
    with pytest.raises(TrainError, match=r"data\.length is 32; the model has 16 positions"):
        rows_of().check(16)
    with pytest.raises(TrainError, match="no documents"):
        split_rows(*of_sizes(9, length=4, long="drop"), 1)[0].check(None)


# Documents that share a row.

SHARED = {"gpt2": "a table of positions", "llama": "RoPE", "gpt_oss": "a window of 4, and experts", "deepseek_v3": "MLA, and experts"}
TEXTS = [Document([], [(11 * i + j * j) % V for j in range(n)]) for i, n in enumerate((7, 2, 13, 4))]


def alone(model: Any) -> Tensor:
    """The mean over the targets of all documents, each in a batch of its own."""
    parts = [loss_of(model, packed_batch([d])) * (len(d.target) - 1) for d in TEXTS]
    return torch.stack(parts).sum() / sum(len(d.target) - 1 for d in TEXTS)


def gap(family: str) -> float:
    """The largest difference of the loss and the gradients of one row from those of the documents alone."""
    model = tiny(DECODERS[family])
    weights = list(model.parameters())
    got, wanted = loss_of(model, packed_batch(TEXTS)), alone(model)
    pairs = zip(torch.autograd.grad(got, weights, allow_unused=True), torch.autograd.grad(wanted, weights, allow_unused=True), strict=True)
    return max(abs(float((got - wanted).detach())), *(float((a - b).abs().max()) for a, b in pairs if a is not None and b is not None))


@pytest.mark.parametrize("family", SHARED)
def test_documents_of_a_row_are_apart(family: str) -> None:
    assert gap(family) < 1e-10


apart = Step.packed
Prompts = Mapping[Any, Sequence[int]] | None


def one_mask(lengths: list[int], prompts: Prompts = None) -> Step:
    """Positions of each document, and attention over the row."""
    return replace(apart(lengths), spans=(), prompts=None)


def one_text(lengths: list[int], prompts: Prompts = None) -> Step:
    """The row as one document."""
    return Step.plain(torch.zeros(1, sum(lengths), dtype=torch.long))


def running(lengths: list[int], prompts: Prompts = None) -> Step:
    """Attention apart, and positions that run on."""
    return replace(apart(lengths), positions=torch.arange(sum(lengths))[None])


@pytest.mark.parametrize("mutant", [one_mask, one_text, running])
@pytest.mark.parametrize("family", SHARED)
def test_documents_that_see_each_other_are_seen(family: str, mutant: Callable[..., Step]) -> None:
    if mutant is running and family != "gpt2":
        return  # RoPE sees distances alone, which running positions leave as they are
    with swapped(Step, "packed", staticmethod(mutant)):
        model = tiny(DECODERS[family])
        together = packed_batch(TEXTS)
    assert abs(float((loss_of(model, together) - alone(model)).detach())) > 1e-4


def test_equal_examples_are_not_all_held_out() -> None:
    """One line says so, and how to train on them; with another among them, or nothing held out, some are left."""
    shards, data = of_sizes(5, 5, 5, held_out=0.1)
    assert len(split_rows(shards, data, 1)[0]) == 2
    shards.tokens[5:10] = shards.tokens[:5]
    assert len(split_rows(shards, data, 1)[0]) in (1, 2)
    shards.tokens[10:] = shards.tokens[:5]
    with pytest.raises(TrainError) as caught:
        split_rows(shards, data, 1)
    assert caught.value.key == "data.equal" and "all 3 examples" in str(caught.value)
    assert len(split_rows(shards, replace(data, held_out=0), 1)[0]) == 3
