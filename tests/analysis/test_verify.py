"""`verify`: our run beside transformers', module by module; one disturbed weight is named."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from documented import accept
from judge import judge
from kinds import DEEPSEEK
from pellucid.analysis.verify import verify
from pellucid.api.model import SPECIMENS
from pellucid.commands import main
from pellucid.errors import ConfigError, UseError


@pytest.mark.parametrize("family", ["gpt2", "llama", "deepseek_v3", "t5", "gpt_oss"])
def test_a_folder_agrees(family: str) -> None:
    report = verify(judge(family).folder)
    assert report.agrees and report.logits < 1e-12
    assert "head" in {c.path for c in report.modules}
    assert max(c.error for c in report.modules) < 1e-9


def test_a_loss_before_the_logits_is_no_row(tmp_path: Path) -> None:
    """Mixtral's own config.json of a fine-tuning asks for the loss of its router, which comes before the logits."""
    folder = shutil.copytree(judge("mixtral").folder, tmp_path / "tuned")
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"output_router_logits": True}))
    report = verify(folder)
    assert report.agrees and {c.path: c.error for c in report.modules}["head"] < 1e-9
    worse = disturbed("mixtral", "lm_head.weight", tmp_path / "disturbed")
    assert not verify(folder, worse).agrees


def disturbed(family: str, name: str, folder: Path) -> Path:
    """The judge's folder with one weight moved."""
    shutil.copytree(judge(family).folder, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[name][..., 0] += 0.5
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("family", "name", "path"),
    [
        ("llama", "model.layers.1.mlp.up_proj.weight", "layers.1.ffn.up"),
        ("gpt2", "transformer.h.0.attn.c_proj.weight", "layers.0.attn.o"),
        ("deepseek_v3", "model.layers.2.self_attn.q_a_layernorm.weight", "layers.2.attn.q_norm"),
        ("t5", "decoder.block.2.layer.1.EncDecAttention.k.weight", "decoder.layers.2.cross.k"),
    ],
)
@pytest.mark.quick(2)
def test_the_first_layer_that_differs_is_named(
    family: str, name: str, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = disturbed(family, name, tmp_path / "disturbed")
    assert main(["verify", str(folder), "--against", str(judge(family).folder), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    accept(document, "verify")
    assert document["first"]["path"] == path and not document["agrees"]
    assert main(["verify", str(folder), "--against", str(judge(family).folder)]) == 1
    assert path in capsys.readouterr().out


def test_ties_of_a_sparse_choice_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One head that indexes gives most keys a score of 0; a choice of fewer keys, or by other scores, is no tie."""
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = DEEPSEEK | {"model_type": "deepseek_v32", "index_topk": 6, "index_head_dim": 12, "index_n_heads": 1}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw)).save_pretrained(tmp_path / "tied")
    report = verify(tmp_path / "tied")
    assert not report.agrees and report.tied is not None
    assert report.tied.path == "layers.0.attn.indexer" and report.tied.rows > 1
    fewer, moved = (shutil.copytree(tmp_path / "tied", tmp_path / name) for name in ("fewer", "moved"))
    (fewer / "config.json").write_text(json.dumps(json.loads((fewer / "config.json").read_text()) | {"index_topk": 5}))
    tensors = load_file(moved / "model.safetensors")
    tensors["model.layers.0.self_attn.indexer.weights_proj.weight"] *= -1
    save_file(tensors, moved / "model.safetensors", {"format": "pt"})
    for other in (fewer, moved):
        assert verify(tmp_path / "tied", other).tied is None
    assert main(["verify", str(tmp_path / "tied"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    accept(document, "verify")
    assert document["tied"] == {"path": report.tied.path, "rows": report.tied.rows}
    for language, word in (("en", "equal scores"), ("zh", "得分相同")):
        assert main(["verify", str(tmp_path / "tied"), "--lang", language]) == 1 and word in capsys.readouterr().out


def test_lesser_dtypes_and_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    for dtype in ("float32", "bfloat16"):
        assert main(["verify", "pellucid/capitals", "--dtype", dtype, "--prompt", "The capital of France is"]) == 0
        assert dtype in capsys.readouterr().out
    assert verify(SPECIMENS / "capitals", dtype="float32").dtype is torch.float32
    with pytest.raises(UseError, match="prompt is empty"):
        verify("pellucid/capitals", prompt="")


def test_what_cannot_be_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UseError, match="float65"):
        verify("pellucid/capitals", dtype="float65")
    shutil.copytree(judge("llama").folder, tmp_path / "broken")
    (tmp_path / "broken" / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        verify(judge("llama").folder, tmp_path / "broken")
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 3}')
    with pytest.raises(UseError, match="transformers cannot read"):
        verify(judge("llama").folder, tmp_path / "broken")
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(UseError, match="pip install transformers"):
        verify("pellucid/capitals")
