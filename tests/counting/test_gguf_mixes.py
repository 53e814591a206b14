"""The mixes of GGUF files: the bytes that `count` says are those of the files that llama.cpp's own quantiser writes.

`gguf_mixes.json` has what its quantiser wrote, for each model and mix; with llama_cpp installed it is asked again.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader, LlamaFileType

import judge
from kinds import KINDS
from pellucid.api.convert import convert
from pellucid.api.count import count
from pellucid.counting import Bill, gguf_mixes
from pellucid.counting.distinct import distinct
from pellucid.counting.gguf_mixes import MIXES
from pellucid.counting.training_memory import Way, training
from pellucid.errors import PellucidError
from pellucid.terminal.bill import dequantised
from pellucid.terminal.columns import bytes_in
from tiny import swapped

FILE = Path(__file__).parent / "gguf_mixes.json"
WRITTEN: dict[str, dict[str, int]] = json.loads(FILE.read_text())
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 300}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama of 19 layers": ("llama", WIDE | {"num_hidden_layers": 19}),
    "llama of 80 layers": ("llama", WIDE | {"num_hidden_layers": 80}),
    "llama, tied": ("llama", WIDE | {"num_hidden_layers": 9, "tie_word_embeddings": True}),
    "qwen2 of 224 columns": ("qwen2", WIDE | {"hidden_size": 224, "head_dim": 56, "num_hidden_layers": 8}),
    "mixtral": ("mixtral", WIDE | {"num_hidden_layers": 17, "num_local_experts": 8, "sliding_window": None}),
    "qwen3_moe": ("qwen3_moe", WIDE | {"num_hidden_layers": 16, "num_experts": 4, "moe_intermediate_size": 256, "norm_topk_prob": True}),
    "phi3": ("phi3", WIDE | {"num_hidden_layers": 10}),
}


def bill_of(name: str, mix: str, folder: Path) -> Bill:
    """Return the bill of a model in a mix."""
    family, fields = MODELS[name]
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": family, **KINDS[family].tiny, **fields}))
    return count(str(folder), context=8, dtype=mix)


def counted(name: str, mix: str, folder: Path) -> int:
    """Return the bytes that `count` says."""
    return int(bill_of(name, mix, folder)["bytes.total"])


def quantised(name: str, folder: Path) -> dict[str, int]:
    """Return the bytes of the tensors that llama.cpp's quantiser writes, by mix."""
    llama = pytest.importorskip("llama_cpp", reason="llama.cpp's Python package is not installed")
    family, fields = MODELS[name]
    convert(judge.make(family, "plain", **fields).folder, folder / "plain.gguf", quant="f32")
    out = {}
    for mix in MIXES:
        how = llama.llama_model_quantize_default_params()
        how.ftype, how.nthread = LlamaFileType[f"MOSTLY_{mix.upper()}"], 1
        assert llama.llama_model_quantize(str(folder / "plain.gguf").encode(), str(folder / "mixed.gguf").encode(), how) == 0
        out[mix] = sum(int(t.n_bytes) for t in GGUFReader(folder / "mixed.gguf").tensors)
    return out


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.quick(4)
def test_a_mix_has_the_bytes_of_llama_cpps_file(name: str, tmp_path: Path) -> None:
    assert {mix: counted(name, mix, tmp_path / "model") for mix in MIXES} == WRITTEN[name]


@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_still_writes_those(name: str, tmp_path: Path) -> None:
    assert quantised(name, tmp_path) == WRITTEN[name]


def test_each_rule_counts(tmp_path: Path) -> None:
    for rule, name in (("more", "llama of 19 layers"), ("SMALLER", "qwen2 of 224 columns")):
        with swapped(gguf_mixes, rule, (lambda *_: False) if rule == "more" else {}):
            assert counted(name, "q4_k_m", tmp_path / "model") != WRITTEN[name]["q4_k_m"]


@pytest.mark.parametrize("way", [Way(), Way(rank=4), Way(recompute=True)], ids=["all", "adapters", "recompute"])
def test_a_step_of_training_is_that_of_the_layers_in_one_kind(way: Way, tmp_path: Path) -> None:
    """Layers that a mix sets apart are the same layers: only the bytes of frozen weights are others."""
    mixed, plain = (training(bill_of("llama of 19 layers", dtype, tmp_path / "model"), way) for dtype in ("q4_k_m", "bfloat16"))
    same = {"memory.activations", "memory.gradients", "memory.moments", *(name for name in plain if name.startswith("flops"))}
    same = set(plain) if way.rank is None else same & set(plain)
    assert {name: int(mixed[name]) for name in same} == {name: int(plain[name]) for name in same}
    bill = bill_of("llama of 19 layers", "q4_k_m", tmp_path / "model")
    bill.doubled = distinct(bill.config, 2)  # the mutant: layers of a kind by their spec alone
    with pytest.raises(KeyError):
        training(bill, way)


def test_rows_of_bytes_say_what_they_say_of_blocks(tmp_path: Path) -> None:
    """A type that stays in blocks in memory is not called dequantised; any other of llama.cpp's is."""
    names = {mix: dequantised(bill_of("llama of 19 layers", mix, tmp_path / "model")) for mix in ("q4_k", "q4_k_m", "q8_0", "q4_0", "int8")}
    assert names["q4_k_m"] == names["q4_k"] != names["q8_0"] == names["q4_0"] == names["int8"]
    assert bytes_in("q4_k_m") == bytes_in("q4_k").replace("q4_k", "q4_k_m")


def test_a_mix_may_be_written_as_files_have_it() -> None:
    assert int(count("llama-3.1-8b", dtype="Q4_K_M")["bytes.total"]) == int(count("llama-3.1-8b", dtype="q4_k_m")["bytes.total"])


def test_no_mix_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(PellucidError, match="q4_k_m is a mix of GGUF files"):
        count("deepseek-v3", dtype="q4_k_m")
