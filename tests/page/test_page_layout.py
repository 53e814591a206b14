"""The layout in windows of any width: no scrolling sideways, no text upon text, cut or tiny, no column without a heading, in every view.

A view is in one of the two languages by turns, with PELLUCID_FULL=1 in each.
"""

import json
import os
from typing import Any

import pytest
from playwright.sync_api import Page

from browser import Tab

PROMPT = "The capital of France is"
ZERO = json.dumps([["layers.1.attn.z", "0,:,:,:", "to", "0"]])
DEEPSEEK = {"model": "pellucid/capitals-deepseek"}
PLACES: dict[str, dict[str, Any]] = {
    "map": {"view": "map", "steps": 2, "step": 1},
    "story": {"scene": 7},
    "life": {},
    "steps": {"steps": 3, "step": 1},
    "routed": DEEPSEEK,
    "tile": {"tensor": "layers.0.attn.scores", "cell": "0,1,2,1"},
    "large tile": {"tensor": "logits", "cell": "0,4,4060"},
    "attention": {"view": "attention"},
    "stages": {"view": "attention", "prompt": "中华人民共和国 capital"},
    "latent": {"view": "attention", **DEEPSEEK},
    "experts": {"view": "experts", **DEEPSEEK},
    "next": {"view": "next", "sampling": "temperature:2 top_k:40"},
    "blank": {"view": "next", "model": "pellucid/capitals-bert", "prompt": f"{PROMPT} ___."},
    "chat": {"view": "chat", "sampling": "temperature:2"},
    "cache": {"view": "cache", "steps": 3, "step": 1},
    "memory": {"view": "cache", "model": "pellucid/capitals-t5", "prompt": f"{PROMPT} Paris.", "steps": 3, "step": 1},
    "budget": {"view": "budget", "budget": "of:deepseek-v3 context:131072 batch:8 dtype:fp8 device:h200 ep:8 price:3 beside:gpt-4"},
    "training": {"view": "budget", "budget": "context:64 train:true device:h100"},
    "change": {"view": "change", "edits": ZERO},
    "against": {"view": "change", "against": "The capital of Japan is"},
}
WIDTHS = (320, 390, 1440)
FULL = bool(os.environ.get("PELLUCID_FULL"))
CASES = [(name, lang) for n, name in enumerate(PLACES) for lang in (("en", "zh") if FULL else ("en", "zh")[n % 2 :][:1])]
# Open all details, so that their contents are checked too.
OPEN = "() => document.querySelectorAll('main details:not([open])').forEach(d => { d.open = true; })"
SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Pairs of texts that lie upon one another. A text's lines are cut by each box around it.
UPON = """() => {
  const texts = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
  for (let node; (node = walk.nextNode());) {
    const e = node.parentElement;
    if (!node.data.trim() || e.closest("[inert], .hidden, script, style, option, title")) continue;
    if (!e.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    range.selectNodeContents(node);
    for (const line of range.getClientRects()) {
      let box = { left: line.left, right: line.right, top: line.top, bottom: line.bottom }, floats = false;
      for (let a = e; a; a = a.parentElement) {
        const style = getComputedStyle(a);
        if (style.position === "fixed" || style.position === "sticky") floats = true;
        if (style.overflowX === "visible" && style.overflowY === "visible") continue;
        if (a === document.documentElement || a === document.body) continue;
        const b = a.getBoundingClientRect();
        box.left = Math.max(box.left, b.left);
        box.right = Math.min(box.right, b.right);
        box.top = Math.max(box.top, b.top);
        box.bottom = Math.min(box.bottom, b.bottom);
      }
      if (box.right - box.left > 2 && box.bottom - box.top > 2) texts.push({ ...box, text: node.data.trim().slice(0, 40), floats, e });
    }
  }
  texts.sort((a, b) => a.top - b.top);
  const pairs = [];
  texts.forEach((a, i) => {
    for (let j = i + 1; j < texts.length && texts[j].top < a.bottom - 5; j++) {
      const b = texts[j], across = Math.min(a.right, b.right) - Math.max(a.left, b.left), down = Math.min(a.bottom, b.bottom) - b.top;
      if (a.e !== b.e && a.floats === b.floats && across > 3 && down > 5) pairs.push(`${a.text} / ${b.text}`);
    }
  });
  return pairs;
}"""
# Texts of a picture that lie outside it, where they are not drawn.
CUT = """() => [...document.querySelectorAll("main svg")].filter(s => s.checkVisibility()).flatMap(svg => {
  const own = svg.getBoundingClientRect();
  if (getComputedStyle(svg).overflow === "visible") return [];
  return [...svg.querySelectorAll("text")].filter(t => t.textContent.trim() && t.checkVisibility()).flatMap(t => {
    const b = t.getBoundingClientRect();
    const out = Math.max(own.left - b.left, b.right - own.right, own.top - b.top, b.bottom - own.bottom);
    return out > 4 ? [`cut by ${Math.round(out)} px: ${t.textContent.trim().slice(0, 40)}`] : [];
  });
})"""
# Texts of a picture that are drawn smaller than 8.5 pixels, since the picture was made smaller.
TINY = """() => [...document.querySelectorAll("main svg text")].filter(t => t.checkVisibility() && t.textContent.trim()).flatMap(t => {
  const size = parseFloat(getComputedStyle(t).fontSize) * Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b);
  return size < 8.5 ? [`tiny, ${size.toFixed(1)} px: ${t.textContent.trim().slice(0, 40)}`] : [];
})"""
# Columns with a text in a cell and none in their heading.
UNHEADED = """() => [...document.querySelectorAll("table")].filter(t => t.checkVisibility()).flatMap(table => {
  const spread = row => [...row.cells].flatMap(c => Array.from({ length: c.colSpan }, () => c));
  const head = table.tHead ? spread(table.tHead.rows[0]) : [], unheaded = new Set();
  for (const body of table.tBodies) for (const row of body.rows) spread(row).forEach((c, i) => {
    const filled = c.textContent.trim() !== "" || c.querySelector("[aria-label]");
    const named = table.tHead ? head[i]?.textContent.trim() : row.cells.length === 2; // a list of names and numbers needs no heading
    if (filled && !named) unheaded.add(i);
  });
  return [...unheaded].map(i => `column ${i} of ${table.textContent.trim().replace(/\\s+/g, " ").slice(0, 60)}`);
})"""


def complaints(page: Page) -> list[str]:
    """Return what is wrong with the page's layout."""
    page.evaluate(OPEN)
    page.evaluate("new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))")
    over = page.evaluate(SIDEWAYS)
    wrong = [f"{over} px wider than the window"] if over > 0 else []
    return wrong + [f"upon: {pair}" for pair in page.evaluate(UPON)] + page.evaluate(CUT) + page.evaluate(TINY) + page.evaluate(UNHEADED)


@pytest.mark.parametrize(("name", "lang"), CASES)
@pytest.mark.quick(15)
def test_every_view_stands_in_any_window(tab: Tab, name: str, lang: str) -> None:
    tab.go(lang, **{"prompt": PROMPT} | PLACES[name])
    tab.settle()
    if name == "chat":
        tab.page.click("[data-try]")
        tab.page.wait_for_selector("[data-facts]")
        tab.page.click("[data-token='0']")
    wrong = []
    for width in WIDTHS:
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.settle()
        wrong += [(width, complaint) for complaint in complaints(tab.page)]
    assert wrong == []


MUTANTS = {
    "main .caption": ("e.style.minWidth = '1600px'", "wider than the window"),
    ".reading": ("e.style.marginBottom = '-3rem'", "upon: "),
    "thead th": ("e.textContent = ''", "column 0 of"),
    "svg text": ("e.textContent += 'm'.repeat(300)", "cut by "),
    "svg text.name": ("e.style.fontSize = '8px'", "tiny, "),
}


@pytest.mark.parametrize("selector", MUTANTS)
def test_each_rule_sees_what_breaks_it(tab: Tab, selector: str) -> None:
    change, complaint = MUTANTS[selector]
    tab.go(prompt=PROMPT, **(PLACES["tile"] if selector == ".reading" else PLACES["attention"] if selector.startswith("svg text") else {}))
    if selector == ".reading":
        tab.page.wait_for_selector("[data-sum]")
    tab.settle()
    assert complaints(tab.page) == []
    tab.page.evaluate(f"s => {{ const e = document.querySelector(s); {change}; }}", selector)
    assert any(complaint in text for text in complaints(tab.page))
