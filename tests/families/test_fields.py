"""An unread field of a config.json is silent if it repeats what is read; otherwise all are refused at once, with the way out."""

import shlex
import warnings
from typing import Any

import pytest
from transformers import AutoConfig

from judge import judge
from pellucid.errors import ConfigError
from pellucid.families import agreeing, known, understand
from pellucid.families.agreeing import AGREEING
from pellucid.messages import LONGEST, MOST, All, plain, speaking

Raw = dict[str, Any]

# (a case of the judge, a field, what says what is read, what says otherwise), and the published model that has it
AGREED: list[tuple[str, str, str, Any, Any]] = [
    ("llama", "plain", "is_llama_config", True, False),  # SmolLM2
    ("llama", "plain", "rope_interleaved", False, True),  # SmolLM2
    ("glm", "plain", "rope_interleaved", True, False),
    ("llama", "plain", "activation", "swiglu", "geglu"),  # Falcon3
    ("llama", "plain", "max_sequence_length", 64, 128),  # LLaMA-1 conversions
    ("gemma2", "plain", "sliding_window_size", 8, 16),  # gemma-2-9b
    ("falcon", "plain", "ff_factor", 4, 2),  # falcon-11B
]
HARMLESS_EVERYWHERE: Raw = {
    "unsloth_fixed": True,  # every mirror by unsloth
    "unsloth_version": "2025.1",
    "transformers.js_config": {"dtype": "q4", "kv_cache_dtype": {"fp16": "float16"}},  # SmolLM2
}


def case(family: str, quirk: str, name: str, value: Any) -> Raw:
    """Return the judge's config.json, with the repeated field changed if the tiny model has another value."""
    raw = judge(family, quirk).config
    reads = {
        "max_sequence_length": {"max_position_embeddings": 64},
        "sliding_window_size": {"sliding_window": 8},
        "ff_factor": {"ffn_hidden_size": 4 * raw["hidden_size"]},
    }.get(name, {})
    return raw | reads | {name: value}


def quiet(raw: Raw, **how: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return understand(raw, **how)[1]


@pytest.mark.parametrize(("family", "quirk", "name", "agrees", "differs"), AGREED, ids=lambda x: x if isinstance(x, str) else "")
def test_a_field_that_agrees_is_silent_and_one_that_differs_is_refused(
    family: str, quirk: str, name: str, agrees: Any, differs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field that transformers' class lacks is compared with what it repeats; the mutant accepts every value."""
    bare = {k: v for k, v in case(family, quirk, name, agrees).items() if k != name}
    assert name not in type(AutoConfig.for_model(**bare))().to_dict()
    assert understand(bare | {name: agrees})[1] == understand(bare)[1]
    others: list[Any] = [differs, "nonsense", 12345, [agrees], {}]
    for wrong in others:
        with pytest.raises(ConfigError, match=name) as refused:
            understand(bare | {name: wrong})
        assert refused.value.key == "config.unknown" and f"--ignore-field {name}" in str(refused.value)
    monkeypatch.setitem(agreeing.AGREEING, name, lambda value, cfg: True)
    assert understand(bare | {name: differs})[1] == understand(bare)[1]


def test_every_agreeing_field_has_a_case() -> None:
    assert {name for _, _, name, _, _ in AGREED} == AGREEING.keys()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "falcon", "marian"])
def test_marks_of_other_programs_are_silent(family: str) -> None:
    raw = judge(family).config
    assert quiet(raw | HARMLESS_EVERYWHERE) == understand(raw)[1]
    assert quiet(raw | {"pad_token_id": -1}).stops == understand(raw)[1].stops  # LLaMA-1 conversions say so that there is none


def test_finetuned_is_silent_where_rope_is_scaled_and_nowhere_else() -> None:
    """`finetuned` is read in rope_scaling only, as Yarn-Llama-2 has it."""
    raw = {k: v for k, v in judge("llama").config.items() if k != "rope_parameters"} | {"rope_theta": 10_000.0}
    scaled = raw | {"rope_scaling": {"type": "linear", "factor": 2.0}}
    assert understand(raw | {"rope_scaling": {"type": "linear", "factor": 2.0, "finetuned": True}})[1] == understand(scaled)[1]
    with pytest.raises(ConfigError, match="finetuned"):
        understand(scaled | {"finetuned": True})
    with pytest.raises(ConfigError, match=r"rope_scaling\.tuned = True.*--ignore-field rope_scaling\.tuned"):
        understand(raw | {"rope_scaling": {"type": "linear", "factor": 2.0, "tuned": True}})


def test_marian_of_2020_is_read() -> None:
    """extra_pos_embeddings, the size of the vocabulary in Marian's files of 2020, is ignored."""
    raw = judge("marian").config
    assert quiet(raw | {"extra_pos_embeddings": 53685}) == understand(raw)[1]


UNKNOWN: Raw = {"use_hyper_heads": True, "layer_drop_p": 0.25, "a field; with $(marks)": 1}


def test_all_unknown_fields_are_named_at_once_with_the_whole_way_out() -> None:
    """The suggested argument works as printed; with one field less the model is refused again."""
    raw = judge("llama").config
    with pytest.raises(ConfigError) as refused:
        understand(raw | UNKNOWN)
    line = str(refused.value)
    assert all(f"{name} = {value!r}" in line for name, value in UNKNOWN.items()) and "\n" not in line
    words = shlex.split(line.partition("pass ")[2])
    assert words[::2] == ["--ignore-field"] * 3 and words[1::2] == [*UNKNOWN]
    assert understand(raw | UNKNOWN, ignore=words[1::2])[1].ignored == tuple(UNKNOWN)
    with pytest.raises(ConfigError, match="marks"):
        understand(raw | UNKNOWN, ignore=words[1:4:2])
    with speaking("zh"), pytest.raises(ConfigError, match="--ignore-field use_hyper_heads --ignore-field layer_drop_p"):
        understand(raw | UNKNOWN)


def test_what_changes_the_mathematics_is_named_at_once_too() -> None:
    changes = {"use_bidirectional_attention": True, "clip_qkv": 8.0}
    with pytest.raises(ConfigError, match=r"use_bidirectional_attention = True, clip_qkv = 8\.0") as refused:
        understand(judge("llama").config | changes | UNKNOWN)
    assert refused.value.key == "config.unsupported"


IGNORED: list[tuple[str, str, Any]] = [
    ("marian", "normalize_before", True),
    ("falcon", "apply_residual_connection_post_layernorm", True),
    ("phi3", "full_attn_mod", 3),
    ("llama", "hidden_act", "no such thing"),
]


@pytest.mark.parametrize(("family", "name", "value"), IGNORED)
def test_a_field_to_ignore_is_left_aside_before_it_is_judged(family: str, name: str, value: Any) -> None:
    """An ignored field is read as missing, and the model reports it."""
    raw = {k: v for k, v in judge(family).config.items() if k != name}
    with pytest.raises(ConfigError, match=name):
        understand(raw | {name: value})
    cfg = understand(raw | {name: value}, ignore=[name])[1]
    assert cfg.ignored == (name,) and cfg.layers == understand(raw)[1].layers


def test_a_list_is_not_cut_in_the_middle_of_a_name() -> None:
    with pytest.raises(ConfigError) as refused:
        understand({"model_type": "rwkv"})
    assert all(name in str(refused.value) for name in known()) and len(", ".join(known())) > LONGEST
    assert plain(All(["a" * 1000, "b\x1b"])) == f"{'a' * (LONGEST - 1)}…, b\\x1b"
    assert plain(All(range(MOST + 5))).endswith(f"{MOST - 1}, …")
