"""A few cases of the families' tables that together have every part and setting that any case has.

Laws that follow from a model's parts, whichever family spells them, are asked of these; PELLUCID_FULL=1 asks them of every case. What
reads a family's own files and names is asked of every family. tests/families/test_covering.py holds the two lists complete.
"""

import os
import warnings
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache

import transformers

from kinds import CASES, FAMILIES, KINDS
from pellucid import config as c
from pellucid.families import understand

FULL = bool(os.environ.get("PELLUCID_FULL"))
Feature = tuple[str, Hashable]
Case = tuple[str, str]


@cache
def config_of(family: str, quirk: str) -> c.Config:
    """Return the Config of a case, from transformers' config.json of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raw = transformers.AutoConfig.for_model(family, **KINDS[family].tiny | KINDS[family].quirks[quirk]).to_dict()
        return understand(raw)[1]


def features(value: object, name: str = "") -> Iterator[Feature]:
    """Yield which parts a Config has and how each is set: words, flags and absences as they are, numbers as 0, 1 or another."""
    if is_dataclass(value):
        yield name, type(value).__name__
        for f in fields(value):
            yield from features(getattr(value, f.name), f"{type(value).__name__}.{f.name}")
    elif isinstance(value, tuple):
        yield name, len(value) > 0
        for part in value:
            yield from features(part, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value) if value in (0, 1) else "a number"
    else:
        yield name, value if isinstance(value, Hashable) else type(value).__name__


def missing(cover: Iterable[Case], cases: Iterable[Case]) -> dict[Case, set[Feature]]:
    """Return cases to add to a cover until it has the features of all cases, with what each adds; the one that adds most first."""
    by_case = {case: set(features(config_of(*case))) for case in cases}
    left = set[Feature]().union(*by_case.values()) - set[Feature]().union(*(by_case[case] for case in cover))
    adding = dict[Case, set[Feature]]()
    while left:
        best = max(by_case, key=lambda case: len(by_case[case] & left))
        adding[best] = by_case[best] & left
        left -= adding[best]
    return adding


_COVER = [
    ("albert", "two groups"),
    ("apertus", "plain"),
    ("bert", "plain"),
    ("bert", "relu, one kind"),
    ("bert", "tanh gelu"),
    ("blenderbot-small", "plain"),
    ("bloom", "plain"),
    ("cohere", "plain"),
    ("cohere", "as Command R+"),
    ("deepseek_v2", "biases"),
    ("deepseek_v2", "lite"),
    ("deepseek_v2", "no shared expert"),
    ("deepseek_v32", "yarn"),
    ("electra", "plain"),
    ("ernie", "plain"),
    ("falcon", "40b"),
    ("falcon", "twelve heads"),
    ("falcon_h1", "plain"),
    ("falcon_h1", "norm after the gate, biases"),
    ("falcon_h1", "without multipliers, tied, normed"),
    ("falcon_mamba", "plain"),
    ("gemma", "linear"),
    ("gemma2", "llama3"),
    ("gemma3_text", "by length"),
    ("gemma4_text", "plain"),
    ("gemma4_text", "half turns, stretched"),
    ("gemma4_text", "experts"),
    ("gemma4_text", "as E2B"),
    ("glm4_moe", "yarn"),
    ("glm_moe_dsa", "plain"),
    ("gpt2", "plain"),
    ("gpt_oss", "yarn without truncation"),
    ("granite", "plain"),
    ("lfm2", "plain"),
    ("lfm2", "longer, biases"),
    ("lfm2", "a wider factor"),
    ("lfm3", "plain"),
    ("granitemoehybrid", "rope, limits, short"),
    ("gte", "plain"),
    ("hunyuan_v1_dense", "plain"),
    ("jamba", "short, gelu"),
    ("kolibri1", "plain"),
    ("llama", "dynamic"),
    ("llama4_text", "as Scout"),
    ("m2m_100", "plain"),
    ("mamba", "biases, an own head"),
    ("mamba", "gelu, another width"),
    ("mamba2", "plain"),
    ("mamba2", "one group, biases, tied"),
    ("marian", "gelu, starts elsewhere"),
    ("minimax_m2", "plain"),
    ("ministral3", "plain"),
    ("mistral4", "plain"),
    ("mixtral", "all experts"),
    ("modernbert", "plain"),
    ("nanochat", "plain"),
    ("nemotron", "plain"),
    ("nemotron_h", "experts"),
    ("nomic_bert", "plain"),
    ("olmo", "clipped"),
    ("olmo2", "plain"),
    ("olmo_hybrid", "plain"),
    ("exaone4", "plain"),
    ("opt", "norms after, narrow"),
    ("phimoe", "plain"),
    ("qwen2_moe", "some dense"),
    ("qwen3_5_text", "plain"),
    ("qwen3_5_text", "one key head, short"),
    ("qwen3_5_text", "each its own key, biases"),
    ("t5", "plain"),
    ("umt5", "plain"),
]
_PLAIN = ["albert", "bert", "bloom", "deepseek_v2", "deepseek_v32", "falcon", "gemma2", "gemma3_text", "gpt2", "gpt_oss", "llama"]
_PLAIN += [
    "cohere",
    "gemma4_text",
    "gpt_neox",
    "granite",
    "nanochat",
    "nemotron",
    "exaone4",
    "olmo2",
    "olmo_hybrid",
    "lfm2",
    "lfm3",
    "minimax_m2",
    "ministral3",
    "mistral4",
    "glm_moe_dsa",
    "qwen3_5_text",
    "mamba2",
    "nemotron_h",
    "falcon_h1",
    "falcon_mamba",
    "jamba",
    "mamba",
]
_PLAIN += [
    "llama4_text",
    "marian",
    "opt",
    "qwen2_moe",
    "t5",
    "apertus",
    "blenderbot-small",
    "dbrx",
    "electra",
    "ernie",
    "gte",
    "hunyuan_v1_dense",
    "kolibri1",
    "m2m_100",
    "modernbert",
    "nomic_bert",
    "olmo",
    "phimoe",
    "umt5",
]
COVER: list[Case] = CASES if FULL else _COVER
EACH: list[Case] = [case for case in CASES if FULL or case in _COVER or case[1] == "plain"]  # every family, and every part
PLAIN_COVER: list[str] = FAMILIES if FULL else _PLAIN
