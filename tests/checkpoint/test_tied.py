"""One table under several names: stored under any of them, or as two against config.json's word."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from transformers import AutoModelForCausalLM

from judge import judge, prompts
from pellucid.api.model import load
from pellucid.errors import PellucidError
from tiny import far

TIED = {"llama": "tied, one kv head", "gpt2": "plain", "gemma": "plain", "opt": "plain", "marian": "plain", "t5": "plain", "bert": "plain"}


@pytest.mark.parametrize("family", TIED)
def test_a_table_that_is_stored_under_another_of_its_names_alone_is_found(family: str, tmp_path: Path) -> None:
    """safetensors.torch.save_model keeps the first name by the alphabet: the head's, or the decoder's."""
    j = judge(family, TIED[family])
    (tmp_path / "config.json").write_text((j.folder / "config.json").read_text())
    save_model(j.hf, str(tmp_path / "model.safetensors"), {"format": "pt"})
    model, ids = load(tmp_path, dtype="float64"), prompts(family)
    assert far(model(*ids), j.logits(*ids)) < 1e-9
    names = load_file(tmp_path / "model.safetensors").keys()
    tables = [
        n for n in names if any(w in n for w in ("embed_tokens", "lm_head", "wte", "shared", "word_embeddings", "predictions.decoder"))
    ]
    assert len([n for n in tables if n.endswith("weight")]) == 1, tables


def test_an_untied_head_alone_is_no_table(tmp_path: Path) -> None:
    """Mutant: where config.json ties nothing, the missing table is missing."""
    j = judge("llama")
    assert j.config["tie_word_embeddings"] is False
    (tmp_path / "config.json").write_text(json.dumps(j.config))
    tensors = load_file(j.folder / "model.safetensors")
    save_file({n: t for n, t in tensors.items() if n != "model.embed_tokens.weight"}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(PellucidError, match=r"missing: model\.embed_tokens\.weight"):
        load(tmp_path)


@pytest.mark.parametrize("family", ["llama", "gemma", "gpt2"])
def test_two_tables_in_a_tied_file_are_two_where_the_field_is_ignored(family: str, tmp_path: Path) -> None:
    """As transformers reads them: both are kept, and none is tied. The error tells the way."""
    j = judge(family, TIED[family])
    config = j.config | {"tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(j.folder / "model.safetensors")
    table = next(n for n in tensors if n.endswith(("embed_tokens.weight", "wte.weight")))
    draw = torch.Generator().manual_seed(5)
    head = torch.randn(tensors[table].shape, generator=draw, dtype=torch.float64).to(tensors[table].dtype)
    save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(PellucidError, match="--ignore-field tie_word_embeddings") as refused:
        load(tmp_path)
    assert refused.value.key == "weights.tied"
    model = load(tmp_path, dtype="float64", ignore_fields=["tie_word_embeddings"])
    assert model.config.ignored == ("tie_word_embeddings",) and not model.config.tied
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64, attn_implementation="eager").eval()
    (ids,) = prompts(family)
    with torch.no_grad():
        assert far(model(ids), theirs(ids).logits) < 1e-4 * float(theirs(ids).logits.abs().max())  # its float32 islands
        assert not torch.equal(model(ids), load(j.folder, dtype="float64")(ids))
    model.save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["tie_word_embeddings"] is False
    assert torch.equal(load(tmp_path / "again", dtype="float64")(ids), model(ids))
