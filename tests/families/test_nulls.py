"""A field of config.json that is null means what transformers takes it for, or is refused: it is not the same as an absent field."""

import json
import os
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from judge import KINDS, judge, prompts, run
from pellucid.errors import ConfigError
from pellucid.families import understand
from pellucid.families.fields import Fields
from tiny import swapped

Raw = dict[str, Any]
NAMES = ("head_dim", "num_key_value_heads", "sliding_window", "tie_word_embeddings")  # those that often are null
ENDS = ("bos_token_id", "eos_token_id", "id2label", "label2id", "pad_token_id", "per_layer_config")  # no mathematics
LENGTHS = {"llama4_text": "attention_chunk_size"} | dict.fromkeys(
    ("afmoe", "cohere2", "gemma2", "gemma3_text", "gpt_oss", "lfm3", "mellum", "olmo3"), "sliding_window"
)
FLAGS = {"mistral4": "rope_interleave", "youtu": "rope_interleave", "t5": "scale_decoder_outputs"}  # true where absent, false where null


def read(raw: Raw) -> Any:
    """Return our Config of these fields, but for the ids that end a text. None if they are refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            cfg = understand(json.loads(json.dumps(raw)))[1]
        except ConfigError:
            return None
    return replace(cfg, stops=())


def otherwise(family: str) -> list[str]:
    """Return the fields whose null we read otherwise than the number that transformers puts in its place."""
    kind = KINDS[family]
    raw = kind.tiny | next(iter(kind.quirks.values())) | {"model_type": family}
    wrong = []
    for name in AutoConfig.for_model(**raw).to_dict() if os.environ.get("PELLUCID_FULL") else NAMES:
        ours = None if name in ENDS or name == "model_type" else read(raw | {name: None})
        if ours is None:
            continue
        try:
            theirs = AutoConfig.for_model(**(raw | {name: None}))
        except Exception:  # its dataclass takes no null here: no file has one
            continue
        if getattr(theirs, name, None) is not None and ours != read(theirs.to_dict()):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("family", sorted(KINDS))
def test_a_null_is_what_transformers_takes_it_for(family: str) -> None:
    assert otherwise(family) == []


@pytest.mark.quick(4)
@pytest.mark.parametrize("family", sorted(LENGTHS))
def test_a_length_without_a_number_is_refused(family: str) -> None:
    """transformers builds the model, and its mask then asks for the number."""
    name, config = LENGTHS[family], judge(family).config
    hf = type(judge(family).hf)(AutoConfig.for_model(**config | {name: None}, attn_implementation="eager")).eval()
    with pytest.raises(ValueError, match=name), torch.no_grad():
        run(hf, *prompts(family))
    with pytest.raises(ConfigError) as refused:
        understand(config | {name: None})
    assert refused.value.values["field"] == name and "None" in str(refused.value)


@pytest.mark.parametrize("family", sorted(FLAGS))
def test_a_flag_that_is_true_by_default_takes_no_null(family: str) -> None:
    config = judge(family).config
    assert read({k: v for k, v in config.items() if k != FLAGS[family]}) is not None
    with pytest.raises(ConfigError):
        understand(config | {FLAGS[family]: None})


def test_mutants() -> None:
    """A reader that takes null for an absent field is noticed by each law."""

    def length(self: Fields, name: str, default: int) -> int:
        return self.integer(name, default)

    def maybe(self: Fields, name: str, low: int = 1, stated: bool = False) -> int | None:
        self.values = {k: v for k, v in self.values.items() if v is not None}
        return right(self, name, low)

    right = Fields.maybe
    with swapped(Fields, "length", length), pytest.raises(pytest.fail.Exception):
        test_a_length_without_a_number_is_refused("cohere2")
    with swapped(Fields, "maybe", maybe):
        assert otherwise("seed_oss") == ["head_dim"]
