"""Preference: the formulas on given log-probabilities, steps by hand, runs that stop and go on, and what is refused."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.documents.training import training_document
from pellucid.errors import TrainError
from pellucid.training import criterion, preference, run_recipe
from pellucid.training.objectives import IGNORED, Batch
from pellucid.training.preference import Preference, preference_loss
from pellucid.training.recipe_tables import PreferSettings
from pellucid.training.replay import Replay
from pellucid.training.stretches import verify_stretches
from pellucid.training.text_objective import packed_batch
from test_tuning import ADAPTER, TEMPLATE, lines, recipe, refused
from text_runs import NAMES, THINGS, recipe_of
from tiny import swapped
from training import moved_as_said, silent, stopped_after_each_step

LOSSES = ("dpo", "ipo", "hinge")


def texts() -> list[dict[str, Any]]:
    """Return seven pairs of answers of unequal length, and one with a prompt that another has."""
    made = [
        {"prompt": f"{name} has", "chosen": f" {THINGS[i % 5]}", "rejected": f" {THINGS[(i + 1) % 5]} and"} for i, name in enumerate(NAMES)
    ]
    return [*made, made[0] | {"rejected": " no"}]


def messages() -> list[dict[str, Any]]:
    """Return pairs of messages; of every second one both answers have the question in front, and no prompt is given."""
    out = []
    for i, name in enumerate(NAMES):
        question = [{"role": "user", "content": f"What has {name}?"}]
        answers = {key: [{"role": "assistant", "content": THINGS[(i + n) % 5]}] for n, key in enumerate(("chosen", "rejected"))}
        out.append({"prompt": question, **answers} if i % 2 else {key: question + answer for key, answer in answers.items()})
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, a chat template, and pairs of each kind."""
    place = tmp_path_factory.mktemp("preference")
    shutil.move(run_recipe(recipe_of(place, steps="2"), place / "out", False, 1, silent), place / "base")
    (place / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    lines(place, "t.jsonl", texts())
    lines(place, "m.jsonl", messages())
    return place


def preferring(folder: Path, name: str = "r.toml", files: str = "t.jsonl", prefer: str = "", **changed: Any) -> Path:
    """Write a recipe of pairs, with an adapter unless another is given."""
    given = {"objective": "prefer", "model": 'template = "chat.jinja"', "adapter": f"{ADAPTER}\n[prefer]\n{prefer}", "files": files}
    return recipe(folder, name, **given | changed)


@pytest.fixture(scope="module")
def finished(folder: Path) -> Path:
    """The folder of a finished run of texts, with what is held out logged."""
    evaluated = f"{ADAPTER}\n[eval]\nevery = 3\n[prefer]\nbeta = 0.5"
    path = preferring(folder, adapter=evaluated, data="held_out = 0.3")
    return run_recipe(path, folder / "run", False, 1, silent).parent


def test_its_bill_stands_beside_what_it_took(finished: Path) -> None:
    rows = {row[0]: row[1:] for row in training_document(pellucid.Run(finished))["panels"][-1]["rows"]}  # type: ignore[typeddict-item]
    assert all(rows["memory, at most"]) and rows["before the first step"][0] and rows["of it loss"][0]


def by_hand(c: list[float], r: list[float], c0: list[float], r0: list[float], loss: str, beta: float, smoothing: float) -> float:
    """Return the loss of one pair from the log-probability of each token of its answers."""
    if loss == "ipo":
        delta = (sum(c) - sum(c0)) / len(c) - (sum(r) - sum(r0)) / len(r)
        return (delta - 1 / (2 * beta)) ** 2
    x = beta * (sum(c) - sum(c0) - sum(r) + sum(r0))
    if loss == "hinge":
        return max(0.0, 1 - x)
    return (1 - smoothing) * math.log1p(math.exp(-x)) + smoothing * math.log1p(math.exp(x))


def given_logprobs(seed: int) -> tuple[list[list[float]], Tensor, Batch]:
    """Return, of three pairs, the log-probabilities of each answer's tokens, and logits and a batch that have them.

    Before each answer stand two tokens of a prompt, which the targets leave out.
    """
    draw = torch.Generator().manual_seed(seed)
    sizes = [3, 5, 1, 2, 4, 4]
    logits = torch.randn(1, sum(sizes) + 2 * len(sizes), 9, generator=draw, dtype=torch.float64)
    targets, tokens, at = torch.full(logits.shape[1:2], IGNORED), list[list[float]](), 0
    for n in sizes:
        answer = slice(at + 2, at + 2 + n)
        targets[answer] = torch.randint(9, (n,), generator=draw)
        tokens.append([float(logits[0, i].log_softmax(-1)[targets[i]]) for i in range(answer.start, answer.stop)])
        at += 2 + n
    step = pellucid.batch.step.Step.packed([n + 2 for n in sizes])
    references = torch.randn(len(sizes), generator=draw, dtype=torch.float64) - 3
    return tokens, logits, Batch((None, step), targets[None], references)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_formulas(loss: str, smoothing: float) -> None:
    """On given log-probabilities, in float64 at 1e-12; each mutant gives another loss."""
    tokens, logits, batch = given_logprobs(3)
    settings = PreferSettings(0.7, loss, smoothing if loss == "dpo" else 0.0)
    assert batch.of_texts is not None
    kept = batch.of_texts.tolist()
    wanted = 0.0
    for i in range(0, 6, 2):
        given = [[kept[j] / len(tokens[j])] * len(tokens[j]) for j in (i, i + 1)]
        wanted += by_hand(tokens[i], tokens[i + 1], *given, loss, 0.7, settings.smoothing) / 3

    class Fixed(torch.nn.Module):
        def forward(self, *inputs: Any) -> Tensor:
            return logits

    def own(of: Batch = batch, settings: PreferSettings = settings) -> float:
        return float(Preference(settings).judge(Fixed(), of).loss)

    assert abs(own() - wanted) < 1e-12
    gains = [sum(one) - reference for one, reference in zip(tokens, kept, strict=True)]
    figures = Preference(settings).judge(Fixed(), batch).figures
    assert abs(figures["chosen"] - 0.7 * sum(gains[::2]) / 3) < 1e-12 and abs(figures["rejected"] - 0.7 * sum(gains[1::2]) / 3) < 1e-12
    assert abs(figures["margin"] - figures["chosen"] + figures["rejected"]) < 1e-12
    assert figures["accuracy"] == sum(a > b for a, b in zip(gains[::2], gains[1::2], strict=True)) / 3
    swapped_pairs = batch._replace(of_texts=batch.of_texts.view(-1, 2).flip(1).flatten())  # reference swapped
    counted = batch._replace(targets=batch.targets.clamp(min=0))  # tokens of the prompt counted
    other = {"dpo": "hinge", "ipo": "dpo", "hinge": "dpo"}[loss]
    assert all(abs(own(mutant) - wanted) > 1e-3 for mutant in (swapped_pairs, counted))
    assert abs(own(settings=PreferSettings(0.7, other)) - wanted) > 1e-3
    with swapped(preference, "text_sums", lambda *given: normalised(*given) if loss != "ipo" else summed(*given)):
        assert abs(own() - wanted) > 1e-3


def normalised(*given: Any) -> tuple[Tensor, Tensor]:
    """Return means in place of sums."""
    sums, counts = criterion.text_sums(*given)
    return sums / counts, counts


def summed(*given: Any) -> tuple[Tensor, Tensor]:
    """Return sums with counts of 1, so that nothing is divided."""
    sums, counts = criterion.text_sums(*given)
    return sums, torch.ones_like(counts)


def test_extremes() -> None:
    """No overflow where the answers are far apart, and a finite gradient."""
    delta = torch.tensor([-1e6, 0.0, 1e6], dtype=torch.float64, requires_grad=True)
    for loss in LOSSES:
        out = preference_loss(delta, 0.1, loss, 0.1 if loss == "dpo" else 0.0)
        (gradient,) = torch.autograd.grad(out.sum(), delta)
        assert out.isfinite().all() and gradient.isfinite().all()


def pairs_by_hand(run: Replay, numbers: list[int], model: Any, first: Any, beta: float) -> Tensor:
    """Return the loss of a step, one document at a time, with both models run anew."""
    total = []
    for i in range(0, len(numbers), 2):
        gains = []
        for number in numbers[i : i + 2]:
            document = run.built[0].documents[number]
            assert document.learnt is not None
            ids = torch.tensor([document.target])
            logprobs = [m(ids[:, :-1])[0].double().log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0] for m in (model, first)]
            answer = torch.tensor(document.learnt[1:])
            gains.append((logprobs[0] - logprobs[1].detach())[answer].sum())
        total.append(-torch.nn.functional.logsigmoid(beta * (gains[0] - gains[1])))
    return torch.stack(total).mean()


def test_steps_by_hand(folder: Path, finished: Path) -> None:
    """The loss of each step is that of the model before it beside the model with its adapter off; the first one's is log 2."""
    run = pellucid.Run(finished)
    first = pellucid.load(folder / "base", dtype="float32")
    assert abs(run.log[0]["loss"] - math.log(2)) < 1e-6
    for step in (2, 4, 6):
        model = run.model(step - 1)
        wanted = float(pairs_by_hand(run, run.numbers(step), model.module, first.module, 0.5).detach())
        assert abs(run.log[step - 1]["loss"] - wanted) < 2e-6
    last = run.log[-1]
    assert last["margin"] > 1e-3 > 1e-6 > abs(run.log[0]["margin"]) and math.log(2) - last["loss"] > 5e-4
    assert abs(last["chosen"] - last["rejected"] - last["margin"]) < 1e-6 and {"held_out", "held_out_margin"} <= last.keys()


def test_gradients_by_hand(finished: Path) -> None:
    """One step's gradients against autograd of the formula; micro-batches add up to the same."""
    run = pellucid.Run(finished)
    training, numbers = run.to(3), run.numbers(4)
    model = run.model(3).module
    first = pellucid.load(run.recipe.root / "base", dtype="float32").module
    parameters = [p for p in model.parameters() if ".lora_" in next(n for n, q in model.named_parameters() if q is p)]
    for p in parameters:
        p.requires_grad_(True)
    wanted = torch.autograd.grad(pairs_by_hand(run, numbers, model, first, 0.5), parameters)
    for micro in (None, 1):
        training.s = type(training.s)(**{**vars(training.s), "micro": micro})
        training.backward(numbers)
        own = [p.grad for p in training.model.parameters() if p.requires_grad]
        assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in zip(own, wanted, strict=True) if a is not None)


def test_resumed_and_taken_again(folder: Path, finished: Path, tmp_path: Path) -> None:
    """A run that is stopped after each of its steps ends in the same bits; stretches verify; a weight says why it moved."""

    kept = tmp_path / "out" / "data" / "reference.json"  # it is computed again to the same bits
    again = stopped_after_each_step(folder / "r.toml", tmp_path / "out", 6, kept.unlink)
    name = "adapter_model.safetensors"
    assert (again / name).read_bytes() == (finished / "adapter" / name).read_bytes()
    run = pellucid.Run(finished)
    assert [s.fault for s in verify_stretches(run, 2, 1)] == [None, None]
    why = moved_as_said(run, "layers.0.attn.o.adapters.mine.lora_b.weight", (3, 1), 4)
    assert abs(why.gradient) > 0
    token = why.tokens[0]
    assert run.text(token.document) and "t.jsonl" in run.source(token.document)
    assert all(s.grad is not None for s in run.replay(5).all("layers.0.attn.pattern"))


def test_another_reference_is_refused(folder: Path, finished: Path, tmp_path: Path) -> None:
    """By name; a file of other numbers that says that it is of these pairs is not trained on unseen."""
    shutil.copytree(finished, tmp_path / "run")
    file = tmp_path / "run" / "data" / "reference.json"
    content = json.loads(file.read_text())
    content["trained"][0] += 1.0
    file.write_text(json.dumps(content))
    with pytest.raises(TrainError, match=r"differs in: references$"):
        run_recipe(folder / "r.toml", tmp_path / "run", True, 1, silent)


def test_all_weights(folder: Path, tmp_path: Path) -> None:
    """Without an adapter: the first weights' numbers are kept, and the finished model prefers the better answers."""
    path = preferring(folder, "all.toml", model="", adapter='[prefer]\nloss = "ipo"\nbeta = 1.0')
    made = run_recipe(path, tmp_path / "run", False, 1, silent)
    run = Replay(made.parent)
    held_out = run.objective.rows_of(1)[1]  # type: ignore[attr-defined]
    assert run.log[-1]["margin"] > run.log[0]["margin"] and f" {len(held_out) // 2} pairs" in (made / "README.md").read_text()
    assert [s.fault for s in verify_stretches(Replay(made.parent), 1)] == [None]


@pytest.mark.parametrize("marked", [False, True])
def test_messages(marked: bool, folder: Path, tmp_path: Path) -> None:
    """Only what differs from the prompt on is learnt, with and without a prompt of its own; a prompt lies on one side."""
    if marked:
        text = TEMPLATE.replace(
            "{{ message.content }}{{ eos_token }}", "{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}"
        )
        (folder / "marked.jinja").write_text(text, encoding="utf-8")
    entries = messages()
    entries[0]["chosen"][1:1] = entries[0]["rejected"][1:1] = [
        {"role": "assistant", "content": "Wait."},
        {"role": "user", "content": "Well?"},
    ]
    lines(folder, "two.jsonl", entries)
    model = f'template = "{"marked" if marked else "chat"}.jinja"'
    made = run_recipe(preferring(folder, "m.toml", "two.jsonl", model=model, data="held_out = 0"), tmp_path / "run", False, 1, silent)
    run = Replay(made.parent)
    documents = run.built[0].documents
    assert len(documents) == 14
    for number in range(14):
        document = documents[number]
        assert document.learnt is not None
        learnt = run.objective.tokenizer.decode([i for i, own in zip(document.target, document.learnt, strict=True) if own])
        assert learnt.strip() == THINGS[(number // 2 + number % 2) % 5]
        assert (
            number % 2 == 0 or documents[number - 1].target[: document.learnt.index(True)] == document.target[: document.learnt.index(True)]
        )


def test_equal_prompts_lie_on_one_side(folder: Path, finished: Path) -> None:
    objective = Replay(finished).objective
    sides = objective.rows_of(1)  # type: ignore[attr-defined]
    prompts = [{tuple(d.target[: d.learnt.index(True)]) for d in rows} for rows in sides]
    assert all(prompts) and not prompts[0] & prompts[1]


def test_a_pair_keeps_apart(finished: Path) -> None:
    """An answer's sum is the same alone as beside others."""
    run, model = Replay(finished), pellucid.Run(finished).model().module
    documents = [run.built[0].documents[i] for i in range(4)]
    with torch.no_grad():
        both = packed_batch(documents)
        sums = criterion.text_sums(model(*both.inputs), both)[0]
        for document, own in zip(documents, sums, strict=True):
            alone = packed_batch([document])
            assert abs(float(criterion.text_sums(model(*alone.inputs), alone)[0] - own)) < 1e-4


RECIPES: list[tuple[dict[str, Any], str]] = [
    ({"prefer": "beta = 0"}, "prefer.beta"),
    ({"prefer": 'loss = "kto"'}, "dpo, ipo, hinge"),
    ({"prefer": "smoothing = 0.6"}, "prefer.smoothing"),
    ({"prefer": 'loss = "ipo"\nsmoothing = 0.1'}, "prefer.smoothing"),
    ({"prefer": "betta = 1"}, "prefer.betta"),
    ({"objective": "chat"}, "objective"),
    ({"data": 'field = "text"'}, "data.field"),
    ({"data": 'field = ["prompt", "chosen"]'}, "data.field"),
    ({"data": 'pack = "none"'}, "data.pack"),
]
ASKED = [{"role": "user", "content": "x"}]
SAID = [{"role": "assistant", "content": "y"}]
DATA: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "x", "chosen": "y", "rejected": "y"}, "chosen and rejected are the same"),
    ({"prompt": ASKED, "chosen": SAID, "rejected": SAID}, "chosen and rejected are the same"),
    ({"prompt": "x", "chosen": "y"}, '"rejected" is missing; found: prompt, chosen'),
    ({"chosen": "y", "rejected": "z"}, '"prompt" is missing'),
    ({"prompt": "x", "chosen": "y", "rejected": ""}, '"rejected" is an empty text'),
    ({"prompt": "x", "chosen": "y", "rejected": 3}, '"rejected"'),
    ({"prompt": ASKED, "chosen": SAID, "rejected": "z"}, '"rejected"'),
    ({"prompt": ASKED, "chosen": SAID, "rejected": ASKED}, "no assistant message"),
    ({"prompt": ASKED, "chosen": SAID, "rejected": [{"role": "bot", "content": "z"}]}, "is bot"),
    ({"prompt": "x " * 99, "chosen": "y", "rejected": "z"}, "see data.long"),
]


@pytest.mark.parametrize(("changed", "part"), RECIPES)
def test_recipes_refused(changed: dict[str, Any], part: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert part in refused(preferring(folder, "bad.toml", **changed), tmp_path / "run", capsys, ("zh", "en"))


@pytest.mark.parametrize(("entry", "part"), DATA)
@pytest.mark.quick(4)
def test_lines_refused(entry: Any, part: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By file and line."""
    lines(folder, "bad.jsonl", [*texts()[:2], entry])
    line = refused(preferring(folder, "bad.toml", "bad.jsonl"), tmp_path / "run", capsys, ("zh", "en"))
    assert part in line and ("bad.jsonl:3" in line or "see data.long" in line)


def test_long_pairs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pair is dropped if one answer is too long; cut, it must have an answer left, and two."""
    long = {"prompt": "x", "chosen": " y" * 99, "rejected": " z"}
    lines(folder, "long.jsonl", [*texts(), long])
    for how, count in (("drop", 16), ("cut", 18)):
        path = preferring(folder, "long.toml", "long.jsonl", data=f'long = "{how}"\nheld_out = 0')
        made = run_recipe(path, tmp_path / how, False, 1, silent)
        assert len(Replay(made.parent).built[0].documents) == count
    for entry, part in (
        ({"prompt": "x " * 99, "chosen": "y", "rejected": "z"}, "long.jsonl:9: the prompt fills all 64 rows"),
        ({"prompt": "x", "chosen": " y" * 99, "rejected": " y" * 98}, "long.jsonl:9: chosen and rejected are the same"),
    ):
        lines(folder, "long.jsonl", [*texts(), entry])
        assert part in refused(path, tmp_path / "run", capsys, ("zh", "en"))
