"""A piece whose characters do not show, or that is half of a letter: readable, and the same on every view."""

import json
import subprocess
import unicodedata
from pathlib import Path

from browser import Tab
from page_sources import script_of
from pellucid.api.model import load
from pellucid.runs.answers import piece_of, visible, visible_text

PROMPT = "e\u0301 \u200d ب=1"  # a mark, a joiner and an Arabic letter: bytes of which no piece of this vocabulary has two
WRITE = """import { pieceText, visible } from %s;
const texts = JSON.parse(await new Response(process.stdin).text());
console.log(JSON.stringify(texts.map(t => [pieceText(t), visible(pieceText(t))])));"""


def test_python_and_the_page_write_each_character_alike(tmp_path: Path) -> None:
    """All of Unicode's, in the middle and at the beginning of a piece, and again on a page that reads a piece."""
    script = script_of("src/hidden_letters.ts", tmp_path)
    known = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    texts = ["a" + "".join(known[i : i + 64]) for i in range(0, len(known), 64)] + [c for c in known if ord(c) < 0x3200]
    command = ["node", "--input-type=module", "-e", WRITE % json.dumps(script.as_uri())]
    out = json.loads(subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True).stdout)
    written = [visible_text(t) for t in texts]
    assert [w for w, _ in out] == written and [v for _, v in out] == written
    assert [visible_text(t) for t in ("\u200d", "\ufe0f", "\u0301")] == [r"\u200d", r"\ufe0f", "\u25cc\u0301"]
    assert any(t.isprintable() and t != w for t, w in zip(texts, written, strict=True))  # Python's own rule would not be enough


def test_a_piece_is_the_same_on_every_view(tab: Tab) -> None:
    model = load("pellucid/capitals")
    ids = model.ids(PROMPT)
    pieces = [visible(piece_of(model.tokenizer, i)) for i in ids]
    assert "<E2>" in pieces and "·" in pieces
    page = tab.page
    views = {
        "map": "svg[data-map] .piece",
        "attention": "[data-stage=scores] .name.end",
        "cache": ".positions bdi",
        "tokens": "[data-tokens] tr td:nth-child(2) bdi",
    }
    for view, selector in views.items():
        tab.go(view=view, prompt=PROMPT, cell="4,4" if view == "attention" else "")
        page.wait_for_selector(selector)
        tab.settle()
        shown = [t.strip() for t in page.locator(selector).all_text_contents()]
        assert shown[: len(pieces)] == pieces, view
        if view != "tokens":
            assert page.locator(".token .piece").all_text_contents()[: len(pieces)] == pieces
    tab.go(prompt=PROMPT)
    page.eval_on_selector(".token", "e => getSelection().selectAllChildren(e.closest('ol'))")
    copied = page.evaluate("getSelection().toString()")  # as it stands: position, piece, id
    assert copied.split()[1::3][: len(pieces)] == pieces
