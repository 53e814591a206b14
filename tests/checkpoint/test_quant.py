"""Models whose matrices are int8 or int4: loaded, run, planned, watched, adapted, saved, counted; and what a folder can have wrong.

The cases that have every part are in int8 or in int4 by turns, with PELLUCID_FULL=1 all cases in both.
"""

import copy
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import pellucid
from covering import COVER
from judge import judge, prompts
from pellucid.api.model import Model, load
from pellucid.checkpoint import packing
from pellucid.checkpoint.fill import retie
from pellucid.checkpoint.folder import WEIGHTS
from pellucid.checkpoint.packing import Packing
from pellucid.commands import main
from pellucid.errors import CheckpointError, PellucidError, UseError
from pellucid.families.quantisation import in_blocks
from pellucid.ops import blocks, native
from pellucid.ops.blocks import BITS, Blocks
from pellucid.watching.watch import watch
from test_plan import FAMILIES, PROMPT, Alone, model_of, run, tokens
from tiny import far

FORMS = list(BITS)
FULL = bool(os.environ.get("PELLUCID_FULL"))
IN_BLOCKS = [(*case, form) for n, case in enumerate(COVER) for form in (FORMS if FULL else [FORMS[n % len(FORMS)]])]


def pack(model: Any, form: str) -> Any:
    """A model's matrices in blocks, where they stand."""
    Packing(form, next(model.parameters()).dtype).pack(model, [n for n, _ in model.named_parameters()], "here")
    retie(model)
    return model


def openly(module: Any) -> Any:
    """The same module with plain matrices of the same values."""
    plain = copy.deepcopy(module)
    for name, p in [*plain.named_parameters()]:
        if isinstance(p, Blocks):
            owner, _, leaf = name.rpartition(".")
            plain.get_submodule(owner)._parameters[leaf] = nn.Parameter(p.plain(), requires_grad=False)
    retie(plain)
    return plain


def opened(model: Model) -> Model:
    """The same model, with such a module."""
    plain = copy.copy(model)
    plain.module = openly(model.module)
    return plain


def alike(a: Model, b: Model) -> bool:
    """Whether two models hold the same, bit for bit."""
    pairs = zip(a.module.named_parameters(), b.module.named_parameters(), strict=True)
    for (name, p), (other, q) in pairs:
        if (name, type(p), p.dtype, p.shape) != (other, type(q), q.dtype, q.shape):
            return False
        parts = [(p.codes, q.codes), (p.scales, q.scales)] if isinstance(p, Blocks) and isinstance(q, Blocks) else [(p, q)]
        if not all(x.dtype == y.dtype and torch.equal(x, y) for x, y in parts):
            return False
    return all(torch.equal(x, y) for x, y in zip(a.module.buffers(), b.module.buffers(), strict=True))


@pytest.mark.parametrize(("family", "quirk", "form"), IN_BLOCKS)
@pytest.mark.quick(8)
def test_every_family_in_blocks(family: str, quirk: str, form: str, tmp_path: Path) -> None:
    """In float64 its logits are those of the same values held plain; saved and loaded it is the same, however it lies on disk."""
    j = judge(family, quirk)
    model = load(j.folder, dtype="float64", quant=form)
    blocked = {n: p for n, p in model.module.named_parameters() if isinstance(p, Blocks)}
    assert blocked.keys() == {n for n, p in model.module.named_parameters() if in_blocks(n, tuple(p.shape))} and model.quant == form
    ids = prompts(family)
    truth, plain = opened(model)(*ids), load(j.folder, dtype="float64")(*ids)
    assert far(model(*ids), truth) <= 1e-10 * max(1.0, float(truth.abs().max())) and far(truth, plain) > 1e-4
    model.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert alike(again, model) and torch.equal(again(*ids), model(*ids)) and model.num_parameters() == opened(model).num_parameters()


def planned(cfg_name: str, form: str, dtype: torch.dtype) -> tuple[Alone, Alone]:
    model = pack(model_of(FAMILIES[cfg_name], dtype), form)
    return Alone(model, 64, 4, planned=False), Alone(model, 64, 4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(6)
def test_plan_is_forward_bit_for_bit(family: str, dtype: torch.dtype, form: str) -> None:
    """40 steps; and the prompt's rows have the bits that steps alone give them, for products do not depend on how rows come."""
    plain, plans = planned(family, form, dtype)
    feed = tokens(plain.model)
    (logits, cache), (other, others) = run(plain, feed), run(plans, feed)
    assert torch.equal(logits, other) and torch.equal(cache, others) and logits.isfinite().all()
    assert (plans.plan is not None) == native.available()
    if plans.plan is not None:
        assert {line.op.name for line in plans.plan.calls} >= {f"linear_{form}", f"embedding_{form}"}
        assert "linear" not in {line.op.name for line in plans.plan.calls}
    truth, _ = run(Alone(openly(plain.model).double(), 64), feed)
    assert (logits.double() - truth).norm() < 0.1 * truth.norm()


def test_a_plan_falls_with_its_blocks() -> None:
    if not native.available():
        return
    _, decode = planned("llama", "int8", torch.float32)
    run(decode, tokens(decode.model, 3))
    plan, part = decode.plan, decode.model.layers[1].ffn.up
    other = blocks.quantised(torch.randn(part.weight.shape) * 0.2, "int8")
    part._parameters["weight"] = nn.Parameter(other, requires_grad=False)
    got, _ = run(decode, tokens(decode.model, 3))
    want, _ = run(Alone(decode.model, 64, 4, planned=False), tokens(decode.model, 3))
    assert torch.equal(got, want) and decode.plan is not plan


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_cells_are_the_sums_of_dequantised_terms(family: str, form: str) -> None:
    """Of every product, within what rounding the activations may do; of all else as ever. Taps still name their weights."""
    model = pack(model_of(FAMILIES[family], torch.float32), form)
    with torch.no_grad(), watch(model, terms=True) as seen:
        model(torch.tensor([PROMPT]))
    products = 0
    for s in seen:
        at = tuple(n - 1 for n in s.shape)
        terms, value = s.terms(at), float(s.value[at])
        if not {"x", "weight"} <= set(terms.factors):
            assert abs(terms.total() - value) <= 1e-4 * max(1.0, float(terms.summands.abs().sum())), s.path
            continue
        products += 1
        half_step = float(terms.factors["x"].abs().max()) / 254
        assert abs(terms.total() - value) <= half_step * float(terms.factors["weight"].abs().sum()) + 1e-4, s.path
    assert products > 10 and seen["layers.0.attn.q"].weights == ("layers.0.attn.q.weight", *(["layers.0.attn.q.bias"] * (family == "gpt2")))


def test_matrices_become_blocks_one_after_the_other(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """When one is quantised all before it are, and no plain one stays."""
    packed, seen = Packing.pack, list[int]()

    def counting(self: Packing, model: nn.Module, names: Any, file: str, *values: Any) -> None:
        packed(self, model, names, file, *values)
        there = [(n, p) for n, p in model.named_parameters() if not p.is_meta and in_blocks(n, tuple(p.shape))]
        assert all(isinstance(p, Blocks) for _, p in there) and len(self.scratch) == 1
        largest = max(p.numel() for p in model.parameters()) * 4
        assert self.scratch[0].nbytes <= largest
        seen.append(len(there))

    monkeypatch.setattr(Packing, "pack", counting)
    model = load(folder, quant="int4")
    assert len(seen) > 4 and seen == sorted(seen)
    bytes_held = sum(p.bytes if isinstance(p, Blocks) else p.nbytes for p in model.module.parameters())
    assert bytes_held == Packing("int4", torch.float32).bytes(model.module)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["capitals", "capitals-deepseek", "capitals-t5"])
@pytest.mark.quick(4)
def test_bytes_counted_are_bytes_held_and_stored(name: str, form: str, tmp_path: Path) -> None:
    """What is plain is held in bfloat16 here, as the bill of a block format has it."""
    model = load(f"pellucid/{name}", dtype="bfloat16", quant=form)
    model.save(tmp_path / "saved")
    tensors = [*model.module.parameters(), *model.module.buffers()]
    size = sum(t.bytes if isinstance(t, Blocks) else t.nbytes for t in tensors)
    assert (
        int(pellucid.count(tmp_path / "saved")["bytes.total"]) == size == int(pellucid.count(f"pellucid/{name}", dtype=form)["bytes.total"])
    )
    assert size == sum(t.nbytes for t in load_file(tmp_path / "saved" / WEIGHTS).values())
    meta = load(f"pellucid/{name}", quant=form, device="meta")
    assert [p.shape for p in meta.module.parameters()] == [p.shape for p in model.module.parameters()] and meta.quant == form


def test_saved_folder_says_what_it_is(folder: Path, tmp_path: Path) -> None:
    load(folder, quant="int8").save(tmp_path / "q")
    assert load(tmp_path / "q").precision.formats == "int8" and load(folder, quant="int8").precision.formats == ""
    config = json.loads((tmp_path / "q" / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "pellucid", "format": "int8", "block": 32}
    names = set(load_file(tmp_path / "q" / WEIGHTS))
    assert {"transformer.h.0.attn.c_attn.weight_codes", "transformer.h.0.attn.c_attn.weight_scales", "transformer.wpe.weight"} <= names
    with pytest.raises(UseError, match=r"int8.*int4"):
        load(tmp_path / "q", quant="int4")
    assert (
        alike(load(tmp_path / "q", quant="int8"), load(tmp_path / "q")) and load(tmp_path / "q", dtype="bfloat16").dtype is torch.bfloat16
    )


# Adapters


def test_an_adapter_on_blocks(tmp_path: Path) -> None:
    """It adds to the quantised product what it adds to the plain one; merging is refused in a line; taken off, nothing stays."""
    from adapters import saved, trained

    j = judge("llama")
    place, ids = saved(trained(j, target_modules=["q_proj", "o_proj", "down_proj"])), prompts("llama")
    model = load(j.folder, dtype="float64", quant="int8")
    before, plain = model(*ids), opened(model)
    for m in (model, plain):
        m.adapters = {}
        m.adapt(place)
    assert far(model(*ids), plain(*ids)) < 1e-10 and far(model(*ids), before) > 1e-3
    with pytest.raises(CheckpointError, match="weight is quantised") as caught:
        model.merge()
    assert "\n" not in str(caught.value)
    model.unadapt()
    assert torch.equal(model(*ids), before)
    headed = saved(trained(j))  # PEFT stores the head's own weight beside what it adds, and it has to be ours before it was quantised
    model.adapt(headed)
    model.unadapt()
    tensors = load_file(headed / "adapter_model.safetensors")
    tensors["base_model.model.lm_head.base_layer.weight"][3, 4] += 1.0
    save_file(tensors, headed / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="lm_head"):
        model.adapt(headed)


# Faults


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e9])
def test_weights_that_blocks_cannot_hold(bad: float, folder: Path, tmp_path: Path) -> None:
    path = copied(folder, tmp_path, lambda t: t["transformer.h.1.mlp.c_fc.weight"].__setitem__((3, 5), bad))
    with pytest.raises(CheckpointError, match=r"layers\.1\.ffn\.up\.weight") as caught:
        load(path, quant="int4")
    assert "\n" not in str(caught.value)


def copied(
    folder: Path, to: Path, change: Callable[[dict[str, Tensor]], Any], config: Callable[[dict[str, Any]], Any] = lambda _: None
) -> Path:
    """A folder with its tensors and its config changed."""
    to.mkdir(exist_ok=True)
    tensors, settings = load_file(folder / WEIGHTS), json.loads((folder / "config.json").read_text())
    change(tensors)
    config(settings)
    save_file({n: t.contiguous() for n, t in tensors.items()}, to / WEIGHTS, {"format": "pt"})
    (to / "config.json").write_text(json.dumps(settings))
    return to


def a_bias(t: dict[str, Tensor], name: str) -> None:
    """In blocks, as if it were a matrix."""
    t |= {f"{name}_codes": t.pop(name).to(torch.int8), f"{name}_scales": torch.ones(1).half()}


UP = "transformer.h.1.mlp.c_fc.weight"
FAULTS: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "no scales": (lambda t: t.pop(f"{UP}_scales"), f"{UP}_codes is stored without {UP}_scales"),
    "no codes": (lambda t: t.pop(f"{UP}_codes"), f"{UP}_scales is stored without {UP}_codes"),
    "nan": (lambda t: t[f"{UP}_scales"].__setitem__((0, 0), math.nan), f"{UP}_scales holds a scale"),
    "infinite": (lambda t: t[f"{UP}_scales"].__setitem__((0, 3), -math.inf), f"{UP}_scales holds a scale"),
    "a block less": (lambda t: t.update({f"{UP}_scales": t[f"{UP}_scales"][:, :-1]}), f"{UP}_scales"),
    "a column less": (lambda t: t.update({f"{UP}_codes": t[f"{UP}_codes"][:-1]}), f"{UP}_codes"),
    "one axis": (lambda t: t.update({f"{UP}_codes": t[f"{UP}_codes"].flatten()}), f"{UP}_codes"),
    "scales of float32": (lambda t: t.update({f"{UP}_scales": t[f"{UP}_scales"].float()}), f"{UP}_scales"),
    "codes of the other kind": (lambda t: t.update({f"{UP}_codes": t[f"{UP}_codes"].view(torch.uint8)}), f"{UP}_codes"),
    "both": (lambda t: t.update({UP: torch.zeros(32, 128)}), UP),
    "a bias": (lambda t: a_bias(t, "transformer.ln_f.bias"), "transformer.ln_f.bias"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_broken_folders(fault: str, folder: Path, tmp_path: Path) -> None:
    """Each in one line that names the tensor."""
    load(folder, quant="int8").save(tmp_path / "q")
    change, message = FAULTS[fault]
    with pytest.raises(CheckpointError) as caught:
        load(copied(tmp_path / "q", tmp_path / "broken", change))
    assert message in str(caught.value) and "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(("field", "value"), [("format", "int3"), ("format", None), ("block", 64), ("group", 1)])
def test_broken_settings(field: str, value: Any, folder: Path, tmp_path: Path) -> None:
    load(folder, quant="int8").save(tmp_path / "q")
    path = copied(
        tmp_path / "q", tmp_path / "broken", lambda _: None, lambda config: config["quantization_config"].__setitem__(field, value)
    )
    with pytest.raises(PellucidError, match=f"quantization_config.{field}") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_formats_confused_are_refused(folder: Path, tmp_path: Path) -> None:
    load(folder, quant="int4").save(tmp_path / "q")
    path = copied(
        tmp_path / "q", tmp_path / "broken", lambda _: None, lambda config: config["quantization_config"].__setitem__("format", "int8")
    )
    with pytest.raises(CheckpointError, match="_codes"):
        load(path)


# Commands


@pytest.mark.parametrize("form", FORMS)
def test_commands(form: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("The capital of France is Paris.")
    assert main(["run", "pellucid/capitals", "The capital of France is", "--quant", form]) == 0
    assert capsys.readouterr().out.strip().startswith("Paris")
    assert main(["explain", "The capital of France is", "--quant", form, "--cell", "layers.0.attn.q", "0,1,0,2"]) == 0
    assert "layers.0.attn.q" in capsys.readouterr().out
    scores = []
    for more in ([], ["--quant", form]):
        assert main(["score", "pellucid/capitals", str(tmp_path / "text"), "--json", *more]) == 0
        scores.append(json.loads(capsys.readouterr().out)["log_probability"])
    assert scores[0] != scores[1] and abs(scores[0] - scores[1]) < 1.0
    assert main(["run", "pellucid/capitals", "x", "--quant", "int3"]) == 2
    assert "int3" in (message := capsys.readouterr().err) and message.strip().count("\n") == 0


# Mutants


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("retie", None),
        ("both", lambda packed, pairs: [([s.codes for s in packed], [c for c, _ in pairs])]),  # scales are never read
        ("in_blocks", lambda path, shape: len(shape) > 1 and "attn.q" not in path),
    ],
)
def test_mutants(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A head that stays meta, scales left as memory had them, a matrix forgotten: each is seen."""
    if name == "retie":
        monkeypatch.setattr("pellucid.checkpoint.fill.retie", lambda model: None)
    else:
        monkeypatch.setattr(packing, name, wrong)
    if name == "both":
        monkeypatch.setattr(blocks, "allocate", lambda *a, **k: tuple(t.zero_() for t in ALLOCATE(*a, **k)))
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        test_every_family_in_blocks("gpt2", "plain", "int8", tmp_path)


ALLOCATE = blocks.allocate
