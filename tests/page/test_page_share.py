"""What leaves the page by its menu, in a real Chromium: links, frames, pictures and a film, each opened again as its reader would."""

import base64
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Browser, Page, expect

from browser import Tab, address_of, open_offline_tab, open_tab
from pellucid.messages import phrases
from test_page_access import AXE, FULL, VIOLATIONS

PROMPT = "The capital of France is"
COPIED = "() => { navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }; }"
LINES = "all => all.map(e => [e.getAttribute('d'), Number(e.getAttribute('stroke-width'))])"
# Where the menu's button is: within its own window and pane, and under nothing.
REACHED = """() => {
  const e = document.querySelector(".share .opener"), b = e.getBoundingClientRect();
  const pane = document.querySelector("main").getBoundingClientRect();
  const entire = b.left >= pane.left && b.right <= pane.right && b.width > 20;
  return entire && [b.left + 2, b.right - 2].every(x => e.contains(document.elementFromPoint(x, b.top + b.height / 2)));
}"""
# A picture's size, and its number of colours.
LOOKED = """async bytes => {
  const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${bytes}`)).blob());
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  const colours = new Set(new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer));
  return [image.width, image.height, colours.size];
}"""
# Of a film that plays: its size, and how many of its pixels changed between its start and its hold.
PLAYED = """async bytes => {
  const video = document.createElement("video");
  video.muted = true;
  video.src = `data:video/webm;base64,${bytes}`;
  const grab = () => {
    const context = new OffscreenCanvas(video.videoWidth, video.videoHeight).getContext("2d");
    context.drawImage(video, 0, 0);
    return context.getImageData(0, 0, video.videoWidth, video.videoHeight).data;
  };
  await video.play();
  const first = grab();
  await new Promise(go => { video.onended = go; });
  const last = grab();
  return [video.videoWidth, video.videoHeight, last.filter((x, i) => Math.abs(x - first[i]) > 20).length];
}"""


def entry(page: Page, name: str) -> None:
    """Open the menu where it is shut, and choose an entry."""
    if page.locator("#share-menu").count() == 0:
        page.click(".share .opener")
    page.click(f"[data-share='{name}']")


def saved(tab: Tab, name: str, folder: Path) -> Path:
    """Save by an entry of the menu. Returns the file."""
    with tab.page.expect_download() as download:
        entry(tab.page, name)
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


def packed(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def test_the_svg_has_the_maps_lines_and_a_caption(tab: Tab, tmp_path: Path) -> None:
    tab.go(view="map", prompt=PROMPT)
    tab.page.wait_for_selector("svg[data-map]")
    tab.settle()
    drawn = [tuple(one) for one in tab.page.eval_on_selector_all("svg[data-map] .ribbon, svg[data-map] .way", LINES)]
    file = saved(tab, "svg", tmp_path)
    assert file.name == "capitals.svg"
    text = file.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    paths = [e for e in root.iter("{http://www.w3.org/2000/svg}path") if e.get("fill") == "none"]

    def lines() -> list[tuple[str | None, float]]:
        return [(e.get("d"), float((e.get("stroke-width") or "").removesuffix("px"))) for e in paths]

    assert [d for d, _ in lines()] == [d for d, _ in drawn] and len(drawn) > 20
    assert [w for _, w in lines()] == pytest.approx([w for _, w in drawn], rel=1e-4)
    paths[0].set("stroke-width", "99px")  # the comparison can fail
    assert [w for _, w in lines()] != pytest.approx([w for _, w in drawn], rel=1e-4)
    words = [e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"·France", "·Paris", "99.46%", "·Lome"} <= set(words)
    assert words[-2] == "pellucid/capitals · “The capital of France is” → Paris 99.46%"
    assert words[-1].startswith("Pellucid · #model=pellucid%2Fcapitals&prompt=The+capital") and "token" not in text
    names = {name for e in root.iter() for name in e.attrib}
    assert not names & {"class", "style", "href", "onclick"} and not re.search(r"var\(|url\(|https?://(?!www\.w3\.org/2000/svg)", text)


def test_pictures_are_pixels_of_what_is_in_view(browser: Browser, address: str, tmp_path: Path) -> None:
    with open_tab(browser, address, color_scheme="dark") as tab:
        tab.go("zh", view="map", prompt=PROMPT)
        tab.page.wait_for_selector("svg[data-map]")
        tab.settle()
        entire = saved(tab, "png", tmp_path)
        reader = browser.new_page()
        width, height, colours = reader.evaluate(LOOKED, packed(entire))
        assert width > 2 * 1300 and height > 2 * 300 and colours > 200
        tab.go("zh", prompt=PROMPT, tensor="layers.0.attn.pattern", cell="0,1,4,3")
        tab.page.wait_for_selector("[data-received]:not([data-received=''])")
        tab.settle()
        assert reader.evaluate(LOOKED, packed(saved(tab, "png", tmp_path)))[2] > 50
        assert tab.page.is_disabled("[data-share='svg']") and phrases("zh")["page.share.cells"] in tab.page.inner_text("[data-share='svg']")
        tab.go("zh", view="next", prompt=PROMPT)
        tab.page.click(".share .opener")
        assert tab.page.is_disabled("[data-share='png']") and phrases("zh")["page.share.none"] in tab.page.inner_text("[data-share='png']")
        reader.close()


def test_a_film_of_the_map_plays(browser: Browser, address: str, tmp_path: Path) -> None:
    with open_tab(browser, address) as tab:
        tab.go(view="map", prompt=PROMPT)
        tab.page.wait_for_selector("svg[data-map]")
        tab.settle()
        film = saved(tab, "webm", tmp_path)
        assert film.name == "capitals.webm" and film.read_bytes()[:4] == b"\x1a\x45\xdf\xa3"
        reader = browser.new_page()
        width, height, changed = reader.evaluate(PLAYED, packed(film))
        reader.close()
        assert width > 1300 and height > 300 and changed > 20_000
    with open_tab(browser, address) as tab:
        tab.page.add_init_script("delete window.MediaRecorder")
        tab.go(view="map", prompt=PROMPT)
        tab.page.click(".share .opener")
        assert tab.page.is_disabled("[data-share='webm']") and phrases("en")["page.share.webm.no"] in tab.page.inner_text(
            "[data-share='webm']"
        )


SLOW = """(() => {
  const Plain = MediaRecorder;
  window.MediaRecorder = class extends Plain {
    start(...slice) {
      const take = this.ondataavailable, early = [];
      let ready = false;
      this.ondataavailable = e => { if (ready) take(e); else early.push(e.data); };
      setTimeout(() => { ready = true; take({ data: new Blob(early) }); }, 4000);
      super.start(...slice);
    }
  };
})()"""


@pytest.mark.skipif(not FULL, reason="PELLUCID_FULL=1 waits for a slow encoder, twice")
def test_a_slow_encoder_makes_a_film(browser: Browser, address: str, tmp_path: Path) -> None:
    """As on a busy machine: nothing is written for longer than the film takes. It was an empty file."""
    with open_tab(browser, address) as tab:
        tab.page.add_init_script(SLOW)
        tab.go(view="map", prompt=PROMPT)
        tab.page.wait_for_selector("svg[data-map]")
        tab.settle()
        film = saved(tab, "webm", tmp_path)
        reader = browser.new_page()
        width, height, changed = reader.evaluate(PLAYED, packed(film))
        reader.close()
        assert width > 1300 and height > 300 and changed > 20_000


def test_a_film_that_waits_in_vain_ends_with_a_message(tab: Tab) -> None:
    """And the page is at the step where it was."""
    tab.page.route("**/steps/1/map?*", lambda route: None)  # which is never answered
    tab.go(view="map", prompt=PROMPT, steps=3, step=2)
    tab.page.wait_for_selector("svg[data-map][data-step='2']")
    entry(tab.page, "webm")
    tab.page.wait_for_function("() => new URLSearchParams(location.hash.slice(1)).get('step') === '1'")
    tab.page.evaluate("((now, n = 0) => { performance.now = () => now() + 1000 * n++; })(performance.now.bind(performance))")
    expect(tab.page.locator(".share [role=alert]")).to_have_text(phrases("en")["page.share.none"])
    assert "step=2" in address_of(tab.page)
    expect(tab.page.locator("[data-share='webm']")).to_be_enabled()


def test_links_and_frames_lead_here(browser: Browser, address: str, tmp_path: Path) -> None:
    place: dict[str, Any] = {"prompt": PROMPT, "tensor": "layers.0.attn.scores", "cell": "0,1,4,3"}
    with open_tab(browser, address) as tab:
        tab.go(**place)
        tab.page.evaluate(COPIED)
        entry(tab.page, "link")
        tab.page.wait_for_function("window.copied")
        link = tab.page.evaluate("window.copied")
        assert link == tab.page.url and "token" not in link and "cell=0%2C1%2C4%2C3" in link
        file = saved(tab, "html", tmp_path)
        tab.page.evaluate("window.copied = ''")
        entry(tab.page, "frame")
        tab.page.wait_for_function("window.copied")
        frame = tab.page.evaluate("window.copied")
        tab.page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }")  # then by hand
        entry(tab.page, "link")
        assert tab.page.input_value(".share textarea") == tab.page.url
    host = tmp_path / "host.html"
    host.write_text(f"<!doctype html><title>x</title>{frame}", encoding="utf-8")
    with open_tab(browser, f"{host.as_uri()}#", offline=True) as tab:
        tab.page.goto(host.as_uri())
        inside = tab.page.frame_locator("iframe")
        expect(inside.locator("#reading")).to_have_attribute("data-cell", "0,1,4,3")
        tab.problems = [p for p in tab.problems if not p.startswith(file.as_uri())]  # the frame's own file
    with open_offline_tab(browser, file) as tab:
        tab.page.goto(file.as_uri())
        tab.page.click(".share .opener")
        assert tab.page.locator("[data-share]").evaluate_all("all => all.map(e => e.dataset.share)") == [
            "link",
            "frame",
            "svg",
            "png",
            "webm",
        ]


@pytest.mark.parametrize("width", [390, 1000, 1440])
@pytest.mark.quick(4)
def test_the_menu_is_never_cut(browser: Browser, address: str, width: int) -> None:
    with open_tab(browser, address, viewport={"width": width, "height": 900}) as tab:
        page = tab.page
        tab.go(prompt=PROMPT, **({} if width < 900 else {"tensor": "layers.0.attn.scores"}))
        assert page.evaluate(REACHED)
        page.click(".share .opener")
        box = page.locator("#share-menu").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
        if width == 1000 and AXE.is_file():  # which `npm ci` brings
            page.evaluate(AXE.read_text(encoding="utf-8"))
            assert page.evaluate(VIOLATIONS) == []
        page.keyboard.press("Escape")
        expect(page.locator("#share-menu")).to_have_count(0)
        expect(page.locator(".share .opener")).to_be_focused()
        assert page.locator("aside").count() == (0 if width < 900 else 1)  # the tile stays open
        page.evaluate("document.querySelector('main nav').append(document.querySelector('.share'))")  # where it was cut
        assert not page.evaluate(REACHED)
