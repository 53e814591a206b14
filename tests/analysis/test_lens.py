"""The logit lens and direct attribution, in float64, over every order of norms: what is read off is what the model computes."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.analysis.attribution import attribution
from pellucid.analysis.lens import lens
from pellucid.analysis.walk_back import Walk
from pellucid.api.model import Model
from pellucid.documents.formula import formula
from pellucid.errors import UseError
from pellucid.ops.kinds import KINDS as OPS
from pellucid.tracing import Trace
from recorded_models import HEARS, IDS, KINDS, lived
from tiny import LLAMA, swapped, tiny


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_block_says_what_the_model_says(kind: str) -> None:
    model, recorded = lived(KINDS[kind])
    result = lens(model, recorded, 0, -1)
    assert len(result) == 1 + len(model.config.layers) and all(p.startswith("decoder." * (kind == "t5") + "layers.") for p, _ in result[1:])
    assert float((result[-1][1] - recorded["logits"].value[0, -1]).abs().max()) < 1e-12
    assert all(float((x - result[-1][1]).abs().max()) > 1e-3 for _, x in result[:-1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_cut_after_a_block_says_what_the_lens_says(kind: str) -> None:
    """The judge: the same weights in a model of fewer blocks."""
    model, recorded = lived(KINDS[kind])
    cfg = replace(model.config, layers=model.config.layers[:1])
    short, rest = tiny(cfg), model.module.state_dict()
    short.load_state_dict({name: rest[name] for name in short.state_dict()})
    cut = pellucid.trace(Model("short", short, None, {}, None), IDS, 1)  # type: ignore[arg-type]
    row = len(recorded["logits"].value[0]) - 1
    _, result = lens(model, recorded, 0, row)[1]
    assert float((result - cut["logits"].value[0, row]).abs().max()) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_has_a_formula_where_the_model_is_not_at_hand(kind: str) -> None:
    """With all operands its op's own; with some of them, as a damaged file may have it, still a line."""
    _, recorded = lived(KINDS[kind])
    dims = {s.path: s.dims for s in recorded}
    for s in recorded:
        own = formula(s, dims)
        assert own and "None" not in own and OPS[s.op or ""].formula is not None
        for inputs, weights in ((s.inputs[:-1], s.weights), (s.inputs, s.weights[:-1]), (s.inputs[:1], s.weights[-1:]), ((), ())):
            assert isinstance(formula(replace(s, inputs=inputs, weights=weights), dims), str)


def test_a_model_without_a_head_has_no_lens() -> None:
    model, recorded = lived(replace(KINDS["fills"], head=False, transform=None, head_bias=False))
    with pytest.raises(UseError):
        lens(model, recorded)
    with pytest.raises(UseError):
        attribution(model, recorded, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_recorded_in_part_is_read_as_far_as_it_goes(kind: str) -> None:
    """The same numbers of the blocks whose output is there, none taken from other tensors, and a line where there are none."""
    model, recorded = lived(KINDS[kind])
    complete = dict(lens(model, recorded))
    names = [p for p in complete if "layers." in p]
    part = Trace("tiny", seen=[s for s in recorded if s.path in (names[1], "layers.0.attn", "decoder.layers.0.attn", "logits")])
    ((path, logits),) = lens(model, part)
    assert path == names[1] and float((logits - complete[path]).abs().max()) < 1e-12
    other = Trace("tiny", seen=[s for s in recorded if ".attn" in s.path or s.path == "logits"])
    for f in (lambda: lens(model, other), lambda: attribution(model, other, 7)):
        with pytest.raises(UseError) as caught:
            f()
        assert caught.value.key == "lens.missing"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", [0, -1])
def test_all_that_was_added_is_the_logit(kind: str, row: int) -> None:
    model, recorded = lived(KINDS[kind])
    if kind == "t5":
        row = -1  # its decoder has read one token
    result = attribution(model, recorded, 7, 0, row)
    capped = model.config.logit_cap
    assert result.path == ("logits" if capped is None else "uncapped")
    assert result.value == float(recorded[result.path].value[0, row, 7])
    assert result.total == pytest.approx(result.value, abs=1e-11)
    layers = model.config.layers
    heads = sum(one.attn.heads + (one.cross.heads if one.cross else 0) for one in layers)
    assert ("gate" in result.constant) == (kind == "fills")  # an activation stands before its head
    assert len(result.parts) == heads + len(layers)
    assert sum(s.head is None for s in result.parts) == len(layers)


def direction(model: Model, recorded: Trace, id: int) -> Tensor:
    """What one more of each channel of the last residual stream adds to a logit: autograd with the norm's scale held."""
    x = recorded[sys.modules["pellucid.analysis.lens"].stream(model.module, list(recorded))[-1].path].value[0, -1].clone().requires_grad_()
    norm = model.module.norm
    centred = x - x.mean() if norm.centred else x
    scale = (centred.pow(2).mean() + norm.eps).rsqrt().detach()
    y = centred * scale * norm.gain() + (norm.bias if hasattr(norm, "bias") else 0.0)
    (g,) = torch.autograd.grad((model.module.head.dense_weight() @ y)[id], x)
    return g.detach()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3", "deepseek_v3", "gpt_oss", "qwen2_moe"])
def test_a_head_added_what_its_columns_make_of_it(kind: str) -> None:
    """The judge: a head's z alone through W_o, and the gradient of the logit with the scale held."""
    model, recorded = lived(KINDS[kind])
    g = direction(model, recorded, 7)
    result = {(s.path, s.head): s.value for s in attribution(model, recorded, 7).parts}
    for i in range(len(model.config.layers)):
        z = recorded[f"layers.{i}.attn.z"].value[0, -1]
        out = model.module.layers[i].attn.o.dense_weight()
        for h in range(z.shape[0]):
            alone = torch.zeros_like(z)
            alone[h] = z[h]
            assert result[f"layers.{i}.attn", h] == pytest.approx(float(g @ (out.detach() @ alone.flatten())), abs=1e-12)
        assert result[f"layers.{i}.ffn", None] == pytest.approx(float(g @ recorded[f"layers.{i}.ffn"].value[0, -1]), abs=1e-12)


MUTANTS = {
    "a norm that is not gone through": ("gpt2", Walk, "norm", lambda self, s, rows, g: self.end(s, rows, g, False)),
    "a scale that is lost": ("sandwich", torch, "rsqrt", torch.sqrt),
    "a sum of which one side counts": ("llama", Walk, "sum", lambda self, s, rows, g: self.back(self.inputs(s)[0], rows, g)),
    "a factor that is forgotten": ("t5", Walk, "factor", lambda self, s, rows, g: self.back(self.inputs(s)[0], rows, g)),
    "a bias that is forgotten": ("parallel", Walk, "bias", lambda self, path, bias, g: None),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_walk_that_errs_does_not_add_up(mutant: str) -> None:
    kind, owner, name, stand_in = MUTANTS[mutant]
    model, recorded = lived(KINDS[kind])
    with swapped(owner, name, stand_in):
        result = attribution(model, recorded, 7)
    complete = len(result.parts) == len(attribution(model, recorded, 7).parts)
    assert not complete or abs(result.total - result.value) > 1e-3


def test_an_edit_is_taken_as_it_is() -> None:
    """An edited sum is an end: what lies before it did not make it."""

    def change(x: Tensor) -> Tensor:
        return x * 0.5

    model, recorded = lived(LLAMA, edit={"layers.0.out": change})
    result = attribution(model, recorded, 7)
    assert result.total == pytest.approx(result.value, abs=1e-11)
    assert [s.path for s in result.rest] == ["layers.0.out"] and {s.path for s in result.parts} == {"layers.1.attn", "layers.1.ffn"}


def test_edited_logits_have_no_parts() -> None:
    model, recorded = lived(LLAMA, edit={"logits": lambda x: x + 1.0})
    result = attribution(model, recorded, 7)
    assert (result.parts, result.total) == ([], result.value) and [s.path for s in result.rest] == ["logits"]


def test_what_crosses_from_a_source_comes_by_heads() -> None:
    model, recorded = lived(HEARS)
    result = attribution(model, recorded, 7)
    assert {(s.path, s.head) for s in result.parts if ".cross" in s.path} == {
        (f"decoder.layers.{i}.cross", h) for i in range(3) for h in range(4)
    }
