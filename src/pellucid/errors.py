"""The errors that a user can cause and mend: each is one line that says where, what was found, and what is allowed.

PellucidError
├── UseError          a command, function or setting used wrongly
├── ConfigError       config.json, generation_config.json: a field is missing, unknown or out of range
├── CheckpointError   weights and their index: header, names, shapes, bytes
├── TokenizerError    tokenizer files, or text and ids that they cannot take
├── ShapeError        a tensor that does not fit the axes it is labelled with
├── RankError         another of several ranks ended, or does not answer
├── TraceError        a recorded trace, or a path in one
├── RequestError      a request to the server
└── TrainError        a recipe, its data, or a run that cannot go on
    ├── StoppedError    a run that was stopped by a signal, with everything saved
    └── NotFiniteError  a step whose loss or gradient is not finite, before any weight changes
"""

import difflib
from collections.abc import Iterable

from pellucid.messages import say


class PellucidError(Exception):
    """An error whose one line is the message of `key` with `values`; no other text is shown to a user."""

    exit_code = 2

    def __init__(self, key: str, **values: object) -> None:
        self.key, self.values = key, values
        super().__init__(say(key, **values))

    def line(self) -> str:
        """Return the line again, in the current language."""
        return say(self.key, **self.values)


class UseError(PellucidError):
    """A command, function or setting used wrongly."""


class SettingError(UseError, TypeError):
    """A keyword that a function does not have: a TypeError, as Python's own, with the nearest names."""


class ConfigError(PellucidError):
    """A field of a configuration file is missing, unknown or out of range."""


class CheckpointError(PellucidError):
    """Weights or their index are damaged, incomplete, or of another model."""


class TokenizerError(PellucidError):
    """A tokenizer file, or text or ids that it cannot take."""


class ShapeError(PellucidError):
    """A tensor does not fit the axes it is labelled with."""


class RankError(PellucidError):
    """Another of several ranks ended, or does not answer."""

    exit_code = 1


class TraceError(PellucidError):
    """A recorded trace is damaged, or lacks a requested path."""


class TrainError(PellucidError):
    """A recipe, its data, or a run that cannot go on."""


class StoppedError(TrainError):
    """A run that was stopped by a signal with everything saved, so that it can be resumed: EX_TEMPFAIL of sysexits.h."""

    exit_code = 75


class NotFiniteError(TrainError):
    """The loss or the gradient of a step is not finite; no weight has changed."""


class RequestError(PellucidError):
    """A refused request to the server. status: of HTTP.  param: the field or header at fault."""

    def __init__(self, key: str, status: int = 400, param: str | None = None, **values: object) -> None:
        self.status, self.param = status, param
        super().__init__(key, **values)


def nearest(name: str, known: Iterable[str], most: int = 3) -> str:
    """Return up to `most` known names that resemble `name`, the most alike first; "-" if none does.

    For a name without dots the last part of a known path counts too: pattern is near layers.0.attn.pattern.
    """
    names = list(dict.fromkeys(known))
    ends = {n: n.rpartition(".")[2] for n in names} if "." not in name else {}
    alike = {n: difflib.SequenceMatcher(None, name, n).ratio() for n in names}
    for n, end in ends.items():
        alike[n] = max(alike[n], 0.95 * difflib.SequenceMatcher(None, name, end).ratio())
    return ", ".join([n for n in sorted(names, key=lambda n: -alike[n]) if alike[n] >= 0.6][:most]) or "-"
