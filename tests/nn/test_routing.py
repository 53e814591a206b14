"""Families with experts share spellings of their count, layers without experts, groups, and the module that predicts a second token."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from judge import KINDS, judge, ours, prompts
from pellucid.config import Moe
from pellucid.errors import CheckpointError, ConfigError
from pellucid.families import family, moe_fields
from test_families import reads
from test_names import disk, filled
from tiny import swapped

MIXTURES = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe", "llama4_text", "mixtral", "qwen2_moe", "qwen3_moe")


def test_every_family_with_experts_is_here() -> None:
    with_experts = {f for f in KINDS if any(isinstance(layer.ffn, Moe) for layer in reads(judge(f).config).layers)}
    assert with_experts - {"gpt_oss"} >= set(MIXTURES)


@pytest.mark.parametrize("name", MIXTURES)
def test_three_spellings_of_their_count(name: str) -> None:
    """Any of three names is read, several that agree too; a contradiction, or none of them, is refused."""
    raw = judge(name).config
    bare = {k: v for k, v in raw.items() if k not in moe_fields.COUNTS}
    (count,) = {raw[k] for k in moe_fields.COUNTS if raw.get(k) is not None}
    for spelling in moe_fields.COUNTS:
        assert reads(bare | {spelling: count}) == reads(raw)
        for wrong in (0, True, "8", 2.0):
            with pytest.raises(ConfigError, match=spelling):
                reads(bare | {spelling: wrong})
    assert reads(bare | dict.fromkeys(moe_fields.COUNTS, count)) == reads(raw)
    with pytest.raises(ConfigError) as refused:
        reads(bare | {"num_experts": count, "num_local_experts": count + 8})
    assert f"num_experts = {count}, num_local_experts = {count + 8}" in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        reads(bare | {"num_experts": None})
    assert all(k in str(refused.value) for k in moe_fields.COUNTS) and "\n" not in str(refused.value)


def having(raw: dict[str, Any]) -> list[int]:
    """Return the layers that have experts."""
    return [i for i, layer in enumerate(reads(raw).layers) if isinstance(layer.ffn, Moe)]


@pytest.mark.parametrize("name", ["qwen2_moe", "qwen3_moe"])
def test_which_layers_have_experts(name: str) -> None:
    raw = {k: v for k, v in judge(name).config.items() if k not in ("layer_types", "mlp_only_layers", "decoder_sparse_step")}
    raw["num_hidden_layers"] = 6
    assert having(raw) == having(raw | {"mlp_only_layers": None}) == [0, 1, 2, 3, 4, 5]
    assert having(raw | {"decoder_sparse_step": 2}) == [1, 3, 5]
    assert having(raw | {"decoder_sparse_step": 3, "mlp_only_layers": [5, 0]}) == [2]
    assert having(raw | {"decoder_sparse_step": 7}) == []


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "glm4_moe"])
def test_dense_layers_come_first(name: str) -> None:
    raw = judge(name).config
    assert [having(raw | {"first_k_dense_replace": k}) for k in (0, 2, 3, 9)] == [[0, 1, 2], [2], [], []]


def second(name: str) -> dict[str, Tensor]:
    """Return the module that predicts a second token, by its names on disk."""
    layer = {n.replace("layers.2", "layers.3"): t for n, t in disk(name).items() if "layers.2" in n}
    return layer | {
        f"model.layers.3.{n}.weight": torch.ones(2, 2) for n in ("eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.head")
    }


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe", "kimi_k2"])
def test_the_module_that_predicts_one_token_more_is_left(name: str) -> None:
    """It is recognised by its eh_proj; otherwise it is a layer that config.json denies."""
    known_as = "deepseek_v3" if name == "kimi_k2" else name
    extra = second(known_as)
    model = filled(known_as, disk(known_as) | extra, model_type=name)
    assert len(model.layers) == 3
    assert family(name).unused(model.config, (disk(known_as) | extra).keys()) == extra.keys()
    with pytest.raises(CheckpointError, match=r"layers\.3"):
        filled(known_as, {n: t for n, t in (disk(known_as) | extra).items() if "eh_proj" not in n}, model_type=name)


def test_kimi_k2_reads_as_deepseek_v3() -> None:
    for quirk in KINDS["deepseek_v3"].quirks:
        raw = judge("deepseek_v3", quirk).config
        cfg = reads(raw)
        assert reads(raw | {"model_type": "kimi_k2"}) == cfg
        assert family("kimi_k2").rules_for(cfg) == family("deepseek_v3").rules_for(cfg)


def test_a_yes_of_llama_4s_first_files() -> None:
    """`attn_temperature_tuning: 4` means true, and no other number does."""
    raw = judge("llama4_text", "tempered").config
    assert reads(raw | {"attn_temperature_tuning": 4}) == reads(raw) != reads(raw | {"attn_temperature_tuning": False})
    with pytest.raises(ConfigError, match="attn_temperature_tuning"):
        reads(raw | {"attn_temperature_tuning": 1})


def test_mixtral_as_transformers_calls_it() -> None:
    """Only `mlp` in memory is `block_sparse_moe` on disk."""
    respell = family("mixtral").canonical
    assert respell("model.layers.11.mlp.gate.weight") == "model.layers.11.block_sparse_moe.gate.weight"
    assert respell("model.layers.1.mlp") == "model.layers.1.block_sparse_moe"
    for name in ("model.layers.1.mlpx.weight", "lm_head.weight", "model.layers.1.block_sparse_moe.gate.weight"):
        assert respell(name) == name


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_the_other_rule_of_groups_is_seen(name: str) -> None:
    """V2's groups count their best expert, V3's their best two; with the other rule tokens are routed otherwise."""
    j, ids = judge(name), prompts(name)
    model = ours(j.folder)[1]
    with torch.no_grad():
        truth = j.logits(*ids)
        assert (model(*ids) - truth).abs().max() < 1e-9
        for layer in model.layers[1:]:
            layer.ffn.spec = replace(layer.ffn.spec, group_best=3 - layer.ffn.spec.group_best)
        assert (model(*ids) - truth).abs().max() > 1e-3


def test_a_correction_of_scores_in_place_of_logits_is_seen() -> None:
    j, ids = judge("kolibri1"), prompts("kolibri1")
    model = ours(j.folder)[1]
    with torch.no_grad():
        truth = j.logits(*ids)
        assert (model(*ids) - truth).abs().max() < 1e-9
        for layer in model.layers:
            layer.ffn.spec = replace(layer.ffn.spec, corrects_logits=False)
        assert (model(*ids) - truth).abs().max() > 1e-3


def test_mutants_of_the_tests_above() -> None:
    """Seen are every second layer counted from 0, and reading the first name only."""
    raw = judge("qwen2_moe").config
    six = {k: v for k, v in raw.items() if k not in ("layer_types", "mlp_only_layers")} | {"num_hidden_layers": 6, "decoder_sparse_step": 2}
    with swapped(moe_fields, "sparse", lambda hf, layers: [i % hf.integer("decoder_sparse_step") == 0 for i in range(layers)]):
        assert having(six) == [0, 2, 4]
    with swapped(moe_fields, "COUNTS", moe_fields.COUNTS[:1]), pytest.raises(ConfigError):
        reads(raw)
