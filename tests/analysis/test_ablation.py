"""Ablation and patching: a part set to 0 is the part whose last weights are 0, and rows put in from another run go on as in that run."""

import re
import sys
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from pellucid.watching.records import Seen
from pellucid.watching.watch import Watch, watch
from tiny import FAMILIES, far, inputs, law, tiny

HERE = sys.modules[__name__]
PART = re.compile(r"(.*\.)?layers\.\d+\.(attn|cross|ffn)")
LAST = re.compile(r"(shared\.)?(o|down)(_bias|\.weight|\.bias)?")  # of a part: what writes to the residual
change = Watch.change


def parts(model: Any) -> list[str]:
    """The path of every attention, cross attention and feed-forward part."""
    return [path for path, _ in model.named_modules() if PART.fullmatch(path)]


def silenced(model: Any, at: list[str]) -> dict[str, Tensor]:
    """Zeros for the last weights and biases of these parts."""
    split = {name: PART.match(name) for name, _ in model.named_parameters()}
    by_part = {name: m[0] for name, m in split.items() if m and LAST.fullmatch(name[m.end() + 1 :])}
    return {name: torch.zeros_like(model.get_parameter(name)) for name, part in by_part.items() if part in at}


def lost(self: Watch, x: Tensor, *rest: Any) -> None:
    """An edit that is recorded and not put back."""
    change(self, x, *rest)


def halfway(self: Watch, x: Tensor, *rest: Any) -> tuple[Any, Tensor] | None:
    """An edit of which the forward sees half."""
    changed = change(self, x, *rest)
    return None if changed is None else (changed[0], (changed[1] + (x[changed[0]] if changed[0] else x)) / 2)


@law(
    0.0,
    lost=(Watch, "change", lost),
    halfway=(Watch, "change", halfway),
    biases_stay=(HERE, "LAST", re.compile(r"(shared\.)?(o|down)(\.weight)?")),
    shared_stays=(HERE, "LAST", re.compile(r"(o|down)(_bias|\.weight|\.bias)?")),
)
def test_25_a_part_at_0_is_its_last_weights_at_0() -> float:
    """Bit for bit, each part alone and all of a kind at once; experts, the shared one and their biases too."""
    gaps = []
    for f in FAMILIES:
        model, args = tiny(f), inputs(f)
        every = parts(model)
        kinds = [[p for p in every if p.endswith(kind)] for kind in ("attn", "cross", "ffn")]
        with torch.no_grad():
            plain = model(*args)
            for at in [*([p] for p in every), *filter(None, kinds)]:
                with watch(model, only=(), edit=dict.fromkeys(at, torch.zeros_like)):
                    ablated = model(*args)
                gaps.append(far(functional_call(model, silenced(model, at), args), ablated))
                gaps.append(0.0 if far(ablated, plain) > 1e-3 else float("inf"))
    return max(gaps)


def run(model: Any, args: tuple[Tensor, ...], **how: Any) -> tuple[Tensor, dict[str, Seen]]:
    """The logits and the records of one run."""
    with torch.no_grad(), watch(model, **how) as seen:
        return model(*args), {s.path: s for s in seen}


@law(0.0, lost=(Watch, "change", lost), halfway=(Watch, "change", halfway))
def test_25_a_part_reads_its_norm_alone() -> float:
    """A part that gets another run's normed rows writes what it wrote there, bit for bit, on a residual that is still its own."""
    wrong = 0
    for f in FAMILIES:
        model, args = tiny(f), inputs(f)
        other = run(model, (*args[:-1], args[-1].flip(1)))[1]  # the source, where there is one, stays: a memory is read too
        for path in parts(model):
            if path.startswith("encoder"):
                continue
            at = f"{path}_norm"
            _, seen = run(model, args, edit={at: lambda x, taken=other[at].value: taken})
            before = next(s for s in seen.values() if path.rsplit(".", 1)[0] in s.path or "embed" in s.path)
            wrong += not torch.equal(seen[path].value, other[path].value)
            wrong += far(before.value, other[before.path].value) < 1e-3
    return float(wrong)


@law(0.0, lost=(Watch, "change", lost), halfway=(Watch, "change", halfway))
def test_25_a_patched_encoder_is_the_other_source() -> float:
    """The decoder that gets the rows of another source answers that source, bit for bit."""
    model, (source, tokens) = tiny("t5"), inputs("t5")
    wanted, other = run(model, (source.flip(1), tokens))
    got, _ = run(model, (source, tokens), edit={"encoder.norm": lambda x: other["encoder.norm"].value})
    return far(got, wanted)
