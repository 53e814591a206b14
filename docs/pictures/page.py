"""The page's pictures in this folder, made again: python docs/pictures/page.py. Needs the test packages and Chromium."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from visits import Visit, chromium, opened, visiting  # noqa: E402

PROMPT = {"en": "The capital of France is", "zh": "法国的首都是"}
VIEWS: dict[str, dict[str, object]] = {
    "life": {},
    "tile": {"tensor": "layers.0.attn.scores", "cell": "0,1,-1,3"},
    "attention": {"view": "attention", "block": "layers.2", "head": 1},
    "next": {"view": "next", "sampling": "temperature:2 top_p:0.95"},
    "cache": {"view": "cache", "steps": 2, "step": 1},
    "experts": {"view": "experts", "model": "pellucid/capitals-deepseek"},
    "budget": {"view": "budget", "budget": "of:deepseek-v3 context:131072 batch:8 dtype:fp8 device:h200 ep:8 beside:kimi-k2"},
    "change": {"view": "change", "edits": '[["layers.2.attn.z","0,:,1,:","times","0"]]'},
}
SIZES = {1440: 900, 390: 844}
MOST = 250_000  # bytes of a picture


def picture(visit: Visit, name: str, lang: str, width: int) -> None:
    """One view, drawn to its end, as a PNG of few enough bytes."""
    place = dict(VIEWS[name])
    visit.go(lang=lang, prompt=PROMPT[lang])
    last = visit.page.locator(".token:not(.new)").count() - 1
    if "cell" in place:
        place["cell"] = str(place["cell"]).replace("-1", str(last))
    visit.go(lang=lang, prompt=PROMPT[lang], **place)
    visit.page.wait_for_load_state("networkidle")
    visit.page.wait_for_timeout(300)
    file = HERE / f"page-{name}-{lang}-{width}.png"
    visit.page.screenshot(path=file)
    size = file.stat().st_size
    assert size < MOST, f"{file.name} has {size} bytes; at most {MOST} are allowed"


if __name__ == "__main__":
    with chromium() as browser, opened() as address:
        for width, height in SIZES.items():
            with visiting(browser, address, viewport={"width": width, "height": height}) as visit:
                for name in VIEWS:
                    for lang in PROMPT:
                        picture(visit, name, lang, width)
