"""The request documents, read strictly: every field has a kind and a range, and an unknown one is refused by name."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pellucid.errors import RequestError
from pellucid.runs.limits import Limits
from pellucid.watching.change_text import ChangeText, parse_change

LARGEST = 2**53 - 1  # that a page can count to


@dataclass(frozen=True)
class RunRequest:
    """A request for a run: its model, a prompt as text or ids, new tokens, settings of sampling, changes, switches of the model.

    forced: by step, the token that is taken there whatever is likely.
    """

    model: str
    prompt: str | None = None
    ids: tuple[int, ...] | None = None
    new: int = 1
    sampling: dict[str, Any] = field(default_factory=lambda: {"seed": 0})  # of `ops.sampling.Sampling`, which checks them
    changes: tuple[ChangeText, ...] = ()
    switches: tuple[str, ...] = ()  # of the form NAME=VALUE; "with" in a body
    forced: dict[int, int] = field(default_factory=dict)
    known_tokens: tuple[int, ...] = ()  # the new tokens, of a run that is known; () draws them


def run_of(body: Mapping[str, Any], limits: Limits) -> RunRequest:
    """Read a run request from `body`. A RequestError for a wrong field."""
    known(body, ("model", "prompt", "ids", "new", "sampling", "changes", "with", "forced"), "")
    model = text(body, "model")
    prompt, ids = given_of(body, limits)
    sampling = sampling_of(body)
    changes = body.get("changes") or []
    if not isinstance(changes, list) or len(changes) > limits.changes:
        raise wrong("changes", described(changes), f"0..{limits.changes}")
    new = int(number(body, "new", int, 1, limits.new, 1))
    parsed = tuple(change_of(c, f"changes[{i}]") for i, c in enumerate(changes))
    return RunRequest(model, prompt, ids, new, sampling, parsed, switches_of(body, limits), forced_of(body, new))


def forced_of(body: Mapping[str, Any], new: int) -> dict[int, int]:
    """Read the forced tokens in `body`, ids by step."""
    given = body.get("forced") or {}
    if not isinstance(given, dict) or not all(re.fullmatch("[0-9]{1,9}", step) and int(step) < new for step in given):
        raise wrong("forced", described(given), f'{{"0..{new - 1}": 12}}')
    return {int(step): int(number(given, step, int, 0, LARGEST, 0, "forced.")) for step in given}


def switches_of(body: Mapping[str, Any], limits: Limits) -> tuple[str, ...]:
    """Read the switches in `body`: texts, which the model reads later."""
    given = body.get("with") or []
    if not isinstance(given, list) or len(given) > limits.switches:
        raise wrong("with", described(given), f"0..{limits.switches}")
    for i, one in enumerate(given):
        if not isinstance(one, str):
            raise wrong(f"with[{i}]", described(one), '"NAME=VALUE"')
        if len(one) > limits.switch:
            raise wrong(f"with[{i}]", described(one[: limits.switch]), f"0..{limits.switch}")
    return tuple(given)


def prompt_of(body: Mapping[str, Any], limits: Limits) -> tuple[str | None, tuple[int, ...] | None]:
    """Read a body that holds a prompt alone, as a text or ids."""
    known(body, ("prompt", "ids"), "")
    return given_of(body, limits)


def given_of(body: Mapping[str, Any], limits: Limits) -> tuple[str | None, tuple[int, ...] | None]:
    """Read the prompt of `body`: a text or ids, the other None."""
    ids, prompt = body.get("ids"), body.get("prompt")
    if (ids is None) == (prompt is None):
        raise RequestError("server.either", 400, "prompt", one="prompt", other="ids")
    if ids is None:
        return text(body, "prompt"), None
    if not isinstance(ids, list) or not 0 < len(ids) <= limits.tokens:
        raise wrong("ids", described(ids), f"1..{limits.tokens}")
    for i, one in enumerate(ids):
        if type(one) is not int or not 0 <= one <= LARGEST:
            raise wrong(f"ids[{i}]", one, f"0..{LARGEST}")
    return None, tuple(ids)


def sampling_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Read the settings of sampling from `body`, the ids of biases as ints. The seed is 0 by default, so that equal requests agree."""
    given = body.get("sampling") or {}
    if not isinstance(given, dict):
        raise wrong("sampling", described(given), "{}")
    settings = {"seed": 0} | {name: value for name, value in given.items() if value is not None}
    biases = settings.get("bias", {})
    if not isinstance(biases, dict) or not all(re.fullmatch("[0-9]{1,9}", id) for id in biases):
        raise wrong("sampling.bias", described(biases), '{"12": 1.5}')
    return settings | ({"bias": {int(id): value for id, value in biases.items()}} if biases else {})


def change_of(given: Any, place: str) -> ChangeText:
    """Read a change from its text. place: its name in errors.  A RequestError for one that reads a file."""
    if not isinstance(given, str):
        raise wrong(place, described(given), '"PATH[H=3] = 0"')
    parsed = parse_change(given)
    if parsed.file is not None:
        raise RequestError("server.change.file", 400, place, name=place, file=parsed.file)
    return parsed


def known(given: Mapping[str, Any], names: Collection[str], prefix: str) -> None:
    """Raise a RequestError for a field that is not among `names`. prefix: of its name in the error."""
    for name in given:
        if name not in names:
            raise RequestError("server.unknown", 400, prefix + name, name=prefix + name, known=", ".join(names))


def text(given: Mapping[str, Any], name: str, prefix: str = "") -> str:
    """Return a field that must be a text with at least one character."""
    if not isinstance(value := given.get(name), str) or not value:
        raise wrong(prefix + name, described(value), '"..."')
    return value


def flag(given: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return a field that must be true or false."""
    if not isinstance(value := given.get(name, default), bool):
        raise wrong(name, described(value), "true | false")
    return value


def number(given: Mapping[str, Any], name: str, kind: type, least: float, most: float, default: float, prefix: str = "") -> float:
    """Return a field that must be a number within `least` and `most`; True and False are none."""
    value = given.get(name)
    if value is None:
        return default
    if type(value) not in ((int,) if kind is int else (int, float)) or not least <= value <= most:
        raise wrong(prefix + name, value if type(value) in (int, float) else described(value), f"{least}..{most}")
    return kind(value)  # type: ignore[no-any-return]


def described(value: object) -> str:
    """Describe a field's wrong value in a few characters."""
    if isinstance(value, list | dict):
        return f"{'[]' if isinstance(value, list) else '{}'} ({len(value)})"
    return {None: "null", True: "true", False: "false"}.get(value, repr(value)) if isinstance(value, bool | None) else repr(value)


def wrong(name: str, value: object, allowed: str) -> RequestError:
    """Return the error for a wrong value of a field."""
    return RequestError("server.field", 400, name, name=name, found=value, allowed=allowed)
