"""The page as one file: its script and style inline, allowed by their hashes, and the recording as inert JSON.

Except for the recording it is byte for byte the file that the page's own "Save as HTML" writes (web/src/run/save.ts).
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

WEB = Path(__file__).parents[1] / "web"
NONE = "'none'"
SIGNS = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


@cache
def built(name: str) -> str:
    """Return the text of a file of the built page."""
    return (WEB / name).read_bytes().decode("utf-8")


def written(recorded: dict[str, Any]) -> str:
    """Return the text of the file with this recording; see `recording`."""
    return page({"recorded": inert(recorded)})


def page(carried: Mapping[str, str], allowed: str = "", fetched: str = "") -> str:
    """Return the page as one file. carried: inert texts for its script, by the ids of their elements.  allowed: what else it may run.

    fetched: where it may fetch from, "" for nowhere.
    """
    script, style, icon = closed(built("page.js")), built("page.css"), packed(built("icon.svg").encode())
    only = {"default-src": NONE, "script-src": f"'{digest(script)}'{allowed}", "style-src": f"'{digest(style)}'", "img-src": "data:"}
    only |= {"worker-src": "blob:"}  # of the page's own script, which holds it
    only |= {"connect-src": fetched} if fetched else {}
    policy = "; ".join(f"{what} {where}" for what, where in (only | {"base-uri": NONE, "form-action": NONE}).items())
    lines = [
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8" />',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}" />',
        '<meta name="viewport" content="width=device-width, initial-scale=1" />', '<meta name="color-scheme" content="light dark" />',
        f'<link rel="icon" href="data:image/svg+xml;base64,{icon}" />', "<title>Pellucid</title>", f"<style>{style}</style>", "</head>",
        "<body>", '<div id="page"></div>', *(f'<script type="application/json" id="{id}">{text}</script>' for id, text in carried.items()),
        f'<script type="module">{script}</script>', "</body>", "</html>", "",
    ]  # fmt: skip
    return "\n".join(lines)


def digest(text: str) -> str:
    """Return the hash by which a content security policy names a script or style."""
    return "sha256-" + packed(hashlib.sha256(text.encode()).digest())


def packed(content: bytes | memoryview) -> str:
    """Return bytes as text, in base64."""
    return base64.b64encode(content).decode("ascii")


def inert(content: Any) -> str:
    """Return JSON in which no text can end the element that holds it."""
    return json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(SIGNS)


def closed(script: str) -> str:
    """Escape the ends of scripts within a script."""
    return re.sub(r"</(script)", r"<\\/\1", script, flags=re.I).replace("<!--", "<\\!--")
