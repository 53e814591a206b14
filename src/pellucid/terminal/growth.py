"""The growth of the cache with the context, a line for each model: straight for full attention, flat for windows."""

from collections.abc import Sequence
from math import log2

from pellucid.counting import Bill
from pellucid.counting.fit import bytes_held
from pellucid.documents.amount import scaled
from pellucid.messages import say
from pellucid.terminal.svg import COLOURS, label, line, picture

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960.0, 540.0, 90.0, 190.0, 50.0, 50.0


def growth(bills: Sequence[Bill]) -> str:
    """Draw the picture: tokens across by powers of 2, bytes up by powers of 2."""
    most = max(131_072, *(b.setting.context for b in bills))
    reaches = (b.config.positions or most for b in bills)
    least = max(0, min(7, *(int(log2(n)) - 1 for n in reaches)))  # so that a short table of positions has two points too
    contexts = [2**i for i in range(least, int(log2(most)) + 1)]
    drawn = [(b, [(n, kv_cache(b, n)) for n in contexts if n <= (b.config.positions or n)]) for b in bills if "cache.bytes" in b]
    sizes = [size for _, points in drawn for _, size in points] or [1, 2]
    low, high = int(log2(min(sizes))), int(log2(max(sizes))) + 1

    def x(n: float) -> float:
        return LEFT + (log2(n) - least) / max(1, log2(contexts[-1]) - least) * (WIDTH - LEFT - RIGHT)

    def y(size: float) -> float:
        return HEIGHT - BOTTOM - (log2(size) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    shapes = []
    for n in contexts[::2]:
        shapes += [line([(x(n), TOP), (x(n), HEIGHT - BOTTOM)], "#dddddd", 1), label(x(n), HEIGHT - BOTTOM + 18, f"{n:,}", "middle")]
    for power in range(low, high + 1, max(1, (high - low) // 8)):
        shapes += [line([(LEFT, y(2.0**power)), (WIDTH - RIGHT, y(2.0**power))], "#dddddd", 1)]
        shapes += [label(LEFT - 8, y(2.0**power) + 4, scaled(2.0**power, "B"), "end")]
    heights = apart([y(points[-1][1]) for _, points in drawn])
    for i, ((bill, points), height) in enumerate(zip(drawn, heights, strict=True)):
        colour = COLOURS[i % len(COLOURS)]
        shapes.append(line([(x(n), y(size)) for n, size in points], colour))
        shapes.append(label(x(points[-1][0]) + 6, height + 4, bill.model, fill=colour))
    shapes.append(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, say("count.row.context"), "middle"))
    return picture(
        WIDTH, HEIGHT, say("count.picture.cache", batch=", ".join(map(str, dict.fromkeys(b.setting.batch for b in bills)))), shapes
    )


def apart(heights: Sequence[float], least: float = 14.0) -> list[float]:
    """Move heights down, from the top on, until no two are closer than `least`, a line of text."""
    out, free = list(heights), float("-inf")
    for i in sorted(range(len(out)), key=out.__getitem__):
        out[i] = max(out[i], free)
        free = out[i] + least
    return out


def kv_cache(bill: Bill, context: int) -> int:
    """Return the bytes of the cache of a batch with this context, over all layers."""
    return bytes_held(bill, context, bill.setting.batch) - int(bill["bytes.total"])
