"""Training from a folder: chats, pairs and texts, all weights or an adapter; stopped, resumed, replayed, read by PEFT, refused."""

import json
import os
import random
import re
import runpy
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

import pellucid
from pellucid.checkpoint.safetensors_file import read_header
from pellucid.commands import main
from pellucid.documents.training import training_document
from pellucid.errors import TrainError
from pellucid.training import run_recipe
from pellucid.training.objectives import Document
from pellucid.training.replay import Replay
from pellucid.training.stretches import verify_stretches
from pellucid.training.text_objective import TaughtText
from text_runs import NAMES, THINGS, recipe_of
from tiny import swapped
from training import ROOT, moved_as_said, silent

TEMPLATE = """{% for message in messages %}
{% if message.role == 'assistant' %}A: {{ message.content }}{{ eos_token }}{% else %}Q: {{ message.content }}
{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"""
RECIPE = """
name = "tuned"
objective = "{objective}"

[model]
from = "base"
{model}

{adapter}

[data]
files = ["{files}"]
length = {length}
{data}

[train]
seed = 1
steps = 6
batch = 2
learning_rate = 1e-2
warmup = 1
save_every = 2
keep = "all"
log_every = 1
"""
ADAPTER = '[adapter]\nrank = 2\ntargets = ["attn.[qkvo]"]\nname = "mine"'


def chats() -> list[dict[str, Any]]:
    """Return chats of one and two answers."""
    questions = [{"role": "user", "content": f"What has {name}?"} for name in NAMES]
    given = [{"role": "assistant", "content": f"{THINGS[i % 5]}."} for i in range(7)]
    return [{"messages": [questions[i], given[i], *([questions[i - 1], given[i - 1]] if i % 2 else [])], "id": i} for i in range(7)]


def lines(folder: Path, name: str, entries: list[Any]) -> None:
    (folder / name).write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, a chat template, and data of each kind."""
    place = tmp_path_factory.mktemp("tuning")
    shutil.move(run_recipe(recipe_of(place, steps="2"), place / "out", False, 1, silent), place / "base")
    (place / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    lines(place, "d.jsonl", chats())
    lines(place, "e.jsonl", [{"prompt": f"{name} has", "completion": f" {THINGS[i % 5]}"} for i, name in enumerate(NAMES)])
    return place


def recipe(folder: Path, name: str = "r.toml", **changed: Any) -> Path:
    """Write a recipe of chats and an adapter, with parts changed."""
    given = {"objective": "chat", "model": 'template = "chat.jinja"', "adapter": ADAPTER, "files": "d.jsonl", "length": 64, "data": ""}
    (folder / name).write_text(RECIPE.format(**given | changed), encoding="utf-8")
    return folder / name


@pytest.fixture(scope="module")
def finished(folder: Path) -> Path:
    """The folder of a finished run of chats with an adapter."""
    return run_recipe(recipe(folder), folder / "run", False, 1, silent).parent


def test_peft_reads_the_adapter(folder: Path, finished: Path) -> None:
    """With the run's own logits; the base's weights are as they were, and the states hold the adapter alone."""
    ids = torch.tensor([[5, 17, 33, 60]])
    own = pellucid.load(folder / "base", dtype="float32", adapter=finished / "adapter")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
        plain = base(ids).logits
        other = peft.PeftModel.from_pretrained(base, finished / "adapter")
        last = pellucid.Run(finished).model()
        assert float((own(ids) - other(ids).logits).abs().max()) < 1e-5 < float((own(ids) - plain).abs().max())
        assert torch.equal(last(ids), own(ids))
    names = list(read_header(finished / "saves" / "000000006" / "weights.safetensors"))
    assert names and all(".adapters.mine.lora_" in name for name in names)
    last.save_adapter(finished / "again")
    name = "adapter_model.safetensors"
    assert (finished / "again" / name).read_bytes() == (finished / "adapter" / name).read_bytes()
    assert own.tokenizer.templates["default"].source == TEMPLATE and own.tokenizer.chat([{"role": "user", "content": "hi"}])


def test_only_answers_carry_loss(folder: Path, finished: Path) -> None:
    """The loss of the first step is the mean over the answers' tokens, one chat at a time; a mask that is dropped gives another."""
    run = Replay(finished)
    numbers, model = run.numbers(1), pellucid.load(folder / "base", dtype="float32")

    def loss() -> float:
        total, count = 0.0, 0
        for number in numbers:
            document = run.built[0].documents[number]
            targets = torch.tensor(document.losses()[1:])
            with torch.no_grad():
                total += float(cross_entropy(model(torch.tensor([document.target[:-1]]))[0], targets, ignore_index=-100, reduction="sum"))
            count += int((targets != -100).sum())
        return total / count

    logged = run.log[0]["loss"]
    assert abs(loss() - logged) < 1e-5
    with swapped(Document, "losses", lambda self: self.target):
        assert abs(loss() - logged) > 1e-3
    document = run.built[0].documents[numbers[0]]
    assert document.learnt is not None
    learnt = run.objective.tokenizer.decode([i for i, own in zip(document.target, document.learnt, strict=True) if own], False)
    assert learnt.endswith("<|endoftext|>") and "Q:" not in learnt and "has" not in learnt


def test_stopped_resumed_and_taken_again(folder: Path, finished: Path, tmp_path: Path) -> None:
    """To the same bits; each stretch verifies; and a weight of the adapter says why it moved."""

    def interrupt(entry: dict[str, Any]) -> None:
        if entry.get("step") == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainError, match="step 3"):
        run_recipe(recipe(folder), tmp_path / "out", False, 1, interrupt)
    again = run_recipe(recipe(folder), tmp_path / "out", True, 1, silent)
    name = "adapter_model.safetensors"
    assert (again / name).read_bytes() == (finished / "adapter" / name).read_bytes()
    run = pellucid.Run(finished)
    assert [s.fault for s in verify_stretches(run, 9)] == [None, None, None]
    for path, cell in (("layers.0.attn.o.adapters.mine.lora_b.weight", (3, 1)), ("layers.0.attn.q.adapters.mine.lora_a.weight", (1, 5))):
        assert abs(moved_as_said(run, path, cell, 4).gradient) > 0
    with pytest.raises(pellucid.PellucidError, match=r"layers.0.attn.o.weight"):
        run.why("layers.0.attn.o.weight", (0, 0), 4)


def test_another_base_is_refused(folder: Path, finished: Path, tmp_path: Path) -> None:
    """By name: the run's own states were trained beside other weights."""
    shutil.copytree(folder, tmp_path / "copy")
    model = pellucid.load(folder / "base", dtype="float32")
    model.module.embed.weight.data += 0.5
    model.save(tmp_path / "copy" / "base", overwrite=True)
    with pytest.raises(TrainError, match=r"differs in: base$"):
        run_recipe(tmp_path / "copy" / "r.toml", tmp_path / "copy" / "run", True, 1, silent)
    with pytest.raises(TrainError, match=r"adapter.rank \(2 → 3\)"):
        run_recipe(recipe(folder, "s.toml", adapter=ADAPTER.replace("2", "3")), finished, True, 1, silent)


def test_answers_without_a_stop_are_warned_of(folder: Path, tmp_path: Path) -> None:
    """Where the template writes none of the tokens that end a text; in a sound run nothing is said."""
    (folder / "endless.jinja").write_text(TEMPLATE.replace("{{ eos_token }}", ""), encoding="utf-8")
    for name, warned in (("endless", True), ("chat", False)):
        entries: list[dict[str, Any]] = []
        path = recipe(folder, "n.toml", model=f'template = "{name}.jinja"')
        run_recipe(path, tmp_path / name, False, 1, entries.append)
        assert any("eos_token_id" in str(entry.get("warning")) for entry in entries) == warned


def test_a_watched_adapter_is_shown(folder: Path, tmp_path: Path) -> None:
    """Its recorded steps have the adapter's parameters alone; tokens of a frozen table stay where they are."""
    watched = f'{ADAPTER}\n[watch]\nevery = 3\ntokens = [".", "a"]\ntensors = ["layers.*.attn.pattern"]'
    made = run_recipe(recipe(folder, "w.toml", adapter=watched), tmp_path / "run", False, 1, silent)
    run = pellucid.Run(made.parent)
    assert list(run.watched) == [3, 6] and all(".adapters.mine." in path for path in run.watched[6].parameters)
    assert torch.equal(run.watched[3].tokens["a"], run.watched[6].tokens["a"]) and training_document(run)["panels"]


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_an_adapter_over_blocks(quant: str, folder: Path, tmp_path: Path) -> None:
    made = run_recipe(recipe(folder, "q.toml", model=f'template = "chat.jinja"\nquant = "{quant}"'), tmp_path / "run", False, 1, silent)
    losses = [entry["loss"] for entry in Replay(made.parent).log]
    assert losses[-1] < losses[0] and [s.fault for s in verify_stretches(Replay(made.parent), 1)] == [None]
    merged = ["merge", folder / "base", made, "--save", tmp_path / "whole", "--quant", quant]
    assert main([*map(str, merged), "--quiet"]) == 0 and (tmp_path / "whole" / "chat_template.jinja").is_file()


def test_pairs(folder: Path, tmp_path: Path) -> None:
    """A prompt is encoded as it is when the model is questions, and the completion ends."""
    path = recipe(folder, "p.toml", model="", files="e.jsonl", data='field = ["prompt", "completion"]')
    made = run_recipe(path, tmp_path / "run", False, 1, silent)
    run = Replay(made.parent)
    document = run.built[0].documents[0]
    assert document.learnt is not None
    at, tokenizer = document.learnt.index(True), pellucid.load(folder / "base").tokenizer
    prompt, completion = tokenizer.decode(document.target[:at]), tokenizer.decode(document.target[at:-1])
    assert tokenizer.encode(prompt) == document.target[:at] and completion.strip() in THINGS and document.target[-1] == run.objective.end
    assert all(document.learnt[at:]) and not (made / "chat_template.jinja").exists()


def test_all_weights_from_a_folder(folder: Path, tmp_path: Path) -> None:
    """Texts go on from it, with its tokenizer; what is written is a model folder with all that travels with the base."""
    path = recipe(folder, "t.toml", objective="causal", model="", adapter="", files="text/*.txt")
    made = run_recipe(path, tmp_path / "run", False, 1, silent)
    model, base = pellucid.load(made, dtype="float32"), pellucid.load(folder / "base", dtype="float32")
    weights, before = dict(model.module.named_parameters()), dict(base.module.named_parameters())
    assert all(not torch.equal(weights[n], before[n]) for n in before if "weight" in n) and model.stops == base.stops
    assert (made / "tokenizer.json").read_bytes() == (folder / "base" / "tokenizer.json").read_bytes()
    assert len(read_header(made.parent / "saves" / "000000006" / "weights.safetensors")) == len(before)
    shutil.copytree(folder, tmp_path / "copy")
    settings = tmp_path / "copy" / "base" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"x": 1}))
    with pytest.raises(TrainError, match="tokenizer"):
        run_recipe(tmp_path / "copy" / "t.toml", tmp_path / "run", True, 1, silent)


RECIPES: list[tuple[dict[str, Any], str]] = [
    ({"model": "hidden_size = 3"}, "[model] has from and hidden_size; give one"),
    ({"model": 'quant = "int3"'}, "model.quant"),
    ({"model": 'quant = "int8"\ntemplate = "chat.jinja"', "adapter": ""}, "[adapter]"),
    ({"model": 'template = "none.jinja"'}, "none.jinja"),
    ({"model": ""}, "chat template"),
    ({"adapter": "[tokenizer]\nsize = 300"}, "model.from, tokenizer"),
    ({"adapter": "[adapter]\nrank = 0"}, "adapter.rank"),
    ({"adapter": "[adapter]\nrank = 2\nalpha = 0"}, "adapter.alpha"),
    ({"adapter": '[adapter]\nrank = 2\ntargets = ["attn.qkv"]'}, "attn.qkv"),
    ({"adapter": '[adapter]\nrank = 2\ntargets = ["attn.q"]'}, "layers.0.attn.k"),
    ({"adapter": "[adapter]\nrank = 2\nranks = 3"}, "adapter.ranks"),
    ({"objective": "prefix"}, "objective"),
    ({"data": 'long = "split"'}, "data.long"),
    ({"data": 'pack = "stream"'}, "data.pack"),
    ({"data": 'field = ["prompt"]'}, "data.field"),
    ({"files": "text/*.txt"}, ".jsonl"),
]
DATA: list[tuple[Any, str]] = [
    ({"messages": 3}, "messages is a JSON number"),
    ({"messages": {"role": "user"}}, "messages is a JSON object"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "bot", "content": "y"}]}, "messages[1].role is bot"),
    ({"messages": [{"role": "user", "content": "x"}]}, "no assistant message"),
    ({"messages": []}, "messages is empty"),
    ({"messages": "x"}, "messages is a JSON string"),
    ({"text": "x"}, '"messages" is missing; found: text'),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant"}]}, "messages[1].content"),
    ({"messages": chats()[0]["messages"], "tools": 3}, "tools is a JSON number"),
    ([1], "no JSON object"),
    ({"messages": [{"role": "user", "content": "x " * 99}, {"role": "assistant", "content": "y"}]}, "see data.long"),
]


def refused(path: Path, out: Path, capsys: pytest.CaptureFixture[str], languages: tuple[str, ...] = ("en",)) -> str:
    """Return the one line with which a recipe is refused, and check that it is one in each language."""
    for language in languages:
        assert main(["train", str(path), "--out", str(out), "--lang", language]) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1 and not (out / "log.jsonl").exists()
    return text


@pytest.mark.parametrize(("changed", "part"), RECIPES)
@pytest.mark.quick(5)
def test_recipes_refused(changed: dict[str, Any], part: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert part in refused(recipe(folder, "bad.toml", **changed), tmp_path / "run", capsys, ("zh", "en"))


@pytest.mark.parametrize(("entry", "part"), DATA)
@pytest.mark.quick(4)
def test_lines_refused(entry: Any, part: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By file and line."""
    lines(folder, "bad.jsonl", [*chats()[:2], entry])
    line = refused(recipe(folder, "bad.toml", files="bad.jsonl"), tmp_path / "run", capsys)
    assert (part in line and "bad.jsonl:3" in line) or ("document 3" in line and "data.long" in line)


def test_long_chats(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dropped, or cut, but not so that no answer is left."""
    long = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y " * 99}]}
    lines(folder, "long.jsonl", [*chats(), long])
    for how, count in (("drop", 7), ("cut", 8)):
        path = recipe(folder, "long.toml", files="long.jsonl", data=f'long = "{how}"\nheld_out = 0')
        made = run_recipe(path, tmp_path / how, False, 1, silent)
        assert len(Replay(made.parent).built[0].documents) == count
    lines(folder, "long.jsonl", [*chats(), {"messages": [{"role": "user", "content": "x " * 99}, long["messages"][1]]}])
    assert "long.jsonl:8: the prompt fills all 64 rows; see data.long" in refused(path, tmp_path / "run", capsys)


def test_a_chat_needs_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "model.from" in refused(recipe_of(tmp_path, objective='"chat"'), tmp_path / "run", capsys)


def test_the_recipe_of_chats(tmp_path: Path) -> None:
    """The chats that ship are those that their script writes. In full, held-out questions are answered, and the answers stop."""
    recipes, full = ROOT / "recipes", bool(os.environ.get("PELLUCID_FULL"))
    assert chats_script() == (recipes / "chats" / "countries.jsonl").read_text(encoding="utf-8")
    shutil.copytree(recipes / "chats", tmp_path / "chats")
    text = (recipes / "countries-chat.toml").read_text(encoding="utf-8")
    steps = 150 if full else 8
    (tmp_path / "r.toml").write_text(re.sub(r"(?m)^(steps|every) = .*$", rf"\1 = {steps}", text), encoding="utf-8")
    made = run_recipe(tmp_path / "r.toml", tmp_path / "run", False, 1, silent)
    run, model = Replay(made.parent), pellucid.load("pellucid/capitals", dtype="float32", adapter=made)
    assert run.log[-1]["loss"] < run.log[0]["loss"] and model.tokenizer.templates
    right, stopped, held_out = 0, 0, list(run.objective.rows_of(1)[1]) if isinstance(run.objective, TaughtText) else []
    for document in held_out if full else ():
        assert document.learnt is not None
        at = document.learnt.index(True)
        answer = model.generate([document.target[:at]], 16)[0]
        stopped += answer[-1] == run.objective.end
        right += answer == document.target[at : document.target.index(run.objective.end) + 1]
    assert len(held_out) > 40 and (not full or (right > 0.9 * len(held_out) and stopped > 0.95 * len(held_out)))


def chats_script() -> str:
    """Return what examples/chats.py writes."""
    space = runpy.run_path(str(ROOT / "examples" / "chats.py"))
    countries = list(json.loads(space["FACTS"].read_text(encoding="utf-8"))["countries"].values())
    draw = random.Random(space["SEED"])
    return "".join(json.dumps(space["chat"](draw, countries), ensure_ascii=False) + "\n" for _ in range(space["CHATS"]))
