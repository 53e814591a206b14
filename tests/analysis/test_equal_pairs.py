"""Each pair of equal ways, on every kind of model that has it: both agree in float64 with what ran, and differ in their case."""

from functools import cache
from typing import Any

import pytest
import torch

import pellucid
from pellucid.analysis import attention_pairs, equal_pairs, weight_pairs
from pellucid.analysis.attention_pairs import ATTN, LAYOUTS, SCORES
from pellucid.analysis.equal_pairs import EqualPair, Reason, pairs
from pellucid.analysis.needs import PAIRED, unmet
from pellucid.analysis.weight_pairs import REWRITES
from pellucid.api.model import Model
from pellucid.tracing import Trace
from recorded_models import KINDS, ODD, lived
from tiny import swapped

TEXT = "The capital of France is"
REASONS = {one.name: one for one in (*SCORES, *LAYOUTS, *REWRITES)}
MODELS = {name: cfg for name, cfg in (KINDS | ODD).items() if unmet(PAIRED, cfg) is None}
SPECIMENS = "pellucid/capitals", "pellucid/capitals-llama", "pellucid/capitals-deepseek", "pellucid/reader"
RAN = {  # the tensor of a specimen's run that the one way computes again, by its axes as the run has them
    "scale": "pattern", "max": "pattern", "mask": "pattern", "bias": "pattern", "blocks": "z", "chunks": "z", "rope": "q_rot",
}  # fmt: skip


@cache
def run_of(name: str) -> Trace:
    """Return a run of a specimen, or of a random model, in float64."""
    return pellucid.trace(pellucid.load(name, dtype="float64"), TEXT) if "/" in name else lived(MODELS[name])[1]


def fits(reason: Reason, name: str) -> bool:
    """True if a specimen or a random model has what a reason is about."""
    return reason.fits(run_of(name).runner)


@pytest.mark.parametrize("name", [*SPECIMENS, *MODELS])
def test_both_ways_agree_and_differ_in_the_case(name: str) -> None:
    """The mutant of each: its ways as they are in the case."""
    own = [reason for reason in REASONS.values() if fits(reason, name)]
    assert {"max", "mask", "blocks", "chunks", "merged", "loss"} <= {reason.name for reason in own}
    for reason in own:
        pair = reason.make(run_of(name))
        assert pair.holds and pair.gap < 1e-10 * max(1.0, float(pair.one.abs().max())), (reason.name, pair.facts)
        assert not pair.in_the_case().holds, reason.name


@pytest.mark.parametrize("reason", RAN)
def test_the_one_way_is_what_ran(reason: str) -> None:
    compared = 0
    for name in filter(lambda name: fits(REASONS[reason], name), SPECIMENS):
        want, made = run_of(name).all(f"{ATTN}.{RAN[reason]}")[0].value[0], REASONS[reason].make(run_of(name)).one
        want = want.transpose(0, 1) if RAN[reason] == "z" else want
        assert all(float((want - one).abs().max()) < 1e-10 for one in made.reshape(-1, *want.shape)), name
        compared += 1
    assert compared


def test_products_are_what_ran() -> None:
    """Of a norm and the matrix behind it, of three products in one, of the experts and of the latent's keys."""
    llama, deepseek = run_of("pellucid/capitals-llama"), run_of("pellucid/capitals-deepseek")

    def ran(run: Trace, path: str) -> torch.Tensor:
        value: torch.Tensor = run.all(path)[0].value[0]
        return value.flatten(1)

    q, k, v = (ran(llama, f"{ATTN}.{name}") for name in "qkv")
    folded, joined = (REASONS[name].make(llama).one for name in ("norm", "products"))
    assert float((folded - q).abs().max()) < 1e-10 and float((joined - torch.cat([q, k, v], -1)).abs().max()) < 1e-10
    path = "layers.1.ffn"
    routed = ran(deepseek, path) - ran(deepseek, f"{path}.shared")
    assert float((REASONS["experts"].make(deepseek).one - routed).abs().max()) < 1e-10
    content = torch.einsum("thk,shk->hts", deepseek[f"{ATTN}.q"].value[0][..., :16], deepseek[f"{ATTN}.k"].value[0])
    assert float((REASONS["latent"].make(deepseek).one - content).abs().max()) < 1e-10


def test_the_loss_and_its_gradient_are_those_of_the_model() -> None:
    run = run_of("pellucid/capitals")
    ids = torch.tensor([run.ids])
    with torch.enable_grad():
        table = run.runner.module.embed.weight.requires_grad_()
        loss = -run.runner.module(ids)[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None]).mean()
        (want,) = torch.autograd.grad(loss, [table])
    table.requires_grad_(False)
    assert float((REASONS["tied"].make(run).one - want).abs().max()) < 1e-10
    assert abs(float(REASONS["loss"].make(run).one) - float(loss.detach())) < 1e-10


def identity(x: Any, *rest: Any) -> Any:
    return torch.arange(x)


@pytest.mark.parametrize(
    ("reason", "name", "owner", "part", "mutant"),
    [
        ("rope", "pellucid/capitals-llama", attention_pairs, "other_layout", identity),
        ("groups", "pellucid/capitals-llama", attention_pairs.AttentionReads, "for_heads", lambda o, x: x.repeat(len(o.q) // len(x), 1, 1)),
        ("mask", "pellucid/capitals", attention_pairs.AttentionReads, "softmax", lambda o, x: x.masked_fill(o.hidden, 0.0).softmax(-1)),
        ("chunks", "pellucid/capitals", attention_pairs.AttentionReads, "softmax", lambda o, x: x.softmax(-1)),
        ("experts", "pellucid/capitals-deepseek", weight_pairs, "chosen_experts", lambda part, x, shares: x),
        ("merged", "pellucid/capitals", weight_pairs, "rounded", lambda w: w),
    ],
)
def test_mutants(reason: str, name: str, owner: Any, part: str, mutant: Any) -> None:
    """Keys repeated in turn, channels as they are, a mask by 0 or none, no expert, and no rounding."""
    run = run_of(name)
    with swapped(owner, part, mutant):
        assert not REASONS[reason].make(run).holds


def test_a_number_too_large_is_none() -> None:
    """The mutant: a shift that e^x can bear."""
    run = run_of("pellucid/capitals")
    own = REASONS["max"].make(run)
    assert (
        own.apart == "nan" and own.numbers["lost"] == 4 * 15 and own.numbers["of"] == 4 * 25
    )  # of four heads, and of five tokens those that a query sees
    with swapped(attention_pairs, "SHIFT", 10.0):
        assert not REASONS["max"].make(run).holds


def test_what_a_model_lacks_runs_on_a_specimen() -> None:
    """A run of each specimen is made once. The mutant: a pair that is computed over the model itself."""
    wanted: list[str] = []

    def trace(name: str) -> Trace:
        wanted.append(name)
        return run_of(name)

    made = {reason.name: run.model for reason, run, _ in pairs((*SCORES, *LAYOUTS), run_of("pellucid/capitals"), trace)}
    assert wanted == ["pellucid/capitals-llama", "pellucid/capitals-deepseek"]
    assert made["groups"] == made["rope"] == "pellucid/capitals-llama" and made["latent"] == "pellucid/capitals-deepseek"
    assert made["scale"] == made["bias"] == "pellucid/capitals"
    with pytest.raises(AttributeError):
        REASONS["latent"].make(run_of("pellucid/capitals"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_narrow_model_is_judged_in_float64(dtype: str) -> None:
    run = pellucid.trace(pellucid.load("pellucid/capitals", dtype=dtype), TEXT)
    for reason, _, pair in pairs(tuple(REASONS.values()), run, run_of):
        assert pair.one.dtype == torch.float64 and pair.holds, (reason.name, pair.facts)


def test_a_large_model_is_not_copied() -> None:
    """The gradients of a table, and all experts, are run on a model of few parameters alone."""
    own = run_of("pellucid/capitals").runner
    assert REASONS["tied"].fits(own)
    with swapped(Model, "num_parameters", lambda model: 20_000_000):
        assert not REASONS["tied"].fits(own) and not REASONS["experts"].fits(run_of("pellucid/capitals-deepseek").runner)


def test_numbers_side_by_side() -> None:
    """Those about the largest difference in the case, also where its tensors are smaller or larger than both ways'."""
    one, other = torch.arange(6.0), torch.tensor([0.0, 1.0, 2.0, 9.0, 4.0, 5.0])
    pair = EqualPair(one, one, (one, other))
    assert pair.side_by_side(2) == [(2.0, 2.0, 2.0, 2.0), (3.0, 3.0, 3.0, 9.0)] and pair.side_by_side(9) == [
        (v, v, v, w) for v, w in zip(one.tolist(), other.tolist(), strict=True)
    ]
    endless = EqualPair(one[:2], one[:2], (one, torch.tensor([0.0, 1.0, 2.0, 3.0, float("inf"), float("nan")])))
    assert endless.side_by_side(2) == [(0.0, 0.0, 3.0, 3.0), (1.0, 1.0, 4.0, "nan")] and endless.apart == "nan" and endless.holds
    assert equal_pairs.shown(1.5) == 1.5
