"""Two ahead: a module beside the model guesses the token after the next, from the model's rows and the next token."""

from collections.abc import Iterator

from pellucid.analysis.catalogue import built, sizes_of
from pellucid.analysis.deep_or_wide import means, steps_shown
from pellucid.analysis.needs import GENERATOR, OWN_LAST
from pellucid.analysis.two_ahead import TwoAhead, of_catalogue, stored_module
from pellucid.analysis.watched_steps import fell
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import BarPanel, LinePanel, Panel, TablePanel
from pellucid.messages import say
from pellucid.runs.answers import piece_of, tokenizer_of, visible

TEXT, STEPS = "The capital of France is Paris.", (40, 80, 160)
LARGE, MANY = "deepseek-v3", 0.25  # share of the guesses
COLUMNS = (
    "exhibit.second.token",
    "exhibit.second.following",
    "exhibit.second.fed",
    "exhibit.second.second",
    "exhibit.second.actual",
)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    ids, steps = e.model.ids(e.text("text")), int(e.number("steps"))
    e.trace(e.text("text"))
    stored = stored_module(e.model)
    two = TwoAhead(e.model, stored)
    if stored is None:
        two.train(steps)
    right = e.on(True, False)
    rows = [[piece(e, i) for i in (g.token, g.following, g.fed, g.second, g.actual)] for g in two.guesses(ids, right)]
    title = say("exhibit.second.table", steps=steps) if stored is None else say("exhibit.second.stored")
    yield TablePanel(title, list(map(say, COLUMNS)), rows)
    got, losses = two.measured(right), list(means(two.losses))
    if losses:
        yield LinePanel(say("exhibit.second.lines"), say("exhibit.second.step"), steps_shown(steps), {say("exhibit.second.module"): losses})
    bars = {
        say("exhibit.second.next"): got.following,
        say("exhibit.second.ahead"): got.second,
        say("exhibit.second.mistaken"): got.mistaken,
    }
    yield BarPanel(say("exhibit.second.losses"), bars, say("exhibit.second.nats"))
    if losses:
        yield e.claim("falls", fell(losses), first=losses[0], last=losses[-1], steps=steps)
    yield e.claim("fed", got.second < got.mistaken, loss=got.second, mistaken=got.mistaken)
    if got.able:
        yield e.claim("harder", got.following < got.second, loss=got.second, following=got.following)
        yield e.claim("agreed", got.share > MANY, agreed=got.agreed, of=got.of)
    elif losses:
        yield e.claim("unable", got.second < got.following, model=e.model.name, following=got.following, even=got.even, loss=got.second)
    (counted,), total, module = sizes_of([LARGE]), built(LARGE), of_catalogue(LARGE)
    yield e.claim("apart", counted.total == total, model=counted.name, module=module, total=total, own=two.parameters)


def piece(e: Experiment, token: int) -> str:
    """Write a token."""
    return visible(piece_of(tokenizer_of(e.model), token)) or str(token)


EXHIBIT = Exhibit("second", show, controls=(Control("text", TEXT, tokens=3), Control("steps", 80, STEPS)), needs=(*GENERATOR, OWN_LAST))
