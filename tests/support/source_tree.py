"""A small project for laws that read sources."""

from pathlib import Path


def write(root: Path, texts: dict[str, str]) -> Path:
    """Write each text under its path below `root`, and return `root`."""
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root
