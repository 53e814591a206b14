"""From an attention's tensor to its head in the view Attention, with what the head shares and how positions enter."""

from urllib.parse import unquote

import pytest

import pellucid
from browser import Tab, address_of
from pellucid.messages import filled, phrases

LLAMA, T5, GPT2 = "pellucid/capitals-llama", "pellucid/capitals-t5", "pellucid/capitals"
PROMPT = "The capital of France is"


def shown(tab: Tab, lang: str, model: str, tensor: str, **place: object) -> None:
    tab.go(lang, model=model, prompt=PROMPT, tensor=tensor, **place)
    tab.page.wait_for_selector("aside [data-attention]")
    tab.settle()


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.quick(2)
def test_a_key_says_which_queries_read_it_and_leads_to_them(tab: Tab, lang: str) -> None:
    attn = pellucid.load(LLAMA).config.layers[0].attn
    each, words = attn.heads // attn.kv_heads, phrases(lang)
    assert each > 1
    shown(tab, lang, LLAMA, "layers.0.attn.k", cell="0,4,1,3")
    assert tab.page.inner_text("[data-shared]") == words["page.shared.by"].format(key=1, first=each, last=2 * each - 1)
    assert tab.page.inner_text("[data-positions]") == words["page.positions.turned"]
    tab.page.click("[data-attention] > button")
    tab.settle()
    hash_ = unquote(address_of(tab.page))
    assert "view=attention" in hash_ and f"head={each}" in hash_
    assert filled(words["page.shares"], key=1, count=each) in tab.page.inner_text("section.sheet.attention h2")
    assert tab.page.locator("[data-pair]").count() > 0  # the hands


def test_a_score_says_which_key_its_head_reads(tab: Tab) -> None:
    attn = pellucid.load(LLAMA).config.layers[0].attn
    each, last = attn.heads // attn.kv_heads, attn.heads - 1
    shown(tab, "en", LLAMA, "layers.1.attn.scores", cell=f"0,{last},4,2")
    assert tab.page.get_attribute("[data-shared]", "data-shared") == str(last // each)


def test_a_table_of_distances_is_one_step_away(tab: Tab) -> None:
    shown(tab, "en", T5, "decoder.layers.0.attn.scores", cell="0,0,0,0")
    own = tab.page.locator("[data-positions=table] button")
    assert own.inner_text() == "decoder.layers.0.attn.relative.weight" and tab.page.locator("[data-shared]").count() == 0
    own.click()
    tab.page.wait_for_function("h => decodeURIComponent(location.hash).includes(h)", arg="tensor=decoder.layers.0.attn.relative.weight")


def test_what_no_attention_made_says_nothing(tab: Tab) -> None:
    """Mutants of the rule: a feed-forward tensor, and a model whose heads share nothing and turn nothing."""
    tab.go("en", model=GPT2, prompt=PROMPT, tensor="layers.0.ffn.up", cell="0,0,0")
    tab.settle()
    assert tab.page.locator("[data-attention]").count() == 0
    shown(tab, "en", GPT2, "layers.0.attn.k", cell="0,4,1,3")
    assert tab.page.locator("[data-shared], [data-positions]").count() == 0
