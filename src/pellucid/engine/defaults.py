"""The sampling of a model's own generation_config.json."""

from collections.abc import Mapping
from typing import Any

from pellucid.errors import ConfigError, UseError
from pellucid.ops.sampling.settings import Sampling

# Its names and ours; the repetition penalty holds whether it samples or not.
NAMES = {"repetition_penalty": "repetition", "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
# Fields that are not supported here, and the value that switches each off.
UNSUPPORTED = {"typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "top_h": None}
# Those that change the likeliest tokens too: Marian's and BART's folders have some.
UNSUPPORTED_ALWAYS: dict[str, Any] = {
    "num_beams": 1, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1, "min_length": 0,
    "min_new_tokens": 0, "bad_words_ids": None, "suppress_tokens": None, "begin_suppress_tokens": None, "sequence_bias": None,
    "forced_bos_token_id": None, "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "penalty_alpha": None,
    "guidance_scale": 1, "stop_strings": None, "watermarking_config": None,
}  # fmt: skip


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
    judged = {**UNSUPPORTED_ALWAYS, **(UNSUPPORTED if samples else {})}
    return sampling, {name: fields[name] for name, nothing in judged.items() if fields.get(name) not in (None, nothing, [], {})}
