"""What a model's own generation_config.json asks of sampling."""

from collections.abc import Mapping
from typing import Any

from pellucid.errors import ConfigError, UseError
from pellucid.ops.sampling.settings import Sampling

# Its names and ours; the first holds whether it samples or not.
NAMES = {"repetition_penalty": "repetition", "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
# What it may ask that is not done here, and where it asks for nothing.
UNDONE = {"typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "top_h": None}


def defaults(told: Mapping[str, Any], model: str) -> tuple[Sampling, dict[str, Any]]:
    """The sampling that generation_config.json's fields ask for, and what of it is not done.

    As in transformers, all but the repetition penalty hold only where do_sample is true, the temperature is 1 then unless told, and null
    tells nothing; but top_k is off unless told, where transformers takes 50. A field that is no such number is a ConfigError.
    """
    samples = told.get("do_sample") is True
    names = NAMES if samples else {"repetition_penalty": "repetition"}
    found = {ours: told[name] for name, ours in names.items() if told.get(name) is not None}
    try:
        asked = Sampling.of(({"temperature": 1.0} if samples else {}) | found)
    except UseError as wrong:
        raise ConfigError("generation.wrong", model=model, reason=wrong) from None
    return asked, {name: told[name] for name, nothing in UNDONE.items() if samples and told.get(name) not in (None, nothing)}
