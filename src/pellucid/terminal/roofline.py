"""A device's roof, and a model's parts under it: FLOP a byte across, FLOP a second up (Williams, Waterman, Patterson 2009)."""

from math import ceil, floor, log10

from pellucid.counting import Bill
from pellucid.counting.bounds import Device, Part, parts
from pellucid.documents.amount import scaled, seconds
from pellucid.messages import say
from pellucid.terminal.svg import COLOURS, dot, label, line, picture
from pellucid.terminal.training_and_ranks import phase_of

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1200.0, 560.0, 100.0, 330.0, 60.0, 50.0


def roofline(bill: Bill, device: Device) -> str:
    """Draw the picture: each part is a point on the roof, at the highest rate that it can reach."""
    points_of = {
        phase: [p for p in parts(bill, phase, device) if p.flops and p.moved] for phase in ("prefill", "decode") if f"flops.{phase}" in bill
    }
    every = [p for points in points_of.values() for p in points]
    peak = max(p.flops / p.compute for p in every)
    knee = peak / device.bandwidth
    low, high = floor(log10(min(knee, *(p.intensity for p in every)))), ceil(log10(max(knee, *(p.intensity for p in every)) * 1.1))
    bottom, top = floor(log10(min(rate(p) for p in every))), ceil(log10(peak * 1.1))

    def x(intensity: float) -> float:
        return LEFT + (log10(intensity) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(flops: float) -> float:
        return HEIGHT - BOTTOM - (log10(flops) - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    shapes: list[str] = []
    legend: list[tuple[str, str]] = []
    for power in range(low, high + 1):
        shapes += [line([(x(10.0**power), TOP), (x(10.0**power), HEIGHT - BOTTOM)], "#dddddd", 1)]
        shapes += [label(x(10.0**power), HEIGHT - BOTTOM + 18, f"{10.0**power:g}", "middle")]
    for power in range(bottom, top + 1):
        shapes += [line([(LEFT, y(10.0**power)), (WIDTH - RIGHT, y(10.0**power))], "#dddddd", 1)]
        shapes += [label(LEFT - 8, y(10.0**power) + 4, scaled(10.0**power, "FLOP/s"), "end")]
    start = max(10.0**low, 10.0**bottom / device.bandwidth)
    shapes.append(line([(x(start), y(start * device.bandwidth)), (x(knee), y(peak)), (x(10.0**high), y(peak))], "#1f2328"))
    for colour, (phase, points) in zip(COLOURS, reversed(points_of.items()), strict=False):
        name = phase_of(phase)
        for p in reversed(points):
            text = f"{p.path} ×{p.times}  {p.intensity:.3g} FLOP/B  {seconds(p.seconds)}"
            shapes.append(dot(x(p.intensity), y(rate(p)), colour, f"{name}  {text}  {scaled(rate(p), 'FLOP/s')}"))
            legend.append((colour, text))
        legend.append((colour, name))
    for i, (colour, text) in enumerate(reversed(legend)):
        shapes.append(label(WIDTH - RIGHT + 16, TOP + 12 + 18 * i, text, fill=colour))
    shapes.append(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, say("count.picture.intensity"), "middle"))
    return picture(WIDTH, HEIGHT, say("count.picture.roofline", model=bill.model, device=device.name), shapes)


def rate(p: Part) -> float:
    """Return a part's FLOP a second at its bound."""
    return p.flops / p.seconds
