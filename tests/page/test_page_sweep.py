"""The map of a sweep in the Change view: its numbers are `patch`'s, and a cell opens as a change whose run has the cell's number."""

import pytest
from playwright.sync_api import expect

import pellucid
from browser import Tab
from pellucid.analysis.by_axis import along
from pellucid.documents.number import number

PROMPT, CLEAN = "The capital of Japan is", "The capital of France is"


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.quick(2)
def test_the_map_is_patchs_and_a_cell_opens(tab: Tab, lang: str) -> None:
    model = pellucid.load("pellucid/capitals", dtype="float32")
    own = pellucid.patch(model, CLEAN, PROMPT, "layers.*.attn.z", "H T", (" Paris", " Tokyo"))
    tab.go(lang=lang, view="change", prompt=PROMPT)
    page = tab.page
    page.fill("#sweep-clean", CLEAN)
    page.click("#sweep-run")
    table = page.locator("table[data-sweep='80']")
    expect(table).to_be_visible()
    shown = [float(x) for x in table.locator("[data-value]").evaluate_all("cs => cs.map(c => c.dataset.value)")]
    assert shown == pytest.approx(own.values.flatten().tolist(), abs=1e-4)
    assert table.locator("[data-value]").first.inner_text() == number(shown[0])
    assert number(own.base) in page.locator("p.base").inner_text() and number(own.clean) in page.locator("p.base").inner_text()
    path, at, value = own.best(1)[0]
    n = own.paths.index(path) * 20 + at["H"] * 5 + at["T"]
    table.locator("[data-value]").nth(n).click()
    page.wait_for_selector("ul.edits li")
    run = own.run(path, **at)
    logits = run.last_logits(0)
    ids = [model.tokenizer.encode(w)[0] for w in (" Paris", " Tokyo")]
    assert float(logits[ids[0]] - logits[ids[1]]) == pytest.approx(value, abs=1e-4)
    assert f":, {at['T']}, {at['H']}, :" in page.locator("ul.edits li").first.inner_text()
    expect(page.locator("table[data-sweep='80']")).to_be_visible()  # it stays beside the change


def test_a_link_restores_it_and_a_fault_is_one_line(tab: Tab) -> None:
    page = tab.page
    tab.go(view="change", prompt=PROMPT, sweep=f'["{CLEAN}","layers.*.out","T"," Paris"," Tokyo"]')
    expect(page.locator("table[data-sweep='20']")).to_be_visible()
    tab.refusals.add(400)
    tab.go(view="change", prompt=PROMPT, sweep='["France","layers.*.out","T","",""]')
    expect(page.locator("section p.fault[role=alert]")).to_contain_text("France")
    tab.go(view="change", prompt=PROMPT, sweep="nonsense")
    expect(page.locator("#sweep-run")).to_be_disabled()


def test_two_runs_stand_row_by_row_and_a_cell_opens_its_tile(tab: Tab) -> None:
    """The table of a change is `try --by`'s, and a share leads to the number that differs most there."""
    model = pellucid.load("pellucid/capitals", dtype="float32")
    edit = [pellucid.zero("layers.1.attn.z", H=2)]
    compared = pellucid.compare(pellucid.trace(model, PROMPT), pellucid.trace(model, PROMPT, edit=edit))
    page = tab.page
    tab.go(view="change", prompt=PROMPT, edits='[["layers.1.attn.z",":,:,2,:","to","0"]]')
    for axis, path in (("T", "layers.1.out"), ("H", "layers.1.attn.z")):
        row = page.locator(f"table[data-along={axis}] tr", has=page.get_by_role("rowheader", name=path, exact=True))
        expect(row).to_be_visible()
        shares = [float(x) for x in row.locator("button").evaluate_all("all => all.map(b => b.dataset.share)")]
        own = along(compared, axis)[path]
        assert shares == pytest.approx(own, rel=1e-5) and row.locator("button").nth(2).inner_text() == f"{number(100 * own[2])}%"
    cell = row.locator("button").nth(2).get_attribute("data-cell")
    row.locator("button").nth(2).click()
    page.wait_for_selector(f'#reading[data-cell="{cell}"]:not([data-value=""])')
    shown = float(page.get_attribute("#reading", "data-value") or "nan")
    assert shown == pytest.approx(float(compared.a[path].value[tuple(map(int, (cell or "").split(",")))]), rel=1e-5)
