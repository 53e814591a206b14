"""Lines of a chat that are no messages (/help and its like), and what its template depends on besides them: dates and draws."""

import itertools
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.commands import main
from pellucid.commands import run as running
from pellucid.tokenizer.chat_template import Template
from test_chat import Captured, at_a_terminal, chatty, document, run
from tiny import swapped

__all__ = ["chatty"]
DRAWS = (
    "{{ ['red', 'green', 'blue', 'white', 'black', 'brown', 'pink', 'grey'] | random }} {% for m in messages %}{{ m.content }} {% endfor %}"
)


def type_lines(capsys: Captured, monkeypatch: pytest.MonkeyPatch, folder: Path | str, *lines: str) -> tuple[int, list[dict[str, Any]], str]:
    """Return a chat's exit code, the documents of its replies and stderr, after these lines are typed."""
    at_a_terminal(monkeypatch, lines)
    capsys.readouterr()
    code = main(["run", str(folder), "--max-new-tokens", "2", "--json"])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines() if line.strip()], err


def test_lines_for_the_chat_itself(chatty: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of the chat do not reach the model; a line of two slashes or a path does."""
    code, replies, err = type_lines(
        capsys, monkeypatch, chatty, "/help", "The cat", "/hlep me", "/reset", "//help", "/reset", "/usr/bin", "/exit", "never"
    )
    assert code == 0 and [d["prompt"] for d in replies] == ["The cat", "/help", "/usr/bin"]
    assert "/reset  forget" in err and "there is no /hlep here; known: /help, /reset, /exit, /quit" in err
    with swapped(running, "re", type("none", (), {"match": staticmethod(lambda *given: None)})):  # the mutant sends every line
        assert type_lines(capsys, monkeypatch, chatty, "/help")[1]


def test_reset_forgets(chatty: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    _, replies, err = type_lines(capsys, monkeypatch, chatty, "The cat", "The dog", "/reset", "The dog", "/quit")
    first, after, again = replies
    assert len(after["ids"]) > len(again["ids"]) and "forgotten" in err
    model = pellucid.load(chatty)
    assert again["ids"] == model.tokenizer.encode("user: The dog\nassistant:", special=False) and first["ids"] != again["ids"]


def test_a_model_without_a_template_has_them_too(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    _, replies, err = type_lines(capsys, monkeypatch, "pellucid/capitals", "/help", "The capital", "/exit")
    assert [d["prompt"] for d in replies] == ["The capital"] and "/reset" in err and "/help" in err


def test_ctrl_c_at_the_prompt_ends_the_line(chatty: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_terminal(monkeypatch, [])

    def interrupted(prompt: str) -> str:
        sys.stdout.write(prompt)
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    capsys.readouterr()
    assert main(["run", str(chatty)]) == 130
    assert capsys.readouterr().out == "> \n"


def test_what_a_template_draws_is_recorded(chatty: Path, capsys: Captured) -> None:
    """The recorded seed gives the same prompt again; without a draw no seed is recorded."""
    assert document(capsys, "run", chatty, "The cat", "--chat", "--max-new-tokens", 1)["template_seed"] is None
    (chatty / "chat_template.jinja").write_text(DRAWS)
    model = pellucid.load(chatty)
    prompts = set()
    for _ in range(8):
        reply = document(capsys, "run", chatty, "The cat", "--chat", "--max-new-tokens", 1)
        assert model.tokenizer.chat([{"role": "user", "content": "The cat"}], seed=reply["template_seed"]) == reply["ids"]
        prompts.add(tuple(reply["ids"]))
    assert len(prompts) > 1  # one in two million that it is not so
    seeded = ["run", chatty, "The cat", "--chat", "--max-new-tokens", 1, "--seed", 5]
    assert document(capsys, *seeded)["ids"] == document(capsys, *seeded)["ids"] and document(capsys, *seeded)["template_seed"] == 5


def test_turns_share_their_draws(chatty: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """All turns of a chat draw by one seed, so that each begins with all before it; the mutant draws anew for every turn."""
    (chatty / "chat_template.jinja").write_text(DRAWS)

    def shared() -> bool:
        _, replies, _ = type_lines(capsys, monkeypatch, chatty, *["The cat"] * 6)
        return len({d["ids"][0] for d in replies}) == 1 and len({d["template_seed"] for d in replies}) == 1

    assert shared()
    real, seeds = Template.render, itertools.count()  # a seed of chance would draw the same six times in one run of 300
    with swapped(Template, "render", lambda self, *given, **how: real(self, *given, **how | {"seed": next(seeds)})):
        assert not shared()


def test_a_template_may_draw_from_nothing() -> None:
    """A draw from an empty list is empty, in a prompt too, as Jinja has it."""
    assert Template("{{ [] | random }}x", "t").render([{"role": "user", "content": "y"}]).text == "x"
    drawn = {Template(DRAWS, "t").render([{"role": "user", "content": "y"}], seed=seed).text for seed in range(10)}
    assert len(drawn) == 8 and Template(DRAWS, "t").render([{"role": "user", "content": "y"}], seed=3).seed == 3


LONG = "The capital of France is Paris. " * 20


@pytest.mark.parametrize("name", ["capitals-llama", "capitals-deepseek"])
def test_a_text_beyond_what_a_model_was_made_for(name: str, capsys: Captured, tmp_path: Path) -> None:
    """A text longer than the model's positions is read, and one line on stderr says so."""
    (tmp_path / "t.txt").write_text(LONG)
    lines: Iterable[list[object]] = [
        ["run", f"pellucid/{name}", LONG, "--max-new-tokens", 1],
        ["explain", f"pellucid/{name}", LONG],
        ["trace", f"pellucid/{name}", LONG, "--save", tmp_path / "s", "--only", "logits"],
        ["score", f"pellucid/{name}", tmp_path / "t.txt", "--window", 100],
    ]
    for line in lines:
        code, _, err = run(capsys, *line)
        assert code == 0 and err.count("was made for 64 tokens") == 1, line
    assert "was made for" not in run(capsys, "run", f"pellucid/{name}", "The capital of France is", "--max-new-tokens", 2)[2]


def test_a_text_that_grows_beyond_it(capsys: Captured) -> None:
    ids = ",".join(["337"] * 60)
    code, _, err = run(capsys, "run", "pellucid/capitals-llama", "--ids", ids, "--max-new-tokens", 30, "--temperature", 5, "--seed", 1)
    assert code == 0 and err.count("was made for 64 tokens and reads 90") == 1


def test_where_a_trace_is_saved(tmp_path: Path, capsys: Captured) -> None:
    """An error names what occupies the place: a trace, a folder of other files, a file; an empty folder is used."""
    command = ["trace", "pellucid/capitals", "The", "--only", "logits", "--save"]
    (tmp_path / "empty").mkdir()
    assert run(capsys, *command, tmp_path / "empty")[0] == 0
    assert "already holds a trace" in run(capsys, *command, tmp_path / "empty")[2]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    err = run(capsys, *command, tmp_path / "model")[2]
    assert "holds other files" in err and "holds a trace" not in err
    assert "is a file" in run(capsys, *command, tmp_path / "model" / "config.json")[2]
