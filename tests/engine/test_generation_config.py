"""Each field of generation_config.json that changes what transformers writes is applied here, or named as not done."""

import warnings
from functools import cache
from typing import Any

import torch
import transformers

from judge import judge
from pellucid.engine import defaults as module
from pellucid.engine.defaults import NAMES, UNSUPPORTED, UNSUPPORTED_ALWAYS, defaults
from tiny import swapped

PROMPT = [5, 3, 80, 11]
# Fields of transformers that choose no token: lengths that a caller gives, ids that others read, caches, speed, what is returned.
SILENT = """
    assistant_confidence_threshold assistant_early_exit assistant_ignore_eos_at_max assistant_lookbehind assistant_temperature
    bos_token_id cache_config cache_implementation compile_config decoder_start_token_id disable_compile do_sample early_stopping
    eos_token_id is_assistant length_penalty low_memory max_length max_matching_ngram_size max_new_tokens max_time num_assistant_tokens
    num_assistant_tokens_schedule num_beam_groups num_return_sequences output_attentions output_hidden_states output_logits
    output_scores pad_token_id prefill_chunk_size prompt_lookup_num_tokens remove_invalid_values renormalize_logits
    return_dict_in_generate target_lookbehind token_healing transformers_version use_cache use_mtp diversity_penalty constraints
    force_words_ids dola_layers continuous_batching_config assistant_ensemble_weight max_cache_len speculation_type
"""


def text(**how: Any) -> list[int]:
    """Return what transformers writes, the likeliest token each time."""
    hf = judge("llama").hf
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        config = transformers.GenerationConfig(**{"max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": 0} | how)
        out = hf.generate(torch.tensor([PROMPT]), generation_config=config)
    return out[0, len(PROMPT) :].tolist()


def fields(plain: list[int]) -> dict[str, Any]:
    """Return a value of each field that changes the text `plain`."""
    first = plain[0]
    return {
        "num_beams": 8,
        "no_repeat_ngram_size": 1,
        "bad_words_ids": [[first]],
        "suppress_tokens": [first],
        "begin_suppress_tokens": [first],
        "sequence_bias": [[[first], -50.0]],
        "forced_eos_token_id": 96,
        "repetition_penalty": 20.0,
    } | {"min_length": 16, "min_new_tokens": 12}


@cache
def changing() -> dict[str, Any]:
    """Return `fields` of the tiny model's text, each of which changes it."""
    plain = text()
    for name, value in (given := fields(plain)).items():
        ends = {"eos_token_id": plain[1]} if name.startswith("min_") else {}
        assert text(**{name: value}, **ends) != (text(**ends) if ends else plain), name
    return given


def wrong() -> set[str]:
    """Return the fields that change transformers' text, and are neither applied nor named."""
    out = set()
    for name, value in changing().items():
        sampling, undone = defaults({name: value}, "m")
        if undone != {name: value} and not (name in NAMES and getattr(sampling, NAMES[name]) == value):
            out.add(name)
    return out


def test_what_changes_a_text_is_applied_or_named() -> None:
    assert wrong() == set()
    with swapped(module, "UNSUPPORTED_ALWAYS", {}):
        assert wrong() == changing().keys() - NAMES.keys()


def test_every_field_is_known() -> None:
    """A new field of transformers is applied, named, or listed as one that chooses no token."""
    known = {*NAMES, *UNSUPPORTED, *UNSUPPORTED_ALWAYS, *SILENT.split()}
    assert {name for name in transformers.GenerationConfig().to_dict() if not name.startswith("_")} <= known


def test_what_switches_a_field_off_is_not_named() -> None:
    off = {**UNSUPPORTED, **UNSUPPORTED_ALWAYS, "suppress_tokens": [], "sequence_bias": {}}
    assert defaults({"do_sample": True} | off, "m")[1] == {}
