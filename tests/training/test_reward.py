"""Reward: the formulas by hand, steps whose answers the engine draws, runs that stop and go on, and what is refused."""

import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from covering import FULL
from pellucid.documents.training import training_document
from pellucid.errors import TrainError
from pellucid.training import reward, run_recipe
from pellucid.training.objectives import Batch, Document
from pellucid.training.replay import Replay
from pellucid.training.reward import Reward, advantages, policy_loss, prompt_and_answer
from pellucid.training.stretches import verify_stretches
from pellucid.training.text_objective import TaughtText, packed_batch
from test_tuning import ADAPTER, chats, lines, recipe, refused
from text_runs import NAMES, THINGS, recipe_of
from training import ROOT, moved_as_said, silent, stopped_after_each_step

TABLE = "[reward]\ngroup = 4\nnew = 5"
CHECKS = dict(reward.CHECKS)
LEARNT = [False, False, True, True, True]


def batch(lengths: tuple[int, ...] = (3, 3, 2)) -> Batch:
    """Return a packed batch of answers of these lengths, each after a prompt of two tokens."""
    return packed_batch([Document([], [*range(2 + n)], LEARNT[: 2 + n]) for n in lengths])


def test_advantages_by_hand() -> None:
    given = torch.tensor([[1, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 1]], dtype=torch.float64)
    own, scaled = advantages(given), advantages(given, scaled=True)
    for row, group in enumerate(given.tolist()):
        mean = sum(group) / 4
        deviation = (sum((r - mean) ** 2 for r in group) / 3) ** 0.5
        for i, r in enumerate(group):
            assert abs(float(own[row, i]) - (r - mean)) < 1e-12
            assert abs(float(scaled[row, i]) - (r - mean) / (deviation + 1e-4)) < 1e-12
    spread = given.std(-1, correction=0, keepdim=True) + 1e-4  # of all answers, and not of a sample
    assert float((scaled - advantages(given) / spread).abs().max()) > 1e-2


def test_the_ratio_is_one_and_its_gradient_is_the_policy_s() -> None:
    """Exactly 1, so the loss is −A times the answer's tokens, to the bit; the gradient is −A·∇log p."""
    made = batch()
    rows = made.targets.numel()
    draw = torch.Generator().manual_seed(1)
    logprobs = -torch.rand(rows, generator=draw, dtype=torch.float64).requires_grad_(True)
    a = torch.tensor([0.75, -0.25, -0.5], dtype=torch.float64)
    loss = policy_loss(logprobs, a, made)
    assert loss.tolist() == [-0.75 * 3, 0.25 * 3, 0.5 * 2]
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    wanted = [0.0, -0.75, -0.75, -0.75, 0.0, 0.25, 0.25, 0.25, 0.0, 0.5, 0.5]
    assert gradient.tolist() == wanted
    (wrong,) = torch.autograd.grad((-a * reward.summed(logprobs.exp() / logprobs.exp().sum(), made)).sum(), logprobs)
    assert wrong.tolist() != wanted


@pytest.mark.parametrize(
    ("check", "text", "right", "expected"),
    [
        ("exact", " Paris.", [" Paris."], True),
        ("exact", "Paris. And", [" Paris."], False),
        ("exact", "Lyon", ["Paris", "Lyon "], True),
        ("begins", " Paris. And", [" Paris."], True),
        ("begins", "In Paris.", ["Paris."], False),
        ("number", "so 3 and 4 make 1,007.", ["#### 1007"], True),
        ("number", "7.0", ["7"], True),
        ("number", "8 or 7", ["8"], False),
        ("number", "none", ["8"], False),
        ("number", "none", ["none"], False),
        ("number", "-2.50", ["it is -2.5"], True),
    ],
)
def test_checks(check: str, text: str, right: list[str], expected: bool) -> None:
    assert CHECKS[check](text, right) is expected


def test_the_last_answer_is_asked() -> None:
    document = Document([], [*range(9)], [False, True, True, False, False, False, True, True, False])
    assert prompt_and_answer(document) == ([0, 1, 2, 3, 4, 5], [6, 7])
    assert prompt_and_answer(Document([], [5, 6], [True, True])) == ([5], [6])


def even(text: str, right: Any) -> bool:
    """A check that a model without training passes now and then."""
    return len(text) % 2 == 0


OWN = """
CALLS = []

def score(prompt, answer, right):
    CALLS.append(prompt)
    return 0.25 * len(answer.split()) + (answer in right) + (prompt == "Ann has" and right == [" a red ball", " nothing"])

infinite, words = (lambda *given: float("inf")), (lambda *given: "1")

def fault(*given):
    return {}["x"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, a chat template, and prompts with their answers, one of them with two."""
    place = tmp_path_factory.mktemp("reward")
    shutil.move(run_recipe(recipe_of(place, steps="2"), place / "out", False, 1, silent), place / "base")
    (place / "chat.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}",
        encoding="utf-8",
    )
    entries = [{"prompt": f"{name} has", "answer": f" {THINGS[i % 5]}"} for i, name in enumerate(NAMES)]
    lines(place, "t.jsonl", [*entries, entries[0] | {"answer": " nothing"}])
    lines(place, "m.jsonl", chats())
    (place / "own.py").write_text(OWN, encoding="utf-8")
    (place / "broken.py").write_text("def score(:", encoding="utf-8")
    return place


def rewarding(folder: Path, name: str = "r.toml", **changed: Any) -> Path:
    """Write a recipe of prompts, whose adapter trains."""
    given = {"objective": "reward", "model": "", "adapter": f"{ADAPTER}\n{TABLE}\n[eval]\nevery = 3", "files": "t.jsonl", "length": 16}
    return recipe(folder, name, **given | {"data": 'field = ["prompt", "answer"]\nheld_out = 0.3'} | changed)


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reward.CHECKS, "exact", even)


@pytest.fixture(scope="module")
def finished(folder: Path) -> Path:
    """The folder of a finished run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(reward.CHECKS, "exact", even)
        return run_recipe(rewarding(folder), folder / "run", False, 1, silent).parent


def test_a_step_by_hand(folder: Path, finished: Path) -> None:
    """What a step learns from is what the model before it writes, drawn by the step's seeds; loss, rewards and lengths are of these."""
    run = pellucid.Run(finished)
    for step in (1, 4):
        training, numbers = run.to(step - 1), run.numbers(step)
        (made,) = training.batches(numbers)
        assert made.of_texts is not None and len(made.inputs[-1].spans) == 4 * len(numbers)
        model, entry = run.model(step - 1), run.log[step - 1]
        criterion = training.criterion
        assert isinstance(criterion, Reward)
        total, rewards, tokens, begin = 0.0, list[float](), 0, 0
        ids, targets = made.inputs[0][0].tolist(), made.targets[0].tolist()
        for i, span in enumerate(made.inputs[-1].spans):
            answer = [t for t in targets[span.start : span.stop] if t != -100]
            document = training.documents[numbers[i // 4]]
            prompt, _ = prompt_and_answer(document)
            assert ids[span.start : span.start + len(prompt)] == prompt and span.start == begin
            begin = span.stop
            rewards.append(float(even(run.objective.tokenizer.decode(answer), ())))
            tokens += len(answer)
        for i in range(0, len(rewards), 4):
            mean = sum(rewards[i : i + 4]) / 4
            total -= sum((r - mean) * int(n) for r, n in zip(rewards[i : i + 4], made.of_texts[i : i + 4, 2].tolist(), strict=True))
        assert abs(entry["reward"] - sum(rewards) / len(rewards)) < 1e-9 and abs(entry["loss"] - total / tokens) < 1e-6
        assert abs(entry["length"] * len(rewards) - tokens) < 1e-6 and entry["gap"] < 1e-4 and 0 <= entry["cut"] <= 1
        again = criterion.draw(
            model.module, [prompt_and_answer(training.documents[n])[0] for n in numbers], 4, 1.0, seeds(step, len(numbers))
        )
        assert [a.ids for group in again for a in group] == [
            [t for t in targets[s.start : s.stop] if t != -100] for s in made.inputs[-1].spans
        ]
    assert "held_out_reward" in run.log[2] and run.log[2]["held_out"] == 1 - run.log[2]["held_out_reward"]
    assert any(entry["gradient"] > 1e-6 for entry in run.log)


def seeds(step: int, count: int) -> list[int]:
    """Return the seeds of a step's prompts."""
    return [reward.seed_of(1, step - 1, i) for i in range(count)]


def test_micro_batches_add_up(finished: Path) -> None:
    """The gradients of a step in parts are those of the step in one, though its answers have different lengths."""
    run = pellucid.Run(finished)
    training, numbers = run.to(2), run.numbers(3)
    gradients = []
    for micro in (None, 1):
        training.s = type(training.s)(**{**vars(training.s), "micro": micro})
        done = training.backward(numbers)
        gradients.append([p.grad.clone() for p in training.model.parameters() if p.grad is not None] + [torch.tensor(done.loss)])
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in zip(*gradients, strict=True))


def test_resumed_and_taken_again(folder: Path, finished: Path, tmp_path: Path) -> None:
    """A run that is stopped after each step draws the same answers; its stretches verify; a weight says why it moved."""
    again = stopped_after_each_step(folder / "r.toml", tmp_path / "out", 6)
    name = "adapter_model.safetensors"
    assert (again / name).read_bytes() == (finished / "adapter" / name).read_bytes()
    run = pellucid.Run(finished)
    assert [s.fault for s in verify_stretches(run, 2, 1)] == [None, None]
    why = moved_as_said(run, "layers.0.attn.o.adapters.mine.lora_b.weight", (3, 1), 4)
    assert {t.document for t in why.tokens} == set(run.numbers(4))
    recorded = run.replay(4)
    assert [len(part) for part in recorded.documents] == [4 * len(set(part)) for part in recorded.documents]


def test_the_page_has_the_rewards(finished: Path) -> None:
    """Beside the loss stands the curve of what a run is after, with the log's own numbers."""
    run = pellucid.Run(finished)
    loss, rewards = training_document(run)["panels"][:2]
    assert loss["kind"] == rewards["kind"] == "lines" and [loss["title"], rewards["title"]] == ["Loss", "Mean reward"]
    trained, held_out = (one["values"] for one in rewards["series"])
    at = rewards["at"]
    assert at == [3, 6] and held_out == [run.log[step - 1]["held_out_reward"] for step in at]
    assert trained == pytest.approx([sum(e["reward"] for e in run.log[i : i + 3]) / 3 for i in (0, 3)])


def test_right_answers_are_all_of_a_prompt(folder: Path, finished: Path) -> None:
    run = pellucid.Run(finished)
    run.to(0)
    criterion = run.built[0].criterion
    assert isinstance(criterion, Reward)
    right = {run.objective.tokenizer.decode(list(prompt)): answers for prompt, answers in criterion.right.items()}
    assert right["Ann has"] == {f" {THINGS[0]}", " nothing"} and right["Ben has"] == {f" {THINGS[1]}"}


def test_a_pattern() -> None:
    """With a group, what it holds is compared; without one, the match is enough."""
    for pattern, text, expected in (
        (r"#### (\d+)", "so #### 42 it is", True),
        (r"#### (\d+)", "#### 43", False),
        (r"\bso\b", "so 43", True),
        (r"\bso\b", "also", False),
    ):
        assert reward.matches(text, ["42"], re.compile(pattern)) is expected


def test_an_own_check(folder: Path, tmp_path: Path) -> None:
    """Its numbers are the log's; a step is taken again from the log, without its file being run; a run goes on; another file is refused."""
    table = '[reward]\ngroup = 4\nnew = 5\ncheck = "own.py:score"'
    path = rewarding(folder, "own.toml", adapter=f"{ADAPTER}\n{table}\n[eval]\nevery = 3")
    made = run_recipe(path, tmp_path / "run", False, 1, silent)
    run = pellucid.Run(made.parent)
    training = run.to(2)
    (batch,) = training.batches(run.numbers(3))
    score = runpy.run_path(str(folder / "own.py"))["score"]
    criterion = training.criterion
    assert isinstance(criterion, Reward) and criterion.own is not None and criterion.own.called is None
    wanted = list[float]()
    prompts = [prompt_and_answer(training.documents[n])[0] for n in run.numbers(3)]
    for prompt, group in zip(prompts, criterion.draw(training.model, prompts, 4, 1.0, seeds(3, len(prompts))), strict=True):
        right = sorted(criterion.right[tuple(prompt)])
        wanted += [score(criterion.written(prompt), criterion.written(answer.ids), right) for answer in group]
    assert run.log[2]["rewards"] == wanted == batch.of_texts[:, 1].tolist() and len(set(wanted)) > 1
    assert [s.fault for s in verify_stretches(run, 2, 1)] == [None, None] and criterion.own.called is None
    again = stopped_after_each_step(path, tmp_path / "out", 6)
    assert (again / "adapter_model.safetensors").read_bytes() == (made / "adapter_model.safetensors").read_bytes()
    log = made.parent / "log.jsonl"
    log.write_text(re.sub(r'"rewards": \[[^]]*\]', '"rewards": []', log.read_text()), encoding="utf-8")
    with pytest.raises(TrainError, match="step 3 has not the rewards"):
        pellucid.Run(made.parent).replay(3)
    other = folder / "own.py"
    other.write_text(OWN + "\n", encoding="utf-8")
    with pytest.raises(TrainError, match=r"reward\.file"):
        pellucid.Run(made.parent).replay(3)
    other.write_text(OWN, encoding="utf-8")


@pytest.mark.parametrize(
    ("function", "line"),
    [
        ("infinite", "own.py:infinite gave inf for prompt 1, text 1; allowed: a finite number"),
        ("words", "own.py:words gave '1' for prompt 1, text 1; allowed: a finite number"),
        ("fault", "own.py:fault raised KeyError: 'x', for prompt 1, text 1"),
    ],
)
def test_faults_of_an_own_check(function: str, line: str, folder: Path, tmp_path: Path) -> None:
    """One line that names the function and the place; nothing was changed."""
    path = rewarding(folder, "bad.toml", adapter=f'{ADAPTER}\n[reward]\ncheck = "own.py:{function}"')
    with pytest.raises(TrainError) as fault:
        run_recipe(path, tmp_path / "run", False, 1, silent)
    assert fault.value.line() == line and not (tmp_path / "run" / "log.jsonl").exists()


def test_chats(folder: Path, tmp_path: Path) -> None:
    """The last answer of a chat is what the model gives itself, after the template's own prompt."""
    path = rewarding(folder, "m.toml", files="m.jsonl", model='template = "chat.jinja"', data='field = "messages"\nheld_out = 0', length=64)
    made = run_recipe(path, tmp_path / "run", False, 1, silent)
    run = Replay(made.parent)
    for document in run.built[0].documents:
        prompt, answer = prompt_and_answer(document)
        text = run.objective.tokenizer.decode(prompt, skip_special_tokens=False)
        assert text.endswith("assistant:") and run.objective.tokenizer.decode(answer).strip().rstrip(".") in THINGS


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"adapter": "[reward]\ngroup = 1"}, "reward.group"),
    ({"adapter": '[reward]\ncheck = "right"'}, "exact, begins, number, regex, file.py:function"),
    ({"adapter": '[reward]\ncheck = "regex"'}, "reward.pattern"),
    ({"adapter": '[reward]\npattern = "a"'}, "reward.pattern"),
    ({"adapter": '[reward]\ncheck = "regex"\npattern = "(a+)+b"'}, "reward.pattern"),
    ({"adapter": '[reward]\ncheck = "regex"\npattern = "(a"'}, "reward.pattern"),
    ({"adapter": '[reward]\ncheck = "none.py:score"'}, "none.py"),
    ({"adapter": '[reward]\ncheck = "../none.py:score"'}, "../none.py"),
    ({"adapter": '[reward]\ncheck = "own.py:scores"'}, "own.py has no function scores; found: score, infinite, words, fault"),
    ({"adapter": '[reward]\ncheck = "broken.py:score"'}, "broken.py raised SyntaxError"),
    ({"adapter": "[reward]\nnew = 0"}, "reward.new"),
    ({"adapter": "[reward]\ntemperature = 0"}, "reward.temperature"),
    ({"adapter": "[reward]\nscaled = 1"}, "reward.scaled"),
    ({"adapter": "[reward]\ngroups = 1"}, "reward.groups"),
    ({"adapter": "[reward]\nnew = 600"}, "data.length and reward.new make 616 positions"),
    ({"objective": "chat"}, "objective"),
    ({"data": 'pack = "documents"'}, "data.pack"),
    ({"data": 'field = ["prompt", "answers"]'}, '"answers" is missing; found: prompt, answer'),
]


@pytest.mark.parametrize(("changed", "part"), REFUSED)
@pytest.mark.quick(5)
def test_recipes_refused(changed: dict[str, Any], part: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert part in refused(rewarding(folder, "bad.toml", **changed), tmp_path / "run", capsys, ("zh", "en"))


def accuracy(model: Any, entries: list[dict[str, str]]) -> float:
    """Return the share of prompts whose likeliest answer is the right one."""
    prompts = [model.tokenizer.encode(entry["prompt"], special=False) for entry in entries]
    written = [model.tokenizer.decode(ids[:-1]) for ids in model.generate(prompts, 8)]
    return sum(text == entry["chosen"] for text, entry in zip(written, entries, strict=True)) / len(entries)


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", ["continents-reward", "continents-prefer"])
def test_the_recipes_of_continents(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The specimen answers prompts that were held out better after the run than before; the file is what its script writes."""
    monkeypatch.setitem(reward.CHECKS, "exact", reward.exact)
    recipes = ROOT / "recipes"
    entries = (recipes / "chats" / "continents.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    most = 720 if FULL else 12
    assert runpy.run_path(str(ROOT / "examples" / "continents.py"))["lines"](most) == "".join(entries[:most])
    shutil.copytree(recipes / "chats", tmp_path / "chats")
    text = (recipes / f"{name}.toml").read_text(encoding="utf-8")
    (tmp_path / "r.toml").write_text(text if FULL else re.sub(r"(?m)^(steps|every) = .*$", r"\1 = 8", text), encoding="utf-8")
    made = run_recipe(tmp_path / "r.toml", tmp_path / "run", False, 1, silent)
    before = pellucid.load("pellucid/capitals", dtype="float32")
    after = pellucid.load(made) if made.name == "model" else pellucid.load("pellucid/capitals", dtype="float32", adapter=made)
    run = Replay(made.parent)
    assert isinstance(run.objective, TaughtText)
    held_out = {run.objective.tokenizer.decode(prompt_and_answer(d)[0]).strip() for d in run.objective.rows_of(1)[1]}
    asked_for = [e for e in map(json.loads, entries) if e["prompt"] in held_out]
    assert len(asked_for) == 216 == round(0.3 * len(entries))
    asked_for = asked_for[:: 1 if FULL else 3]
    assert accuracy(after, asked_for) > accuracy(before, asked_for) + (0.05 if FULL else 0.0)
