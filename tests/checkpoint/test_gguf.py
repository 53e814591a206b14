"""GGUF: every type to the bit as `gguf` has it, every architecture beside transformers, both ways, and files that others wrote.

The `gguf` package is llama.cpp's own. Its writer makes the files here that our reader must take, and its reader takes ours.
"""

import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

import judge
from kinds import YARN
from pellucid.api.convert import convert
from pellucid.api.model import load
from pellucid.checkpoint.gguf import tensor_names
from pellucid.checkpoint.gguf.block_types import TYPES
from pellucid.checkpoint.gguf.gguf_header import read_gguf
from pellucid.checkpoint.gguf.gguf_source import GgufSource
from pellucid.checkpoint.gguf.hyperparameters import config_fields
from pellucid.checkpoint.gguf.packed_tensor import PackedTensor
from pellucid.checkpoint.gguf.written_model import OF_FAMILY, differing, model_keys
from pellucid.commands import main
from pellucid.errors import PellucidError
from pellucid.families.fields import Fields
from pellucid.families.names import PLAIN, Layout
from pellucid.messages import say
from pellucid.ops.blocks import Blocks
from pellucid.runs.model_registry import unread

BLOCKED = [t for t in TYPES if t.dequantise is not None]
SHARED: dict[str, dict[str, Any]] = {
    "normalised": {"norm_topk_prob": True},
    "own scale": {"query_pre_attn_scalar": 16},
    "one width": {"linear_key_head_dim": 12, "linear_value_head_dim": 12},
}
# What each architecture has a key for: the quirk of tests/support/kinds, and fields that differ.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "plain", {}), ("llama", "biases", {}), ("llama", "own head width", {}), ("llama", "linear", {}), ("llama", "llama3", {}),
    ("llama", "yarn", {}), ("mistral", "no window", {}), ("mixtral", "plain", {}), ("qwen2", "plain", {}), ("qwen2", "yarn", {}),
    ("qwen3", "plain", {}), ("qwen3_moe", "shares normalised", {}), ("gemma", "plain", {}), ("gemma2", "plain", SHARED["own scale"]),
    ("gemma3_text", "every sixth", SHARED["own scale"]), ("phi3", "plain", {}), ("phi3", "window", {}),
    ("phi3", "longrope of a part, tied", {}), ("gpt2", "plain", {}), ("gpt2", "own head", {}), ("glm4", "plain", {}),
    ("gpt_oss", "plain", {}), ("gpt_oss", "yarn without truncation", {}), ("granite", "plain", {}), ("granite", "biases, tied", {}),
    ("granitemoe", "plain", {}), ("smollm3", "plain", {}), ("arcee", "plain", {}), ("arcee", "yarn, biases", {}), ("seed_oss", "plain", {}),
    ("seed_oss", "every bias, tied", {}), ("olmo2", "plain", {}), ("hunyuan_v1_dense", "plain", {}), ("starcoder2", "plain", {}),
    ("starcoder2", "no biases, own head", {}), ("mamba2", "plain", {}), ("mamba2", "one group, biases, tied", {}),
    ("granitemoehybrid", "plain", {}), ("granitemoehybrid", "dense, one group, tied", {}),
    ("granitemoehybrid", "plain", {"position_embedding_type": "rope", "mamba_d_conv": 2}),
    ("nemotron_h", "plain", {}), ("nemotron_h", "one group, narrow", {"mlp_hidden_act": "relu2"}),
    ("falcon_h1", "plain", {}), ("falcon_h1", "without multipliers, tied, normed", {"mamba_norm_before_gate": False}),
    ("falcon_h1", "short, shared keys", {"hidden_act": "silu"}), ("qwen3_next", "plain", SHARED["one width"]),
    ("qwen3_next", "by an interval", {**SHARED["one width"], "norm_topk_prob": True, "linear_num_key_heads": 4}),
    ("mamba", "plain", {}), ("mamba", "short, rank of itself", {}), ("falcon_mamba", "plain", {}), ("falcon_mamba", "as the 7B", {}),
    ("jamba", "plain", {}), ("jamba", "experts everywhere, attention last", {}), ("jamba", "short, gelu", {"hidden_act": "silu"}),
    ("jamba", "no experts, biases, tied", {"mamba_proj_bias": False}),
]  # fmt: skip


@pytest.mark.parametrize("kind", BLOCKED, ids=lambda t: t.name)
def test_every_type_is_dequantised_as_gguf_does(kind: Any) -> None:
    raw = np.random.default_rng(kind.code).integers(0, 256, (300, kind.bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, GGMLQuantizationType(kind.code))
    ours = kind.dequantise(torch.from_numpy(raw)).numpy()
    alike = (ours.view(np.int32) == expected.view(np.int32)) | (np.isnan(ours) & np.isnan(expected))
    assert ours.shape == expected.shape and alike.all()


def test_sizes_and_numbers_of_types_are_ggufs() -> None:
    for t in TYPES:
        assert gguf.GGML_QUANT_SIZES[GGMLQuantizationType[t.name]] == (t.block, t.bytes) and GGMLQuantizationType[t.name] == t.code


def apart(model: Any, made: judge.Judge, family: str) -> float:
    """Return the largest difference of logits from transformers'."""
    ids = judge.prompts(family)
    with torch.no_grad():
        return float((model(*ids) - made.logits(*ids)).abs().max())


@pytest.mark.parametrize(("family", "quirk", "fields"), CASES, ids=lambda c: str(c).replace(" ", "_"))
@pytest.mark.quick(5)
def test_written_and_read_is_transformers(family: str, quirk: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """In GGUF and back in a folder, whose config.json is the model's own."""
    made = judge.make(family, quirk, **fields)
    convert(made.folder, tmp_path / "model.gguf", quant="f32")
    again = load(made.folder, dtype="float64")
    for name, p in made.hf.named_parameters():
        if name.endswith("A_log"):  # the format has −e^A_log in float32: the judge gets the same rounding
            p.data = p.data.float().exp().double().log()
    model = load(tmp_path / "model.gguf", dtype="float64")
    assert apart(model, made, family) < 1e-9 and model.left == ()
    assert [*differing(model.config, tensor_names.folded(again.config))] == [] and model.stops == again.stops
    names = {t.name for t in GGUFReader(tmp_path / "model.gguf").tensors}
    arch = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == OF_FAMILY[family])
    known = {gguf.TENSOR_NAMES[t].format(bid=i) for t in gguf.MODEL_TENSORS[arch] for i in range(made.hf.config.num_hidden_layers)}
    known |= {gguf.TENSOR_NAMES[gguf.MODEL_TENSOR.ROPE_FACTORS_LONG], gguf.TENSOR_NAMES[gguf.MODEL_TENSOR.ROPE_FACTORS_SHORT]}
    assert {n.removesuffix(".weight").removesuffix(".bias") for n in names} <= known


@pytest.mark.parametrize(
    ("family", "quirk", "layout", "rows"),
    [("mamba2", "one group, biases, tied", "in_groups", lambda groups: Layout(PLAIN.read, lambda ours: [x[None] for x in ours])),
     ("qwen3_next", "plain", "ONE_ROW", PLAIN)],
    ids=["mamba2", "qwen3_next"],
)  # fmt: skip
def test_a_vector_may_be_a_matrix_of_one_row(family: str, quirk: str, layout: str, rows: Any, tmp_path: Path) -> None:
    """llama.cpp's converters write [1, n] and its quantiser [n]; the layout of the written file alone is changed."""
    made = judge.make(family, quirk, **(SHARED["one width"] if family == "qwen3_next" else {}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_names, layout, rows)
        convert(made.folder, tmp_path / "rows.gguf", quant="f32")
    convert(made.folder, tmp_path / "vectors.gguf", quant="f32")
    shapes = [{t.name: [*t.shape] for t in GGUFReader(tmp_path / f"{name}.gguf").tensors} for name in ("rows", "vectors")]
    assert shapes[0] != shapes[1]
    (one, state), (other, same) = ((m, m.module.state_dict()) for m in (load(tmp_path / f"{name}.gguf") for name in ("rows", "vectors")))
    assert one.config == other.config and all(torch.equal(state[n], same[n]) for n in state)


@pytest.mark.parametrize("table", ["llama", "gemma2"])
def test_a_table_without_its_layout_is_seen(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries in the other order, or norms that count from 1 twice: the reader alone is changed, and the logits are far off."""
    family, fields = (table, SHARED["own scale"] if table == "gemma2" else {})
    made = judge.make(family, "plain", **fields)
    convert(made.folder, tmp_path / "model.gguf", quant="f32")
    if table == "llama":
        monkeypatch.setitem(tensor_names.TABLES, table, tensor_names.qwen)
    else:
        monkeypatch.setattr(tensor_names, "OFFSET", tensor_names.PLAIN)
    assert apart(load(tmp_path / "model.gguf", dtype="float64"), made, family) > 1e-3


def by_hand(made: judge.Judge, path: Path, kinds: dict[str, str]) -> dict[str, np.ndarray]:
    """Write a Llama with gguf's own writer, as llama.cpp's converter does, and return its tensors. kinds: types by parts of names."""
    cfg = made.hf.config
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(cfg.max_position_embeddings)
    writer.add_embedding_length(cfg.hidden_size)
    writer.add_block_count(cfg.num_hidden_layers)
    writer.add_feed_forward_length(cfg.intermediate_size)
    writer.add_head_count(cfg.num_attention_heads)
    writer.add_head_count_kv(cfg.num_key_value_heads)
    writer.add_layer_norm_rms_eps(cfg.rms_norm_eps)
    writer.add_rope_freq_base(cfg.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(cfg.hidden_size // cfg.num_attention_heads)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, cfg.num_hidden_layers)
    written = {}
    for name, value in made.hf.state_dict().items():
        array = value.float().numpy()
        for part, heads in (("q_proj", cfg.num_attention_heads), ("k_proj", cfg.num_key_value_heads)):
            if part in name:  # a head's two halves become neighbours
                half = array.shape[0] // heads // 2
                array = array.reshape(heads, 2, half, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        disk = names.get_name(name, try_suffixes=(".weight", ".bias"))
        kind = next((GGMLQuantizationType[k] for part, k in kinds.items() if part in disk and array.ndim == 2), GGMLQuantizationType.F32)
        raw = gguf.quants.quantize(array, kind)
        written[disk] = gguf.quants.dequantize(raw, kind)
        writer.add_tensor(disk, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def test_a_file_of_llama_cpps_writer_is_the_same_model(tmp_path: Path) -> None:
    made = judge.make("llama")
    by_hand(made, tmp_path / "model.gguf", {})
    assert apart(load(tmp_path / "model.gguf", dtype="float64"), made, "llama") < 1e-9


WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize(("kind", "form"), [("Q8_0", "int8"), ("Q4_0", "int4"), ("Q5_0", None), ("F16", None), ("BF16", None)])
def test_blocks_stay_and_other_types_become_plain(kind: str, form: str | None, tmp_path: Path) -> None:
    """Q8_0 and Q4_0 are ours to the bit, also beside another type; what ours do not equal is dequantised once."""
    made = judge.make("llama", **WIDE)
    values = by_hand(made, tmp_path / "model.gguf", {"ffn_up": "Q5_1", "": kind})
    model = load(tmp_path / "model.gguf", dtype="float32")
    assert model.quant == form
    for name, ours in {"blk.0.ffn_down.weight": "layers.0.ffn.down.weight", "blk.1.ffn_up.weight": "layers.1.ffn.up.weight"}.items():
        weight = model.module.get_parameter(ours)
        assert isinstance(weight, Blocks) == (form is not None and "up" not in name)
        assert np.array_equal((weight.plain() if isinstance(weight, Blocks) else weight).numpy(), values[name])
    assert load(tmp_path / "model.gguf", quant="int4").quant == "int4"
    ids = judge.prompts("llama")[0]
    shapes = load(tmp_path / "model.gguf", device="meta", dtype="float32")
    sizes = [{n: getattr(p, "bytes", p.nbytes) for n, p in m.module.named_parameters()} for m in (model, shapes)]
    assert torch.isfinite(model(ids)).all() and sizes[0] == sizes[1]


def test_a_file_is_said_to_be_stored_in_its_own_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The types of the matrices stand in `run` and `show`, most numbers first, and what stays in blocks; bfloat16 is none of them."""
    file = tmp_path / "model.gguf"
    by_hand(judge.make("llama", **WIDE), file, {"ffn_up": "Q5_1", "": "Q8_0"})
    types = "Q8_0, Q5_1"
    model = load(file)
    reason = say("precision.fits", dtype="float32", stored=types, memory=f"{(model.precision.memory or 0) / 1e9:.1f}")
    assert model.precision_note == say("precision.matrices", reason=reason, format="int8") and "bfloat16" not in repr(model)
    assert unread(str(file))[1].why == model.precision_note
    chosen = say("precision.asked", dtype="bfloat16", stored=types)
    assert load(file, dtype="bfloat16").precision_note == say("precision.matrices", reason=chosen, format="int8")
    by_hand(judge.make("llama", **WIDE), file, {"": "Q5_1"})
    assert load(file, device="meta").precision_note == say("precision.stored.quantised", dtype="bfloat16", stored="Q5_1")
    assert load(file).to(dtype="float64").precision_note == say("precision.asked", dtype="float64", stored="Q5_1")
    main(["show", str(file)])
    head = " ".join(capsys.readouterr().out.partition("\n\n")[0].split())  # two lines where the path is long
    assert head.endswith(say("show.stored", formats="Q5_1")) and "bfloat16" not in head


@pytest.mark.parametrize("quant", ["q8_0", "q4_0", "f16", "bf16"])
def test_what_is_written_is_what_gguf_reads(quant: str, tmp_path: Path) -> None:
    """Its reader dequantises our file to the numbers that we run; from a file with blocks nothing is rounded twice."""
    made = judge.make("llama", **WIDE)
    convert(made.folder, tmp_path / "a.gguf", quant=quant)
    convert(tmp_path / "a.gguf", tmp_path / "b.gguf")
    model = load(tmp_path / "b.gguf", dtype="float32")
    first, second = ({t.name: t for t in GGUFReader(tmp_path / n).tensors} for n in ("a.gguf", "b.gguf"))
    for name, t in first.items():
        numbers = gguf.quants.dequantize(t.data, t.tensor_type)
        assert np.array_equal(numbers, gguf.quants.dequantize(second[name].data, second[name].tensor_type))
        assert t.tensor_type.name == (quant.upper() if len(t.shape) > 1 else "F32")
    down = model.module.get_parameter("layers.0.ffn.down.weight")
    t = first["blk.0.ffn_down.weight"]
    assert np.array_equal((down.plain() if isinstance(down, Blocks) else down).numpy(), gguf.quants.dequantize(t.data, t.tensor_type))


def test_back_to_safetensors_is_a_folder_that_transformers_reads(tmp_path: Path) -> None:
    import transformers

    made = judge.make("llama", "llama3", **WIDE)
    convert(made.folder, tmp_path / "model.gguf", quant="q8_0")
    convert(tmp_path / "model.gguf", tmp_path / "back", to="safetensors")
    model, folder = load(tmp_path / "model.gguf", dtype="float32"), load(tmp_path / "back", dtype="float32")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32)
    ids = judge.prompts("llama")[0]
    with torch.no_grad():
        assert float((folder(ids) - theirs(ids).logits).abs().max()) < 1e-4
        assert torch.equal(model(ids), load(made.folder, dtype="float32", quant="int8")(ids))  # whose blocks are made as they are read
    assert folder.config.layers == model.config.layers
    for name, weight in model.module.named_parameters():
        assert torch.equal(folder.module.get_parameter(name), weight.plain() if isinstance(weight, Blocks) else weight)


def split(path: Path, count: int) -> list[Path]:
    """Split a file of one into `count`, as llama.cpp's tool does: the keys in the first, tensors in turn."""
    reader, out = GGUFReader(path), []
    for i in range(count):
        out.append(path.with_name(f"part-{i + 1:05d}-of-{count:05d}.gguf"))
        writer = GGUFWriter(out[-1], "llama")
        for field in reader.fields.values() if i == 0 else ():
            if field.name.startswith("llama."):
                writer.add_key_value(field.name, field.contents(), field.types[0])
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for t in reader.tensors[i::count]:
            writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return out


def test_split_files_are_one_model(tmp_path: Path) -> None:
    made = judge.make("llama")
    (tmp_path / "whole").mkdir()
    by_hand(made, tmp_path / "whole" / "model.gguf", {})
    parts = split(tmp_path / "whole" / "model.gguf", 3)
    (tmp_path / "parts").mkdir()
    moved = [p.rename(tmp_path / "parts" / p.name) for p in parts]
    for name in (moved[0], tmp_path / "parts"):
        assert apart(load(name, dtype="float64"), made, "llama") < 1e-9
    moved[1].rename(tmp_path / "gone.gguf")
    with pytest.raises(PellucidError, match=r"part-00002-of-00003\.gguf does not exist"):
        load(moved[0])
    moved[1].write_bytes(moved[2].read_bytes())
    with pytest.raises(PellucidError, match=r"split\.no is 2; 1 is expected"):
        load(moved[0])
    moved[0].rename(tmp_path / "alone.gguf")
    with pytest.raises(PellucidError, match=r"split\.count is 3; 1 is expected"):
        load(tmp_path / "alone.gguf")


def test_longest_context_of_llama3_comes_back_by_its_factors(tmp_path: Path) -> None:
    """The factors of rope_freqs.weight are Llama 3's to the bit, or stay as they are."""
    made = judge.make("llama", "llama3")
    convert(made.folder, tmp_path / "a.gguf", quant="f32")
    assert load(tmp_path / "a.gguf").config.layers[0].attn.rope == load(made.folder).config.layers[0].attn.rope
    raw = bytearray((tmp_path / "a.gguf").read_bytes())
    entry = read_gguf(tmp_path / "a.gguf").tensors["rope_freqs.weight"]
    assert not isinstance(entry, PackedTensor)
    raw[entry.begin : entry.begin + 4] = np.float32(1.5).tobytes()
    (tmp_path / "b.gguf").write_bytes(raw)
    scaling: Any = load(tmp_path / "b.gguf").config.layers[0].attn.rope
    assert scaling.scaling.short == scaling.scaling.long and scaling.scaling.short[0] == 1.5


def test_yarns_own_amount_is_a_factor_of_the_usual_one(tmp_path: Path) -> None:
    made = judge.make("llama", "yarn", rope_parameters={**YARN, "attention_factor": 1.3})
    convert(made.folder, tmp_path / "a.gguf", quant="f32")
    assert read_gguf(tmp_path / "a.gguf").keys["llama.rope.scaling.attn_factor"] == pytest.approx(1.3 / 1.138629, rel=1e-6)
    rope: Any = load(tmp_path / "a.gguf").config.layers[0].attn.rope
    assert rope.scaling.amount == pytest.approx(1.3, rel=1e-6)


def test_refusals_are_one_line(tmp_path: Path) -> None:
    """What GGUF has no key for, a type that is not read, keys that are unknown; a name that exists is not overwritten."""
    made = judge.make("llama", "tied, one kv head")
    with pytest.raises(PellucidError, match=r"no key for this: layers\.0\.ffn\.act = gelu_tanh -> silu"):
        convert(made.folder, tmp_path / "a.gguf")
    assert not list(tmp_path.iterdir())
    made = judge.make("llama")
    convert(made.folder, tmp_path / "a.gguf")
    for out, how, why in (("a.gguf", {}, "exists already"), ("b", {"to": "onnx"}, "gguf, safetensors"), ("b", {"quant": "q2"}, "f32, f16")):
        with pytest.raises(PellucidError, match=why):
            convert(made.folder, tmp_path / out, **how)
    raw = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "c.gguf").write_bytes(raw.replace(b"llama.rope.freq_base", b"llama.rope.freq_gase"))
    with pytest.raises(PellucidError, match=r"llama\.rope\.freq_gase = 500000\.0.*--ignore-field"):
        load(tmp_path / "c.gguf")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(tmp_path / "c.gguf", ignore_fields=["llama.rope.freq_gase"]).config.layers[0].attn.rope.theta == 10_000.0


def test_bert_and_its_kin_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PellucidError, match="a model of family bert is not written as GGUF"):
        convert("pellucid/capitals-bert", tmp_path / "a.gguf")
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize(
    ("family", "change", "word"),
    [
        ("granitemoehybrid", {"attention.head_count_kv": [2, 2]}, "== block_count"),
        ("granitemoehybrid", {"attention.head_count_kv": [0, 0, 0]}, r"== \{0, n\}"),
        ("granitemoehybrid", {"attention.head_count_kv": 2}, "attention.head_count_kv"),
        ("granitemoehybrid", {"ssm.time_step_rank": 7}, "ssm.time_step_rank"),
        ("nemotron_h", {"feed_forward_length": [0, 48, 0, 48]}, "== block_count"),
        ("nemotron_h", {"feed_forward_length": [0, 0, 0, 0, 0]}, r"== \{0, n\}"),
        ("nemotron_h", {"rope.scaling.finetuned": True}, "rope.scaling.finetuned"),
        ("mamba", {"attention.head_count": 4}, "attention.head_count"),
        ("jamba", {"attention.head_count_kv": [0, 2]}, "== block_count"),
        ("jamba", {"attention.head_count_kv": [2, 2, 0, 0]}, "i % period == offset"),
        ("jamba", {"attention.head_count_kv": [2, 1, 0, 0]}, r"== \{0, n\}"),
        ("jamba", {"ssm.inner_size": 40}, "ssm.inner_size"),
    ],
)
def test_lists_by_layer_that_do_not_fit(family: str, change: dict[str, Any], word: str) -> None:
    made = judge.make(family, "plain")
    keys = model_keys(OF_FAMILY[family], load(made.folder, dtype="float32").config)
    own = {n.removeprefix(f"{OF_FAMILY[family]}."): v for n, v in keys.items()} | change
    source = GgufSource(Fields(own, "GGUF", (), f"{OF_FAMILY[family]}."), {"token_embd.weight": (97, 32)}, lambda name: torch.zeros(1))
    with pytest.raises(PellucidError, match=word):
        config_fields(OF_FAMILY[family], source)


def test_hybrids_that_the_format_cannot_hold() -> None:
    for family, quirk in (
        ("granitemoehybrid", "rope, limits, short"),
        ("granitemoehybrid", "states alone, biases"),
        ("nemotron_h", "experts"),
        ("mamba", "biases, an own head"),
        ("mamba", "gelu, another width"),
        ("falcon_mamba", "biases, tied"),
        ("jamba", "states alone"),
        ("jamba", "no experts, biases, tied"),
    ):
        made = judge.make(family, quirk)
        with pytest.raises(PellucidError, match=OF_FAMILY[family]):
            convert(made.folder, made.folder / "model.gguf", quant="f32")
