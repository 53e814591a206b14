"""All families in many configurations equal transformers in float64; in lesser dtypes the error is at most twice its own."""

import importlib
import re
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covering import PLAIN_COVER
from judge import CASES, FAMILIES, KINDS, SEQ2SEQ, Judge, judge, make, ours, prompts, run, theirs
from kinds import DEEP_YARN
from pellucid import config as c
from pellucid.batch.step import Step
from pellucid.families import understand
from pellucid.families.modules import first_difference, pairs, recorded
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.tracing import watch

EXACT = 1e-9
Module = Decoder | EncoderDecoder


@pytest.fixture(autouse=True)
def _plainly() -> Any:
    with torch.no_grad():
        yield


def gap(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of two sets of logits."""
    assert a.shape == b.shape
    return (a - b).abs().max().item()


def given(j: Judge) -> tuple[Tensor, ...]:
    """Return prompts longer than every window, original context, and bucket of the case."""
    return prompts(j.family, 150 if j.quirk == "far" else 37)


@pytest.mark.parametrize(("family", "quirk"), CASES, ids=lambda x: str(x).replace(" ", "-"))
@pytest.mark.quick(7)
def test_equal_in_float64(family: str, quirk: str) -> None:
    j = judge(family, quirk)
    ids, (_, model) = given(j), ours(j.folder)
    logits = model(*ids)
    assert logits.dtype is torch.float64
    error = gap(logits, j.logits(*ids))
    assert error < EXACT
    if not model.config.heads:  # no layer attends
        return
    with watch(model, only="*.pattern") as seen:
        model(*ids)
    for s in seen:
        even = 1.0 / (s.value > 0).sum(-1).clamp(min=1)
        assert (s.value.amax(-1) - even).mean() > 0.15, f"{s.path}: attention is nearly uniform, so this case proves little"


@pytest.mark.parametrize("family", PLAIN_COVER)
@pytest.mark.quick(5)
def test_equal_where_rows_are_padded(family: str) -> None:
    j = judge(family)
    ids, (_, model) = given(j), ours(j.folder)
    padding = torch.ones_like(ids[0])
    padding[0, 29:] = 0
    padding[1, : 0 if family in SEQ2SEQ else 5] = 0  # T5's buckets know no padding before
    step = Step.plain(ids[0], padding)
    if family in SEQ2SEQ:
        a, b = model(*ids, None, step), j.logits(*ids, attention_mask=padding)
    else:
        rows = step.position_ids + KINDS[family].first_row
        a, b = model(*ids, step), j.logits(*ids, attention_mask=padding, position_ids=rows)
        a, b = a[padding.bool()], b[padding.bool()]
    error, blind = gap(a, b), gap(model(*ids)[padding.bool()] if family not in SEQ2SEQ else model(*ids), b)
    assert error < EXACT
    assert blind > 1e-3, "without the mask it would be the same"


@pytest.mark.parametrize("family", [f for f in PLAIN_COVER if f != "xglm"])  # whose least score of float64 is written as a float32
@pytest.mark.quick(5)
def test_the_islands_of_float32_are_seen(family: str) -> None:
    """Without promotion transformers itself is off by float32's rounding, so the bound would notice one cast."""
    j = make(family, promote=False)
    ids = given(j)
    error = gap(ours(j.folder)[1](*ids), j.logits(*ids))
    assert EXACT * 10 * KINDS[family].islands <= error < 1e-3


CHANGES = [(f, q, change) for f, kind in KINDS.items() for q, change in kind.changes]


@pytest.mark.parametrize(("family", "quirk", "change"), CHANGES, ids=lambda x: "-".join(x) if isinstance(x, dict) else None)
@pytest.mark.quick(11)
def test_another_config_differs(family: str, quirk: str, change: dict[str, Any]) -> None:
    j = judge(family, quirk)
    ids = given(j)
    error = gap(ours(j.folder, config=j.config | change)[1](*ids), j.logits(*ids))
    assert error > 10 * EXACT


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(17)
def test_every_parameter_matters(family: str) -> None:
    """Each parameter and saved buffer, disturbed alone, changes the logits."""
    j = judge(family)
    ids, (_, model) = given(j), ours(j.folder)
    truth = j.logits(*ids)
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        before = p.clone()
        small = isinstance(p, nn.Parameter) and re.fullmatch(KINDS[family].chooses, name) is None
        p += torch.linspace(-1, 1, p.numel(), dtype=p.dtype).view_as(p) * (1e-3 if small else 1.0)
        # a bias of all keys adds the same to every score of a query, so without rotary positions it has no effect
        silent = re.fullmatch(KINDS[family].silent, name) is not None
        error = gap(model(*ids), truth)
        assert (error > 10 * EXACT) is not silent, name
        p.copy_(before)
    error = gap(model(*ids), truth)
    assert error < EXACT


# Lesser dtypes: the error's root mean square over several prompts, beside transformers' own. A router near a tie may send a token elsewhere
# in one of the two, which is chance; pooling evens it out. 9 rows run through the native kernels where they are built, 74 through torch.

FLOOR = {torch.float32: 1e-7, torch.bfloat16: 1e-4}  # of the logits' root mean square
RATIO = [(f, q) for f, kind in KINDS.items() if f in PLAIN_COVER for q in kind.dtypes]


SHAPES = [(2, 37)] * 4 + [(1, 9)] * 2


def errors(j: Judge, model: Module, other: nn.Module, shapes: Iterable[tuple[int, int]] = SHAPES) -> tuple[float, float, float]:
    """Return the root mean squares of Pellucid's error, of transformers' error, and of the logits."""
    sums = torch.zeros(3, dtype=torch.float64)
    for seed, (batch, length) in enumerate(shapes):
        ids = prompts(j.family, length, batch, seed)
        truth = j.logits(*ids)
        sums += torch.stack([x.double().pow(2).sum() for x in (model(*ids) - truth, run(other, *ids) - truth, truth)])
    a, b, scale = sums.sqrt().tolist()
    return a, b, scale


@pytest.mark.parametrize("dtype", FLOOR, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize(("family", "quirk"), RATIO)
@pytest.mark.quick(23)
def test_no_worse_than_twice_transformers_error(family: str, quirk: str, dtype: torch.dtype) -> None:
    j = judge(family, quirk)
    model = ours(j.folder, dtype)[1]
    assert {p.dtype for p in model.parameters()} == {dtype}
    a, b, scale = errors(j, model, theirs(j, dtype))
    assert a <= 2 * b + FLOOR[dtype] * scale, f"{a / scale:.1e} of the logits, transformers {b / scale:.1e}"


def test_the_ratio_sees_a_narrow_angle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Angles in bfloat16, which `wide` prevents, exceed the bound: 0.3 · 400 radians rounded to 8 bits are off by a fifth of a radian."""
    j = judge("llama", "llama3")
    model, other = ours(j.folder, torch.bfloat16)[1], theirs(j, torch.bfloat16)
    a, b, _ = errors(j, model, other, [(1, 400)])
    assert a <= 2 * b
    monkeypatch.setattr(importlib.import_module("pellucid.ops.rotate"), "wide", lambda dtype: dtype)
    a, b, _ = errors(j, model, other, [(1, 400)])
    assert a > 2 * b


def test_kimi_k2_is_deepseek_v3_by_another_name() -> None:
    """Kimi K2, unknown to transformers, is DeepSeek-V3 with one group and a YaRN whose two turns are one."""
    turns = DEEP_YARN | {"factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0}
    j = make("deepseek_v3", "one group", rope_parameters=turns)
    kind, model = ours(j.folder, config=j.config | {"model_type": "kimi_k2"})
    assert kind.name == "kimi_k2" and kind.architecture == "DeepseekV3ForCausalLM"
    ids = given(j)
    assert gap(model(*ids), j.logits(*ids)) < EXACT


# The first tensor that differs


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(27)
def test_the_first_difference_is_named(family: str) -> None:
    """The part of any disturbed weight is named; a weight that is read but not called is named by the part that uses it."""
    j = judge(family)
    (kind, model), ids = ours(j.folder), prompts(family, 12)
    table = pairs(kind, model, j.hf)
    selective = any(isinstance(mixer, c.Mamba1) for layer in model.config.layers for mixer in layer.mixers)  # dt_in's weight is read there
    with recorded(j.hf, [p.theirs for p in table]) as right:
        j.logits(*ids)

    def compare() -> tuple[str, str] | None:
        with recorded(model, [p.ours for p in table]) as mine:
            model(*ids)
        called.update(path for path in mine if not (selective and path.endswith(".dt_in")))
        difference = first_difference(table, mine, right, EXACT)
        return difference and (difference.path, difference.side)

    called: set[str] = set()
    assert compare() is None
    biased = model.config.encoder is not None and model.config.head_bias
    missed = {"embed": model.config.embed_scale != 1.0, "head": biased}  # it scales, it adds its bias, within another module
    assert {"embed", "head"} <= called | {path for path, other in missed.items() if other}
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        if name.startswith(("layers.0", "encoder.layers.0.ffn", "encoder.layers.1", "decoder.layers.1")) or name.endswith(".eps"):
            continue  # the others are enough; xIELU's eps acts within 1e-6 of 0 alone
        before = p.clone()
        p += 0.5 * torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(0))
        difference, path = compare(), name.rpartition(".")[0]
        p.copy_(before)
        part = path if path.endswith((".attn", ".conv", ".delta", ".mamba", ".ffn")) else path.rpartition(".")[0]
        if path in called and path != part and (family not in SEQ2SEQ or path != "embed"):  # there two stacks hold it
            assert difference == (path, "output"), name
        else:
            firsts = {(f"{side}layers.0.{at}", "input") for side in ("", "encoder.") for at in ("attn_norm", "attn.q")}
            firsts |= {("encoder.embed_norm", "input")}
            firsts |= set() if part in called else {(part.rpartition(".")[0], "output")}  # transformers has no module of this part
            assert difference in {
                (part, "output"),
                (f"{part}.o", "input"),
                (f"{part}.down", "input"),
                (f"{part}.norm", "input"),
                (f"{part}.dt_low", "input"),
                *firsts,
            }, name


def test_pairs_of_modules() -> None:
    j = judge("gpt2")
    model = ours(j.folder)[1]
    table = {p.ours: p for p in pairs(understand(j.config)[0], model, j.hf)}
    assert (table["layers.1.attn.k"].theirs, table["layers.1.attn.k"].cut) == ("transformer.h.1.attn.c_attn", tuple(range(32, 64)))
    assert table["layers.1.ffn"].theirs == "transformer.h.1.mlp"
    assert table["layers.1"].theirs == "transformer.h.1"
    assert table[""].theirs == ""
    bare = {p.ours: p.theirs for p in pairs(understand(j.config)[0], model, j.hf.transformer)}  # whose modules have no prefix
    assert (bare["layers.1.attn.k"], bare["layers.1.ffn"], bare["norm"]) == ("h.1.attn.c_attn", "h.1.mlp", "ln_f")
    mixed = judge("mixtral")  # whose experts have another name in memory than on disk
    table = {p.ours: p for p in pairs(understand(mixed.config)[0], ours(mixed.folder)[1], mixed.hf)}
    assert (table["layers.1.ffn.router"].theirs, table["layers.1.ffn"].theirs) == ("model.layers.1.mlp.gate", "model.layers.1.mlp")
    table = {p.ours: p for p in pairs(understand(judge("t5").config)[0], ours(judge("t5").folder)[1], judge("t5").hf)}
    assert table["decoder.layers.2"].theirs == "decoder.block.2"
    assert table["decoder.layers.2.cross"].theirs == "decoder.block.2.layer.1.EncDecAttention"
    assert table["encoder"].theirs == "encoder"
