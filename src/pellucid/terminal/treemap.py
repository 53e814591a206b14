"""A model's parameters as areas: each part of each kind of layer, squarified (Bruls, Huizing, van Wijk 2000)."""

from collections.abc import Iterator, Sequence

from pellucid.counting import Bill
from pellucid.documents.number import count, percent
from pellucid.messages import say
from pellucid.terminal.svg import COLOURS, box, ink, label, picture

WIDTH, HEIGHT, SIDE, TOP = 1040.0, 600.0, 720.0, 40.0
Rect = tuple[float, float, float, float]


def treemap(bill: Bill) -> str:
    """Draw one model's parameters."""
    names = list(dict.fromkeys(c.part for c in bill.weights))
    areas: dict[tuple[str, str], int] = {}
    for c in bill.weights:
        if c.weight.parameter:
            where = f"×{c.times} " if c.times > 1 else ""
            key = c.part, f"{where}{c.part}"
            areas[key] = areas.get(key, 0) + c.times * c.weight.count
    every = int(bill["parameters.total"])
    order = sorted(areas.items(), key=lambda entry: -entry[1])
    rects = squarified([n for _, n in order], (8, TOP, SIDE - 16, HEIGHT - TOP - 8))
    shapes = []
    for i, (((part, name), n), (x, y, w, h)) in enumerate(zip(order, rects, strict=True)):
        colour, share = COLOURS[names.index(part) % len(COLOURS)], percent(n / every)
        shapes.append(box(x, y, w - 1, h - 1, colour, f"{name}  {count(n)}  {share}"))
        if w > 8 * len(name) + 8 and h > 34:
            shapes += [label(x + 6, y + 18, name, fill=ink(colour)), label(x + 6, y + 34, share, fill=ink(colour))]
        down = TOP + 20 * i
        shapes += [box(SIDE, down, 12, 12, colour), label(SIDE + 20, down + 11, name), label(WIDTH - 70, down + 11, count(n), "end")]
        shapes.append(label(WIDTH - 16, down + 11, share, "end"))
    return picture(WIDTH, HEIGHT, f"{bill.model}  {say('count.picture.treemap', count=count(every))}", shapes)


def squarified(values: Sequence[float], frame: Rect) -> Iterator[Rect]:
    """Yield rectangles that fill `frame`, with areas in proportion to `values`, which fall."""
    x, y, w, h = frame
    unit = w * h / sum(values)
    left = [v * unit for v in values]
    while left:
        side = min(w, h)
        row = 1
        while row < len(left) and worst(left[: row + 1], side) <= worst(left[:row], side):
            row += 1
        deep = sum(left[:row]) / side
        at = 0.0
        for area in left[:row]:
            long = area / deep
            yield (x, y + at, deep, long) if w >= h else (x + at, y, long, deep)
            at += long
        x, y, w, h = (x + deep, y, w - deep, h) if w >= h else (x, y + deep, w, h - deep)
        left = left[row:]


def worst(areas: Sequence[float], side: float) -> float:
    """Return the worst aspect ratio of areas in one row along a side: longer edge over shorter."""
    deep = sum(areas) / side
    return max(max(deep * deep / a, a / (deep * deep)) for a in areas)
