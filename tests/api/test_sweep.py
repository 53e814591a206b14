"""Each cell of a sweep is the number of its own run; heads that copy are told from others."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import Tensor

import pellucid
from pellucid import ablate, heads, patch, zero
from pellucid.api import sweep as sweeping
from pellucid.api.model import Model, specimens
from pellucid.api.sweep import Sweep
from pellucid.commands import main
from pellucid.errors import PellucidError
from pellucid.ops.sampling.stages import logprobs
from tiny import swapped

FRANCE, JAPAN = "The capital of France is", "The capital of Japan is"
WORDS = {"pellucid/capitals-t5": ("法国", "日本"), "pellucid/capitals-bert": (" France", " Japan")}
SCHEMAS = Path(pellucid.__file__).parent / "schemas"
SWEEP = sys.modules["pellucid.api.sweep"]


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals", dtype="float64")


def apart(s: Sweep, number: Callable[[Tensor], Tensor]) -> float:
    """The largest difference of a cell of a sweep from its lone run."""
    gaps = [abs(s.base - float(number(s.again([]).last_logits(row=row_of(s))[None])))]
    for path, at, value in s.best(s.values.numel()):
        gaps.append(abs(value - float(number(s.run(path, **at).last_logits(row=row_of(s))[None]))))
    return max(gaps)


def row_of(s: Sweep) -> int:
    blanks = s.again([]).blanks
    return blanks[0] if blanks else -1


def difference(model: Model, words: tuple[str, str]) -> Callable[[Tensor], Tensor]:
    x, y = (model.tokenizer.encode(word, special=False)[0] for word in words)
    return lambda logits: logits[:, x] - logits[:, y]


@pytest.mark.parametrize("name", specimens())
def test_each_cell_is_its_lone_run(name: str) -> None:
    """Heads at positions, and whole rows of the stream, in every specimen; an encoder's blank is the answer."""
    own = pellucid.load(name, dtype="float64")
    words = WORDS.get(name, (" Paris", " Tokyo"))
    clean, corrupted = (f"The capital of {country} is{' ___ .' if 'bert' in name else ''}" for country in ("France", "Japan"))
    stack = "encoder." if name.endswith("t5") else ""
    for over, by in ((f"{stack}layers.[01].attn.z", "H T"), (f"{stack}layers.1.ffn", "T")):
        s = patch(own, clean, corrupted, over, by, words)
        assert apart(s, difference(own, words)) < 1e-10
        assert s.clean is not None and s.clean > s.base + 1
        assert float((s.values - s.base).abs().max()) > 1e-3


def one_further(path: str, dims: Any, by: Any, rows: Tensor, at: Tensor, cells: Tensor, right: Any = sweeping.cells_of_rows) -> Any:
    """A mutant: the next trial's cells."""
    return right(path, dims, by, rows, at.roll(1, 0), cells)


def neighbours(path: str, dims: Any, by: Any, rows: Tensor, at: Tensor, cells: Tensor, right: Any = sweeping.cells_of_rows) -> Any:
    """A mutant: the cells are put into another trial's row."""
    return right(path, dims, by, rows.roll(1), at, cells)


@pytest.mark.parametrize("mutant", [one_further, neighbours])
def test_mutants_are_seen(model: Model, mutant: Any) -> None:
    with swapped(SWEEP, "cells_of_rows", mutant):
        s = patch(model, FRANCE, JAPAN, "layers.*.attn.z", "H,T", (" Paris", " Tokyo"))
    assert apart(s, difference(model, (" Paris", " Tokyo"))) > 1e-3


def test_batches_of_any_size(model: Model) -> None:
    every_row = patch(model, FRANCE, JAPAN, "layers.*.attn.z", "H T", " Paris")
    with swapped(SWEEP, "ROWS", 15):
        assert float((patch(model, FRANCE, JAPAN, "layers.*.attn.z", "H T", " Paris").values - every_row.values).abs().max()) < 1e-10
    token = model.tokenizer.encode(" Paris")[0]
    assert apart(every_row, lambda logits: logprobs(logits)[:, token]) < 1e-10
    ranks = patch(model, FRANCE, JAPAN, "layers.*.out", "T", lambda logits: (logits > logits[:, [token]]).sum(-1))
    assert ranks.values.shape == (4, 5) and float(ranks.clean or 0) == 0.0


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_ablating_is_the_change_by_hand(model: Model, how: Any) -> None:
    texts = [f"The capital of {x} is {y}." for x, y in (("France", "Paris"), ("Japan", "Tokyo"), ("Italy", "Rome"))]
    s = ablate(model, texts, "layers.[02].attn.z", "H", how)
    runs = [pellucid.trace(model, text, only="layers.*.attn.z") for text in texts]
    for layer, path in enumerate(s.paths):
        average = torch.cat([run.all(path)[0].value[0] for run in runs]).mean(0)
        for head in range(4):
            losses = []
            for run in runs:
                ids = torch.tensor([run.ids])

                def by_hand(z: Tensor, head: int = head, average: Tensor = average) -> Tensor:
                    z[:, :, head] = 0.0 if how == "zero" else average[head]
                    return z

                with pellucid.watch(model, only=(), edit={path: by_hand}):
                    losses.append(-float(model.logprobs(ids).mean()))
            assert float(s.values[layer, head]) == pytest.approx(sum(losses) / 3, abs=1e-10)
    assert s.base == pytest.approx(-sum(float(model.logprobs(torch.tensor([r.ids])).mean()) for r in runs) / 3, abs=1e-10)
    rows = s.run("layers.2.attn.z", H=1).all("layers.2.attn.z")[0].value[0, :, 1]
    average = torch.cat([run.all("layers.2.attn.z")[0].value[0, :, 1] for run in runs]).mean(0)
    assert float((rows - (0.0 if how == "zero" else average)).abs().max()) < 1e-12


def test_heads_are_scored_by_their_patterns(model: Model) -> None:
    """Each score is the mean weight of hand-picked cells; a head that is made to copy is found."""
    scores = heads(model, length=6, texts=3)
    once = torch.randint(model.config.vocab, (3, 6), generator=torch.Generator().manual_seed(0))
    with pellucid.watch(model, only="layers.*.attn.pattern") as seen:
        model(torch.cat([once, once], 1))
    back: dict[str, Callable[[int], int]] = {
        "induction": lambda t: t - 5, "duplicate": lambda t: t - 6, "previous": lambda t: t - 1, "first": lambda t: 0,
    }  # fmt: skip
    for name, of in back.items():
        right = torch.stack([torch.stack([s.value[:, :, t, of(t)] for t in range(6, 12)]).mean((0, 1)) for s in seen])
        assert float((scores.values[name] - right).abs().max()) < 1e-12

    def copying(p: Tensor) -> Tensor:
        t = torch.arange(6, 12)
        p[:, 2, 6:] = 0.0
        p[:, 2, t, t - 5] = 1.0
        return p

    with pellucid.watch(model, only=(), edit={"layers.1.attn.pattern": copying}):
        assert heads(model, length=6).best("induction", 1) == [("layers.1.attn.pattern", 2, 1.0)]


REFUSED: dict[str, tuple[Callable[[Model], object], str]] = {
    "lengths": (lambda m: patch(m, FRANCE, "The capital of South Korea is", "layers.*.out", "T", " Paris"), "South| Korea"),
    "no axis": (lambda m: patch(m, FRANCE, JAPAN, "layers.*.out", "H", " Paris"), "axes T D"),
    "no axes": (lambda m: patch(m, FRANCE, JAPAN, "layers.*.out", "", " Paris"), "axes T D"),
    "no tensor": (lambda m: patch(m, FRANCE, JAPAN, "layers.*.oot", "T", " Paris"), "nearest: layers.0.out"),
    "two tokens": (lambda m: patch(m, FRANCE, JAPAN, "layers.*.out", "T", " Paris is"), " Paris| is"),
    "three words": (lambda m: patch(m, FRANCE, JAPAN, "layers.*.out", "T", (" a", " b", " c")), "two words"),  # type: ignore[arg-type]
    "how": (lambda m: ablate(m, FRANCE, "layers.*.out", "D", "median"), "zero or mean"),  # type: ignore[arg-type]
    "by position": (lambda m: ablate(m, FRANCE, "layers.*.out", "T"), "other than T"),
    "no text": (lambda m: ablate(m, [], "layers.*.out", "D"), "at least one text"),
    "an encoder": (lambda m: heads(pellucid.load("pellucid/capitals-bert")), "no decoder"),
    "too long": (lambda m: heads(m, length=4000), "2 to"),
    "no such cell": (lambda m: patch(m, FRANCE, JAPAN, "layers.*.out", "T", " Paris").run("layers.0.out", H=1), "by T"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_sweep_is_one_line(model: Model, case: str) -> None:
    make, part = REFUSED[case]
    with pytest.raises(PellucidError) as caught:
        make(model)
    assert part in str(caught.value) and "\n" not in str(caught.value)


def test_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """The documents are the sweep's and the scores', and the tables show their numbers."""
    arguments = ["patch", "pellucid/capitals", FRANCE, JAPAN, "--metric", " Paris", " Tokyo", "--by", "H,T", "--over", "layers.*.attn.z"]
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, json.loads((SCHEMAS / "patch.json").read_text(encoding="utf-8")))
    own = pellucid.load("pellucid/capitals")
    s = patch(own, FRANCE, JAPAN, "layers.*.attn.z", "H T", (" Paris", " Tokyo"))
    assert document["shape"] == [4, 4, 5] and document["values"] == s.values.flatten().tolist() and document["pieces"][3] == " Japan"
    assert main(arguments) == 0
    out = capsys.readouterr().out
    (path, at, value), *_ = s.best(1)
    assert f"{path}  H={at['H']}, T={at['T']}" in out and f"{value:.2f}" in out
    assert main(["heads", "pellucid/capitals", "--json", "--length", "8"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, json.loads((SCHEMAS / "heads.json").read_text(encoding="utf-8")))
    assert document["scores"]["first"] == heads(own, 8).values["first"].tolist()
    assert main(["heads", "pellucid/capitals", "--lang", "zh"]) == 0 and "归纳" in capsys.readouterr().out


def test_a_sweep_of_silenced_heads_finds_the_ones_that_matter(model: Model) -> None:
    s = ablate(model, FRANCE, "layers.*.attn.z", "H", metric=" Paris")
    path, at, value = s.best(1)[0]
    token = model.tokenizer.encode(" Paris")[0]
    lone = pellucid.trace(model, FRANCE, edit=[zero(path, **at)])  # type: ignore[arg-type]
    assert value == pytest.approx(float(lone.last_logits().log_softmax(-1)[token]), abs=1e-10)
