"""Everything that a user can cause and mend is one of these: one line that says where, what was found, what is allowed.

PellucidError
├── UseError          a command, function or setting used wrongly
├── ConfigError       config.json, generation_config.json: a field is missing, unknown or out of range
├── CheckpointError   weights and their index: header, names, shapes, bytes
├── TokenizerError    tokenizer files, or text and ids that they cannot take
├── ShapeError        a tensor that does not fit the axes it is labelled with
├── TraceError        a recorded trace, or a path asked of one
├── RequestError      a request to the server
└── TrainError        a recipe, its data, or a run that cannot go on
    └── StoppedError  a run that a signal stopped with everything saved
"""

import difflib
from collections.abc import Iterable

from pellucid.messages import say


class PellucidError(Exception):
    """One line made from a key of `messages/` and its values; no other text reaches a person."""

    exit_code = 2

    def __init__(self, key: str, **values: object) -> None:
        self.key, self.values = key, values
        super().__init__(say(key, **values))

    def line(self) -> str:
        """The line again, in the language that is spoken now."""
        return say(self.key, **self.values)


class UseError(PellucidError):
    """A command, function or setting used wrongly."""


class SettingError(UseError, TypeError):
    """A keyword that a function does not have: where Python's own would be a TypeError, with the nearest names that there are."""


class ConfigError(PellucidError):
    """A field of a configuration file is missing, unknown or out of range."""


class CheckpointError(PellucidError):
    """Weights or their index are damaged, incomplete, or of another model."""


class TokenizerError(PellucidError):
    """A tokenizer file, or text or ids that it cannot take."""


class ShapeError(PellucidError):
    """A tensor does not fit the axes it is labelled with."""


class TraceError(PellucidError):
    """A recorded trace is damaged, or does not hold what was asked."""


class TrainError(PellucidError):
    """A recipe, its data, or a run that cannot go on."""


class StoppedError(TrainError):
    """A run that a signal stopped with everything saved, so that it can go on: EX_TEMPFAIL of sysexits.h."""

    exit_code = 75


class RequestError(PellucidError):
    """A request to the server that is refused: its HTTP status, and the field or header that is meant."""

    def __init__(self, key: str, status: int = 400, param: str | None = None, **values: object) -> None:
        self.status, self.param = status, param
        super().__init__(key, **values)


def nearest(name: str, known: Iterable[str], most: int = 3) -> str:
    """Up to `most` known names that resemble this one, the most alike first; "-" where none does.

    Of a path without dots the last part of a known path counts too: pattern is near to layers.0.attn.pattern.
    """
    names = list(dict.fromkeys(known))
    ends = {n: n.rpartition(".")[2] for n in names} if "." not in name else {}
    alike = {n: difflib.SequenceMatcher(None, name, n).ratio() for n in names}
    for n, end in ends.items():
        alike[n] = max(alike[n], 0.95 * difflib.SequenceMatcher(None, name, end).ratio())
    return ", ".join([n for n in sorted(names, key=lambda n: -alike[n]) if alike[n] >= 0.6][:most]) or "-"
