"""A table with more rows than the vocabulary has entries, as Qwen, Phi and DeepSeek pad theirs: an id without an entry writes nothing.

The model's likeliest token is such an id at every step.
"""

import io
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

import pellucid
from documented import accept
from pellucid.commands import main
from pellucid.engine.text import Text
from pellucid.errors import TokenizerError
from pellucid.tokenizer.tokenizer import Tokenizer
from pellucid.tracing import load_trace
from served import served
from tiny import swapped
from vocabularies import KINDS, ours, spec

PROMPT = "The capital of France is"
SPECIMEN = Path(pellucid.__file__).parent / "specimens" / "capitals-llama"
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the specimen with 64 more rows in its table, of which the first wins after the prompt and after itself."""
    folder = tmp_path_factory.mktemp("padded") / "m"
    shutil.copytree(SPECIMEN, folder)
    model = pellucid.load(folder, dtype="float32")
    with pellucid.watch(model, only="norm") as seen, torch.no_grad():
        model(torch.tensor([model.tokenizer.encode(PROMPT)]))
    last = seen["norm"].value[0, -1]
    weights = load_file(folder / "model.safetensors")
    (name,) = (n for n in weights if "embed_tokens" in n)
    rows = torch.zeros(64, last.shape[0]).to(weights[name])
    rows[1] = (last * 4).to(rows)
    save_file(weights | {name: torch.cat([weights[name], rows])}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": len(weights[name]) + 64}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def beyond(padded: Path) -> int:
    """Return the id that it draws."""
    model = pellucid.load(padded)
    new = model.generate([model.tokenizer.encode(PROMPT)], 1)[0][0]
    assert new >= model.tokenizer.size
    return new


def run(capsys: Captured, *given: object) -> tuple[str, dict[str, Any]]:
    """Return a command line's text, and its JSON, which the schema accepts."""
    capsys.readouterr()
    assert main([str(word) for word in given]) == 0
    text = capsys.readouterr().out
    shutil.rmtree(given[given.index("--save") + 1], ignore_errors=True) if "--save" in given else None
    assert main([*(str(word) for word in given), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    accept(document, given[0])
    return text, document


def test_run_writes_nothing_for_it(padded: Path, beyond: int, capsys: Captured) -> None:
    text, document = run(capsys, "run", padded, PROMPT, "--max-new-tokens", 1, "--stop", "x")
    assert (text, document["text"], document["new"], document["stop"]) == ("\n", "", [beyond], None)
    text, document = run(capsys, "run", padded, "--ids", f"5 {beyond}", "--max-new-tokens", 3)
    assert document["ids"] == [5, beyond] and len(document["new"]) == 3
    with swapped(Tokenizer, "fit", lambda self, rows: self):  # the mutant knows of no row but the vocabulary's
        assert main(["run", str(padded), PROMPT, "--max-new-tokens", "1"]) == 2


def test_a_chat_goes_on(padded: Path, beyond: int, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: Iterable[str] = iter([PROMPT, PROMPT])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)

    def typed(prompt: str) -> str:
        for line in lines:
            return line
        raise EOFError

    monkeypatch.setattr("builtins.input", typed)
    assert main(["run", str(padded), "--chat", "--max-new-tokens", "1", "--json"]) == 0
    out, err = capsys.readouterr()
    first, second = (json.loads(line) for line in out.splitlines() if line)
    assert first["new"] == [beyond] and first["text"] == "" and second["ids"] and "pellucid:" not in err


def test_explain_and_trace_show_it(padded: Path, beyond: int, capsys: Captured, tmp_path: Path) -> None:
    text, document = run(capsys, "explain", padded, PROMPT, "--steps", 2)
    assert str(beyond) in text and document["new"][0] == beyond
    run(capsys, "trace", padded, PROMPT, "--save", tmp_path / "t", "--steps", 2)
    trace = load_trace(tmp_path / "t")
    assert trace.new[0] == beyond and trace.pieces[beyond] == b""


def test_the_page_shows_it(padded: Path, beyond: int) -> None:
    with served(str(padded)) as api:
        document = api.run(str(padded), PROMPT, new=2)
        assert document["new"][0] == beyond and document["new_pieces"][0] == ""


def test_streaming_and_stop_strings(padded: Path, beyond: int) -> None:
    """An id without an entry divides no character and no stop string."""
    tokenizer = pellucid.load(padded).tokenizer
    ids = tokenizer.encode("Paris, é")
    mixed = [i for id in ids for i in (beyond, id)]
    assert tokenizer.decode(mixed) == tokenizer.decode(ids)
    out = Text(tokenizer.stream(), ["ris,"])
    assert "".join(map(out.feed, mixed)) == "Pa" and out.stop == "ris,"


@pytest.mark.parametrize("kind", KINDS)
def test_ids_without_an_entry(kind: str) -> None:
    """Such ids decode to nothing at the start, the end and between, as in the library; an id beyond the rows is refused."""
    made, library = Tokenizer(spec(kind), kind), tokenizers.Tokenizer.from_str(KINDS[kind]())
    size = made.size
    assert made.fit(size + 3) is made and (made.size, made.rows) == (size, size + 3)
    ids = [size, 3, size + 1, 2, 3, size + 2]
    assert made.decode(ids) == ours(kind).decode([3, 2, 3]) == library.decode(ids, skip_special_tokens=False)
    assert [(p.id, p.raw, p.text) for p in made.pieces([size])] == [(size, b"", "")]
    for use in (made.decode, made.pieces):
        with pytest.raises(TokenizerError, match=f"below {size + 3}"):
            use([3, size + 3])


SPACED = {"id": 285, "content": "<tool>", "special": False, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
TEXTS = ("he <tool> world", "<tool> he", "he<tool>world", "he  <tool>world", "<tool><tool>", " <tool>", "world\n<tool>.")


@pytest.mark.parametrize("flags", [{}, {"normalized": False}, {"special": True}, {"lstrip": True}, {"rstrip": True}, {"single_word": True}])
def test_an_added_token_keeps_the_space_before_it(flags: dict[str, bool]) -> None:
    """The "▁" that Llama 2's normalizer writes is part of an added token: the text comes back whole, by piece and streamed."""
    changed = spec("sentencepiece")
    token = SPACED | flags | {"id": len(changed["model"]["vocab"])}
    changed["added_tokens"].append(token)
    made, library = Tokenizer(changed, "f"), tokenizers.Tokenizer.from_str(json.dumps(changed))
    for text in TEXTS:
        ids = library.encode(text).ids
        assert made.encode(text, parse=True) == ids
        assert made.decode(ids) == library.decode(ids, skip_special_tokens=False)
        stream = made.stream()
        assert "".join([*map(stream.feed, ids), stream.end()]) == made.decode(ids)
        if not token["special"]:  # the library looks a special token up by its name, and does not find this spelling
            assert made.decode(ids, skip_special=True) == library.decode(ids)
    if not flags:
        ids = made.encode(TEXTS[0], parse=True, special=False)
        assert made.decode(ids) == TEXTS[0] and b"".join(p.raw for p in made.pieces(ids)) == b" " + TEXTS[0].encode()
        with swapped(Tokenizer, "spelled", lambda self, id: self.piece(id)):
            assert made.decode(ids) == "he<tool> world"
