"""Where order enters: five kinds of positions, each run, with what each acts on and how often."""

from collections.abc import Iterator

from pellucid.analysis.mask_leak import token_names
from pellucid.analysis.needs import ROTARY
from pellucid.analysis.position_kinds import ALIBI, SINUSOIDS, bent, bias, entrances, lines, moved_on, position_rows
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, MatrixPanel, Panel, TablePanel
from pellucid.messages import say
from pellucid.tracing import Trace

PROMPT, SHIFT = "The capital of France is", 7
CHANNELS = 12  # of a position's row that are drawn


def runs(e: Experiment) -> dict[str, Trace]:
    """Run the prompt with each kind of positions, by the key of its name."""
    learned = e.open_model("pellucid/capitals")
    models = {
        "learned": learned,
        "sinusoids": e.variant(SINUSOIDS, learned),
        "rotary": e.model,
        "alibi": e.variant(ALIBI, learned),
        "buckets": e.open_model("pellucid/capitals-t5"),
    }
    return {kind: e.trace(e.text("prompt"), model) for kind, model in models.items()}


def show(e: Experiment) -> Iterator[Panel | Claim]:
    kinds, shift = runs(e), int(e.number("shift"))
    names = {
        "learned": say("exhibit.places.learned"),
        "sinusoids": say("exhibit.places.sinusoids"),
        "rotary": say("exhibit.places.rotary"),
        "alibi": say("exhibit.places.alibi"),
        "buckets": say("exhibit.places.buckets"),
    }
    moved = {kind: moved_on(run, e.on(shift, 0)) for kind, run in kinds.items()}
    places = {kind: entrances(run) for kind, run in kinds.items()}
    heads = (
        "exhibit.places.kind",
        "exhibit.places.added",
        "exhibit.places.rotated",
        "exhibit.places.biased",
        "exhibit.places.scores",
        "exhibit.places.values",
        "exhibit.places.model",
    )
    rows = [(names[k], p.added, p.rotated, p.biased, moved[k].scores, moved[k].values, kinds[k].model) for k, p in places.items()]
    yield TablePanel(say("exhibit.places.kinds", shift=shift), list(map(say, heads)), rows)
    added, rest = ("learned", "sinusoids"), ("rotary", "alibi", "buckets")
    absolute = all(e.differ(moved[k].scores) and e.differ(moved[k].values) for k in added)
    relative = all(e.same(moved[k].scores) and e.same(moved[k].values) for k in rest)
    numbers = {k: m.scores for k, m in moved.items()}
    yield e.claim("kinds", absolute and relative, shift=shift, **numbers)
    once = [places[k].added for k in added]
    inside = all(places[k].added == 0 and max(places[k].rotated, places[k].biased) >= places[k].blocks for k in rest)
    numbers = {"once": max(once), "rotated": places["rotary"].rotated, "alibi": places["alibi"].biased, "buckets": places["buckets"].biased}
    yield e.claim("often", once == [1, 1] and inside, **numbers)

    slopes, table = bias(kinds["alibi"]), bias(kinds["buckets"])
    for name, made in (("alibi", slopes), ("buckets", table)):
        series = {say("exhibit.places.head", head=h): values for h, values in lines(made.by_distance).items()}
        yield LinePanel(say("exhibit.places.bias", kind=names[name]), say("exhibit.places.distance"), [*made.by_distance], series)
    straight, curved = bent(slopes.by_distance), bent(table.by_distance)
    spread = max(slopes.spread, table.spread)
    holds = e.same(spread) and e.same(straight) and e.differ(curved)
    steps = slopes.by_distance[1]
    yield e.claim("bias", holds, spread=spread, straight=straight, curved=curved, steep=min(steps), flat=max(steps))
    for number, kind in enumerate(added):
        run = kinds[kind]
        cells = position_rows(run, CHANNELS)
        title, channels = say("exhibit.places.rows", kind=names[kind]), [*map(str, range(CHANNELS))]
        yield MatrixPanel(title, token_names(run), channels, cells, "positions", cell=(0, "row", "column"), run=number)


CONTROLS = (Control("prompt", PROMPT, tokens=2), Control("shift", SHIFT, (1, SHIFT, 30)))
EXHIBIT = Exhibit("places", show, model="pellucid/capitals-llama", controls=CONTROLS, needs=ROTARY)
