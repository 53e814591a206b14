"""The sampling of a model's own generation_config.json."""

from collections.abc import Mapping
from typing import Any

from pellucid.errors import ConfigError, UseError
from pellucid.ops.sampling.settings import Sampling

# Its names and ours; the repetition penalty holds whether it samples or not.
NAMES = {"repetition_penalty": "repetition", "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
# Fields that are not supported here, and the value that switches each off.
UNSUPPORTED = {"typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "top_h": None}


def defaults(fields: Mapping[str, Any], model: str) -> tuple[Sampling, dict[str, Any]]:
    """Return the sampling of generation_config.json's fields, and those of its fields that are not supported.

    As in transformers, all but the repetition penalty hold only where do_sample is true, the temperature is 1 then by default, and null
    means the default; but top_k is off by default, where transformers takes 50. Raises ConfigError for a value out of range.
    """
    samples = fields.get("do_sample") is True
    names = NAMES if samples else {"repetition_penalty": "repetition"}
    settings = {ours: fields[name] for name, ours in names.items() if fields.get(name) is not None}
    try:
        sampling = Sampling.of(({"temperature": 1.0} if samples else {}) | settings)
    except UseError as wrong:
        raise ConfigError("generation.wrong", model=model, reason=wrong) from None
    return sampling, {name: fields[name] for name, nothing in UNSUPPORTED.items() if samples and fields.get(name) not in (None, nothing)}
