"""Every formula that is shown, read as it stands, gives the tensor beside it: no term is missing, no number is unnamed.

`formulas.py` reads the text and knows nothing of the ops; transformers gives the configs of all families and all their quirks. In the
quick form every cell of every tensor of one forward is compared, in the full one (PELLUCID_FULL=1) of three longer ones.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig

import formulas
import pellucid
import test_left_out
import test_low_rank
import test_orders
from formula_functions import UnresolvedError
from formulas import Run, evaluated
from kinds import CASES, KINDS
from pellucid import config as c
from pellucid.batch.mask import AlibiBias, Band
from pellucid.batch.step import Step
from pellucid.counting.weights import weights
from pellucid.documents import formula as texts
from pellucid.documents.formula import formula
from pellucid.documents.notation import notes, sentences
from pellucid.families import known, understand
from pellucid.ops.kinds import KINDS as OPS
from pellucid.watching.records import Seen
from pellucid.watching.watch import Watch, watch
from tiny import FAMILIES, GPT2, Mutant, far, swapped, tiny

FULL = bool(os.environ.get("PELLUCID_FULL"))
LENGTH, SEEDS = (37, (1, 2, 3)) if FULL else (19, (1,))
WITHIN = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "llama4": "llama4_text",
    "llava": "llama",
    "mistral3": "mistral",
    "kimi_k2": "deepseek_v3",
    "gpt-sw3": "gpt2",
}
WITHIN |= {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3"}
WITHIN |= {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "minicpm": "granite"}  # model types that are another's model
DISTANT = replace(GPT2, positions=None, layers=(replace(GPT2.layers[0], attn=c.Attention(4, 4, 8, distances=True)),) * 2)
MADE: dict[str, c.Config] = {**FAMILIES, **test_orders.SHAPES, **test_left_out.SHAPES, **test_low_rank.SHAPES, "distant": DISTANT}
SPECIMENS = ("capitals", "capitals-bert", "capitals-deepseek", "capitals-llama", "capitals-prefix", "capitals-t5", "reader")


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@cache
def read(family: str, quirk: str) -> c.Config:
    """Return the config of a case of the families' table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raw = AutoConfig.for_model(family, **KINDS[family].tiny | KINDS[family].quirks[quirk]).to_dict()
        return understand(raw)[1]


def weights_by_path(module: nn.Module) -> dict[str, tuple[Tensor, str]]:
    """Return every weight by its path, with its axes; a weight that no table has gets its row's letter."""
    of = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {w.path: (of[w.path], w.dims or "D") for w in weights(module)}


def runs(cfg: c.Config, seed: int = 1) -> list[tuple[Run, list[Seen]]]:
    """Run a random model over two texts. Returns its tensors and records by step."""
    model, draw = tiny(cfg), torch.Generator().manual_seed(seed)
    tokens = torch.randint(cfg.vocab, (2, LENGTH), generator=draw)
    source = torch.randint(cfg.vocab, (2, LENGTH - 4), generator=draw)
    types = torch.randint(cfg.types, tokens.shape, generator=draw) if cfg.types else None
    step = Step.plain(tokens)
    step.types = types
    given = (tokens, step) if cfg.encoder is None else (source, tokens)
    with watch(model, inside="reference") as seen:
        model(*given)
    return [(Run({s.path: s for s in seen}, weights_by_path(model), {"embed": tokens, "source": source}, types), list(seen))]


Text = Callable[[Seen, Mapping[str, str]], str]


def wrong(made: list[tuple[Run, list[Seen]]], text: Text = formula) -> dict[str, float]:
    """Return the gap of each record whose text gives another tensor, by its text; inf if it cannot be read."""
    gaps = {}
    for run, records in made:
        dims = {s.path: s.dims for s in records}
        for s in records:
            try:
                value = evaluated(run, s, text(s, dims))
                gap = 0.0 if s.dtype == torch.bool and torch.equal(value, s.value) else apart(value, s.value)
            except (UnresolvedError, KeyError, ValueError, RuntimeError, IndexError, StopIteration) as fault:
                gaps[f"{s.path} = {text(s, dims)}: {fault}"] = float("inf")
                continue
            if not gap < 1e-10:
                gaps[f"{s.path} = {text(s, dims)}"] = gap
    return gaps


def apart(a: Tensor, b: Tensor) -> float:
    """Return the largest difference; numbers that are both −∞ do not differ."""
    same = (a == b) & ~a.isfinite() if a.shape == b.shape else torch.zeros(())
    return far(a.double().masked_fill(same, 0), b.double().masked_fill(same, 0)) if a.shape == b.shape else float("inf")


# Every family, every quirk, every specimen


def test_all_model_types_are_here() -> None:
    assert {WITHIN.get(name, name) for name in known()} == {family for family, _ in CASES}


@pytest.mark.parametrize(("family", "quirk"), CASES)
@pytest.mark.quick(25)
def test_texts_give_their_tensors(family: str, quirk: str) -> None:
    for seed in SEEDS:
        made = runs(read(family, quirk), seed)
        assert len(made[0][1]) > 20 and not (gaps := wrong(made)), gaps


@pytest.mark.parametrize("name", MADE)
@pytest.mark.quick(5)
def test_texts_of_parts_that_no_family_has(name: str) -> None:
    assert not (gaps := wrong(runs(MADE[name]))), gaps


@pytest.mark.parametrize("name", SPECIMENS)
@pytest.mark.quick(4)
def test_texts_of_specimens(name: str) -> None:
    """It holds for the prompt and for two steps after it, whose keys lie in the cache."""
    model = pellucid.load(f"pellucid/{name}", dtype="float64")
    encodes = model.config.bidirectional
    prompt = "The capital of France is [MASK]." if encodes else "The capital of France is"
    trace = pellucid.trace(model, prompt, 1 if encodes else 3, inside="reference")
    assert not (gaps := wrong(steps(model, trace))), gaps


def steps(model: Any, trace: Any) -> list[tuple[Run, list[Seen]]]:
    """Return a trace step by step, each with the records of those before it."""
    out, kv_cache, before = list[tuple[Run, list[Seen]]](), dict[str, list[Seen]](), 0
    own = weights_by_path(model.module)
    has_encoder = model.config.encoder is not None
    fed = [model.config.starts] if has_encoder else trace.ids
    for n in range(trace.steps):
        records = [s for s in trace if s.step == n]
        by_path = {s.path: s for s in (*(r for _, seen in out for r in seen), *records)}
        given = {"embed": torch.tensor([fed]), "source": torch.tensor([trace.ids])}
        out.append((Run(by_path, own, given, None, {p: list(x) for p, x in kv_cache.items()}, before), records))
        for s in records:
            kv_cache.setdefault(s.path, []).append(s)
        before, fed = before + len(fed), trace.new[n : n + 1]
    return out


# Every sign that is no operand has its sentence


def unexplained(made: list[tuple[Run, list[Seen]]]) -> set[str]:
    """Return the signs of texts that no sentence explains."""
    signs = set()
    for run, records in made:
        dims = {s.path: s.dims for s in records}
        for s in records:
            legend = " ".join(sentences(notes(s, dims)))
            for sign in formulas.signs(run, s, formula(s, dims)):
                if sign not in legend:
                    signs.add(f"{sign} of {formula(s, dims)}")
    return signs


@pytest.mark.parametrize("name", MADE)
def test_signs_are_explained(name: str) -> None:
    assert not (signs := unexplained(runs(MADE[name]))), signs


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.quick(22)
def test_signs_of_families_are_explained(family: str) -> None:
    for quirk in KINDS[family].quirks:
        assert not (signs := unexplained(runs(read(family, quirk)))), signs


def test_an_unexplained_sign_mutant() -> None:
    from pellucid.documents import notation

    kept = {sign: sentence for sign, sentence in notation.SIGNS.items() if "mask" not in sign}
    with swapped(notation, "SIGNS", kept):
        assert unexplained(runs(FAMILIES["gpt2"]))


# Mutants: a text that lacks something, or a record that names another operand, is seen


def without_note(change: Callable[..., tuple[Any, ...]]) -> Mutant:
    """Return the mutant whose records have other operands: those that `change` returns."""
    right = Watch.made
    return Watch, "made", lambda self, storage, op, inputs, weights, *how: right(self, storage, *change(op, inputs, weights), *how)


def swapped_inputs(*ops: str) -> Mutant:
    return without_note(lambda op, inputs, weights: (op, inputs[::-1] if op in ops else inputs, weights))


def other(op: str, formula: Any) -> Mutant:
    """Return the mutant of an op whose kind has another formula."""
    kind = copy(OPS[op])
    object.__setattr__(kind, "formula", formula)
    return OPS, op, kind


ATTEND, GATE, NORM = (import_module(f"pellucid.ops.{name}") for name in ("attend", "gate", "norm"))

MUTANTS: dict[str, tuple[str, str, Mutant]] = {
    "a dropped ALiBi term": ("bloom", "plain", (AlibiBias, "settings", lambda self: {})),
    "ALiBi of another sign": ("bloom", "plain", (ATTEND, "by_distance", lambda m: " + m[h] · |t − s|")),
    "a dropped T5 bias": ("t5", "plain", (ATTEND, "by_distance", lambda m: "")),
    "a dropped bias": ("gpt2", "plain", (texts.RecordOperands, "bias", "")),
    "a bias that the record forgets": ("gpt2", "plain", without_note(lambda op, i, w: (op, i, w[:1]))),
    "a wrong scale": ("llama", "plain", (ATTEND, "scaling", lambda scale: " / √9" if scale != 1 else "")),
    "no scale": ("llama", "plain", (ATTEND, "scaling", lambda scale: "")),
    "no soft cap": ("gemma2", "plain", other("cap", lambda m: m.x)),
    "a weight that counts from 0": ("gemma", "plain", (NORM, "gain", lambda m: m.weights[0])),
    "heads that are normed alone": ("olmo2", "plain", other("joint rms", lambda m: f"{m.x} / rms({m.x}) · {m.weights[0]}")),
    "no mask": ("gpt2", "plain", (GATE, "unmasked", lambda m: m.inputs[0])),
    "a mask without its window": ("mistral", "plain", (Band, "conditions", lambda self: "s ≤ t")),
    "a fill that is not told": ("gpt2", "filled", (GATE, "unmasked", lambda m: f"{m.inputs[0]} + mask")),
    "forgotten sinks": ("gpt_oss", "plain", other("softmax", lambda m: f"softmax({m.inputs[0]} + mask)")),
    "swapped gate and up": ("llama", "plain", swapped_inputs("gate")),
    "swapped query and key": ("qwen3", "plain", swapped_inputs("scores")),
    "swapped affinity and choice": ("mixtral", "plain", swapped_inputs("share")),
    "an untold activation": ("llama", "plain", (GATE, "act_text", lambda m: f"relu({m.inputs[0]})")),
    "another part of a sum": ("deepseek_v3", "plain", (texts, "cut", lambda name, have, want: name + f"[:{have[0]}]" * (len(have) == 2))),
    "shares that are not normalised": ("glm4_moe", "plain", other("share", lambda m: f"{m.x}[{m.inputs[1]}]")),
    "no groups": ("deepseek_v3", "groups", other("top", lambda m: f"top({m.x}, {m.setting('chosen')})")),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.quick(5)
def test_mutant_is_seen(mutant: str) -> None:
    family, quirk, (owner, name, value) = MUTANTS[mutant]
    quirk = quirk if quirk in KINDS[family].quirks else "plain"
    with pytest.MonkeyPatch.context() as patch, nullcontext() if isinstance(owner, dict) else swapped(owner, name, value):
        if isinstance(owner, dict):
            patch.setitem(owner, name, value)
        gaps = wrong(runs(MADE["filled"] if mutant == "a fill that is not told" else read(family, quirk)))
    assert gaps and max(gaps.values()) > 1e-6
