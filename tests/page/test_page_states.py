"""Models with a state, or a convolution's last rows, in attention's place: what the Cache view says is kept, and what Change offers."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from playwright.sync_api import Browser, expect

from browser import open_tab, serve_from_thread
from kinds import KINDS
from pellucid.api.count import count
from pellucid.api.model import SPECIMENS
from tiny import random_folder

PROMPT, CLEAN = "The capital of Japan is one", "The capital of France is one"
SIZES: dict[str, Any] = {"vocab_size": 8192, "hidden_size": 32, "num_hidden_layers": 2, "bos_token_id": 0, "eos_token_id": 0}
FAMILIES: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 8, "intermediate_size": 64, "conv_kernel": 4, "time_step_rank": 4, "use_conv_bias": True},
    "lfm2": {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "conv_L_cache": 3, "norm_eps": 1e-5,
             "layer_types": ["conv", "full_attention"], "max_position_embeddings": 64, "block_auto_adjust_ff_dim": False},
    "jamba": {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
              "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 1, "num_experts_per_tok": 1, "mamba_d_state": 8,
              "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 4, "max_position_embeddings": 64},
}  # fmt: skip
KEPT = {
    "mamba": ("states and the last rows of convolutions", "状态和卷积最近的几行"),
    "lfm2": ("keys and values of 7 rows and the last rows of convolutions", "7 行的键和值和卷积最近的几行"),
    "jamba": ("keys and values of 7 rows, states, and the last rows of convolutions", "7 行的键和值、状态和卷积最近的几行"),
}


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, str]]:
    """Yield a family's name, a folder of a random model of it, and the address of its page."""
    name = request.param
    folder = tmp_path_factory.mktemp("states") / name
    random_folder({"model_type": name} | SIZES | FAMILIES[name], folder, std=0.3)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SPECIMENS / "capitals-llama" / file, folder)
    with serve_from_thread(str(folder), dtype="float32") as address:
        yield name, folder, address


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.quick(2)
def test_what_is_kept_is_told_and_counted(browser: Browser, served: tuple[str, Path, str], lang: str) -> None:
    """Step by step the bytes are the bill's, the rows drawn are those that are kept, and keys and values are named where there are any."""
    name, folder, address = served
    with open_tab(browser, address) as tab:
        page = tab.page
        tab.go(lang=lang, view="cache", prompt=PROMPT, steps=3, step=1)
        page.wait_for_selector("tr[data-step='2']")
        bill = count(folder, context=8, dtype="float32", cache="float32")
        sentence = page.locator("p.sentence").inner_text()
        assert KEPT[name][lang == "zh"] in sentence, sentence
        for step in range(3):
            total = int(page.get_attribute(f"tr[data-step='{step}'] [data-total]", "data-total") or 0)
            assert total == int(count(folder, context=7 + step, dtype="float32", cache="float32")["cache.bytes"])
        page.wait_for_selector("[data-text-bytes]")
        assert page.get_attribute("[data-text-bytes]", "data-text-bytes") == str(int(bill["cache.bytes_per_text"]))
        each = int(bill["cache.bytes_per_token"])
        assert page.locator("[data-token-bytes]").count() == bool(each) == (name != "mamba")
        assert page.get_attribute("tr[data-step='1'] [data-read]", "data-read") == ("3" if name == "mamba" else "7")
        assert page.locator(".positions .read").count() == (3 if name == "mamba" else 7)
        assert page.locator(".positions .summed").count() == (4 if name == "mamba" else 0)
        rows = page.locator("figure [data-rows]").evaluate_all("all => all.map(f => Number(f.dataset.rows))")
        assert rows == [3 if name == "lfm2" else 4]  # of the first block's convolution, of 8 that ran
        tab.settle()


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.quick(2)
def test_an_indexers_keys_are_kept(browser: Browser, tmp_path: Path, lang: str) -> None:
    """Each attention that chooses its keys by an indexer keeps a key of it for every token; the bytes are the bill's."""
    folder = tmp_path / "sparse"
    fields = transformers.AutoConfig.for_model("deepseek_v32", **KINDS["deepseek_v32"].tiny | {"vocab_size": 8192}).to_dict()
    random_folder(fields, folder, std=0.3)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SPECIMENS / "capitals-llama" / file, folder)
    with serve_from_thread(str(folder), dtype="float32") as address, open_tab(browser, address) as tab:
        tab.go(lang=lang, view="cache", prompt=PROMPT, steps=2, step=1)
        tab.page.wait_for_selector("tr[data-step='1']")
        kept = {"en": "latents and shared keys of 7 rows and indexers' keys of 7 rows", "zh": "7 行的潜变量和共享键和7 行的索引器键"}
        assert kept[lang].replace(" ", "") in tab.page.locator("p.sentence").inner_text().replace(" ", "")
        for step in range(2):
            total = int(tab.page.get_attribute(f"tr[data-step='{step}'] [data-total]", "data-total") or 0)
            assert total == int(count(folder, context=7 + step, dtype="float32", cache="float32")["cache.bytes"])
        tab.page.click("tr[data-part='layers.0.attn.indexer'] button")
        expect(tab.page.locator("figure [data-rows]")).to_have_attribute("data-rows", "8")
        tab.settle()


def test_the_sweep_offers_a_place_that_the_model_has(browser: Browser, served: tuple[str, Path, str]) -> None:
    name, _, address = served
    with open_tab(browser, address) as tab:
        page = tab.page
        tab.go(view="change", prompt=PROMPT)
        page.fill("#sweep-clean", CLEAN)
        page.locator("input.word").first.fill(" Paris")
        page.locator("input.word").last.fill(" Tokyo")
        page.click("#sweep-run")
        cells = 7 if name == "mamba" else 28  # a token, or one of 4 heads of it, in each of two blocks or in the one that attends
        expect(page.locator(f"table[data-sweep='{2 * cells if name == 'mamba' else cells}']")).to_be_visible()
        assert page.locator("p.fault").count() == 0


def test_an_edited_prompt_says_why_no_state_serves(browser: Browser, served: tuple[str, Path, str]) -> None:
    with open_tab(browser, served[2]) as tab:
        tab.go(view="cache", prompt=PROMPT)
        tab.page.fill("#edited", CLEAN)
        tab.page.keyboard.press("Enter")
        sentence = tab.page.locator("p.told")
        expect(sentence).to_be_visible()
        assert "as they were at this place" in sentence.inner_text() and "prefix that sees" not in sentence.inner_text()
