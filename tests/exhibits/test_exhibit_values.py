"""The law of an exhibit's controls: at every value that they offer its claims hold, and one of them fails without its switch."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import pytest

from covering import FULL
from pellucid.errors import UseError
from pellucid.exhibits import find, names
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment, Opened, run_exhibit
from pellucid.exhibits.panel import Panel

Settings = Mapping[str, str | float]
TRAINS = "steps"  # the control of exhibits that train; in the quick form they take its fewest steps
open_model = Opened()


def offered(shown: Exhibit) -> list[Control]:
    """Return the controls of an exhibit that offer values, which are not free text."""
    return [c for c in shown.controls if c.options]


def every(shown: Exhibit) -> list[Settings]:
    """Return every choice of the values that an exhibit offers."""
    own = offered(shown)
    return [dict(zip((c.name for c in own), values, strict=True)) for values in product(*(c.options for c in own))] if own else []


def some(shown: Exhibit) -> list[Settings]:
    """Return choices in which every value stands once; of steps of training the fewest alone."""
    own = {c.name: [min(c.options)] if c.name == TRAINS else list(c.options) for c in offered(shown)}
    most = max(map(len, own.values()), default=0)
    return [{name: values[i % len(values)] for name, values in own.items()} for i in range(most)]


ALONE = [name for name in names() if {c.name for c in offered(find(name))} == {TRAINS}]  # whose fewest steps `test_exhibits` takes
CASES = [(name, settings) for name in names() if FULL or name not in ALONE for settings in (every if FULL else some)(find(name))]


def written(case: object) -> str:
    """Write a part of a test's case."""
    return ",".join(f"{k}={v}" for k, v in case.items()) if isinstance(case, dict) else str(case)


def broken(shown: Exhibit, settings: Settings, switched: bool = True) -> list[str]:
    """Return the claims that do not hold at these values. switched: with "no switch" if none fails where switches are ignored."""
    result = run_exhibit(shown, settings=settings, open_model=open_model)
    out = [c.key for c in result.claims if not c.holds]
    idle = switched and run_exhibit(shown, settings=settings, open_model=open_model, enabled=False).holds
    return out + ["no switch"] * idle


@pytest.mark.parametrize(("name", "settings"), CASES, ids=written)
@pytest.mark.quick(18)
@pytest.mark.timeout(3000 if FULL else 300)  # the most steps of training, twice, beside other work
def test_claims_hold_at_every_value(name: str, settings: Settings) -> None:
    assert broken(find(name), settings, switched=FULL) == []


TEXTS = "A", "法国的首都是", "The cat is riding"
PROMPTED = [(name, c) for name in names() for c in find(name).controls if c.name in ("prompt", "text") and not c.options]


@pytest.mark.parametrize(("typed", "text"), list(product(PROMPTED, TEXTS)), ids=lambda x: x if isinstance(x, str) else x[0])
@pytest.mark.quick(27)
def test_claims_hold_of_any_prompt(typed: tuple[str, Control], text: str) -> None:
    """A prompt that is too short to compare one token with another is refused in one line."""
    name, control = typed
    settings = {c.name: min(c.options) for c in offered(find(name)) if c.name == TRAINS} | {control.name: text}
    if control.tokens > 1 and text == TEXTS[0]:
        with pytest.raises(UseError, match=f'tokens of {control.name} "A": 1; allowed: {control.tokens} or more'):
            broken(find(name), settings)
    else:
        assert broken(find(name), settings, switched=False) == []


def test_a_claim_of_one_value_is_seen() -> None:
    """The mutants: a claim that holds at what a control shows first, and not at its other values; and one that no switch decides."""

    def show(e: Experiment) -> Iterator[Panel | Claim]:
        yield e.claim("needed", e.on(e.number("facts"), 0) in (2, 8))
        if e.number("facts") == 2:
            yield e.claim("always", e.number("facts") == 2)

    own = replace(find("norms"), show=show, controls=(Control("facts", 8, (2, 4, 8)), Control("prompt", "")))
    assert [broken(own, settings) for settings in every(own)] == [[], ["needed"], []]
    idle = replace(own, show=lambda e: iter([e.claim("always", e.number("facts") > 0)]))
    assert [broken(idle, settings) for settings in some(idle)] == [["no switch"]] * 3


@pytest.mark.parametrize("choose", [every, some])
def test_every_value_is_chosen(choose: object) -> None:
    """Both forms choose each value of each control; the short one leaves out more steps of training than the fewest."""
    for name in names():
        chosen = {(c, v) for settings in (every if choose is every else some)(find(name)) for c, v in settings.items()}
        wanted = {(c.name, v) for c in offered(find(name)) for v in c.options if choose is every or c.name != TRAINS or v == min(c.options)}
        assert chosen == wanted, name
