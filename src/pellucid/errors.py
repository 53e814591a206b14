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
"""

from pellucid.words import say


class PellucidError(Exception):
    """One line made from a key of `words/` and its values; no other text reaches a person."""

    def __init__(self, key: str, **values: object) -> None:
        self.key, self.values = key, values
        super().__init__(say(key, **values))

    def line(self) -> str:
        """The line again, in the language that is spoken now."""
        return say(self.key, **self.values)


class UseError(PellucidError):
    """A command, function or setting used wrongly."""


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


class RequestError(PellucidError):
    """A request to the server that is refused: its HTTP status, and the field or header that is meant."""

    def __init__(self, key: str, status: int = 400, param: str | None = None, **values: object) -> None:
        self.status, self.param = status, param
        super().__init__(key, **values)
