"""The page at scale: a long prompt, a large matrix, a model of many blocks and heads. Few nodes, and pooled pictures are marked.

benchmarks/page.py measures the time of a frame.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import torch
from playwright.sync_api import Browser, Route

from browser import READY, Tab, open_tab, serve_from_thread
from covering import FULL
from pellucid.api.model import make
from pellucid.tracing import Trace
from pellucid.watching.records import Seen

TOKENS, SIDE, MOST = 2048 if FULL else 512, 4096, 5000
LEVEL = 4 if FULL else 2  # of pictures that are pooled to 128 cells a side
IDS = "#" + " ".join(str(17 * i % 5000) for i in range(TOKENS))
POOLED = 2048 if FULL else 1024  # tokens whose table does not fit a tile
LONG = {"model_type": "gpt2", "vocab_size": 5000, "n_embd": 48, "n_head": 12, "n_layer": 16, "n_positions": 2 * POOLED}
LARGE = {
    "model_type": "llama", "vocab_size": 16, "hidden_size": SIDE, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 32, "num_key_value_heads": 1, "max_position_embeddings": 64,
}  # fmt: skip


def model(path: Path, hf: dict[str, object]) -> str:
    """Save a random model without a tokenizer, in bfloat16, as large ones are."""
    made = make({**hf, "bos_token_id": 0, "eos_token_id": 0}, dtype=torch.bfloat16)
    draw = torch.Generator().manual_seed(0)
    for name, p in made.module.named_parameters():
        p.data.normal_(0, 0.1, generator=draw).add_(p.ndim == 1 and "norm" in name)
    made.save(path)
    return str(path)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_from_thread(model(tmp_path_factory.mktemp("long"), LONG)) as address:
        yield address


def nodes(tab: Tab) -> int:
    return int(tab.page.evaluate("document.querySelectorAll('*').length"))


def turn(tab: Tab, ready: str, **place: object) -> None:
    """Go to a place of the open page, and wait for the selector `ready`."""
    tab.page.evaluate("h => { location.hash = h }", "&".join(f"{k}={quote(str(v))}" for k, v in ({"view": "life"} | place).items()))
    tab.page.wait_for_function(READY)
    tab.page.wait_for_selector(ready)
    assert nodes(tab) < MOST, (place, nodes(tab))


def test_a_long_prompt(browser: Browser, long: str) -> None:
    with open_tab(browser, long) as tab:
        page = tab.page
        tab.go(prompt=IDS)
        assert page.locator(".token").count() == 160
        scores = page.locator('[data-path="layers.0.attn.scores"]')
        scores.scroll_into_view_if_needed()
        marked = scores.locator("[data-pooled]")
        marked.wait_for()
        assert marked.get_attribute("data-pooled") == str(LEVEL) and f"{2**LEVEL}×{2**LEVEL}" in (marked.get_attribute("title") or "")
        assert page.locator('[data-path="layers.0.attn.q"] [data-pooled]').count() == 0  # whole
        for block in range(1, 16):
            page.locator(f'[data-block="layers.{block}"]').click()
            assert page.locator(f'[data-path="layers.{block}.attn.q"]').count() == 1 and nodes(tab) < MOST
        assert 3 < page.locator('[data-block][aria-expanded="true"]').count() < 16  # the first ones made room
        turn(tab, "[data-weight]", view="attention", prompt=IDS)
        page.wait_for_selector(f'.heads[data-pooled="{LEVEL}"] .pooled')
        for view, there in (("next", "[data-pick]"), ("cache", ".positions"), ("budget", "td .value")):
            turn(tab, there, view=view, prompt=IDS)


def test_small_pictures_of_tables_hold_up_no_tile(browser: Browser, long: str) -> None:
    """Recomputed tensors come one after another, the first head first, and stop once their view is left."""
    heads = re.compile(r"/tensors/(\d+)\?at=0%2C\d+%2C%3A%2C%3A&")  # of scores and patterns, as a card asks for them
    with open_tab(browser, long) as tab:
        page, routes, free = tab.page, list[Route](), list[bool]()
        page.route(heads, lambda route: route.fallback() if free else routes.append(route))
        tab.go(prompt=IDS)
        for name in ("scores", "pattern"):
            page.locator(f'[data-path="layers.0.attn.{name}"]').scroll_into_view_if_needed()
        page.wait_for_selector('[data-drawn="layers.0.attn.q"]')
        page.wait_for_timeout(500)
        assert len(routes) == 1
        turn(tab, 'aside[aria-label="layers.0.attn.pattern"] .frame[data-level]', tensor="layers.0.attn.pattern", prompt=IDS)
        assert len(routes) == 1
        turn(tab, "td .value", view="budget", prompt=IDS)
        free.append(True)
        with page.expect_response(lambda r: "at=0%2C11%2C%3A%2C%3A&" in r.url):
            routes[0].continue_()
        page.wait_for_timeout(500)
        assert len({match[1] for url in tab.requests if (match := heads.search(url))}) == 1
        turn(tab, '[data-drawn="layers.0.attn.scores"]', view="life", prompt=IDS)


def test_a_table_of_scores_pans_and_zooms_from_pooled_to_exact(browser: Browser, long: str) -> None:
    ids = "#" + " ".join(str(17 * i % 5000) for i in range(POOLED))
    with open_tab(browser, long) as tab:
        tab.go(prompt=ids)
        pools(tab, "layers.1.attn.pattern", f"0,3,{POOLED - 48},5", prompt=ids)


def pools(tab: Tab, path: str, cell: str, **place: object) -> None:
    """Check that a tile is pooled and marked when it opens, at the picture and at the cell, and exact when it is zoomed in."""
    page = tab.page
    turn(tab, "aside .frame[data-level]", tensor=path, cell=cell, **place)
    level = int(page.get_attribute("aside .frame", "data-level") or "0")
    size = f"{2**level}×{2**level}"
    assert level > 0 and size in page.inner_text("aside .tools .pooled")
    page.wait_for_selector('#reading:not([data-value=""])')
    assert size in page.inner_text("#reading .warn")
    pooled = page.get_attribute("#reading", "data-value")
    for _ in range(9):
        page.click("aside .tools button >> nth=0")
    page.wait_for_selector('aside .frame[data-level="0"]')
    page.wait_for_selector('#reading:not([data-value=""])')
    assert page.locator("aside .tools .pooled, #reading .warn").count() == 0
    assert page.get_attribute("#reading", "data-value") == pooled  # a cell has one number, however the picture is drawn
    assert nodes(tab) < MOST


def test_a_large_matrix(browser: Browser, tmp_path: Path) -> None:
    with serve_from_thread(model(tmp_path / "large", LARGE)) as address, open_tab(browser, address) as tab:
        tab.go(prompt="#1 2 3")
        tab.page.wait_for_function("() => document.querySelector('[data-path]')")
        pools(tab, "layers.0.attn.q.weight", "2222,3333", prompt="#1 2 3")


def test_a_map_of_many_blocks_and_tokens(browser: Browser, tmp_path: Path) -> None:
    """61 blocks, and 4,096 tokens in the long form. Attention of 4,096 is left out and counted; of fewer its edges are drawn."""
    tokens = 4096 if FULL else 256
    deep = LARGE | {"hidden_size": 8, "num_hidden_layers": 61, "num_attention_heads": 1, "max_position_embeddings": 8192}
    ids = "#" + " ".join(str(7 * i % 16) for i in range(tokens))
    with serve_from_thread(model(tmp_path / "deep", deep)) as address, open_tab(browser, address) as tab:
        tab.go(view="map", prompt=ids)
        tab.page.wait_for_selector("[data-map] [data-norm]")
        assert tab.page.locator("[data-map] [data-norm]").count() >= 61 * 8
        assert (tab.page.locator("[data-map] [data-share]").count() > 0) == (tokens < 4096)
        assert nodes(tab) < MOST
        turn(tab, "[data-weight]", view="attention", prompt=ids, block="layers.60")


def test_many_blocks_of_many_heads(browser: Browser, tmp_path: Path) -> None:
    """A run of a thousand blocks, 128 heads and a thousand tensors outside of blocks has few nodes."""
    seen = list[Seen]()

    def add(path: str, dims: str, op: str | None, *sizes: int) -> None:
        value = torch.full(sizes, 0.5)
        seen.append(Seen(path, dims, sizes, value.dtype, value, 0, None, 0, None, "executed", None))
        seen[-1].op = op

    for i in range(1000):
        add(f"layers.{i}.mid", "B T D", "add", 1, 2, 4)
        if i < 100:
            add(f"layers.{i}.attn.pattern", "B H T S", "softmax", 1, 128, 2, 2)
    for i in range(1000):
        add(f"other{i}", "B T D", None, 1, 2, 4)
    Trace("m", "x", [1, 2], [3], seen).save(tmp_path / "trace")
    with serve_from_thread(str(tmp_path / "trace")) as address, open_tab(browser, address) as tab:
        tab.go()
        tab.problems.clear()  # no weights of this model are here
        turn(tab, ".river .card")
        assert "…" in tab.page.inner_text("main")
        turn(tab, ".heads button", view="attention")
        tab.page.mouse.wheel(0, 3000)
        tab.page.wait_for_timeout(300)
        assert tab.page.locator(".heads button").count() > 0 and nodes(tab) < MOST
        tab.problems.clear()
