"""A hundred hostile texts in eight places of the page and in a saved file, in a real Chromium: every one is shown, none is run.

Places: the prompt, a token of the tokenizer, the model's folder, a field of config.json, a recorded trace's tensors, its prompt and its
model, links, changes of a run. Where each text takes a place by itself, in the quick form only one text of each sink does.
PELLUCID_FULL=1 places all, and also gives each text a prompt, a folder and a file of its own.
"""

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch
from playwright.sync_api import Browser, Error, Route

from browser import READY, Tab, next_load, open_tab, save_by_menu, serve_from_thread
from payloads import NAIVE, ONE_OF_EACH, PAYLOADS, TEXTS, Payload
from pellucid import messages
from pellucid.api.model import make
from pellucid.tokenizer.pieces import LETTERS
from pellucid.tracing import Trace
from pellucid.watching.records import Seen

FULL = bool(os.environ.get("PELLUCID_FULL"))
ALL = " ".join(TEXTS)
ALONE = TEXTS if FULL else ONE_OF_EACH
TYPED = ALL.replace("\r\n", "\n").replace("\r", "\n")  # as a field of several lines has it
VIEWS = ("map", "life", "attention", "next", "cache", "budget", "change", "experts", "chat", "tokens", "nowhere")
KEYS = ("block", "tensor", "cell", "sampling", "budget", "steps", "step", "head", "position", "tour", "edits", "unknown")
REFUSED = (400, 404)  # the server's answers to a link to a thing that is not there; the console reports them, as it should
SETTLED = 150  # ms for what a view asks for
# No text may become an element or attribute that the page has no use for, or a sign that hides or reverses others.
HARM = r"""() => {
  const harms = [], hidden = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u;
  const bad = ["script:not([src$='page.js']):not(#recorded):not([type=module])", "img, iframe, object, embed, base, video, audio, source",
    "math, template, textarea:not(.message, .prompt, [data-text]), noscript, plaintext, xmp, foreignObject, animate, set, image, use",
    "body style, body link, body meta",
    "form[action], [srcdoc], [srcset], [background], a[href]:not([href^='#'], nav [href^='/']), [href^='//']"];
  if (window.__pwned !== undefined) harms.push("it ran");
  for (const e of document.querySelectorAll(bad.join())) harms.push(e.outerHTML.slice(0, 90));
  for (const e of document.querySelectorAll("*")) for (const { name, value } of e.attributes) {
    const read = ["title", "aria-label", "placeholder", "alt"].includes(name);
    if (/^on/i.test(name) || (read && hidden.test(value))) harms.push(`${e.tagName} ${name} ${JSON.stringify(value.slice(0, 60))}`);
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let t = texts.nextNode(); t; t = texts.nextNode())
    if (t.parentElement.tagName !== "SCRIPT" && t.data.trim() && hidden.test(t.data)) harms.push(JSON.stringify(t.data.slice(0, 60)));
  if (hidden.test(document.title)) harms.push("the title");
  return harms.slice(0, 8);
}"""
# All that can be read: the title, texts and the values of fields.
READ = """() => { const all = [document.title], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let t = walk.nextNode(); t; t = walk.nextNode()) if (t.parentElement?.tagName !== "SCRIPT") all.push(t.data);
  for (const e of document.querySelectorAll("input, textarea")) all.push(e.value);
  return all.join("\\n"); }"""


def spelled(text: str) -> str:
    """Return a text as the page writes it: signs that hide or reverse others by their numbers."""
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in text)


def piece(text: str) -> str:
    """Return a token as the server writes it."""
    return "".join("·" if c == " " else c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def unseen(tab: Tab, texts: Iterable[str]) -> list[str]:
    """Return the texts that the page does not show."""
    shown = tab.page.evaluate(READ)
    return [t for t in texts if t not in shown]


def go_and_check(tab: Tab, **place: object) -> None:
    """Go to a place of the open page by its address alone, and check that no text does harm there."""
    tab.page.evaluate("h => { location.hash = h }", "&".join(f"{k}={quote(str(v), safe='')}" for k, v in place.items()))
    tab.page.wait_for_function(READY)
    tab.page.wait_for_timeout(SETTLED)
    assert tab.page.evaluate(HARM) == [] and not tab.faults, (place, tab.faults)


def model(path: Path) -> Path:
    """Save a random model whose tokenizer's last tokens are the texts."""
    hf: dict[str, Any] = {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 512, "tie_word_embeddings": False}
    made = make({**hf, "vocab_size": 256 + len(TEXTS), "bos_token_id": 0, "eos_token_id": 0}, dtype=torch.float32)
    draw = torch.Generator().manual_seed(1)
    for name, p in made.module.named_parameters():
        p.data = torch.randn(p.shape, generator=draw) * 0.3 + (p.ndim == 1 and "norm" in name)
    made.module.head.weight.data[256:] *= 4  # so that they are the likeliest
    made.save(path)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    letters = {c: i for i, c in enumerate(LETTERS)}
    spec = {
        "version": "1.0", "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "vocab": letters, "merges": []},
        "added_tokens": [{"id": 256 + i, "content": t, **flags} for i, t in enumerate(TEXTS)],
    }  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    return path


def named(folder: Path, texts: list[str], target: Path) -> str:
    """Link the model under a name of all these texts, which the page shows as it was typed. Returns the name."""
    name = "/".join([*texts, "model"])
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(target)
    return name


def groups(texts: Iterable[str], limit: int, between: str) -> list[list[str]]:
    """Return the texts in groups of less than `limit` bytes when they are joined by `between`."""
    batches = [list[str]()]
    for text in texts:
        if batches[-1] and len(between.join(map(messages.plain, [*batches[-1], text])).encode()) >= limit:
            batches.append([])
        batches[-1].append(text)
    return batches


FOLDERS = groups((t for t in TEXTS if "\0" not in t), 2400, "/")  # no folder can be called what holds a NUL


def recorded(path: Path) -> Path:
    """Save a trace whose model, prompt, tensors, ops and inputs are named by the texts."""
    draw = torch.Generator().manual_seed(2)
    seen = list[Seen]()

    def add(name: str, dims: str, op: str | None, *inputs: str) -> None:
        value = torch.randn([2 if a in "TSH" else 1 if a == "B" else 4 for a in dims.split()], generator=draw)
        value = value.softmax(-1) if op == "softmax" else value
        value = value.argsort(-1) if dims.endswith("A") else value
        seen.append(Seen(name, dims, tuple(value.shape), value.dtype, value, 0, None, 0, None, "executed", None))
        seen[-1].op, seen[-1].inputs, seen[-1].weights = op, inputs, inputs[:1]

    for i, text in enumerate(TEXTS):
        add(text, "B T D", text, TEXTS[i - 1])
        if i % 18 == 0:
            parts = {"attn.k": "B T G K", "attn.v": "B T G K", "attn.pattern": "B H T S", "ffn.affinity": "B T E", "ffn.chosen": "B T A"}
            for name, dims in parts.items():
                add(f"{text}.{name}", dims, "softmax" if "S" in dims else None, text)
            add(f"{text}.affinity", "B T E", "linear", text)
            add(f"{text}.chosen", "B T A", "top", text)
            add(f"layers.{i}.{text}", "B T D", "add", text)
    pieces = {i: text.encode(errors="replace") for i, text in enumerate(TEXTS)}
    Trace(" ".join(TEXTS[::4]), ALL, list(range(len(TEXTS))), [3], seen, pieces=pieces).save(path)
    return path


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the addresses of the model under its first name and its second, and of the trace."""
    folder, before = tmp_path_factory.mktemp("hostile"), os.getcwd()
    made, (first, second) = model(folder / "model"), FOLDERS
    os.chdir(folder)  # a name is shown as it is typed, from here
    try:
        with (
            serve_from_thread(named(folder, first, made)) as one,
            serve_from_thread(named(folder, second, made)) as two,
            serve_from_thread(str(recorded(folder / "trace"))) as trace,
        ):
            yield {"first": one, "second": two, "trace": trace}
    finally:
        os.chdir(before)


def test_each_text_works_on_a_careless_page(browser: Browser) -> None:
    """Each text does its harm on a careless page, so that the page's own safety proves something."""
    context, urls, written = browser.new_context(), list[str](), ""
    assert len(set(TEXTS)) == len(TEXTS) >= 100

    def answer(route: Route) -> None:
        if route.request.url == "http://careless.example/":
            return route.fulfill(body=written, content_type="text/html; charset=utf-8")
        urls.append(route.request.url)
        route.fulfill(status=204)  # which leads nowhere

    context.route("**/*", answer)
    page = context.new_page()

    def works(p: Payload) -> bool:
        nonlocal written
        written = f"<!doctype html><meta charset=utf-8><body>{NAIVE[p.sink].replace('{}', p.text)}"
        urls.clear()
        page.goto("http://careless.example/", wait_until="commit")
        page.wait_for_function("document.readyState !== 'loading'")  # asked of the page itself: an event may have come before
        if p.sink == "link":
            page.evaluate("document.querySelector('a').click()")
        elif p.sink in ("inner", "twice"):
            clean = (
                "t => { const b = new DOMParser().parseFromString(t, 'text/html').body; return b.querySelector('img') ? '' : b.innerHTML }"
            )
            text = page.evaluate(clean, p.text) if p.sink == "twice" else p.text
            page.evaluate("t => { document.querySelector('div').innerHTML = t }", text)
        elif p.sink == "key":
            return bool(page.evaluate("t => ({})[t] !== undefined", p.text))
        swallows = " || document.getElementById('after') === null" if "id=after" in NAIVE[p.sink] else ""
        did = f"window.__pwned === 1{swallows}"
        for _ in range(100):
            with suppress(Error):  # it went elsewhere, which is seen below
                if page.evaluate(did):
                    return True
            if any("evil.example" in url for url in urls):
                return True
            page.wait_for_timeout(20)
        return False

    tried = [p for p in PAYLOADS if p.text in ALONE and p.sink not in ("hides", "engine")]
    assert {p.sink for p in tried} == {*NAIVE} - {"hides", "engine"} and [p for p in tried if not works(p)] == []
    assert all(spelled(p.text) != p.text for p in PAYLOADS if p.sink == "hides")
    context.close()


@pytest.mark.parametrize("lang", ["en", "zh"] if FULL else ["zh"])
def test_a_prompt_its_tokens_and_the_models_name(browser: Browser, addresses: dict[str, str], lang: str) -> None:
    with open_tab(browser, addresses["first"], refusals=REFUSED) as tab:
        tab.go(lang, prompt=ALL)
        pieces = tab.page.locator(".token .piece").all_inner_texts()
        assert tab.page.input_value("#prompt") == TYPED and len(pieces) == 160
        assert unseen(tab, map(spelled, FOLDERS[0])) == []
        for view in VIEWS[:: 1 if FULL else 2]:
            go_and_check(tab, view=view, prompt=ALL)
        ids = "#" + " ".join(str(256 + i) for i in range(len(TEXTS)))  # the tokens by themselves
        for view in ("life", "next", "attention", "cache"):
            go_and_check(tab, view=view, prompt=ids, steps=2, position=7)
            assert unseen(tab, (spelled(piece(t)) for t in TEXTS)) == []
        for tensor in ("layers.1.attn.scores", "layers.1.attn.pattern", "logits"):
            go_and_check(tab, tensor=tensor, prompt=ids, steps=2, cell="0,1,40,3" if tensor != "logits" else "0,40,300")
    with open_tab(browser, addresses["second"], refusals=REFUSED) as tab:
        tab.go(lang, prompt=ids)
        for view in ("life", "budget"):
            go_and_check(tab, view=view, prompt=ids)
            assert unseen(tab, map(spelled, FOLDERS[1])) == []


def test_a_recorded_traces_tensors_model_and_prompt(browser: Browser, addresses: dict[str, str]) -> None:
    with open_tab(browser, addresses["trace"], refusals=REFUSED) as tab:
        tab.go()
        assert not tab.faults
        go_and_check(tab, view="life")
        assert unseen(tab, map(spelled, (*TEXTS, *map(piece, TEXTS)))) == []
        assert spelled(ALL) in tab.page.title() and tab.page.input_value("#prompt") == TYPED
        for view in VIEWS if FULL else VIEWS[1::2]:
            go_and_check(tab, view=view)
        for tour in range(1, 12, 1 if FULL else 3):
            go_and_check(tab, tour=tour)
        for text in ALONE:
            go_and_check(tab, tensor=text, cell="0,1,2")
            assert spelled(text) in tab.page.inner_text("aside h2")
            tab.page.wait_for_selector('#reading[data-cell="0,1,2"]:not([data-value=""])')
        go_and_check(tab, tensor=f"{TEXTS[0]}.attn.pattern")
        tab.page.click("aside .acts button")  # as a table


def test_fields_of_config(browser: Browser, tmp_path: Path) -> None:
    """The bill names the fields that were ignored."""
    made = model(tmp_path / "made")
    plain = json.loads((made / "config.json").read_text(encoding="utf-8"))
    for some in groups(ALONE, messages.LONGEST, ", ")[:: 1 if FULL else 2]:
        (made / "config.json").write_text(json.dumps(plain | {t: t for t in some}), encoding="utf-8")
        with serve_from_thread(str(made), ignore_fields=tuple(some)) as address, open_tab(browser, address, refusals=REFUSED) as tab:
            tab.go(prompt="x")
            go_and_check(tab, view="budget", prompt="x")
            names = [messages.plain(t) for t in some if t[0] != "_"]  # of others nothing is said
            tab.page.wait_for_function("t => document.querySelector('main').textContent.includes(t)", arg=names[0])
            assert unseen(tab, names) == []


def test_links(browser: Browser, addresses: dict[str, str]) -> None:
    """No text in any field of a link runs, in any view."""
    with open_tab(browser, addresses["first"], refusals=REFUSED) as tab:
        for lang in (*ALONE[:: 1 if FULL else 8], ALL[:900]):
            base, token = tab.address.split("#")
            tab.page.goto(f"{next_load(f'{base}?lang={quote(lang)}')}#{token}&prompt=x")
            tab.page.wait_for_function(READY)
            assert tab.page.evaluate(HARM) == [] and tab.page.evaluate("document.documentElement.lang") == "en"
        for i, text in enumerate(ALONE):
            where = dict.fromkeys(KEYS, text) | ({"view": VIEWS[i // 2 % len(VIEWS)]} if i % 2 else {"view": text, "model": text})
            link = "&".join(f"{k}={quote(v, safe='')}" for k, v in where.items())
            tab.page.evaluate("h => { location.hash = h }", f"prompt=x&{link}")
            tab.page.wait_for_function(READY)
            assert tab.page.evaluate(HARM) == [] and not tab.faults, (text, tab.faults)
            assert tab.page.locator("nav [aria-current]").count() <= 1 and tab.page.locator("main > :nth-child(2)").count() == 1


def test_a_chat(browser: Browser, addresses: dict[str, str]) -> None:
    """Texts are shown as messages, in what the model read of them, and as the tokens of its answers, which are such texts too."""
    with open_tab(browser, addresses["first"], refusals=REFUSED) as tab:
        tab.go(prompt="x", view="chat", sampling="temperature:2")
        for some in groups((t for t in ALONE if not {*t} & {*"\n\r\t"} and t.strip()), 300, "\n"):
            if tab.page.locator("[data-new]").count():
                tab.page.click("[data-new]")
            tab.page.fill(".write textarea", "\n".join(some))
            tab.page.keyboard.press("Enter")
            tab.page.wait_for_selector("[data-facts]")
            tab.page.click("[data-token='0']")
            tab.page.hover("[data-token='1']")
            tab.page.click("summary")
            assert tab.page.evaluate(HARM) == [] and unseen(tab, map(spelled, some)) == []


def test_a_token_that_is_none_is_told(browser: Browser, addresses: dict[str, str]) -> None:
    for text in (TEXTS[0], "\u202etxt", "a\r\nb"):
        with open_tab(browser, addresses["first"], refusals=(401,)) as tab:
            tab.page.goto(f"{tab.address.split('#')[0]}#token={quote(text)}&prompt=x")
            tab.page.wait_for_selector("[role=alert]")
            assert "pellucid open" in tab.page.inner_text("[role=alert]")


def test_changes(browser: Browser, addresses: dict[str, str]) -> None:
    """Texts are shown as the path of a change, which the server refuses by name, and as the prompt of a patch."""
    with open_tab(browser, addresses["first"], refusals=REFUSED) as tab:
        tab.go(prompt="x", view="change")
        for text in ALONE:
            tab.page.evaluate("h => { location.hash = h }", f"view=change&prompt=x&edits={quote(json.dumps([[text, '0', 'to', '0']]))}")
            tab.page.wait_for_selector("main .fault")
            assert tab.page.evaluate(HARM) == [] and spelled(text) in tab.page.inner_text(".edits")
        for start in range(0, len(ALONE), 16):
            some = ALONE[start : start + 16]
            edits = json.dumps([["layers.0.attn.q", "0,0,:,:", "prompt", t] for t in some])
            tab.page.evaluate("h => { location.hash = h }", f"view=change&prompt=x&edits={quote(edits)}")
            tab.page.wait_for_function("n => document.querySelectorAll('.edits li').length === n", arg=len(some))
            tab.page.wait_for_selector(".picks")
            assert tab.page.evaluate(HARM) == [] and unseen(tab, map(spelled, some)) == []


@pytest.mark.parametrize("which", ["first", "trace"])
@pytest.mark.quick(2)
def test_a_saved_file(browser: Browser, addresses: dict[str, str], tmp_path: Path, which: str) -> None:
    ids = "#" + " ".join(str(256 + i) for i in range(len(TEXTS)))
    with open_tab(browser, addresses[which], refusals=REFUSED) as tab:
        tab.go(**({"prompt": ids} if which == "first" else {}))
        if which == "first":
            go_and_check(tab, view="budget", prompt=ids)
        with tab.page.expect_download() as download:
            save_by_menu(tab.page)
        file = tmp_path / "saved.html"
        assert re.fullmatch(r"[\w.-]+\.html", download.value.suggested_filename)
        download.value.save_as(file)
    with open_tab(browser, f"{file.as_uri()}#", offline=True) as tab:
        tab.page.goto(file.as_uri())
        tab.page.wait_for_function(READY)
        for view in ("life", "attention", "next", "cache", "budget"):
            go_and_check(tab, view=view)
            if view == "life":
                assert unseen(tab, (spelled(piece(t) if which == "first" else t) for t in TEXTS)) == []
        for text in ALONE:
            link = "&".join(f"{k}={quote(text, safe='')}" for k in (*KEYS, "view", "model"))
            tab.page.evaluate("h => { location.hash = h }", link)
        tab.page.wait_for_timeout(SETTLED)
        assert tab.page.evaluate(HARM) == [] and not tab.faults
        assert {r.split("#")[0].split("?")[0] for r in tab.requests} == {file.as_uri()}


def test_the_watch_sees_a_page_that_makes_markup_of_texts(browser: Browser, addresses: dict[str, str]) -> None:
    with open_tab(browser, addresses["first"]) as tab:
        tab.go(prompt=ALL)
        careless = "document.querySelectorAll('.piece').forEach(e => { e.innerHTML = e.textContent.replaceAll('·', ' ') })"
        harms = tab.page.evaluate(f"() => {{ {careless}; return ({HARM})(); }}")
        assert len(harms) == 8 and "it ran" not in harms  # the policy held
        tab.page.wait_for_timeout(SETTLED)
        assert any("Content Security Policy" in f for f in tab.faults)
        tab.problems.clear()
    with open_tab(browser, addresses["first"]) as tab:  # the first may still be led away by what it made
        for harm in ("e.textContent = 'a\\u202eb'", "e.title = '\\u200b'", "e.setAttribute('onclick', '1')", "document.title = '\\u2066'"):
            tab.go(prompt="x")
            tab.page.evaluate(f"(e => {{ {harm} }})(document.querySelector('.piece'))")
            assert len(tab.page.evaluate(HARM)) == 1, harm
        tab.problems.clear()


@pytest.mark.skipif(not FULL, reason="PELLUCID_FULL=1 gives each text a tab of its own")
@pytest.mark.parametrize("text", TEXTS)
def test_each_by_itself(browser: Browser, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = named(tmp_path, [text], model(tmp_path / "made")) if "\0" not in text else str(model(tmp_path / "made"))
    with serve_from_thread(name) as address, open_tab(browser, address, refusals=REFUSED) as tab:
        tab.go(prompt="x")
        tab.page.fill("#prompt", text)
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_function(READY)
        typed = text.replace("\r\n", "\n").replace("\r", "\n")
        for view in VIEWS:
            go_and_check(tab, view=view, prompt=typed)
        assert tab.page.input_value("#prompt") == typed and unseen(tab, [spelled(name)]) == []
