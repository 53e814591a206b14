"""The fields of a request's body: kinds and ranges, in OpenAI's error shape; an unknown field is ignored, with one line in the log.

An error names the field, what was in it, and what is allowed.
"""

import json
import re
import sys
from collections.abc import Container, Iterable, Mapping
from typing import Any

from pellucid.engine.text import LONGEST, MOST, check_stops
from pellucid.errors import RequestError, UseError
from pellucid.messages import say
from pellucid.runs.request import described, wrong

LOGGED = set[str]()  # fields that a line in the log has named
MOST_LOGGED = 256  # of them, since clients choose their names
# Fields that OpenAI's clients send and that change no answer here.
HARMLESS = {
    "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "verbosity",
    "prediction",
}  # fmt: skip
SAMPLING = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repetition",
    "presence_penalty": "presence", "frequency_penalty": "frequency", "seed": "seed",
}  # fmt: skip
COMMON = {
    *SAMPLING, "model", "max_tokens", "stop", "n", "logit_bias", "stream", "stream_options", "min_tokens", "ignore_eos", "stop_token_ids",
    "skip_special_tokens", "return_token_ids", "priority", "pellucid", "response_format", "structured_outputs", "guided_json",
    "guided_regex", "guided_choice", "guided_grammar", "json_schema", "grammar",
}  # fmt: skip
# Fields that would change an answer and are not supported, and the value of each that asks for nothing.
REFUSED: dict[str, Any] = {
    "best_of": 1, "suffix": "", "tools": [], "functions": [], "audio": None, "use_beam_search": False, "prompt_embeds": None,
    "modalities": ["text"], "web_search_options": None,
}  # fmt: skip
BIG = 2**31 - 1
RANGES = {  # of numbers of sampling
    "temperature": (0, 2), "top_p": (0, 1), "min_p": (0, 1), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 100),
}  # fmt: skip


def is_one_of(value: Any, names: Container[str]) -> bool:
    """True if a value of a body is one of these texts; it may be of any kind."""
    return isinstance(value, str) and value in names


def note_ignored(names: Iterable[str]) -> None:
    """Write a line to the log for each of these fields that no line has named yet."""
    unknown = {name[:100] for name in names}
    for name in list(unknown - LOGGED)[: MOST_LOGGED - len(LOGGED)]:
        LOGGED.add(name)
        print(json.dumps({"ignored": name, "reason": say("serve.ignored")}), file=sys.stderr, flush=True)


class BodyFields:
    """The fields of a body that are not null, read one by one. known: the names that its route reads."""

    def __init__(self, body: Mapping[str, Any], known: set[str]) -> None:
        self.given = {name: value for name, value in body.items() if value is not None}
        for name, off in REFUSED.items():
            if name not in known and self.given.get(name, off) != off:
                raise RequestError("serve.refused", 400, name, name=name)
        note_ignored(self.given.keys() - known - HARMLESS - REFUSED.keys())

    def truth(self, name: str, default: bool = False) -> bool:
        """Return a field that is true or false."""
        value = self.given.get(name, default)
        if type(value) is not bool:
            raise wrong(name, described(value), "true | false")
        return value

    def integer(self, name: str, least: int, most: int, default: int | None = None) -> int | None:
        """Return a whole number."""
        value = self.given.get(name, default)
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise wrong(name, described(value), f"{least}..{most}")
        return value

    def text(self, name: str, default: str = "") -> str:
        """Return a text."""
        value = self.given.get(name, default)
        if not isinstance(value, str):
            raise wrong(name, described(value), '"..."')
        return value

    def table(self, name: str) -> dict[str, Any]:
        """Return an object."""
        value = self.given.get(name, {})
        if not isinstance(value, dict):
            raise wrong(name, described(value), "{}")
        return value

    def ids(self, name: str, vocab: int) -> list[int]:
        """Return a list of token ids."""
        value = self.given.get(name, [])
        if not isinstance(value, list):
            raise wrong(name, described(value), f"[0..{vocab - 1}, ...]")
        for i, id in enumerate(value):
            if type(id) is not int or not 0 <= id < vocab:
                raise wrong(f"{name}[{i}]", described(id), f"0..{vocab - 1}")
        return value

    def stops(self) -> list[str]:
        """Return the stop strings: one text or a list."""
        value = self.given.get("stop", [])
        several = ([value] if value else []) if isinstance(value, str) else value
        allowed = f'"..." | ["..."] (1..{MOST}, 1..{LONGEST})'
        if not isinstance(several, list):
            raise wrong("stop", described(value), allowed)
        try:
            check_stops(several)
        except UseError as fault:
            at = fault.values.get("index")
            if not isinstance(at, int):
                raise wrong("stop", f"{len(several)}", allowed) from None
            raise wrong("stop" if isinstance(value, str) else f"stop[{at}]", described(several[at]), allowed) from None
        return several

    def biases(self, vocab: int) -> dict[int, float]:
        """Return `logit_bias`, whose keys are ids as texts."""
        out = {}
        for id, value in self.table("logit_bias").items():
            if not re.fullmatch("[0-9]{1,9}", id) or int(id) >= vocab:
                raise wrong("logit_bias", described(id), f"0..{vocab - 1}")
            if type(value) not in (int, float) or not -100 <= value <= 100:
                raise wrong(f"logit_bias.{id}", described(value), "-100..100")
            out[int(id)] = float(value)
        return out

    def sampling(self) -> dict[str, Any]:
        """Return the settings of sampling that are given, by our names."""
        out = {}
        for name, ours in SAMPLING.items():
            if name not in self.given:
                continue
            value = self.given[name]
            if name == "seed":
                value = self.integer(name, -(2**63), 2**63 - 1)
            elif name == "top_k":
                value = max(0, self.integer(name, -1, BIG) or 0)
            else:
                least, most = RANGES[name]
                if type(value) not in (int, float) or not least <= value <= most:
                    raise wrong(name, described(value), f"{least}..{most}")
            out[ours] = value
        return out
