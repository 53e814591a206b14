"""Queries, keys and values have one colour each on every view, and their names beside it."""

import pytest

from browser import Tab

PROMPT = "The capital of France is"
PATHS = {"q": "layers.0.attn.q", "k": "layers.0.attn.k", "v": "layers.0.attn.v"}
STYLE = "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]"


def colours(tab: Tab) -> dict[str, str]:
    """Return the colours of the letters in the tab's theme, as computed styles have them."""
    themed: dict[str, str] = tab.page.evaluate("""() => Object.fromEntries(["q", "k", "v"].map(letter => {
      const e = document.createElement("i");
      e.style.color = `var(--${letter})`;
      document.body.append(e);
      const own = getComputedStyle(e).color;
      e.remove();
      return [letter, own];
    }))""")
    return themed


def coloured(tab: Tab, place: str) -> set[tuple[str, str]]:
    """Return each letter that is marked in a place, with its colour there: of an SVG's text the fill."""
    marks = tab.page.eval_on_selector_all(
        f"{place} [data-letter]",
        "all => all.filter(e => e.checkVisibility()).map(e => "
        "[e.dataset.letter, getComputedStyle(e)[e instanceof SVGElement ? 'fill' : 'color']])",
    )
    return {(letter, colour) for letter, colour in marks}


@pytest.mark.parametrize(("theme", "model"), [("light", "capitals"), ("dark", "capitals-llama")])
def test_cards_and_links_have_them(tab: Tab, theme: str, model: str) -> None:
    tab.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    tab.go(prompt=PROMPT, model=f"pellucid/{model}")
    tab.settle()
    own = colours(tab)
    assert len(set(own.values())) == 3
    for letter, path in PATHS.items():
        card = f'.river [data-path="{path}"]'
        assert tab.page.inner_text(f"{card} .name").strip() == f"attn.{letter}"  # never colour alone
        assert tab.page.evaluate(STYLE, [f"{card} .name bdi", "color"]) == own[letter]
        assert tab.page.evaluate(STYLE, [card, "borderTopColor"]) == own[letter]
        assert tab.page.evaluate(STYLE, [f'.river svg [data-from="{path}"]', "stroke"]) == own[letter]
        legend = tab.page.locator(f".legend [data-role={letter}]")
        assert legend.inner_text().startswith(letter) and legend.locator("b").evaluate("e => getComputedStyle(e).color") == own[letter]
    assert coloured(tab, ".river") == set(own.items())  # the formulas on the cards


def test_stages_and_formulas_have_them(tab: Tab) -> None:
    tab.go(view="attention", prompt=PROMPT)
    tab.page.wait_for_selector("[data-stage=values]")
    tab.settle()
    own = colours(tab)
    assert coloured(tab, ".stages") == set(own.items())
    rows, columns = ("[data-stage=scores] text.name.q", "[data-stage=scores] text.name.k")
    assert tab.page.evaluate(STYLE, [rows, "fill"]) == own["q"] and tab.page.evaluate(STYLE, [columns, "fill"]) == own["k"]
    assert tab.page.locator("[data-axes]").inner_text().split()[0] == "q"
    tab.go(prompt=PROMPT, tensor="layers.0.attn.scores", cell="0,1,4,3")
    tab.page.wait_for_selector("[data-strip=q]")
    tab.settle()
    assert coloured(tab, "aside") == {(letter, own[letter]) for letter in "qk"}  # its links, formula, and the names of its strips
    tab.go(prompt=PROMPT, tensor="layers.0.attn.z", cell="0,4,1,3")
    tab.page.wait_for_selector("[data-sum]")
    tab.settle()
    assert ("v", own["v"]) in coloured(tab, "aside")


def test_the_map_tells_reader_from_read(tab: Tab) -> None:
    tab.go(view="map", prompt=PROMPT)
    tab.page.wait_for_selector("[data-map] [data-norm]")
    tab.settle()
    own = colours(tab)
    edge = tab.page.locator("[data-edge^='0,0,4,']").first.get_attribute("data-edge") or ""
    tab.page.locator("[data-cell='0,0,4']").hover()
    read = int(edge.split(",")[3])
    fills = tab.page.eval_on_selector_all("[data-map] text.piece", "all => all.map(e => getComputedStyle(e).fill)")
    assert fills[4] == own["q"] and fills[read] == own["k"]
    assert tab.page.evaluate(STYLE, ["#pointed bdi", "color"]) == own["q"]
