"""What moves on the page: at most five kinds, each of 150 to 250 ms and listed in page.css, and nothing that repeats."""

import re
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web" / "src"
LISTED = re.compile(r"--move-([\w-]+):\s*([^;]+);")
MOVES = re.compile(
    r"transition(?:-duration)?\s*:\s*([^;}]+)|\banimation(?:-[a-z]+)?\s*:\s*([^;}]+)|(@keyframes)|\bscroll-behavior\s*:\s*(smooth)"
)
# Of a script: an animation with what it is given, and whatever else would move something.
SCRIPT = re.compile(
    r"\.animate\(([^;]*)\)|behavior:[^}\n]*[\"'](smooth)[\"']|svelte/(motion|transition|animate)|(<animate|startViewTransition)"
    r"|(?:\.style\.|style:|setProperty\([\"'])(transition|animation)"
)
ANIMATED = re.compile(r".*\{ duration: lasts\(\w+, \"--move-[\w-]+\"\), easing: \"[\w-]+\" \}", re.S)
TIME = re.compile(r"(?<![\w-])(\d*\.?\d+)(m?s)\b")


def sources() -> dict[str, str]:
    return {
        str(p.relative_to(WEB)): p.read_text(encoding="utf-8") for p in sorted(WEB.rglob("*")) if p.suffix in (".svelte", ".css", ".ts")
    }


def faults(texts: dict[str, str]) -> list[str]:
    """Return what moves without being listed, is listed and moves nothing, or has another length."""
    kinds = dict(LISTED.findall(texts["page.css"]))
    used, wrong = set[str](), []
    for file, text in texts.items():
        for match in [*MOVES.finditer(text), *SCRIPT.finditer(text)]:
            what = next(filter(None, match.groups())).strip()
            if what.startswith("none") or text[text.rfind("\n", 0, match.start()) + 1 :].lstrip().startswith("//"):
                continue
            parts = re.split(r",\s*(?![^(]*\))", what) if "transition" in match[0] else [what]
            for part in parts:
                name = re.search(r"--move-([\w-]+)", part)
                used |= {name[1]} if name else set()
                late = any(float(n) * (1 if unit == "ms" else 1000) > 250 for n, unit in TIME.findall(part))
                bare = match[0].startswith(".animate") and not ANIMATED.fullmatch(part)
                if name is None or name[1] not in kinds or "infinite" in part or late or bare:
                    wrong.append(f"{file}: {part}")
    wrong += [f"{name} moves nothing" for name in kinds.keys() - used]
    wrong += [f"{name} takes {t}" for name, t in kinds.items() if not re.fullmatch(r"\d+ms", t) or not 150 <= int(t[:-2]) <= 250]
    return wrong + ([f"{len(kinds)} kinds"] if len(kinds) > 5 else [])


def test_at_most_five_kinds_of_motion() -> None:
    texts = sources()
    assert faults(texts) == []
    assert texts["page.css"].count("prefers-reduced-motion: reduce") == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("parts/Links.svelte", "path { transition: opacity .2s; }"),
        ("parts/Links.svelte", "path { transition: opacity var(--move-fade), filter 200ms; }"),
        ("parts/Links.svelte", "path { animation: blink var(--move-fade) infinite; }"),
        ("parts/Links.svelte", "@keyframes blink { }"),
        ("parts/Links.svelte", 'node.scrollIntoView({ block: "center", behavior: "smooth" });'),
        ("parts/Links.svelte", "picture.animate([{ opacity: 1 }], { duration: 200 });"),
        ("parts/Links.svelte", "picture.animate(frames, 900);"),
        ("parts/Links.svelte", 'picture.animate(frames, { duration: 900 + lasts(p, "--move-fade"), easing: "ease-in" });'),
        ("parts/Links.svelte", 'picture.animate(frames, { duration: lasts(p, "--move-fade"), easing: "ease-in", iterations: Infinity });'),
        ("parts/Links.svelte", "path { transition: opacity var(--move-fade) 5s; }"),
        ("parts/Links.svelte", 'const a = "https://a.b"; node.style.transition = "opacity 2s";'),
        ("parts/Links.svelte", '<path style:transition="opacity 2s" />'),
        ("parts/Links.svelte", '<animate attributeName="x" repeatCount="indefinite" />'),
        ("parts/Links.svelte", "document.startViewTransition(f);"),
        ("parts/Links.svelte", "node.scrollIntoView({ behavior: 'smooth' });"),
        ("page.css", ":root { --move-sixth: 200ms; }"),
        ("page.css", "p { --move-fade: 400ms; }"),
    ],
)
@pytest.mark.quick(5)
def test_another_motion_is_seen(file: str, text: str) -> None:
    texts = sources()
    texts[file] += text
    assert faults(texts) != []
