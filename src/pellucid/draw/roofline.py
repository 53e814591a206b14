"""A device's roof, and a model's parts under it: FLOP a byte across, FLOP a second up (Williams, Waterman, Patterson 2009)."""

from math import ceil, floor, log10

from pellucid.counting import Bill
from pellucid.counting.bounds import Device, Part, parts
from pellucid.draw.amount import scaled, seconds
from pellucid.draw.svg import COLOURS, dot, label, line, picture
from pellucid.words import say

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1040.0, 560.0, 100.0, 150.0, 60.0, 50.0


def roofline(bill: Bill, device: Device) -> str:
    """The picture: each part stands on the roof, at the rate that it can reach at most."""
    found = {
        phase: [p for p in parts(bill, phase, device) if p.flops and p.moved] for phase in ("prefill", "decode") if f"flops.{phase}" in bill
    }
    every = [p for points in found.values() for p in points]
    peak = max(p.flops / p.compute for p in every)
    knee = peak / device.bandwidth
    low, high = floor(log10(min(knee, *(p.intensity for p in every)))), ceil(log10(max(knee, *(p.intensity for p in every)) * 1.1))
    bottom, top = floor(log10(min(rate(p) for p in every))), ceil(log10(peak * 1.1))

    def x(intensity: float) -> float:
        return LEFT + (log10(intensity) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(flops: float) -> float:
        return HEIGHT - BOTTOM - (log10(flops) - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    shapes: list[str] = []
    taken: list[tuple[float, float]] = []  # where labels stand
    for power in range(low, high + 1):
        shapes += [line([(x(10.0**power), TOP), (x(10.0**power), HEIGHT - BOTTOM)], "#dddddd", 1)]
        shapes += [label(x(10.0**power), HEIGHT - BOTTOM + 18, f"{10.0**power:g}", "middle")]
    for power in range(bottom, top + 1):
        shapes += [line([(LEFT, y(10.0**power)), (WIDTH - RIGHT, y(10.0**power))], "#dddddd", 1)]
        shapes += [label(LEFT - 8, y(10.0**power) + 4, scaled(10.0**power, "FLOP/s"), "end")]
    start = max(10.0**low, 10.0**bottom / device.bandwidth)
    shapes.append(line([(x(start), y(start * device.bandwidth)), (x(knee), y(peak)), (x(10.0**high), y(peak))], "#1f2328"))
    for colour, (phase, points) in zip(COLOURS, found.items(), strict=False):
        name = say("count.prefill") if phase == "prefill" else say("count.decode")
        for p in points:
            told = f"{name}  {p.path} ×{p.times}  {p.intensity:.3g} FLOP/B  {scaled(rate(p), 'FLOP/s')}  {seconds(p.seconds)}"
            shapes.append(dot(x(p.intensity), y(rate(p)), colour, told))
        for p in sorted(points, key=lambda p: p.intensity, reverse=True):
            left, down = x(p.intensity) + 8, y(rate(p)) + 18
            while any(abs(left - a) < 200 and abs(down - b) < 14 for a, b in taken):
                down += 14
            taken.append((left, down))
            shapes.append(label(left, down, f"{name}: {p.path}", fill=colour))
    shapes.append(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, say("count.picture.intensity"), "middle"))
    return picture(WIDTH, HEIGHT, say("count.picture.roofline", model=bill.model, device=device.name), shapes)


def rate(p: Part) -> float:
    """FLOP a second at the bound."""
    return p.flops / p.seconds
