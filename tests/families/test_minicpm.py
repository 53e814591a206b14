"""MiniCPM, which transformers lacks, by its published formulas: they are Granite's with other numbers, so Granite is the judge."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GraniteConfig, GraniteForCausalLM

from judge import promoted, prompts
from pellucid.analysis.verify import verify
from pellucid.api.model import load
from pellucid.errors import ConfigError, UseError
from pellucid.families import understand
from pellucid.nn.transformer import build
from tiny import far

Raw = dict[str, Any]
# MiniCPM-2B-sft-bf16's config.json
PUBLISHED: Raw = {
    "architectures": ["MiniCPMForCausalLM"], "auto_map": {"AutoConfig": "configuration_minicpm.MiniCPMConfig"}, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 2304, "initializer_range": 0.1, "intermediate_size": 5760,
    "max_position_embeddings": 4096, "model_type": "minicpm", "num_attention_heads": 36, "num_hidden_layers": 40,
    "num_key_value_heads": 36, "rms_norm_eps": 1e-05, "rope_scaling": None, "torch_dtype": "bfloat16", "transformers_version": "4.36.0",
    "use_cache": True, "vocab_size": 122753, "scale_emb": 12, "dim_model_base": 256, "scale_depth": 1.4,
}  # fmt: skip
TINY = PUBLISHED | {
    "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 64, "num_attention_heads": 4, "num_hidden_layers": 3,
    "num_key_value_heads": 2, "vocab_size": 97, "dim_model_base": 8,
}  # fmt: skip
CASES: dict[str, Raw] = {
    "plain": {},
    "one group, its own head": {"num_key_value_heads": 1, "tie_word_embeddings": False},
    "other factors": {"scale_emb": 3, "scale_depth": 0.9, "dim_model_base": 16, "rms_norm_eps": 0.01},
    "as a Llama": {"scale_emb": 1, "scale_depth": math.sqrt(3), "dim_model_base": 32},
}


def judged(raw: Raw, folder: Path) -> Tensor:
    """Write a folder as MiniCPM's, and return its logits in float64."""
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "vocab_size")
    cfg = GraniteConfig(
        **{name: raw[name] for name in kept},
        rms_norm_eps=raw["rms_norm_eps"],
        tie_word_embeddings=raw.get("tie_word_embeddings", True),
        embedding_multiplier=raw["scale_emb"],  # the rows of the table times scale_emb
        residual_multiplier=raw["scale_depth"] / math.sqrt(raw["num_hidden_layers"]),  # what each part made, times this
        logits_scaling=raw["hidden_size"] / raw["dim_model_base"],  # the head's rows over this
        attention_multiplier=(raw["hidden_size"] // raw["num_attention_heads"]) ** -0.5,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    with promoted(), torch.no_grad():
        hf = GraniteForCausalLM(cfg).double().eval()
        for p in hf.parameters():
            p += 0.15 * torch.randn_like(p)
        logits: Tensor = hf(input_ids=prompts("llama")[0], use_cache=False).logits
    hf.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(raw))
    return logits


@pytest.mark.parametrize("case", CASES)
def test_the_published_formulas(case: str, tmp_path: Path) -> None:
    raw = TINY | CASES[case]
    logits = judged(raw, tmp_path)
    model = load(tmp_path, dtype="float64")
    ids = prompts("llama")[0]
    assert far(model(ids), logits) < 1e-9
    model.save(tmp_path / "saved")
    again = load(tmp_path / "saved", dtype="float64")
    assert torch.equal(again(ids), model(ids)) and again.config == model.config
    for field in ("scale_emb", "scale_depth", "dim_model_base"):
        (tmp_path / "config.json").write_text(json.dumps(raw | {field: raw[field] + 1}))
        assert far(load(tmp_path, dtype="float64")(ids), logits) > 1e-8, field


def test_the_folders_own_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` needs transformers' model, which is the folder's own code here: it says so, without a question whether to run it."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    judged(TINY, tmp_path)
    with pytest.raises(UseError, match="transformers cannot read it"):
        verify(tmp_path)


def test_a_published_file_and_what_it_must_say() -> None:
    with torch.device("meta"):
        model = build(understand(PUBLISHED)[1])
    assert sum(p.numel() for p in model.parameters()) == 40 * (4 * 2304**2 + 3 * 2304 * 5760 + 2 * 2304) + 122753 * 2304 + 2304
    for field in ("scale_emb", "scale_depth", "dim_model_base"):
        with pytest.raises(ConfigError, match=field):
            understand({k: v for k, v in PUBLISHED.items() if k != field})
