"""Pictures as plain SVG text: a few shapes, and the file around them."""

from collections.abc import Sequence
from html import escape

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#ee7733", "#009988", "#bb5566")


def picture(width: float, height: float, title: str, shapes: Sequence[str]) -> str:
    """Return an SVG file with its title over the shapes."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    font = ' font-family="system-ui, sans-serif" font-size="12" fill="#1f2328">'
    body = "\n".join([box(0, 0, width, height, "#ffffff"), label(16, 24, title, size=15), *shapes])
    return f'{head} role="img"{font}\n<title>{escape(title)}</title>\n{body}\n</svg>\n'


def box(x: float, y: float, width: float, height: float, fill: str, title: str = "") -> str:
    """Draw a rectangle. title: the text under a pointer."""
    at = f'x="{x:.2f}" y="{y:.2f}" width="{max(width, 0):.2f}" height="{max(height, 0):.2f}"'
    return f'<rect {at} fill="{fill}"><title>{escape(title)}</title></rect>' if title else f'<rect {at} fill="{fill}"/>'


def label(x: float, y: float, text: str, anchor: str = "start", fill: str = "#1f2328", size: float = 12) -> str:
    """Draw a line of text."""
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" fill="{fill}" font-size="{size:g}">{escape(text)}</text>'


def line(points: Sequence[tuple[float, float]], stroke: str, width: float = 2) -> str:
    """Draw a line through points."""
    path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width:g}"/>'


def dot(x: float, y: float, fill: str, title: str) -> str:
    """Draw a point. title: the text under a pointer."""
    return f'<circle cx="{x:.2f}" cy="{y:.2f}" r="5" fill="{fill}" fill-opacity="0.8"><title>{escape(title)}</title></circle>'


def ink(fill: str) -> str:
    """Return the colour of a text on `fill`: white on a dark one, near black on others."""
    red, green, blue = (int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return "#ffffff" if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.2 else "#222222"
