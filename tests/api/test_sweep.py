"""Each cell of a sweep is the number of its own run; heads that copy are told from others."""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from documented import accept
from pellucid import ablate, add, continuation, heads, noise, patch, put, sweep, take, without, zero
from pellucid.api import sweep as sweeping
from pellucid.api.model import Model, make, specimens
from pellucid.api.sweep import Sweep
from pellucid.commands import main
from pellucid.engine import forks as forking
from pellucid.errors import PellucidError, TraceError
from pellucid.ops.sampling.stages import logprobs
from pellucid.watching import taken_cells
from pellucid.watching.change import Change
from tiny import swapped

FRANCE, JAPAN = "The capital of France is", "The capital of Japan is"
WORDS = {"pellucid/capitals-t5": ("法国", "日本"), "pellucid/capitals-bert": (" France", " Japan"), "pellucid/reader": (" red", " blue")}
READING = ("The key of Alda is red. The key of Alda is", "The key of Alda is blue. The key of Alda is")
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
@pytest.mark.quick(8)
def test_each_cell_is_its_lone_run(name: str) -> None:
    """Heads at positions, and whole rows of the stream, in every specimen; an encoder's blank is the answer."""
    own = pellucid.load(name, dtype="float64")
    words = WORDS.get(name, (" Paris", " Tokyo"))
    clean, corrupted = (f"The capital of {country} is{' ___ .' if 'bert' in name else ''}" for country in ("France", "Japan"))
    if name == "pellucid/reader":
        clean, corrupted = READING
    stack = "encoder." if name.endswith("t5") else ""
    for over, by in ((f"{stack}layers.[01].attn.z", "H T"), (f"{stack}layers.1.ffn", "T")):
        s = patch(own, clean, corrupted, over, by, words)
        assert apart(s, difference(own, words)) < 1e-10
        assert s.clean is not None and s.clean > s.base + 1
        assert float((s.values - s.base).abs().max()) > 1e-3


def one_further(path: str, other: Any, source: Any = None, right: Any = sweeping.take, **at: int) -> Change:
    """A mutant: the cells of the head before."""
    return right(path, other, {**at, "H": max(at["H"] - 1, 0)}, **at)  # type: ignore[no-any-return]


def moved_on(model: Model, forks: Any, trials: Any, measure: Any, right: Any = sweeping.numbers) -> Tensor:
    """A mutant: each trial's number is its neighbour's."""
    return right(model, forks, trials, measure).roll(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("mutant", [("take", one_further), ("numbers", moved_on)])
def test_mutants_are_seen(model: Model, mutant: tuple[str, Any]) -> None:
    with swapped(SWEEP, *mutant):
        s = patch(model, FRANCE, JAPAN, "layers.*.attn.z", "H,T", (" Paris", " Tokyo"))
    assert s.values.shape == (4, 4, 5)
    alone = {(path, *at.values()): s.again([take(path, pellucid.trace(model, FRANCE, only=path), **at)]) for path, at, _ in s.best(4)}  # type: ignore[arg-type]
    number = difference(model, (" Paris", " Tokyo"))
    assert max(abs(value - float(number(alone[path, *at.values()].last_logits()[None]))) for path, at, value in s.best(4)) > 1e-3


def apart_always(changes: Any, letters: Any, rows: Any) -> Any:
    """Let each fork take its own cells."""
    return changes


def next_row(span: Any, at: Any, right: Any = taken_cells.taken_rows) -> Any:
    """A mutant: each request takes the cells of the position before."""
    return [(row, max(position - 1, 0)) for row, position in right(span, at)]


@pytest.mark.parametrize(("over", "by"), [("layers.*.attn.z", "H T"), ("layers.*.attn.z", "H"), ("layers.*.attn.z", "T K"), ("norm", "T")])
@pytest.mark.quick(2)
def test_cells_taken_together_are_those_taken_apart(model: Model, over: str, by: str) -> None:
    """Bit for bit, by an assignment a tensor; a mutant is seen. Tables of pairs of tokens stay apart."""
    given = list[Change]()

    def counted(changes: Any, letters: Any, rows: Any, right: Any = taken_cells.taken_together) -> Any:
        given.extend(together := right(changes, letters, rows))
        return together

    with swapped(forking, "taken_together", counted):
        s = patch(model, FRANCE, JAPAN, over, by, " Paris")
    assert {type(c) for c in given} == {taken_cells.TakenCells} and len(given) < s.values.numel()
    with swapped(forking, "taken_together", apart_always):
        assert torch.equal(s.values, patch(model, FRANCE, JAPAN, over, by, " Paris").values)
    with swapped(taken_cells, "taken_rows", next_row):
        assert float((patch(model, FRANCE, JAPAN, over, by, " Paris").values - s.values).abs().max()) > 1e-6


def test_batches_of_any_size(model: Model) -> None:
    every_row = patch(model, FRANCE, JAPAN, "layers.*.attn.z", "H T", " Paris")
    with swapped(forking, "ROWS", 15):
        assert float((patch(model, FRANCE, JAPAN, "layers.*.attn.z", "H T", " Paris").values - every_row.values).abs().max()) < 1e-10
    token = model.tokenizer.encode(" Paris")[0]
    assert apart(every_row, lambda logits: logprobs(logits)[:, token]) < 1e-10
    ranks = patch(model, FRANCE, JAPAN, "layers.*.out", "T", lambda logits: (logits > logits[:, [token]]).sum(-1))
    assert ranks.values.shape == (4, 5) and float(ranks.clean or 0) == 0.0


def test_runs_of_unequal_lengths(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the other run lacks stay; a cell at a position that the text lacks is refused. So each trial alone, and all joined."""
    texts = ["The capital of France is Paris.", "The capital is"]
    joined = ablate(model, texts, "layers.0.attn.z", "H", "resample").values
    beyond = {t: take("layers.0.out", pellucid.trace(model, FRANCE, only="layers.0.out"), T=t) for t in range(5)}
    with pytest.raises(TraceError, match="no position"):
        sweep(model, "The capital", beyond, " Paris")
    monkeypatch.setattr(forking, "taken_together", apart_always)
    assert float((ablate(model, texts, "layers.0.attn.z", "H", "resample").values - joined).abs().max()) < 1e-10
    with pytest.raises(TraceError, match="no position"):
        sweep(model, "The capital", beyond, " Paris")


def test_a_model_without_a_head_is_patched() -> None:
    """The number of its clean run is of its last rows."""
    small = {"vocab_size": 30, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16}
    own = make({"model_type": "bert", "architectures": ["BertModel"], **small}, dtype=torch.float64)
    torch.manual_seed(1)
    for p in own.module.parameters():
        p.data.normal_(std=0.5)
    clean, other = [3, 4, 5], [3, 9, 5]
    s = patch(own, clean, other, "layers.0.out", "T", lambda rows: rows[:, 0])
    for number, ids in ((s.clean, clean), (s.base, other)):
        rows = own(torch.tensor([ids]))
        assert any(number == pytest.approx(row[0].item(), abs=1e-10) for row in rows[0])
    assert len(set(s.values.flatten().tolist())) == 3


def test_each_run_has_the_loss_of_its_own_tokens(model: Model) -> None:
    s = patch(model, FRANCE, JAPAN, "layers.0.out", "T", "loss")
    for number, text in ((s.clean, FRANCE), (s.base, JAPAN)):
        assert number == pytest.approx(-float(model.logprobs(torch.tensor([model.tokenizer.encode(text)])).mean()), abs=1e-10)


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
    "how": (lambda m: ablate(m, FRANCE, "layers.*.out", "D", "median"), "zero, mean, resample"),  # type: ignore[arg-type]
    "by position": (lambda m: ablate(m, FRANCE, "layers.*.out", "T"), "other than T"),
    "resample": (lambda m: ablate(m, FRANCE, "layers.*.out", "D", "resample"), "at least two"),
    "draws": (lambda m: noise("France", draws=0), "whole number from 1"),
    "no such word": (lambda m: patch(m, FRANCE, noise("Peru"), "layers.*.out", "T", " Paris"), "Peru"),
    "no such trial": (lambda m: sweep(m, FRANCE, {"a": zero("layers.0.ffn")}, " Paris").run("b"), "it has 'a'"),
    "no change": (lambda m: sweep(m, FRANCE, {"a": "layers.0.ffn"}, " Paris"), "str"),  # type: ignore[dict-item]
    "no continuation": (lambda m: sweep(m, FRANCE, {}, continuation("")), "at least one token"),
    "no loss": (lambda m: sweep(m, "The", {}, "loss"), "at least two tokens"),
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
    accept(document, "patch")
    own = pellucid.load("pellucid/capitals")
    s = patch(own, FRANCE, JAPAN, "layers.*.attn.z", "H T", (" Paris", " Tokyo"))
    assert document["shape"] == [4, 4, 5] and document["values"] == s.values.flatten().tolist() and document["pieces"][3] == " Japan"
    assert main(arguments) == 0
    out = capsys.readouterr().out
    (path, at, value), *_ = s.best(1)
    assert f"{path}  H={at['H']}, T={at['T']}" in out and f"{value:.2f}" in out
    assert main(["heads", "pellucid/capitals", "--json", "--length", "8"]) == 0
    document = json.loads(capsys.readouterr().out)
    accept(document, "heads")
    assert document["scores"]["first"] == heads(own, 8).values["first"].tolist()
    assert main(["heads", "pellucid/capitals", "--lang", "zh"]) == 0 and "归纳" in capsys.readouterr().out


def test_a_sweep_of_silenced_heads_finds_the_ones_that_matter(model: Model) -> None:
    s = ablate(model, FRANCE, "layers.*.attn.z", "H", metric=" Paris")
    path, at, value = s.best(1)[0]
    token = model.tokenizer.encode(" Paris")[0]
    lone = pellucid.trace(model, FRANCE, edit=[zero(path, **at)])  # type: ignore[arg-type]
    assert value == pytest.approx(float(lone.last_logits().log_softmax(-1)[token]), abs=1e-10)


def near(path: str, **at: Any) -> Change:
    """A change of a test's own."""
    return add(path, 0.5, **at)


KINDS: dict[str, Callable[[Tensor, Tensor, list[int]], float]] = {
    "kl": lambda x, base, ids: float((base[-1].softmax(-1) * (base[-1].log_softmax(-1) - x[-1].log_softmax(-1))).sum()),
    "loss": lambda x, base, ids: -float(x.log_softmax(-1)[range(len(ids) - 1), ids[1:]].mean()),
}


WRONG: dict[str, Any] = {
    "of all": lambda x: x.mean(), "of one": lambda x: x[-1, 7], "a float": lambda x: float(x[0, 7]), "nothing": lambda x: None,
    "columns": lambda x: x[:, [7]], "logits": lambda x: x,
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_metric_gives_a_number_for_each_run(model: Model, kind: str) -> None:
    """A number of several runs together would show every trial alike."""
    for trials in ({h: zero("layers.0.attn.z", H=h) for h in range(3)}, {0: zero("layers.0.attn.z", H=0)}):
        with pytest.raises(PellucidError, match="must give a tensor"):
            sweep(model, FRANCE, trials, WRONG[kind])
    assert len(sweep(model, FRANCE, {0: zero("layers.0.attn.z", H=0)}, lambda x: x[:, 7]).values) == 1


@pytest.mark.parametrize("metric", KINDS)
def test_trials_of_any_changes(model: Model, metric: str) -> None:
    """Mixtures of changes, with words and positions from the end, each the number of its lone run."""
    other = pellucid.trace(model, JAPAN)
    trials: dict[Any, Any] = {
        "head": zero("layers.1.attn.z", H=1), ("a", 2): [put("embed", 0.0, T="France"), add("layers.2.out", 1.0, T=-1)],
        3: [take("layers.0.out", other, T=3), zero("layers.*.ffn", T=-2)], "nothing": [], "hooks": zero("blocks.1.attn.hook_z", H=1),
    }  # fmt: skip
    s = sweep(model, FRANCE, trials, metric)
    assert list(s.values) == list(trials) and s.metric in ("KL", "loss")
    base = pellucid.trace(model, FRANCE)
    logits = base.all("logits")[0].value[0]
    assert s.base == pytest.approx(KINDS[metric](logits, logits, base.ids), abs=1e-10) == s.values["nothing"]
    for key in trials:
        own = s.run(key).all("logits")[0].value[0]
        assert s.values[key] == pytest.approx(KINDS[metric](own, logits, base.ids), abs=1e-10)
    assert s.values["head"] == pytest.approx(s.values["hooks"], abs=1e-12) != s.base
    assert s.best(1)[0][0] == max(trials, key=lambda key: abs(s.values[key] - s.base))


@pytest.mark.parametrize("name", ["pellucid/capitals", "pellucid/capitals-prefix", "pellucid/capitals-t5"])
def test_words_of_several_tokens(name: str) -> None:
    """Their number is the sum over their tokens, each after those before it, and T counts the prompt's tokens."""
    model, words = pellucid.load(name, dtype="float64"), " New Delhi, which"
    own = model.tokenizer.encode(words, special=False)
    stack = "decoder." if name.endswith("t5") else ""
    changes = [zero(f"{stack}layers.1.ffn", T=-1), zero(f"{stack}layers.0.attn.z", H=1)]
    s = sweep(model, FRANCE, {"a": changes, "b": []}, continuation(words))
    ids = model.ids(FRANCE)
    start = [model.config.starts] if model.config.starts is not None else ids
    tokens = torch.tensor([[*start, *own[:-1]]])
    arguments = (torch.tensor([ids]), tokens) if stack else (tokens,)
    edit = [zero(f"{stack}layers.1.ffn", T=len(start) - 1), changes[1]]
    with torch.no_grad(), pellucid.watch(model, only=(), edit=edit):
        logits = model(*arguments, **({"prefix": len(ids)} if model.config.prefix else {}))[0, len(start) - 1 :]
    assert len(own) > 2
    assert s.values["a"] == pytest.approx(float(logits.log_softmax(-1)[range(len(own)), own].sum()), abs=1e-10) != s.base == s.values["b"]


@pytest.mark.parametrize("name", ["pellucid/capitals", "pellucid/capitals-t5", "pellucid/capitals-bert"])
@pytest.mark.quick(2)
def test_causal_tracing(name: str) -> None:
    """Each number is the mean over draws of a noisy run with the clean run's cells put back; a seed gives the same noise."""
    model = pellucid.load(name, dtype="float64")
    word, stack = WORDS.get(name, (" Paris",))[0], "encoder." if name.endswith("t5") else ""
    prompt = FRANCE + (" ___ ." if "bert" in name else "")
    corrupted = noise("France", 3.0, draws=3, seed=5)
    s = patch(model, prompt, corrupted, f"{stack}layers.[02].out", "T", word)
    token, source = model.tokenizer.encode(word, special=False)[0], pellucid.trace(model, prompt)
    table = model.module.embed.weight
    (first, *others) = corrupted.changes(model, source.ids)
    with pellucid.watch(model, only=first.path, edit=[first]) as seen, torch.no_grad():
        ids = torch.tensor([source.ids])
        model(ids, ids[:, :1]) if stack else model(ids)
    by = seen[first.path].value - source.all(first.path)[0].value
    (at,) = {int(t) for t in by.abs().sum(-1)[0].nonzero()}
    assert model.tokenizer.pieces(source.ids)[at].text.strip() == "France"
    assert float(by[0, at].std() / table.std()) == pytest.approx(3.0, rel=0.3)

    def answer(edit: list[Change]) -> float:
        run = pellucid.trace(model, prompt, edit=edit)
        return float(logprobs(run.last_logits(row=run.blanks[0] if run.blanks else -1))[token])

    assert s.base == pytest.approx(sum(answer([one]) for one in (first, *others)) / 3, abs=1e-10)
    assert s.clean == pytest.approx(answer([]), abs=1e-10)
    for path, place, value in s.best(3):
        alone = [answer([one, take(path, source, **place)]) for one in (first, *others)]  # type: ignore[arg-type]
        assert value == pytest.approx(sum(alone) / 3, abs=1e-10)
        assert float(logprobs(s.run(path, **place).last_logits(row=row_of(s)))[token]) == pytest.approx(alone[0], abs=1e-10)
    assert torch.equal(patch(model, prompt, corrupted, f"{stack}layers.[02].out", "T", word).values, s.values)
    assert patch(model, prompt, noise("France", draws=3, seed=6), f"{stack}layers.0.out", "T", word).base != s.base


def test_ablating_by_other_texts_and_by_directions(model: Model) -> None:
    texts = [f"The capital of {x} is {y}." for x, y in (("France", "Paris"), ("Japan", "Tokyo"), ("Italy", "Rome"))]
    runs, v = [pellucid.trace(model, text) for text in texts], torch.arange(32.0).double().sin()

    def mean_loss(changes: list[Change]) -> float:
        out = 0.0
        for run, change in zip(runs, changes, strict=True):
            with pellucid.watch(model, only=(), edit=[change]):
                out -= float(model.logprobs(torch.tensor([run.ids])).mean()) / len(runs)
        return out

    path = "layers.0.attn.z"
    s = ablate(model, texts, path, "H", partial(without, direction=v))
    assert float(s.values[0, 3]) == pytest.approx(mean_loss([without(path, v, H=3)] * 3), abs=1e-10)
    assert float(ablate(model, texts, path, "H", near).values[0, 2]) == pytest.approx(mean_loss([add(path, 0.5, H=2)] * 3), abs=1e-10)
    given = {tuple(ablate(model, texts, path, "H", "resample", seed=seed).values[0].tolist()) for seed in range(4)}
    options = [[take(path, runs[j], H=3) for j in others] for others in ((a, b, c) for a in (1, 2) for b in (0, 2) for c in (0, 1))]
    known = [mean_loss(changes) for changes in options]
    assert len(given) > 1 and all(min(abs(numbers[3] - x) for x in known) < 1e-10 for numbers in given)
    assert torch.equal(*(ablate(model, texts, path, "H", "resample", seed=1).values for _ in range(2)))


def test_deterministic_sweeps_have_the_bits_of_lone_runs() -> None:
    model = pellucid.load("pellucid/capitals", dtype="float32")
    number = difference(model, (" Paris", " Tokyo"))
    s = patch(model, FRANCE, JAPAN, "layers.[13].attn.z", "H T", (" Paris", " Tokyo"), deterministic=True)
    assert apart(s, number) == 0.0
