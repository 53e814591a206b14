"""`pellucid run` as a chat: one turn or many through the folder's template, Ctrl-C, and the tokens that end a reply."""

import io
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import pellucid
from documented import accept
from pellucid.api.model import Model
from pellucid.commands import main

SOURCE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def chatty(folder: Path, tmp_path: Path) -> Path:
    """Return the folder of a small model with a chat template."""
    shutil.copytree(folder, tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").write_text(SOURCE)
    return tmp_path / "m"


def run(capsys: Captured, *given: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(word) for word in given])
    return code, *capsys.readouterr()


def document(capsys: Captured, *given: object) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(run(capsys, *given, "--json")[1])
    accept(reply, "run")
    return reply


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, lines: Iterable[str]) -> None:
    typed = iter(lines)

    def read_line(prompt: str) -> str:
        for line in typed:
            return line
        raise EOFError

    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", read_line)


def test_one_turn(chatty: Path, capsys: Captured) -> None:
    model = pellucid.load(chatty)
    ids = model.tokenizer.encode("user: The cat\nassistant:", special=False)
    assert model.tokenizer.chat([{"role": "user", "content": "The cat"}]) == ids
    expected = model.generate([ids], max_new_tokens=5)[0]
    reply = document(capsys, "run", chatty, "The cat", "--chat", "--max-new-tokens", 5)
    assert (reply["ids"], reply["new"], reply["prompt"], reply["date"]) == (ids, expected, "The cat", None)
    code, out, _ = run(capsys, "run", chatty, "The cat", "--chat", "--max-new-tokens", 5)
    assert (code, out) == (0, reply["text"] + "\n")
    assert document(capsys, "run", chatty, "The cat", "--max-new-tokens", 5)["ids"] == model.tokenizer.encode("The cat")


def test_a_date_is_recorded(chatty: Path, capsys: Captured) -> None:
    (chatty / "chat_template.jinja").write_text("{{ strftime_now('%Y-%m-%d') }}")
    reply = document(capsys, "run", chatty, "x", "--chat", "--max-new-tokens", 1)
    model = pellucid.load(chatty)
    assert model.tokenizer.decode(reply["ids"]) == reply["date"][:10]


@pytest.mark.parametrize(("given", "word"), [(["x", "--chat"], "template"), (["1,2", "--ids", "--chat"], "--ids")])
def test_wrong_uses(given: list[str], word: str, folder: Path, capsys: Captured) -> None:
    code, out, err = run(capsys, "run", folder, *given)
    assert (code, out) == (2, "") and word in err and err.count("\n") == 1


def test_a_wrong_use_is_told_before_a_model_is_read(tmp_path: Path, capsys: Captured) -> None:
    code, _, err = run(capsys, "run", tmp_path / "none", "1,2", "--ids", "--chat")
    assert code == 2 and "--ids" in err


def test_a_chat_keeps_its_history(chatty: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_terminal(monkeypatch, ["The cat", "", "x" * 500, "Japan"])
    code, out, err = run(capsys, "run", chatty, "--max-new-tokens", 4, "--json")
    first, second = (json.loads(line) for line in out.splitlines() if line)
    tokenizer = pellucid.load(chatty).tokenizer
    text = f"user: The cat\nassistant: {first['text']}\nuser: Japan\nassistant:"
    assert code == 0 and second["ids"] == tokenizer.encode(text, special=False)
    assert "Ctrl-D" in err and "positions" in err and err.count("\n") == 3  # a message that is too long is reported and dropped


def test_ctrl_c_stops_a_reply(chatty: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_terminal(monkeypatch, ["The cat", "Japan"])
    honest = Model.stream

    def interrupted(self: Model, *given: Any, **how: Any) -> Any:
        for count, tokens in enumerate(honest(self, *given, **how)):
            if count == 2:
                raise KeyboardInterrupt
            yield tokens

    monkeypatch.setattr(Model, "stream", interrupted)
    code, out, _ = run(capsys, "run", chatty, "--max-new-tokens", 9, "--json")
    replies = [json.loads(line) for line in out.splitlines() if line]
    assert code == 0 and [len(each["new"]) for each in replies] == [2, 2]
    tokenizer = pellucid.load(chatty).tokenizer
    assert replies[1]["ids"] == tokenizer.encode(f"user: The cat\nassistant: {replies[0]['text']}\nuser: Japan\nassistant:", special=False)
    code, out, err = run(capsys, "run", chatty, "The cat", "--max-new-tokens", 9, "-v")
    assert code == 130 and out.strip() and out.endswith("\n") and "2 new" in err, "what there is stays, with its speed"
    code, out, _ = run(capsys, "run", chatty, "The cat", "--max-new-tokens", 9, "--json")
    assert code == 130 and len(json.loads(out)["new"]) == 2 and json.loads(out)["interrupted"]


def test_without_a_template_each_line_is_its_own(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_terminal(monkeypatch, ["The cat", "The cat"])
    code, out, err = run(capsys, "run", folder, "--max-new-tokens", 4, "--json")
    first, second = (json.loads(line) for line in out.splitlines() if line)
    assert code == 0 and first["ids"] == second["ids"] and err.count("chat template") == 1


def test_every_stop_of_a_list_ends_a_reply(chatty: Path, capsys: Captured) -> None:
    how = ("--chat", "--max-new-tokens", 6, "--temperature", 3, "--seed", 1)
    first = document(capsys, "run", chatty, "The cat", *how)
    stop = next(id for id in first["new"] if id != first["new"][0])
    at = first["new"].index(stop)
    (chatty / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, stop]}))
    reply = document(capsys, "run", chatty, "The cat", *how)
    assert reply["new"] == first["new"][: at + 1] and reply["stopped"]


def test_a_saved_model_chats_alike(chatty: Path, tmp_path: Path) -> None:
    more = chatty / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("tools")
    pellucid.load(chatty).save(tmp_path / "copy")
    again = pellucid.load(tmp_path / "copy").tokenizer
    assert {name: template.source for name, template in again.templates.items()} == {"default": SOURCE, "tool_use": "tools"}
