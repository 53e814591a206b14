"""Everything that a user can cause and mend is one of these: one line that says where, what was found, what is allowed.

PellucidError
├── UseError          a command, function or setting used wrongly
├── ConfigError       config.json, generation_config.json: a field is missing, unknown or out of range
├── CheckpointError   weights and their index: header, names, shapes, bytes
├── TokenizerError    tokenizer files, or text and ids that they cannot take
├── ShapeError        a tensor that does not fit the axes it is labelled with
├── TraceError        a recorded trace, or a path asked of one
└── TrainError        a recipe, its data, or a run that cannot go on
"""

from pellucid.words import say


class PellucidError(Exception):
    """One line made from a key of `words/` and its values; no other text reaches a person."""

    def __init__(self, key: str, **values: object) -> None:
        self.key, self.values = key, values
        super().__init__(say(key, **values))


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
