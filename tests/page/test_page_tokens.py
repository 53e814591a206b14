"""The view of tokens: of a tokenizer that was opened alone, beside another, in both languages."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
from playwright.sync_api import Browser

from browser import Tab, download_page, open_file, open_offline_tab, open_tab, serve_from_thread
from pellucid.api.model import SPECIMENS
from pellucid.messages import phrases

TEXT, TYPED = "The capital of France is", "中华人民共和国 x"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    shutil.copy(SPECIMENS / "capitals-bert" / "tokenizer.json", folder)
    return folder


@pytest.fixture(scope="module")
def served(alone: Path) -> Iterator[str]:
    with serve_from_thread(str(alone)) as address:
        yield address


def ids(tab: Tab, name: str) -> list[int]:
    """Return the ids that the page lists for a tokenizer."""
    tab.settle()
    return [int(i) for i in tab.page.locator(f"[data-tokens='{name}'] tr[data-id]").evaluate_all("rows => rows.map(r => r.dataset.id)")]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.quick(2)
def test_a_tokenizer_alone(served: str, alone: Path, browser: Browser, lang: str) -> None:
    name, library = str(alone), tokenizers.Tokenizer.from_file(str(alone / "tokenizer.json"))
    other = tokenizers.Tokenizer.from_file(str(SPECIMENS / "reader" / "tokenizer.json"))
    with open_tab(browser, served) as tab:
        tab.go(lang, view="", prompt=TEXT)  # the view that it opens at
        page, words = tab.page, phrases(lang)
        assert page.inner_text("main nav a[aria-current]") == words["page.view.tokens"]
        assert ids(tab, name) == library.encode(TEXT).ids
        page.fill("[data-text]", TYPED)
        page.wait_for_function("() => location.hash.includes('text=')")
        assert ids(tab, name) == library.encode(TYPED).ids
        page.select_option("[data-beside]", "pellucid/reader")
        assert ids(tab, "pellucid/reader") == other.encode(TYPED).ids != library.encode(TYPED).ids
        page.uncheck("[data-special]")
        assert ids(tab, name) == library.encode(TYPED, add_special_tokens=False).ids
        tab.go(lang, view="tokens", text="#" + " ".join(map(str, library.encode(TYPED, add_special_tokens=False).ids)))
        tab.settle()
        assert page.inner_text("[data-decoded]") == TYPED and words["page.tokens.decoded"] in page.inner_text("main")


def test_tokens_of_a_model(tab: Tab) -> None:
    """A server of a model has the view, too; a link holds all that is chosen."""
    tab.go(view="tokens", model="pellucid/capitals", text=TYPED, by="pellucid/capitals-bert", special="false")
    own = tokenizers.Tokenizer.from_file(str(SPECIMENS / "capitals-bert" / "tokenizer.json"))
    assert ids(tab, "pellucid/capitals-bert") == own.encode(TYPED, add_special_tokens=False).ids


def test_a_saved_file_keeps_the_view_that_it_was_saved_from(served: str, browser: Browser, tmp_path: Path) -> None:
    """Not that for which its server was opened."""
    file = download_page(browser, served, tmp_path, model="pellucid/capitals", prompt=TEXT, view="next")
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "main nav a[aria-current]")
        assert tab.page.inner_text("main nav a[aria-current]") == phrases("en")["page.view.next"]
