"""What moves on the page: at most five kinds, each of 150 to 250 ms and listed in page.css, and nothing that repeats."""

import re
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web" / "src"
LISTED = re.compile(r"--move-([\w-]+):\s*([^;]+);")
MOVES = re.compile(
    r"transition(?:-duration)?\s*:\s*([^;}]+)|\banimation(?:-[a-z]+)?\s*:\s*([^;}]+)|(@keyframes)|\bscroll-behavior\s*:\s*(smooth)"
)
SCRIPT = re.compile(r"\.animate\((?:[^;]*?)duration:([^,}]+)|behavior:[^}\n]*\"(smooth)\"|svelte/(motion|transition|animate)")


def sources() -> dict[str, str]:
    return {
        str(p.relative_to(WEB)): p.read_text(encoding="utf-8") for p in sorted(WEB.rglob("*")) if p.suffix in (".svelte", ".css", ".ts")
    }


def faults(texts: dict[str, str]) -> list[str]:
    """Return what moves without being listed, is listed and moves nothing, or has another length."""
    listed = dict(LISTED.findall(texts["page.css"]))
    used, wrong = set[str](), []
    for file, text in texts.items():
        for match in [*MOVES.finditer(text), *SCRIPT.finditer(text)]:
            what = next(filter(None, match.groups())).strip()
            if what.startswith("none") or "//" in text[text.rfind("\n", 0, match.start()) : match.start()]:
                continue
            parts = re.split(r",\s*(?![^(]*\))", what) if "transition" in match[0] else [what]
            for part in parts:
                name = re.search(r"--move-([\w-]+)", part)
                used |= {name[1]} if name else set()
                if name is None or name[1] not in listed or "infinite" in part:
                    wrong.append(f"{file}: {part}")
    wrong += [f"{name} moves nothing" for name in listed.keys() - used]
    wrong += [f"{name} takes {t}" for name, t in listed.items() if not re.fullmatch(r"\d+ms", t) or not 150 <= int(t[:-2]) <= 250]
    return wrong + ([f"{len(listed)} kinds"] if len(listed) > 5 else [])


def test_at_most_five_kinds_of_motion() -> None:
    texts = sources()
    assert faults(texts) == []
    assert texts["page.css"].count("prefers-reduced-motion: reduce") == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("parts/Links.svelte", "path { transition: opacity .2s; }"),
        ("parts/Links.svelte", "path { transition: opacity var(--move-link), filter 200ms; }"),
        ("parts/Links.svelte", "path { animation: blink var(--move-link) infinite; }"),
        ("parts/Links.svelte", "@keyframes blink { }"),
        ("parts/Links.svelte", 'node.scrollIntoView({ block: "center", behavior: "smooth" });'),
        ("parts/Links.svelte", "picture.animate([{ opacity: 1 }], { duration: 200 });"),
        ("page.css", ":root { --move-sixth: 200ms; }"),
        ("page.css", "p { --move-link: 400ms; }"),
    ],
)
def test_another_motion_is_seen(file: str, text: str) -> None:
    texts = sources()
    texts[file] += text
    assert faults(texts) != []
