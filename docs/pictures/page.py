"""Take the page's pictures in this folder again: python docs/pictures/page.py. Needs the test packages and Chromium."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "support"))

from browser import Tab, chromium, open_tab, serve_from_command  # noqa: E402

PROMPT = {"en": "The capital of France is", "zh": "法国的首都是"}
VIEWS: dict[str, dict[str, object]] = {
    "map": {"view": "map"},
    "tile": {"tensor": "layers.0.attn.scores", "cell": "0,1,-1,3"},
}
WIDTH, HEIGHT = 1440, 900
MOST = 250_000  # bytes of a picture


def picture(tab: Tab, name: str, lang: str) -> None:
    """Save one view as a PNG of at most MOST bytes."""
    place = dict(VIEWS[name])
    tab.go(lang=lang, prompt=PROMPT[lang])
    last = tab.page.locator(".token:not(.new)").count() - 1
    if "cell" in place:
        place["cell"] = str(place["cell"]).replace("-1", str(last))
    tab.go(lang=lang, prompt=PROMPT[lang], **place)
    tab.page.wait_for_load_state("networkidle")
    tab.page.wait_for_timeout(300)
    file = HERE / f"page-{name}-{lang}-{WIDTH}.png"
    tab.page.screenshot(path=file)
    size = file.stat().st_size
    assert size < MOST, f"{file.name} has {size} bytes; at most {MOST} are allowed"


if __name__ == "__main__":
    with (
        chromium() as browser,
        serve_from_command() as address,
        open_tab(browser, address, viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce") as tab,
    ):
        for name in VIEWS:
            for lang in PROMPT:
                picture(tab, name, lang)
