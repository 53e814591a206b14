"""`pellucid lens`: its numbers are the function's, and one line for a row or a word that cannot be read."""

import json

import pytest

import pellucid
from documented import accept
from pellucid.commands import main
from pellucid.documents.number import number

NAME, PROMPT = "pellucid/capitals", "The capital of France is"


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["lens", *arguments]) == code
    got = capsys.readouterr()
    return got.out if code == 0 else got.err


@pytest.mark.parametrize("row", [-1, 2])
def test_each_block_is_read(capsys: pytest.CaptureFixture[str], row: int) -> None:
    document = json.loads(run(capsys, NAME, PROMPT, "--row", str(row), "--json"))
    accept(document, "lens")
    model = pellucid.load(NAME)
    own = pellucid.lens(model, pellucid.trace(model, PROMPT), row=row)
    assert [layer["path"] for layer in document["layers"]] == [path for path, _ in own]
    for layer, (_, logits) in zip(document["layers"], own, strict=True):
        assert [c["id"] for c in layer["candidates"]] == logits.topk(3).indices.tolist()
        assert layer["followed"]["logit"] == float(logits[document["id"]])
        assert layer["rank"] == int((logits > logits[document["id"]]).sum()) + 1
    assert document["layers"][-1]["rank"] == 1


@pytest.mark.parametrize(("lang", "word"), [("en", "stream after"), ("zh", "残差流")])
def test_lines_show_the_numbers(capsys: pytest.CaptureFixture[str], lang: str, word: str) -> None:
    document = json.loads(run(capsys, NAME, PROMPT, "--json", "--follow", " Rome"))
    text = run(capsys, NAME, PROMPT, "--lang", lang, "--follow", " Rome")
    assert word in text
    for layer in document["layers"]:
        line = next(one for one in text.splitlines() if one.split()[:1] == [layer["path"]])
        assert line.split()[1:3] == [str(layer["rank"]), number(layer["followed"]["logit"])]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(["--row", "5"], "4"), (["--row", "-6"], "-6"), (["--follow", " Rome Paris"], "2"), (["--top", "0"], "0")],
)
def test_refusals(capsys: pytest.CaptureFixture[str], arguments: list[str], word: str) -> None:
    message = run(capsys, NAME, PROMPT, *arguments, code=2)
    assert word in message and message.count("\n") == 1
