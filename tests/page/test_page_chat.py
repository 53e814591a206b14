"""The chat: its tokens and probabilities are those of the other views, every message branches, and nothing that is done to it hangs.

A template is a folder's own; the specimens have none, and their messages are joined as one text.
"""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import pellucid
from browser import Tab, download_page, open_file, open_offline_tab, open_tab, serve_from_command, serve_from_thread
from covering import FULL
from pellucid.api.model import SPECIMENS
from pellucid.documents import chat_answer
from pellucid.messages import phrases

FRANCE, JAPAN = "The capital of France is", "The capital of Japan is"
WRITE = ".write textarea"
LAST = "[data-message]:last-child"
BUSY = "[data-stop]"
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
HOSTILE = "<img src=x onerror=alert(1)>\n日本 🎉 مرحبا بالعالم <b>&amp;</b>\n\u202eabc"
# A run of the page is of one token less than it was asked for: of another conversation.
SHORTER = """(() => {
  const own = window.fetch;
  window.fetch = (where, how) => own.call(window, where, how?.method === "POST" && /[/]runs[?]/.test(String(where))
    ? { ...how, body: how.body.replace(/"ids":.[0-9]+,/, '"ids":[').replace(FRANCE, "The capital is") } : how);
})();""".replace("FRANCE", f'"{FRANCE}"')


def talk(tab: Tab, lang: str = "en", **place: Any) -> Page:
    """Open the chat."""
    tab.go(lang=lang, view="chat", **place)
    tab.page.wait_for_selector(WRITE)
    return tab.page


def say(page: Page, text: str) -> None:
    """Send a message by the keyboard, and wait for the whole answer."""
    page.fill(WRITE, text)
    page.focus(WRITE)
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{LAST}[data-message=assistant]")
    page.wait_for_selector(BUSY, state="detached")


def shown(page: Page) -> list[str]:
    """Return the texts of the messages that are shown, without the ends of answers."""
    return [text.strip() for text in page.locator("[data-message] > p.text, [data-message] .area > p.text").all_inner_texts()]


def versions(page: Page) -> list[str]:
    return page.locator("[data-turn]").all_inner_texts()


def drawn(page: Page, which: str = LAST) -> list[tuple[int, float]]:
    """Return the tokens of an answer with their probabilities, as the page has them."""
    read = "all => all.map(e => [Number(e.dataset.id), Number(e.dataset.probability)])"
    return [(id, share) for id, share in page.eval_on_selector_all(f"{which} [data-token]", read)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("chat") / "llama"
    shutil.copytree(SPECIMENS / "capitals-llama", made)
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token takes a moment."""
    own = chat_answer.chat_events

    def slowly(*given: Any) -> Iterator[Any]:
        for event in own(*given):
            time.sleep(0.15)
            yield event

    monkeypatch.setattr(chat_answer, "chat_events", slowly)


def apart(tab: Tab, index: int, name: str) -> list[str]:
    """Return how Life at the step of a token of the last answer differs from what the chat showed of it."""
    page = tab.page
    (id, _), tokens = drawn(page)[index], drawn(page)
    page.click(f"{LAST} summary")
    page.wait_for_selector(f"{LAST} [data-read] [data-id]")
    read = [int(i) for i in page.eval_on_selector_all(f"{LAST} [data-read] [data-id]", "all => all.map(e => e.dataset.id)")]
    page.click(f"{LAST} [data-token='{index}']")
    share = page.inner_text(f"{LAST} [data-chosen] .head .number")
    page.click(f"{LAST} [data-open-step]")
    page.wait_for_function("() => document.querySelector('main nav a[aria-current]')?.hash.includes('view=life')")
    tab.settle()
    wrong = []
    given = page.locator(".token:not(.new) .id").all_inner_texts()
    if given != [str(i) for i in read]:
        wrong.append(f"{name}: the run reads {given}, the answer read {read}")
    new = page.locator(".token.new .id").all_inner_texts()
    if new != [str(i) for i, _ in tokens[: index + 1]]:
        wrong.append(f"{name}: the run draws {new}")
    row = page.locator(f"tr.picked[data-id='{id}']")
    if row.count() != 1 or share not in row.inner_text():
        wrong.append(f"{name}: {share} is nowhere")
    return wrong


def test_an_answer_tells_what_was_likely(tab: Tab) -> None:
    """Of each token the probability that Python has, at a pointer and by arrow keys; what was read and drawn stands below."""
    model = pellucid.load("pellucid/capitals", dtype="float32")
    for lang in ("en", "zh"):
        page, words = talk(tab, lang, model="pellucid/capitals"), phrases(lang)
        assert page.inner_text("main nav a[aria-current]") == words["page.view.chat"]
        assert page.inner_text("[data-rule]") == words["page.chat.joined"]
        page.click("[data-try]")
        page.wait_for_selector("[data-facts]")
        page.wait_for_selector(BUSY, state="detached")
        assert shown(page)[0] == FRANCE and shown(page)[1].startswith("Paris.")
        run = pellucid.trace(model, FRANCE, 3)
        logits = [run.all("logits")[k].value[0, -1].softmax(-1) for k in range(3)]
        for (id, share), ours, expected in zip(drawn(page), logits, run.new, strict=True):
            assert id == expected and share == pytest.approx(float(ours[id]), rel=1e-5)
        page.hover(f"{LAST} [data-token='0']")
        assert page.inner_text("[data-noted]") == f"{100 * float(logits[0][run.new[0]]):.2f}%"
        assert page.locator(".note tbody tr").count() == 5
        page.focus(f"{LAST} [data-token='0']")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.dataset.token") == "1" and page.locator(".note").count() == 1
        page.keyboard.press("Escape")
        expect(page.locator(".note")).to_have_count(0)
        page.keyboard.press("Enter")
        expect(page.locator("[data-chosen='1']")).to_be_visible()
        facts = page.inner_text("[data-facts]")
        assert re.findall(r"\d+", facts)[:3] == ["5", "0", "3"] and "<|endoftext|>" in facts
        page.click("summary")
        assert page.inner_text("[data-read] [data-text]") == FRANCE


def test_why_opens_the_very_step(browser: Browser, tab: Tab, folder: Path) -> None:
    """The run of a token's step reads the ids that the model read, and gives the same token the same probability."""
    settings = {"sampling": "temperature:2 seed:5"}
    talk(tab, model="pellucid/capitals", **settings)
    say(tab.page, FRANCE)
    if FULL:
        assert apart(tab, 1, "one message") == []
        tab.page.click("nav a[href$='view=chat']")
    assert shown(tab.page)[0] == FRANCE  # it is still there
    say(tab.page, JAPAN)
    assert apart(tab, 0, "two messages") == []
    with serve_from_thread(str(folder)) as address, open_tab(browser, address) as own:
        talk(own, sampling="temperature:3 seed:2")
        say(own.page, FRANCE)
        last = len(drawn(own.page)) - 1
        assert last >= 2 and apart(own, last, "a template") == []
    with open_tab(browser, tab.address) as other:
        other.page.add_init_script(SHORTER)
        talk(other, model="pellucid/capitals", prompt="The", **settings)
        say(other.page, FRANCE)
        assert apart(other, 1, "a mutant") != []


def test_every_message_branches_and_nothing_is_lost(tab: Tab) -> None:
    page = talk(tab, model="pellucid/capitals-llama", sampling="temperature:3 seed:1")
    say(page, FRANCE)
    first = shown(page)
    page.click(f"{LAST} [data-again]")
    page.wait_for_selector(f"{LAST}[data-of='2']")
    page.wait_for_selector(BUSY, state="detached")
    second = shown(page)
    assert versions(page) == ["2 / 2"] and second != first and second[0] == first[0]
    page.click("[data-message=user] [data-edit]")
    page.fill("[data-message=user] textarea", JAPAN)
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-message=user][data-of='2']")
    page.wait_for_selector(BUSY, state="detached")
    assert versions(page) == ["2 / 2"] and shown(page)[0] == JAPAN and len(shown(page)) == 2
    page.click("[data-message=user] .turns button:first-child")
    assert shown(page) == second and versions(page) == ["1 / 2", "2 / 2"]
    page.click(f"{LAST} .turns button:first-child")
    assert shown(page) == first
    page.click(f"{LAST} [data-edit]")  # an answer, by hand
    page.fill(f"{LAST} textarea", "Lyon, my friend.")
    page.keyboard.press("Enter")
    assert shown(page)[-1] == "Lyon, my friend." and page.locator(f"{LAST} [data-token]").count() == 0
    say(page, JAPAN)
    page.click(f"{LAST} summary")
    assert page.inner_text(f"{LAST} [data-text]") == f"{FRANCE}Lyon, my friend.\n{JAPAN}"
    page.click("[data-new]")
    assert shown(page) == []
    page.click("[data-message=system] .turns button:first-child")
    assert shown(page)[:3] == [FRANCE, "Lyon, my friend.", JAPAN]
    page.click("[data-message=system] [data-edit]")  # behind another system message the first question is asked again
    page.fill("[data-message=system] textarea", "Be brief.")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{LAST}[data-message=assistant]")
    page.wait_for_selector(BUSY, state="detached")
    page.click(f"{LAST} summary")
    assert page.inner_text(f"{LAST} [data-text]") == f"Be brief.\n{FRANCE}"
    tab.page.select_option("#model", "pellucid/capitals-t5")  # another model has a conversation of its own
    page.wait_for_selector("[data-rule=last]")
    assert shown(page) == []
    tab.page.select_option("#model", "pellucid/capitals-llama")
    page.wait_for_selector("[data-rule=joined]")
    assert shown(page)[:2] == ["Be brief.", FRANCE]


def test_the_prefix_cache_is_told(browser: Browser, folder: Path) -> None:
    with serve_from_thread(str(folder)) as address, open_tab(browser, address) as tab:
        page = talk(tab)
        assert page.locator("[data-rule]").count() == 0
        say(page, "The capital of France is Paris. " * 12)
        say(page, JAPAN)
        read, reused = (int(n) for n in re.findall(r"\d+", page.inner_text(f"{LAST} [data-facts]"))[:2])
        assert reused >= 64 and reused % 64 == 0 and read > reused
        page.click(f"{LAST} summary")
        assert page.get_attribute(f"{LAST} [data-read]", "data-read") == "template"
        assert page.inner_text(f"{LAST} [data-text]").endswith(f"[user]{JAPAN}[assistant]")


def test_stop_and_what_is_done_meanwhile(browser: Browser, folder: Path, slow: None) -> None:
    """Stop keeps what came; a second Enter sends nothing; a message is edited while its answer comes."""
    with serve_from_thread(str(folder)) as address, open_tab(browser, address) as tab:
        page = talk(tab, sampling="temperature:3 seed:2")
        page.fill(WRITE, FRANCE)
        page.dblclick(".write .strong")
        page.wait_for_selector("[data-token='1']")
        assert page.locator("[data-message]").count() == 3
        page.fill(WRITE, JAPAN)
        page.keyboard.press("Enter")  # waits for the answer
        assert page.input_value(WRITE) == JAPAN and page.locator("[data-message]").count() == 3
        page.click(BUSY)
        expect(page.locator(BUSY)).to_have_count(0)
        count = len(drawn(page))
        expect(page.locator("[data-facts]")).to_contain_text(phrases("en")["page.chat.stopped"])
        page.wait_for_timeout(500)
        assert len(drawn(page)) == count >= 2
        page.focus(WRITE)
        page.keyboard.press("Enter")
        page.wait_for_selector(f"{LAST} [data-token='0']")
        page.click("[data-message=user] >> nth=1 >> [data-edit]")
        page.fill("[data-message=user] textarea", "Tokyo")
        page.keyboard.press("Enter")
        page.wait_for_selector(f"{LAST} [data-token='1']")
        assert versions(page) == ["2 / 2"] and shown(page)[2] == "Tokyo"
        page.click("nav a[href$='view=life']")  # the answer goes on behind another view
        page.wait_for_selector(".river")
        page.click("nav a[href$='view=chat']")
        assert page.locator(BUSY).count() == 1 and len(drawn(page)) >= 2
        page.click(BUSY)


def test_a_server_that_goes_leaves_one_line(browser: Browser) -> None:
    with serve_from_command("pellucid/capitals") as address, open_tab(browser, address) as tab:
        page = talk(tab)
        say(page, FRANCE)
        page.fill(WRITE, "word " * 200)
        tab.refusals.add(400)
        page.keyboard.press("Enter")
        expect(page.locator(f"{LAST} [role=alert]")).to_contain_text("64")  # its positions
        say(page, JAPAN)  # in place of what failed, which stays as a version
        page.click(f"{LAST} summary")
        assert page.inner_text(f"{LAST} [data-text]") == f"{FRANCE} Paris.\n{JAPAN}" and versions(page) == ["2 / 2"]
        page.context.set_offline(True)
        page.fill(WRITE, FRANCE)
        page.focus(WRITE)
        page.keyboard.press("Enter")
        expect(page.locator(f"{LAST} [role=alert]")).to_have_text(phrases("en")["page.chat.gone"])
        assert page.locator(BUSY).count() == 0
        tab.problems.clear()


def test_a_text_is_only_text(tab: Tab) -> None:
    tab.refusals.add(400)
    page = talk(tab, model="pellucid/capitals-llama")
    page.fill(WRITE, " \n ")
    assert page.is_disabled(".write .strong")
    say(page, HOSTILE)
    assert page.locator("main img, main b:not([data-noted])").count() == 0
    assert shown(page)[0] == HOSTILE.replace("\u202e", "\\u202e")
    page.click(f"{LAST} summary")
    assert page.inner_text("[data-text]") == shown(page)[0]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_models_that_do_not_chat_are_not_asked_to(browser: Browser, tab: Tab, tmp_path: Path) -> None:
    tab.go(model="pellucid/capitals-bert", prompt=f"{FRANCE} ___.", view="chat")
    assert tab.page.locator(WRITE).count() == 0 and tab.page.locator("nav a[href$='view=chat']").count() == 0
    file = download_page(browser, tab.address, tmp_path, view="life", prompt=FRANCE)
    with open_offline_tab(browser, file) as saved:
        open_file(saved, file, "main nav", view="chat")
        assert saved.page.inner_text("[data-unchanged]") == phrases("en")["page.saved.chat"]
        assert saved.page.locator("nav a[href$='view=chat']").count() == 0
