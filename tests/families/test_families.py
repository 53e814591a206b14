"""Every published config is read in old and new spellings, and every field has its bounds."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PretrainedConfig

from covering import EACH
from judge import FAMILIES, KINDS, judge, make, prompts
from pellucid.config import Attention, Buckets, Config, Latent, Llama3, Mlp, Moe, Yarn
from pellucid.errors import ConfigError
from pellucid.families import known, understand
from pellucid.families.fields import ABSENT, HARMLESS, Fields
from pellucid.nn.transformer import build
from published import DEEPSEEK_V3, FLAN_T5, GPT_OSS_20B, LLAMA31, PUBLISHED, QWEN3, T5_SMALL

Raw = dict[str, Any]


def reads(raw: Raw, **how: Any) -> Config:
    """Return the Config of a config.json, without special ids."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return understand(raw, **how)[1]


# elsewhere rope_theta and partial_rotary_factor
FAR, NEAR = ("global_rope_theta", "partial_rotary_factor"), "local_rope_theta"
OLD_ROPE = {"gpt_neox": ("rotary_emb_base", "rotary_pct"), "modernbert": FAR, "modernbert-decoder": FAR}
NO_OLD = {"mellum", "gemma4_text", "gemma4_unified_text", "lfm3"}  # their layers turn in two ways, which the older fields cannot say
OLD_NEAR = {"gemma3_text": "rope_local_base_freq", "modernbert": NEAR, "modernbert-decoder": NEAR}  # of layers with a window
UNTOLD_NEAR = {"olmo3": 500_000.0}  # of layers with a window, where older files have no field for it: transformers' default


def old(raw: Raw) -> Raw:
    """Return a config.json of transformers 5 in the hub's older spelling: torch_dtype, rope_theta, rope_scaling with `type`, T5's tied."""
    base, share = OLD_ROPE.get(raw["model_type"], ("rope_theta", "partial_rotary_factor"))
    out = {k: v for k, v in raw.items() if k not in ("dtype", "rope_parameters", "scale_decoder_outputs")}
    rope = dict(raw.get("rope_parameters") or {})
    if near := rope.get("sliding_attention"):  # full layers alone are scaled
        rope = dict(rope["full_attention"])
        out |= {OLD_NEAR[raw["model_type"]]: near["rope_theta"]} if raw["model_type"] in OLD_NEAR else {}
    if rope:
        out[base], kind = rope.pop("rope_theta"), rope.pop("rope_type")
        if "partial_rotary_factor" in rope:
            out[share] = rope.pop("partial_rotary_factor")
        # gpt-oss alone takes null for YaRN
        out["rope_scaling"] = {"type": kind, **rope} if kind != "default" or raw["model_type"] == "gpt_oss" else None
    if "scale_decoder_outputs" in raw:
        out["tie_word_embeddings"] = raw["scale_decoder_outputs"]
    return out | {"torch_dtype": "float32", "transformers_version": "4.40.0"}


@pytest.mark.parametrize(("family", "quirk"), EACH)
@pytest.mark.quick(7)
def test_old_and_new_spelling_mean_the_same(family: str, quirk: str) -> None:
    raw = judge(family, quirk).config
    if family in UNTOLD_NEAR:
        raw = altered(raw, ["rope_parameters", "sliding_attention", "rope_theta"], UNTOLD_NEAR[family])
        named = {"rope_type" if n == "type" else n: v for n, v in (old(raw)["rope_scaling"] or {}).items()} or None
        judged = AutoConfig.for_model(**old(raw) | {"rope_scaling": named}).to_dict()  # `type` alone it passes over
        assert reads(old(raw)) == reads(judged), "transformers reads it otherwise"
    if family in NO_OLD or (family, quirk) == ("apertus", "not scaled"):  # which transformers scales as Llama 3, of another base
        with pytest.raises(ConfigError, match=r"rope_(theta|parameters)"):
            reads(old(raw))
        return
    new, before = reads(raw), reads(old(raw))
    if family == "t5":  # there `tied` is decided by whether lm_head.weight is stored
        before = replace(before, tied=new.tied)
    assert before == new
    assert new != reads(judge(family, next(q for q in KINDS[family].quirks if q != quirk)).config)


# Published models


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.quick(4)
def test_published_configs_and_their_parameters(name: str) -> None:
    raw, parameters = PUBLISHED[name]
    cfg = reads(raw)
    assert cfg.ignored == ()
    with torch.device("meta"):
        model = build(cfg)
    assert sum(p.numel() for p in model.parameters()) == parameters
    known_as = {"kimi_k2": "deepseek_v3"}.get(raw["model_type"], raw["model_type"])
    again = AutoConfig.for_model(**{k: v for k, v in raw.items() if k != "quantization_config"} | {"model_type": known_as}).to_dict()
    theirs = replace(reads(again), tied=cfg.tied if raw["model_type"] == "t5" else reads(again).tied)
    assert theirs == cfg


def test_what_published_configs_say() -> None:
    deep, sinks = reads(DEEPSEEK_V3), reads(GPT_OSS_20B)
    attn, ffn = deep.layers[3].attn, deep.layers[3].ffn
    assert isinstance(attn, Latent) and isinstance(ffn, Moe) and isinstance(deep.layers[2].ffn, Mlp)
    assert attn.scale is not None
    assert math.isclose(attn.scale / 192**-0.5, 1.87385, rel_tol=1e-5)  # (0.1 ln 40 + 1)²
    assert (attn.q_rank, attn.kv_rank, attn.key, attn.value) == (1536, 512, 128, 128)
    assert attn.rope.scaling == Yarn(40.0, 4096, amount=1.0) and attn.rope.interleaved
    assert (ffn.groups, ffn.groups_chosen, ffn.scale, ffn.shared, ffn.chosen) == (8, 4, 2.5, 2048, 8)
    heads = [layer.attn for layer in sinks.layers]
    assert all(isinstance(h, Attention) and h.sinks and h.bias and h.out_bias for h in heads)
    assert [getattr(h, "window", 0) for h in heads[:2]] == [128, None]
    assert getattr(heads[0], "rope").scaling == Yarn(32.0, 4096, amount=0.1 * math.log(32) + 1, truncate=False)  # noqa: B009
    llama, qwen, flan = reads(LLAMA31), reads(QWEN3), reads(FLAN_T5)
    assert llama.stops == (128001, 128008, 128009) and llama.context == 131072
    assert getattr(llama.layers[0].attn, "rope").scaling == Llama3(8.0, 1.0, 4.0, 8192)  # noqa: B009
    assert getattr(qwen.layers[0].attn, "width") == 128 and qwen.tied  # noqa: B009
    assert flan.logit_scale == 1.0 and reads(T5_SMALL).logit_scale == 512**-0.5
    assert flan.layers[0].ffn == Mlp(1024, "gelu_tanh", gated=True)
    assert getattr(flan.layers[0].attn, "buckets") == Buckets(32, 128, bidirectional=False)  # noqa: B009


# Fields


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(27)
def test_a_silent_file_means_what_transformers_takes_it_to_mean(family: str) -> None:
    """A missing field is refused by name, or read as transformers' own default."""

    def mathematics(cfg: Config) -> Config:
        return replace(cfg, context=None, stops=(), starts=None, tied=cfg.tied and family != "t5")

    for quirk in KINDS[family].quirks:
        raw = judge(family, quirk).config
        for name in raw.keys() - {"model_type", "is_encoder_decoder"}:
            less = {k: v for k, v in raw.items() if k != name}
            refused, cfg = "", Config(0, 0, ())
            try:
                cfg = reads(less)
            except ConfigError as error:
                refused = str(error)
            if refused:
                assert ("num_key_value_heads" if name == "multi_query" else name) in refused, f"{quirk}: {name}"  # what follows from it
                continue
            theirs = reads(AutoConfig.for_model(**PretrainedConfig._decode_special_floats(less)).to_dict())
            assert mathematics(cfg) == mathematics(theirs), f"{quirk}: {name}"


def wrong(kind: str) -> list[Any]:
    """Return values that no field of this kind may have."""
    return {
        "integer": [True, 2.0, "2", -1, 10**12, [1], {}],
        "number": [True, "1e-5", math.nan, math.inf, -1.5, 10**400, []],
        "flag": [1, 0, "true", []],
        "choice": [3, "nonsense", ["silu"]],
        "fixed": ["nonsense", 12345, []],
        "texts": ["full_attention", [], ["full_attention"] * 9, [1, 2], ["nonsense"] * 2],
        "numbers": ["1", 3, [], [1.0], ["1"] * 8, [True] * 8, [0.0] * 8, [math.nan] * 8, {}],
        "ids": ["2", 1.5, True, [1, None], {}],
        "indices": [0, "0", [True], [-1], [0.0], [10**6], [[0]], {}],
        "part": [[], 3, "yarn"],
    }[kind]


def spy(kind: str, read: Callable[..., Any], kinds_read: dict[str, tuple[str, str]]) -> Callable[..., Any]:
    """Return a reader of fields that notes each field's kind."""

    def reading(self: Fields, name: str, *args: Any, **kw: Any) -> Any:
        kinds_read.setdefault(self.prefix + name, (self.prefix, kind))
        return read(self, name, *args, **kw)

    return reading


def altered(raw: Raw, path: list[str], value: Any) -> Raw:
    """Return the same config with another value at a path through nested objects."""
    first, *rest = path
    return raw | {first: altered(raw[first], rest, value) if rest else value}


@pytest.mark.parametrize(("family", "quirk"), EACH)
@pytest.mark.quick(4)
def test_out_of_range_fields_are_refused_by_name(family: str, quirk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, kinds_read = judge(family, quirk).config, dict[str, tuple[str, str]]()
    for kind in ("integer", "number", "flag", "choice", "fixed", "texts", "numbers", "ids", "indices", "part"):
        monkeypatch.setattr(Fields, kind, spy(kind, getattr(Fields, kind), kinds_read))
    reads(raw)
    monkeypatch.undo()
    assert len(kinds_read) > 8
    for path, (prefix, kind) in kinds_read.items():
        name = path.removeprefix(prefix)
        for value in wrong(kind):
            changed = altered(raw, path.split("."), value)
            with pytest.raises(ConfigError) as refused:
                reads(changed)
            assert name in str(refused.value), f"{path} = {value!r}: {refused.value}"
            assert "\n" not in str(refused.value)


RELATIONS = [(f, *refused) for f, kind in KINDS.items() for refused in kind.refused]


@pytest.mark.parametrize(("family", "quirk", "change", "named"), RELATIONS, ids=lambda x: next(iter(x)) if isinstance(x, dict) else None)
def test_fields_that_do_not_fit_each_other(family: str, quirk: str, change: Raw, named: str) -> None:
    raw = judge(family, quirk).config
    reads(raw)
    with pytest.raises(ConfigError) as refused:
        reads(raw | change)
    assert named in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_three_tiers_of_fields(family: str) -> None:
    """A field that changes the mathematics or is unknown is refused with its way out; a harmless one is silent."""
    raw = judge(family).config
    plain = reads(raw)
    for name, value, key in (("use_bidirectional_attention", True, "config.unsupported"), ("use_hyper_heads", True, "config.unknown")):
        with pytest.raises(ConfigError, match=name) as refused:
            reads({**raw, name: value})
        assert refused.value.key == key
        assert reads({**raw, name: value}, ignore=[name]) == replace(plain, ignored=(name,))
    assert "--ignore-field use_hyper_heads" in str(refused.value)
    absent = {} if "residual_multiplier" in KINDS[family].reads else {"residual_multiplier": 1}
    assert reads({**raw, **absent, "use_bidirectional_attention": None, "torchscript": False, "_anything": 3}) == plain
    with pytest.raises(ConfigError, match="residual_multiplier"):
        reads({**raw, "residual_multiplier": True})


def test_no_field_has_two_tiers() -> None:
    assert not HARMLESS & ABSENT.keys()


ANOTHER = {  # fields of the harmless tier, with other values than transformers' own
    "attention_dropout": 0.5, "attn_pdrop": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5, "dropout_rate": 0.5, "initializer_range": 0.5,
    "initializer_factor": 2.0, "use_cache": False, "bos_token_id": 3, "eos_token_id": [4, 5], "pad_token_id": 6, "pretraining_tp": 2,
    "router_aux_loss_coef": 0.5, "summary_type": "mean", "summary_use_proj": False, "summary_first_dropout": 0.5, "aux_loss_alpha": 0.5,
    "seq_aux": True, "ep_size": 2, "classifier_dropout": 0.5, "output_past": False, "n_ctx": 7, "chunk_size_feed_forward": 37,
    "task_specific_params": {"a": {"b": 1}}, "architectures": ["Another"], "tokenizer_class": "Another", "finetuning_task": "none",
    "id2label": {"0": "a"}, "label2id": {"a": 0}, "problem_type": "regression", "loss_type": "ForMaskedLM",
    "cache_implementation": "hybrid", "router_jitter_noise": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(11)
def test_harmless_fields_are_harmless(family: str) -> None:
    """With all harmless fields changed, transformers' logits are the same bits."""
    assert ANOTHER.keys() <= HARMLESS
    j, ids = judge(family), prompts(family)
    other = make(family, **{name: value for name, value in ANOTHER.items() if name not in KINDS[family].reads})
    other.hf.load_state_dict(j.hf.state_dict())
    assert torch.equal(other.logits(*ids), j.logits(*ids))
    assert replace(reads(other.config), stops=(), starts=None) == replace(reads(j.config), stops=(), starts=None)


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_out_of_range_are_dropped_with_one_warning(family: str) -> None:
    plain = judge(family).config
    vocab, free = plain["vocab_size"], "pad_token_id" not in KINDS[family].reads
    raw = plain | {"eos_token_id": [5, vocab, -1], "bos_token_id": 10**6} | ({"pad_token_id": -2} if free else {})
    with pytest.warns(UserWarning, match="special token ids") as warned:
        cfg = understand(raw, "there/config.json")[1]
    assert cfg.stops == (5,)
    assert len(warned) == 1
    named = (f"eos_token_id = {vocab}", "eos_token_id = -1", "bos_token_id = 1000000", *["pad_token_id = -2"] * free)
    for words in ("there/config.json", *named, str(vocab - 1)):
        assert words in str(warned[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert understand(plain | {"eos_token_id": 96, "bos_token_id": 0} | ({"pad_token_id": None} if free else {}))[1].stops == (96,)
    assert reads(judge("t5").config | {"decoder_start_token_id": 97, "pad_token_id": 3}).starts == 3


def test_unknown_families_are_refused() -> None:
    assert set(FAMILIES) <= set(known())
    for kind in (None, "rwkv", "fields", 3, ["llama"]):
        with pytest.raises(ConfigError, match="model_type"):
            understand({"model_type": kind})
