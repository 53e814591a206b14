"""The fields of a config.json, read with their bounds; a field that the family does not read is judged by name.

Three tiers: a field known to change the mathematics is refused unless it has the value that means "absent"; one known to be harmless is
silent, and so is one that repeats what is read (`agreeing`); unknown ones are refused by name, all at once, with the way out.
"""

from collections.abc import Iterable, Iterator, Mapping
from shlex import quote
from typing import Any

from pellucid.config import Config
from pellucid.errors import ConfigError
from pellucid.families.agreeing import agrees
from pellucid.messages import All

# What trains, names, or drives generation: a test changes each of them in transformers and sees the same logits.
SILENT = """
    architectures attention_dropout attention_probs_dropout_prob attn_pdrop auto_map aux_loss_alpha bad_words_ids begin_suppress_tokens
    bos_token_id cache_implementation chunk_size_feed_forward classifier_dropout classifier_dropout_prob cls_token_id
    decoder_start_token_id diversity_penalty do_sample dropout dropout_rate dtype early_stopping embd_pdrop embedding_dropout
    encoder_no_repeat_ngram_size eos_token_id ep_size exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id gradient_checkpointing hidden_dropout hidden_dropout_prob id2label init_std initializer_factor initializer_range
    is_decoder is_encoder_decoder keys_to_ignore_at_inference label2id length_penalty loss_type mask_token_id max_length min_length
    model_type n_ctx no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions output_hidden_states
    output_past output_router_logits output_scores pad_token_id prefix pretraining_tp problem_type remove_invalid_values repetition_penalty
    resid_pdrop return_dict return_dict_in_generate router_aux_loss_coef router_jitter_noise router_z_loss_coef sep_token_id seq_aux
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens task_specific_params
    temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config transformers_version
    trust_remote_code typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache use_return_dict
"""
HARMLESS = frozenset(SILENT.split())
HARMLESS_IN = {
    "rope_scaling": {"finetuned"},
    "rope_parameters": {"finetuned"},
}  # harmless in an object; Yarn-Llama-2 was trained with its factors

ABSENT: dict[str, tuple[Any, ...]] = {  # changes the mathematics; the values that mean that it does not
    "add_cross_attention": (False,),
    "attention_multiplier": (1.0,),
    "attn_logit_softcapping": (),
    "clip_qkv": (),
    "cross_attention_hidden_size": (),
    "embedding_multiplier": (1.0,),
    "expert_dtype": ("fp8",),
    "final_logit_softcapping": (),
    "head_dim": (),
    "is_causal": (True,),
    "logit_scale": (1.0,),
    "logits_scaling": (1.0,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1.0,),
    "per_layer_config": (),
    "pruned_heads": ({},),
    "query_pre_attn_scalar": (),
    "reorder_and_upcast_attn": (False, True),  # the same numbers: softmax is in float32 here anyway
    "residual_multiplier": (1.0,),
    "sliding_window": (),
    "tie_encoder_decoder": (False,),
    "use_bidirectional_attention": (False,),
    "use_mrope": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
}

WHOLE = ("", "text_config.")  # where the fields of a whole language model stand
MISSING = object()
MOST = 1e30


def alike(a: object, b: object) -> bool:
    """True if equal in JSON's sense: 1 is 1.0, but neither is true."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


class Fields:
    """The fields of one config.json. Each reader checks kind and bounds, and records which fields have been read.

    file: the name in errors.  ignore: fields to treat as absent.
    """

    def __init__(self, values: Mapping[str, Any], file: str = "config.json", ignore: Iterable[str] = (), prefix: str = "") -> None:
        self.file, self.ignore, self.prefix = file, tuple(ignore), prefix
        self.ignored = tuple(name for name in values if prefix + name in self.ignore)
        self.values: Mapping[str, Any] = {name: value for name, value in values.items() if name not in self.ignored}
        self.read: set[str] = set()
        self.parts: dict[str, Fields] = {}

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def fault(self, name: str, value: object, allowed: str) -> ConfigError:
        return ConfigError("config.value", file=self.file, field=self.prefix + name, found=repr(value), allowed=allowed)

    def get(self, name: str, default: Any = MISSING) -> Any:
        self.read.add(name)
        value = self.values.get(name)
        if value is None:
            if default is MISSING:
                raise ConfigError("config.missing", file=self.file, field=self.prefix + name)
            return default
        return value

    def integer(self, name: str, default: Any = MISSING, low: int = 1, high: int = 2**31 - 1) -> int:
        """Return an integer between `low` and `high`; True and 2.0 are none."""
        value = self.get(name, default)
        if type(value) is not int or not low <= value <= high:
            raise self.fault(name, value, f"{low} ... {high}")
        return value

    def length(self, name: str, default: int) -> int:
        """Return the length that a layer's mask needs, `default` if it is absent. A null is refused, as transformers' masks refuse it."""
        if name in self.values and name not in self:
            raise self.fault(name, None, f"1 ... {2**31 - 1}")
        return self.integer(name, default)

    def either(self, *names: str, high: int = 2**31 - 1) -> int:
        """Return an integer that files have under one of `names`; several must agree."""
        self.read |= set(names)
        values = {name: self.integer(name, high=high) for name in names if name in self}
        if not values:
            raise ConfigError("config.missing", file=self.file, field=self.prefix + " | ".join(names))
        self.relate(len(set(values.values())) == 1, " == ".join(values), **values)
        return next(iter(values.values()))

    def maybe(self, name: str, low: int = 1, stated: bool = False) -> int | None:
        """Return an integer, or None if the field is null or absent. stated: the field must be present."""
        if stated and name not in self.values:
            raise ConfigError("config.missing", file=self.file, field=self.prefix + name)
        self.read.add(name)
        return self.integer(name, low=low) if name in self else None

    def number(self, name: str, default: Any = MISSING, above: float = 0.0) -> float:
        """Return a number greater than `above` and below `MOST`."""
        value = self.get(name, default)
        if type(value) not in (int, float) or not above < value < MOST:
            raise self.fault(name, value, f"{above:g} < {name} < {MOST:g}")
        return float(value)

    def optional(self, name: str, default: float | None = None) -> float | None:
        """Return a number; None if the field is null, `default` if it is absent."""
        self.read.add(name)
        return self.number(name) if name in self else None if name in self.values else default

    def flag(self, name: str, default: Any = MISSING) -> bool:
        """Return true or false. A null is refused where an absent field is true: Python takes it for false."""
        value = self.get(name, default)
        if type(value) is not bool or (value and name in self.values and name not in self):
            raise self.fault(name, self.values.get(name, value), "true, false")
        return value

    def choice(self, name: str, allowed: Mapping[str, Any], default: Any = MISSING) -> Any:
        """Return the value of the field's text in the table `allowed`."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in allowed:
            raise self.fault(name, value, ", ".join(allowed))
        return allowed[value]

    def fixed(self, name: str, *values: Any) -> None:
        """Refuse any value but these; the field may be absent."""
        value = self.get(name, None)
        if value is not None and not any(alike(value, v) for v in values):
            raise self.fault(name, value, ", ".join(map(repr, values)) or "null")

    def texts(self, name: str, count: int, allowed: Iterable[str]) -> list[str]:
        """Return a list of `count` texts, each one of `allowed`."""
        value, known = self.get(name), tuple(allowed)
        if not isinstance(value, list) or len(value) != count or any(v not in known for v in value):
            raise self.fault(name, value, f"{count} × ({' | '.join(known)})")
        return value

    def numbers(self, name: str, above: float = 0.0) -> tuple[float, ...]:
        """Return a list of numbers, each greater than `above`."""
        value = self.get(name)
        if not isinstance(value, list) or any(type(v) not in (int, float) or not above < v < MOST for v in value):
            raise self.fault(name, value, f"[> {above:g}, ...]")
        return tuple(map(float, value))

    def indices(self, name: str, count: int) -> tuple[int, ...]:
        """Return a list of integers below `count`, () if the field is absent."""
        value = self.get(name, [])
        if not isinstance(value, list) or any(type(v) is not int or not 0 <= v < count for v in value):
            raise self.fault(name, value, f"[0 ... {count - 1}, ...]")
        return tuple(value)

    def ids(self, name: str) -> tuple[int, ...]:
        """Return the token ids of a field: one, a list of them, or none. The caller checks them against the vocabulary."""
        value = self.get(name, None)
        numbers = value if isinstance(value, list) else [] if value is None else [value]
        if any(type(v) is not int for v in numbers):
            raise self.fault(name, value, "id, [id, ...]")
        return tuple(numbers)

    def part(self, name: str) -> "Fields | None":
        """Return a nested object as Fields of its own, None if it is absent."""
        value = self.get(name, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fault(name, value, "{ ... }")
        return self.parts.setdefault(name, Fields(value, self.file, self.ignore, f"{self.prefix}{name}."))

    def relate(self, holds: bool, relation: str, **values: object) -> None:
        """Refuse values that do not fit each other, and say which relation failed."""
        if not holds:
            raise ConfigError(
                "config.relation", file=self.file, relation=relation, found=", ".join(f"{k} = {v}" for k, v in values.items())
            )

    def finish(self, cfg: Config) -> tuple[str, ...]:
        """Judge every unread field; return the names of those that the caller asked to ignore."""
        parts = [self, *self.inner()]
        unread = [(part.prefix + name, name, value) for part in parts for name, value in part.unread(cfg)]
        if wrong := [f"{full} = {value!r}" for full, name, value in unread if name in ABSENT]:
            raise ConfigError("config.unsupported", file=self.file, found=All(wrong))
        if unread:
            fields, way = (
                All(f"{full} = {value!r}" for full, _, value in unread),
                All((f"--ignore-field {quote(full)}" for full, *_ in unread), " "),
            )
            raise ConfigError("config.unknown", file=self.file, found=fields, way=way)
        return tuple(part.prefix + name for part in parts for name in part.ignored)

    def inner(self) -> Iterator["Fields"]:
        """Yield the nested objects that were read, and those inside them."""
        for part in self.parts.values():
            yield part
            yield from part.inner()

    def unread(self, cfg: Config) -> Iterator[tuple[str, Any]]:
        """Yield the unread fields that are not known to be harmless."""
        harmless = HARMLESS if self.prefix in WHOLE else HARMLESS_IN.get(self.prefix.removeprefix("text_config.").rstrip("."), frozenset())
        for name, value in self.values.items():
            if name in self.read or name.startswith("_") or name in harmless:
                continue
            if name in ABSENT and any(alike(value, v) for v in (None, *ABSENT[name])):
                continue
            if self.prefix not in WHOLE or not agrees(name, value, cfg):
                yield name, value
