"""Each line that `pellucid train` and its kin may end with, provoked by the command line: what is wrong, its place, and what is allowed."""

import builtins
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from pellucid.checkpoint import disk
from pellucid.commands import main
from pellucid.documents import recipe_bill
from pellucid.training import run_recipe, saves
from test_recipe import written
from test_tuning import TEMPLATE, chats, lines
from test_tuning import recipe as tuned
from text_runs import recipe_of
from tiny import swapped
from training import corpus_of, silent

Setup = Callable[[Path], tuple[list[Any], AbstractContextManager[object]]]


def train(recipe: Path, *more: str) -> list[Any]:
    return ["train", recipe, "--out", recipe.parent / "out", "--threads", "1", *more]


def texts(files: str = '["text/*.txt", "b.jsonl"]', write: dict[str, bytes] | None = None, **changed: str) -> Setup:
    """A recipe of texts, with other files beside it and other fields."""

    def setup(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
        recipe = recipe_of(folder, data__files=files, **changed)
        for name, content in (write or {}).items():
            (folder / name).write_bytes(content)
        return train(recipe), nullcontext()

    return setup


def taught(entry: object, place: int = 3, **changed: Any) -> Setup:
    """A recipe of chats or pairs, of which line `place` is `entry`."""

    def setup(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
        entries = chats() if "objective" not in changed else [good_pair(i) for i in range(4)]
        lines(folder, "d.jsonl", [*entries[: place - 1], entry, *entries[place:]])
        return train(tuned(folder, **changed)), nullcontext()

    return setup


def good_pair(i: int) -> dict[str, str]:
    return {"prompt": f"What has {i}?", "chosen": " a map", "rejected": " a hat"}


def user(text: str = "hi") -> dict[str, str]:
    return {"role": "user", "content": text}


def answer(text: str = "ho") -> dict[str, str]:
    return {"role": "assistant", "content": text}


def finished(folder: Path, **changed: Any) -> Path:
    """A finished run of facts in `folder`/out; returns its recipe."""
    corpus_of(folder / "corpus", "France", "Spain")
    recipe = written(folder / "r.toml", **changed)
    if not (folder / "out").exists():
        run_recipe(recipe, folder / "out", False, 1, silent)
    return recipe


def as_other_machine(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    recipe = finished(folder)
    shutil.rmtree(folder / "out" / "saves" / "000000006")
    return train(recipe, "--resume"), swapped(torch.backends.cpu, "get_cpu_capability", lambda: "OTHER")


class LockedByAnother(AbstractContextManager[None]):
    """A lock on a run's folder that process 4711 has."""

    def __init__(self, folder: Path) -> None:
        self.file = (folder / "lock").open("w")
        self.file.write("4711\n")
        self.file.flush()
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *how: object) -> None:
        self.file.close()


def in_use(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    recipe = finished(folder)
    return train(recipe, "--resume"), LockedByAnother(folder / "out")


def full_disk(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    """The disk is full while the second state is written."""
    recipe, count, own = corpus_of(folder / "corpus", "France", "Spain"), 0, disk.sync
    recipe = written(folder / "r.toml")

    def sync(path: Path) -> None:
        nonlocal count
        count += path.name == "weights.safetensors" or path.name == "state.json"
        if count == 2:
            raise OSError(28, "No space left on device")
        own(path)

    return train(recipe), swapped(saves, "sync", sync)


def too_early(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    recipe = finished(folder)
    about = folder / "out" / "run.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"since": 3}))
    assert recipe.is_file()
    return ["trace", folder / "out", "--step", "4", "--save", folder / "x"], nullcontext()


def another_loss(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    finished(folder)
    log = folder / "out" / "log.jsonl"
    log.write_text(re.sub(r'("step": 2, "loss": )[\d.]+', r"\g<1>3.25", log.read_text()))
    return ["trace", folder / "out", "--step", "2", "--save", folder / "x"], nullcontext()


def changed_source(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    recipe = recipe_of(folder)
    run_recipe(recipe, folder / "out", False, 1, silent)
    (folder / "b.jsonl").write_text('{"text": "other"}\n')
    return train(recipe, "--resume"), nullcontext()


def damaged_shard(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    recipe = recipe_of(folder)
    assert main([*map(str, train(recipe)), "--prepare", "--quiet"]) == 0
    shard = folder / "out" / "data" / "00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x07")
    return train(recipe), nullcontext()


def without_pyarrow(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    own = builtins.__import__

    def without(name: str, *how: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return own(name, *how)

    (folder / "c.parquet").write_bytes(b"PAR1")
    return train(recipe_of(folder, data__files='["c.parquet"]')), swapped(builtins, "__import__", without)


def other_column(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"url": ["x"], "content": ["y"]}), folder / "c.parquet")
    return train(recipe_of(folder, data__files='["c.parquet"]')), nullcontext()


def foreign_id(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    """The shards hold an id that the tokenizer does not have, under hashes that fit."""
    from pellucid.checkpoint.safetensors_file import read_header, read_tensor, write

    recipe = recipe_of(folder)
    assert main([*map(str, train(recipe)), "--prepare", "--quiet"]) == 0
    data = folder / "out" / "data"
    shard, index = data / "00000.safetensors", json.loads((data / "index.json").read_text())
    tensors = {name: read_tensor(entry).clone() for name, entry in read_header(shard).items()}
    tensors["tokens"].numpy()[int(tensors["starts"][5])] = 50257
    write(shard, tensors)
    index["shards"][shard.name] = [saves.digest(shard), shard.stat().st_size]
    (data / "index.json").write_text(json.dumps(index))
    return train(recipe), nullcontext()


def own_reward(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    (folder / "check.py").write_text("def score(prompt, text, right):\n    return float('nan')\n")
    lines(folder, "e.jsonl", [{"prompt": f"{i} has", "completion": " a map"} for i in range(4)])
    reward = '[reward]\ncheck = "check.py:score"\ngroup = 2\nnew = 2'
    recipe = tuned(folder, objective="reward", files="e.jsonl", adapter=f"{ADAPTED}\n{reward}", model="")
    return train(recipe), nullcontext()


def little_memory(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    recipe = recipe_of(folder)
    bill = recipe_bill.bill_of_texts(read := recipe_bill.read_recipe(recipe), read.data)  # type: ignore[arg-type]
    needed = int(recipe_bill.training(bill.bill, bill.way)["memory.total"])
    return train(recipe), swapped(recipe_bill.require_memory, "__defaults__", (lambda: needed - 1,))


def two_starts(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    lines(folder, "d.jsonl", chats())
    return train(tuned(folder, model="hidden_size = 32")), nullcontext()


def two_ranks(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    recipe = recipe_of(folder)
    recipe.write_text(recipe.read_text() + "\n[ranks]\ndata = 2\n")
    return train(recipe), nullcontext()


def longer_tokenizer(folder: Path) -> tuple[list[Any], AbstractContextManager[object]]:
    lines(folder, "d.jsonl", chats())
    tokenizer = Tokenizer.from_file(str(folder / "base" / "tokenizer.json"))
    for i in range(401 - tokenizer.get_vocab_size()):
        tokenizer.add_tokens([f"<new {i}>"])
    tokenizer.save(str(folder / "base" / "tokenizer.json"))
    return train(tuned(folder)), nullcontext()


ADAPTED = '[adapter]\nrank = 2\ntargets = ["attn.[qkvo]"]'
STEP = r"step \d+"
CASES: dict[str, tuple[str, int, Setup]] = {
    "unknown field": (r"r\.toml: train\.stepz is not known; near: train\.steps", 2, texts(train__stepz="1")),
    "two starts": (r"r\.toml: \[model\] has from and hidden_size; give one", 2, two_starts),
    "micro": (r"r\.toml: train\.micro is 3; allowed: train\.batch = 8 = n × train\.micro", 2, texts(train__micro="3")),
    "no file": (r'[\w-]+: data\.files "gone/\*\.txt" matches nothing', 2, texts('["gone/*.txt"]')),
    "empty": (r"a\.txt is empty", 2, texts('["a.txt"]', {"a.txt": b"\n"})),
    "encoding": (r"a\.txt: byte ff at offset 1,024 is no UTF-8", 2, texts('["a.txt"]', {"a.txt": b"x" * 1024 + b"\xff"})),
    "no JSON": (r"b\.jsonl:3:9: no JSON object", 2, texts('["b.jsonl"]', {"b.jsonl": b'{"text": "a"}\n{"text": "b"}\n{"text":}\n'})),
    "field": (r'b\.jsonl:1: "text" is missing; found: id, body', 2, texts('["b.jsonl"]', {"b.jsonl": b'{"id": 1, "body": "x"}'})),
    "kind": (r'b\.jsonl:1: "text" is of the kind number; allowed: string', 2, texts('["b.jsonl"]', {"b.jsonl": b'{"text": 3}'})),
    "extra": (r"c\.parquet needs pyarrow: pip install 'pellucid\[data\]'", 2, without_pyarrow),
    "column": (r'c\.parquet: no column "text"; found: url, content', 2, other_column),
    "role": (
        r'd\.jsonl:3: messages\[1\]\.role is "?bot"?; allowed.* assistant.*',
        2,
        taught({"messages": [user(), {"role": "bot", "content": "x"}]}),
    ),
    "no reply": (r"d\.jsonl:3: no assistant message; nothing to learn", 2, taught({"messages": [user()]})),
    "template": (
        r"d\.jsonl:3: the template leaves nothing of messages\[1\].*",
        2,
        taught({"messages": [user(), answer("")]}, model='template = "bare.jinja"'),
    ),
    "cut away": (
        r"d\.jsonl:3: the prompt fills all 24 rows; see data\.long",
        2,
        taught({"messages": [user("why " * 60), answer()]}, length=24, data='long = "cut"'),
    ),
    "same pair": (
        r"d\.jsonl:3: chosen and rejected are the same",
        2,
        taught(good_pair(1) | {"rejected": " a map"}, objective="prefer", model=""),
    ),
    "id": (r"document 5 holds the token id 50257; allowed are 0 to \d+", 2, foreign_id),
    "tokenizer": (r"r\.toml: the tokenizer has 401 ids, the model's table \d+ rows", 2, longer_tokenizer),
    "changed": (r"b\.jsonl changed since the run began \(sha256 [0-9a-f]{12}, now [0-9a-f]{12}\)", 2, changed_source),
    "shard": (r"00000\.safetensors does not match its index; --prepare makes it again", 2, damaged_shard),
    "target": (
        r'r\.toml: adapter\.targets "attn\.qkv" matches no matrix; near: .*attn\.q.*',
        2,
        taught(chats()[2], adapter='[adapter]\nrank = 2\ntargets = ["attn.qkv"]'),
    ),
    "no target": (
        r'r\.toml: adapter\.targets "zzz" matches no matrix; near: attn\.q, attn\.k, attn\.v, attn\.o, ffn\.up, ffn\.down',
        2,
        taught(chats()[2], adapter='[adapter]\nrank = 2\ntargets = ["zzz"]'),
    ),
    "fused": (
        r"r\.toml: layers\.\S*attn\.q\S* is one matrix on disk with \S+.*; an adapter takes all of them or none",
        2,
        taught(chats()[2], adapter='[adapter]\nrank = 2\ntargets = ["attn.q"]'),
    ),
    "reward": (r"check\.py:score gave nan for prompt \d+, text \d+; allowed: a finite number", 1, own_reward),
    "memory": (
        r"the run needs \d+\.\d GB, \d+\.\d are free \(activations \d+\.\d\); train\.micro = \d+ would need \d+\.\d",
        2,
        little_memory,
    ),
    "other run": (r"saves/000000004 was saved on another machine or on other ranks: cpu \(\w+ → OTHER\);.*", 2, as_other_machine),
    "in use": (r"out is in use by process 4711", 2, in_use),
    "disk": (r"saves/000000004: No space left on device; 000000002 is whole", 1, full_disk),
    "too early": (r"step 4 (lies before the states kept|was taken on another machine).*", 2, too_early),
    "replay": (r"step 2 ran again: loss 3\.25, now \d\.\d+", 2, another_loss),
    "ranks": (r"\[ranks\] data=2 tensor=1 needs 2 processes, 1 were started", 2, two_ranks),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and two chat templates."""
    place = tmp_path_factory.mktemp("base")
    shutil.move(run_recipe(recipe_of(place, steps="2"), place / "out", False, 1, silent), place / "base")
    (place / "base" / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    return place / "base"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.quick(4)
def test_the_command_ends_in_its_line(case: str, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, the exit code, and the sentence."""
    sentence, code, setup = CASES[case]
    shutil.copytree(base, tmp_path / "base")
    shutil.move(tmp_path / "base" / "chat.jinja", tmp_path / "chat.jinja")
    (tmp_path / "bare.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}", encoding="utf-8")
    words, around = setup(tmp_path)
    capsys.readouterr()
    with around:
        ended = main([*map(str, words), "--lang", "en", "--quiet"])
    printed = capsys.readouterr().err.replace(f"{tmp_path}{os.sep}", "").splitlines()
    assert ended == code and printed and re.fullmatch(rf"pellucid: (\S*)?{sentence}", printed[-1]), (ended, printed)
    assert len(printed) == 1


def test_a_sound_recipe_ends_in_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same recipe with nothing wrong, and memory that is just enough."""
    words, around = little_memory(tmp_path)
    needed = recipe_bill.require_memory.__defaults__
    assert main([*map(str, words), "--lang", "en", "--quiet"]) == 0 and capsys.readouterr().err == ""
    with around:
        assert recipe_bill.require_memory.__defaults__ != needed
