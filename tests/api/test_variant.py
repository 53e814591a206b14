"""Variants: a model whose Config differs in named fields, over the same Parameters."""

import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from covering import FULL, PLAIN_COVER
from judge import judge, make
from pellucid import config as c
from pellucid.api import switching
from pellucid.api import variant as variants
from pellucid.api.model import Model, load
from pellucid.api.switching import CHOICES, Field, fields, general
from pellucid.api.variant import switches, variant
from pellucid.batch.step import Step
from pellucid.documents import part_settings
from pellucid.engine import generation
from pellucid.engine.engine import Engine
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import PellucidError, UseError
from tiny import far, swapped
from variant_models import NAMES, PROMPT, copies, inputs, plain


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


# The same weights


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick(10)
def test_an_unswitched_variant_is_the_model(name: str) -> None:
    """Bit for bit, over the same Parameters, with the model's name, config, tokenizer, files and settings."""
    model = plain(name)
    same = variant(model, {})
    assert same.module is not model.module and copies(same, model) == [] and same.own == ()
    assert torch.equal(same(*inputs(name, model)), model(*inputs(name, model)))
    assert (same.name, same.config, same.switches, repr(same)) == (model.name, model.config, {}, repr(model))
    assert same._tokenizer is model._tokenizer and same.files == model.files and same.generation == model.generation
    assert same.num_parameters() == model.num_parameters() and same.dtype == model.dtype


def test_a_weight_changed_in_place_is_changed_in_both() -> None:
    model = load("pellucid/capitals", dtype="float32")
    other = variant(model, {"layers.*.attn.scale": 1.0})
    before = other(*inputs("capitals", model))
    model.module.get_parameter("layers.0.ffn.up.weight").mul_(0.5)
    assert copies(other, model) == [] and far(other(*inputs("capitals", model)), before) > 1e-3
    with swapped(variants, "share", lambda module, model, given: copied(module, model)):
        assert copies(variant(model, {}), model)


def test_a_model_that_is_cast_casts_its_variants() -> None:
    """Weights are the same objects, so idle engines of a variant notice; the mutant takes one whose pages have the old dtype."""
    model = load("pellucid/capitals", dtype="float32")
    other = variant(model, {"layers.1.ffn.act": "relu"})
    assert other.generate(PROMPT, 2) == " Paris." and len(other.engines) == 1
    model.to(torch.float64)
    other.engines[0].made_for = None
    with swapped(generation, "dtype_and_device", lambda module: None), pytest.raises(RuntimeError):
        other.generate(PROMPT, 2)
    model.to(torch.float32)
    assert other.dtype == torch.float32 and other.generate(PROMPT, 2) == " Paris."
    model.to(torch.float64)
    assert other.dtype == torch.float64 and other.generate(PROMPT, 2) == " Paris." and len(other.engines) == 1


def copied(module: Any, model: Model) -> tuple[str, ...]:
    """The mutant: equal weights in memory of their own."""
    module.to_empty(device="cpu").load_state_dict(model.module.state_dict())
    return ()


# Every field of every family


def values(f: Field) -> list[Any]:
    """Return values to try for a field: all of its names, on and off, a number more, a number near."""
    own = getattr(f.owner, f.name)
    tried: list[Any] = [None, True, *([False] if bool in f.kinds else []), *CHOICES.get(f.name, ())]
    if type(own) is int or int in f.kinds:
        tried += [1, 2, (own or 0) + 1, 7]
    if float in f.kinds:
        tried += [0.5, 1, (own or 1.0) * 1.25]
    return [value for value in tried if value is not own and value != own]


def every(cfg: c.Config) -> Iterator[tuple[str, Field]]:
    """Yield the fields of a config by general paths, each once."""
    known = {f.path: f for f in fields(cfg)}
    yield from dict(zip(general(known), known.values(), strict=True)).items()


# Fields whose switches must run wherever a config has them, with the value that they are given.
RUN: dict[str, Callable[[Any], Any]] = {
    "scale": lambda own: 0.7, "theta": lambda own: 500.0, "window": lambda own: 3, "cap": lambda own: 2.0, "sinks": lambda own: False,
    "qk_norm": lambda own: False, "bias": lambda own: False, "causal": lambda own: not own, "positions": lambda own: None,
    "alibi": lambda own: True if own is None else None, "buckets": lambda own: None, "head_bias": lambda own: False,
    "chosen": lambda own: 1, "corrected": lambda own: False, "logit_cap": lambda own: 5.0, "eps": lambda own: 0.1,
    "logit_scale": lambda own: 0.5, "normalised": lambda own: not own, "interleaved": lambda own: not own, "final_norm": lambda own: False,
    "norm": lambda own: "none", "fill": lambda own: 0.0, "form": lambda own: "expanded",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NAMES if FULL or name in PLAIN_COVER])
@pytest.mark.quick(20)
def test_every_switch_runs_or_says_why_not(name: str) -> None:
    """Each field with each value: a variant of that Config whose forward runs, or one line. Those of RUN run, whatever the family.

    A third of the other values are tried, with PELLUCID_FULL=1 all.
    """
    model, given = plain(name), inputs(name, plain(name))
    refused, ran, draw = dict[str, str](), set[str](), random.Random(name)
    for path, f in every(model.config):
        tried = [value for value in values(f) if FULL or draw.random() < 1 / 3]
        for value in [*tried, *([RUN[f.name](getattr(f.owner, f.name))] if f.name in RUN else [])]:
            try:
                out = (other := variant(model, {path: value}))(*given)
            except PellucidError as error:
                refused[f"{path}={value}"] = str(error)
                continue
            except Exception as fault:
                raise AssertionError(f"{path}={value}") from fault
            wrong = copies(other, model) + ([] if bool(out.isfinite().all()) else ["output"])
            assert not wrong, f"{path}={value}: {wrong}"
            ran.add(f"{path}={value}")
        if f.name in RUN and (value := RUN[f.name](getattr(f.owner, f.name))) != getattr(f.owner, f.name):
            assert f"{path}={value}" in ran, refused[f"{path}={value}"]
    assert len(ran) > (25 if FULL else 12) and not any("\n" in line for line in refused.values())


@pytest.mark.parametrize(
    ("name", "switch", "value"),
    [
        ("capitals", "layers.*.attn.scale", 1.0), ("capitals", "layers.2.ffn.act", "relu"), ("capitals", "positions", None),
        ("capitals", "norm", "rms"), ("capitals", "layers.*.order", "post"), ("capitals", "layers.*.attn.window", 2),
        ("capitals", "layers.*.attn.alibi", True), ("capitals", "layers.*.attn.rope", True), ("capitals", "sinusoids", True),
        ("capitals-llama", "layers.0.attn.rope.theta", 100.0), ("capitals-llama", "layers.*.attn.rope", None),
        ("capitals-t5", "encoder.0.attn.causal", True), ("capitals-t5", "layers.*.attn.buckets", None),
        ("capitals-t5", "layers.*.cross", None), ("capitals-bert", "layers.*.attn.causal", True),
        ("capitals-deepseek", "layers.*.ffn.chosen", 1),
        ("capitals-deepseek", "layers.*.ffn.corrected", False), ("capitals-prefix", "prefix", False), ("marian", "head_bias", False),
        ("gpt_oss", "layers.*.attn.sinks", False), ("gemma2", "logit_cap", None), ("qwen3", "layers.*.attn.qk_norm", False),
    ],
)  # fmt: skip
@pytest.mark.quick(5)
def test_a_switch_is_not_ignored(name: str, switch: str, value: Any) -> None:
    """The Config says it, the name tells it, the output differs; the mutant that ignores it is the model itself."""
    model = plain(name)
    other = variant(model, {switch: value})
    given = inputs(name, model)
    assert f"{switch}={switching.written(value)}" in other.name and other.name in repr(other) and other.switches == {switch: value}
    assert far(other(*given), model(*given)) > 1e-3
    with swapped(variants, "switched", lambda cfg, given: (cfg, dict(given))):
        assert far(variant(model, {switch: value})(*given), model(*given)) == 0.0


def test_scale_written_out() -> None:
    """Scores are q · k and no more: against the softmax by hand, in float64; the mutant keeps 1/√K."""
    model = load("pellucid/capitals", dtype="float64")

    def gap(other: Model) -> float:
        with pellucid.watch(other) as seen:
            other(*inputs("capitals", model))
        q, k, v, z = (seen[f"layers.1.attn.{n}"].value for n in "qkvz")
        scores = torch.einsum("bthk,bshk->bhts", q, k)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return far(z, torch.einsum("bhts,bshk->bthk", scores.masked_fill(hidden, -torch.inf).softmax(-1), v))

    assert gap(variant(model, {"layers.*.attn.scale": 1.0})) < 1e-10 < 1e-3 < gap(model)


def test_a_variant_of_a_variant_tells_both() -> None:
    model = plain()
    one = variant(model, {"layers.*.attn.scale": 1.0, "norm": "rms"})
    two = variant(one, {"norm": "layer, no bias", "positions": None})
    assert two.name == "pellucid/capitals with layers.*.attn.scale=1, norm=layer, no bias, positions=none"
    assert two.switches == {"layers.*.attn.scale": 1.0, "norm": "layer, no bias", "positions": None} and copies(two, model) == []
    with pytest.raises(UseError, match=r"layers\.0\.attn_norm\.bias"):
        variant(one, {"norm": "layer"})  # its weights were left with the first


# What is told


def test_traces_and_documents_tell_what_differs(tmp_path: Path) -> None:
    other = variant(plain(), {"layers.*.attn.scale": 1.0})
    trace = pellucid.trace(other, PROMPT)
    assert trace.model == other.name
    trace.save(tmp_path / "trace")
    assert pellucid.load_trace(tmp_path / "trace").model == other.name
    filled = variant(plain(), {"layers.*.attn.fill": 0.0}).module
    tables = [part_settings.mask(m.layers[0].attn, Step.plain(torch.zeros(1, 0).long())) for m in (filled, other.module)]
    assert [table["fill"] for table in tables] == [0.0, None]
    other.save_html(tmp_path / "run.html")
    assert "layers.*.attn.scale=1" in (tmp_path / "run.html").read_text(encoding="utf-8")


def test_a_variant_is_not_saved(tmp_path: Path) -> None:
    other = variant(plain(), {"norm": "rms"})
    for refused in (lambda: other.save(tmp_path / "m"), other.tensors):
        with pytest.raises(UseError, match="norm=rms"):
            refused()
    assert not (tmp_path / "m").exists()
    variant(plain(), {}).save(tmp_path / "m")


def test_a_variant_generates() -> None:
    """Its decode steps, cached and by plans, are its own full forwards."""
    for given in ({"layers.*.attn.scale": 1.0, "layers.1.ffn.act": "relu"}, {"norm": "none"}, {"layers.0.order": "bare"}):
        other = variant(plain(), given)
        row = other.tokenizer.encode(PROMPT)
        new = other.generate(row, 6, eos=None)
        assert new == other.generate(row, 6, eos=None, deterministic=True)
        for i, token in enumerate(new):
            assert int(other(torch.tensor([[*row, *new[:i]]]))[0, -1].argmax()) == token
    assert variant(plain(), {"layers.*.attn.fill": 0.0}).generate(PROMPT, 2) == " Paris."


def test_a_variant_that_sees_later_tokens_reads_prompts_at_once() -> None:
    """Of a layer behind the first, too: in chunks its rows would see no token of a later one."""
    other = variant(plain(), {"layers.1.attn.causal": False})
    request = other.requests([other.tokenizer.encode(PROMPT)], 3, logprobs=0)[0]
    texts = list[list[tuple[int, float]]]()
    for rows in (2, 64):
        engine = Engine.of(other.module, 256, SchedulerLimits(rows=rows, running=4, waiting=4))
        engine.submit(replace(request, logprobs=0))
        texts.append([(out.token.id, out.token.logprob) for out in engine.outputs() if out.token is not None])
    assert texts[0] == texts[1]


def test_an_order_that_no_folder_of_the_family_has() -> None:
    falcon = pellucid.load(make("falcon", "one after the other").folder)
    other = variant(falcon, {"layers.*.order": "post"})
    assert list(pellucid.trace(other, [5, 6, 7], 1).new) == other.generate([5, 6, 7], 1, eos=None)


# Texts, and what is refused


def test_texts_are_read_by_the_type_of_their_field() -> None:
    texts = ["layers.*.attn.scale=1", "norm = rms", "layers.0.attn.window=3", "positions=none", "layers.1.attn.alibi=on", "tied=off"]
    given = switches(texts)
    assert given["norm"] == "rms" and all(type(value) is str for value in given.values())
    read_values = variant(plain(), given).switches
    assert read_values == {
        "layers.*.attn.scale": 1.0, "norm": "rms", "layers.0.attn.window": 3, "positions": None, "layers.1.attn.alibi": True, "tied": False,
    }  # fmt: skip
    assert type(read_values["layers.*.attn.scale"]) is float and type(read_values["layers.0.attn.window"]) is int
    assert variant(plain(), given).config == variant(plain(), read_values).config
    for wrong in ("norm", "=3", "norm=", ""):
        with pytest.raises(UseError, match="NAME=VALUE"):
            switches([wrong])


def test_a_spec_of_python_is_taken_whole() -> None:
    other = variant(plain("capitals-llama"), {"layers.*.attn.rope": c.Rope(8, 300.0)})
    assert {layer.attn.rope for layer in other.config.layers} == {c.Rope(8, 300.0)}
    with pytest.raises(UseError, match=r"rope\.theta"):
        variant(plain("capitals-llama"), {"layers.*.attn.rope": c.Rope(8, -1.0)})


REFUSED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "a misspelt field": ("capitals", {"layers.*.attn.scle": 1.0}, ("layers.*.attn.scle", "layers.*.attn.scale")),
    "no such layer": ("capitals", {"layers.4.attn.scale": 1.0}, ("layers.4.attn.scale", "layers.0.attn.scale")),
    "a field of a spec that is absent": ("capitals", {"layers.*.attn.rope.theta": 1.0}, ("layers.*.attn.rope.theta",)),
    "a part that is never off": ("capitals", {"layers.*.attn": True}, ("layers.0.attn", "pellucid.config.Attention")),
    "one of several scalings": ("capitals-llama", {"layers.*.attn.rope.scaling": "on"}, ("rope.scaling", "pellucid.config.Yarn")),
    "a stack": ("capitals", {"layers": ()}, ("layers",)),
    "how it is used": ("capitals", {"context": 3}, ("context",)),
    "a text for a number": ("capitals", {"layers.*.attn.scale": "big"}, ("layers.0.attn.scale", "big", "float")),
    "not finite": ("capitals", {"layers.*.attn.scale": float("nan")}, ("layers.0.attn.scale", "nan", "float")),
    "a number for a name": ("capitals", {"norm": 3}, ("norm", "3", "layer, no bias")),
    "a number for on and off": ("capitals", {"tied": 1}, ("tied", "on; off")),
    "a base without a logarithm": ("mistral4", {"layers.*.attn.rope.theta": 1}, ("layers.0.attn.rope.theta", "not 1")),
    "a window of nothing": ("capitals", {"layers.*.attn.window": 0}, ("layers.0.attn.window", "1 … ")),
    "a cap of 0": ("capitals", {"layers.*.attn.cap": 0.0}, ("layers.0.attn.cap", "float > 0")),
    "a list": ("capitals", {"layers.*.attn.scale": [1.0]}, ("layers.0.attn.scale", "float")),
    "more heads than rows": ("capitals", {"layers.*.attn.heads": 8}, ("layers.0.attn.q.weight", "(256, 128)", "(128, 128)")),
    "groups that do not divide": ("capitals", {"layers.*.attn.kv_heads": 3}, ("layers.0.attn.kv_heads", "3", "1, 2, 4")),
    "a weight that is lacking": ("capitals", {"layers.1.attn.qk_norm": True}, ("layers.1.attn.q_norm.weight", "pellucid/capitals")),
    "another shape": ("capitals", {"positions": 12}, ("positions.weight", "(12, 128)", "(64, 128)")),
    "a spec that needs numbers": ("capitals", {"layers.*.attn.buckets": True}, ("layers.0.attn.buckets", "pellucid.config.Buckets")),
    "half a pair": ("capitals-llama", {"layers.*.attn.rope.width": 7}, ("layers.0.attn.rope", "7", "2, 4 … ")),
    "wider than a head": ("capitals-llama", {"layers.*.attn.rope": c.Rope(512)}, ("layers.0.attn.rope", "512")),
    "more than all experts": ("capitals-deepseek", {"layers.*.ffn.chosen": 1000}, ("ffn.chosen", "1000")),
    "groups of experts": ("capitals-deepseek", {"layers.*.ffn.groups": 3}, ("ffn.groups", "3")),
    "cross attention in parallel": ("capitals-t5", {"layers.*.order": "parallel"}, ("layers.0.order", "parallel", "sandwich")),
    "a pair's activation alone": ("capitals", {"layers.*.ffn.act": "clamped"}, ("layers.0.ffn.act", "clamped", "relu")),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cannot_be_is_one_line(fault: str) -> None:
    name, given, words = REFUSED[fault]
    with pytest.raises(PellucidError) as caught:
        variant(plain(name), given)
    assert "\n" not in str(caught.value) and all(word in str(caught.value) for word in words), str(caught.value)


def test_adapters_are_put_off_first() -> None:
    model = load("pellucid/capitals", device="meta")
    model.adapters = {"default": None}  # type: ignore[dict-item]
    with pytest.raises(UseError, match="default"):
        variant(model, {})


def test_shapes_alone_have_variants() -> None:
    """A model on meta: nothing but shapes, and the refusals are the same."""
    model = load("pellucid/capitals", device="meta")
    assert variant(model, {"layers.*.attn.kv_heads": 1})(*inputs("capitals", plain())[:1]).is_meta
    with pytest.raises(UseError, match=r"q_norm"):
        variant(model, {"layers.*.attn.qk_norm": True})


# The signature


def test_public_functions_name_their_settings() -> None:
    assert list(inspect.signature(pellucid.variant).parameters) == ["model", "switches"]
    with pytest.raises(UseError, match="switches"):
        pellucid.variant(plain(), switchs={})  # type: ignore[call-arg]


def keys_of_others() -> Model:
    """Return a tiny model whose last layers read the keys of earlier ones."""
    return load(judge("gemma4_text", "as E2B").folder, dtype="float64")


def test_layers_that_share_keys_stay_of_one_kind() -> None:
    """Switches of one layer alone: what its keys cannot serve is refused in a line, and what acts on keys is no switch of queries."""
    model, ids, ran, lines = keys_of_others(), torch.arange(5, 14)[None], 0, list[str]()
    switches = {"window": 3, "chunk": 2, "width": 4, "kv_heads": 2, "causal": False, "gated": True, "gated_heads": True, "cap": 2.0}
    for n in range(len(model.config.layers)):
        for name, value in switches.items():
            try:
                ran += bool(variant(model, {f"layers.{n}.attn.{name}": value})(ids).isfinite().all())
            except UseError as error:
                lines.append(str(error))
    assert ran > 10 and len(lines) > 10 and not any("\n" in line for line in lines)
    with pytest.raises(UseError, match=r"layers\.5\.attn has queries alone .* \(window 3"):
        variant(model, {"layers.5.attn.window": 3})
    with pytest.raises(UseError, match=r"layers\.5\.attn\.v_rms"):
        variant(model, {"layers.5.attn.v_rms": False})


def test_keys_of_another_kind_are_found() -> None:
    with swapped(switching, "check_shared_keys", lambda cfg: None), pytest.raises((KeyError, RuntimeError)):
        variant(keys_of_others(), {"layers.5.attn.window": 3})(torch.arange(5, 14)[None])
