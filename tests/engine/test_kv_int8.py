"""An engine whose keys and values are in int8: its mathematics, the laws of batches, what a watch sees, and what it refuses."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import campaigns.deterministic as campaign
from covering import config_of
from pellucid import ops
from pellucid.engine import score
from pellucid.engine.engine import Engine
from pellucid.engine.generation import generate
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder
from pellucid.ops.held import Int8Rows, from_int8, to_int8
from pellucid.watching.watch import watch
from test_plan import needs_kernels
from tiny import tiny

PROMPT = (5, 3, 80, 7, 7, 41, 2, 60, 11)
LAST = {"llama": ("k_rot", "v"), "gpt2": ("k", "v")}  # what a family stores


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def scores(model: Decoder, kv: str | None) -> Tensor:
    return score.score(model, PROMPT, kv=kv)


@pytest.mark.parametrize("family", LAST)
def test_it_computes_with_rounded_keys_and_values(family: str) -> None:
    """In float64 the log-probabilities are those of a plain forward in which a watch rounds what is stored, and no others."""
    model = tiny(family, torch.float64)
    got = scores(model, "int8")
    edits: dict[str, Any] = {f"layers.*.attn.{name}": lambda x: from_int8(*to_int8(x)) for name in LAST[family]}

    def plain(edit: Any) -> Tensor:
        with watch(model, edit=edit):
            logits = model(torch.tensor([PROMPT]))[0, :-1]
        return logits.log_softmax(-1).gather(-1, torch.tensor(PROMPT[1:])[:, None])[:, 0]

    assert torch.allclose(got, plain(edits), atol=1e-10, rtol=0)
    for name in LAST[family]:  # mutants: keys alone, values alone
        assert not torch.allclose(got, plain({f"layers.*.attn.{name}": edits[f"layers.*.attn.{name}"]}), atol=1e-6, rtol=0)
    assert 1e-6 < (got - scores(model, None)).abs().max() < 0.05


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
@pytest.mark.quick(4)
def test_alone_and_in_batches(family: str, dtype: torch.dtype) -> None:
    """Tokens and log-probabilities are the same alone, in any batch and chunks, after preemption and from cached pages, to the bit."""
    draw, model = random.Random(family), tiny(family, dtype)
    requests = [campaign.random_request(draw) for _ in range(10)]
    lone = campaign.alone(model, requests, "int8")
    assert lone != campaign.alone(model, requests)
    for _ in range(3):
        assert campaign.mixed(model, requests, draw, "int8") == lone


@needs_kernels
def test_rows_rounded_by_their_number_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant stores the rows of a long step otherwise: then chunks change a text, and deterministic mode says so."""
    model, store = tiny("llama", torch.float32, seed=1), Int8Rows.write

    def otherwise(self: Any, pools: Any, slots: Tensor, new: Any) -> None:
        store(self, pools, slots, tuple(n if len(slots) < 12 else n * 1.001 for n in new))

    monkeypatch.setattr(Int8Rows, "write", otherwise)
    with pytest.raises(UseError, match="other bits"):
        Engine.of(model, 64, deterministic=True, kv="int8")


@needs_kernels
def test_siblings_share_pages_and_the_cache_gives_the_same_text() -> None:
    model = tiny("llama", torch.float32)
    engine = Engine.of(model, 400, SchedulerLimits(64), 4, deterministic=True, kv="int8")
    cold = campaign.run_requests(engine, [Request(PROMPT, 6, n=1, logprobs=1)])[0]
    warm = campaign.run_requests(engine, [Request(PROMPT, 6, n=1, logprobs=1)])[0]
    forked = campaign.run_requests(engine, [Request(PROMPT, 6, n=3, logprobs=1)])[0]
    token = lambda answer: [out for out, _ in answer]  # noqa: E731
    assert token(cold) == token(warm) and len(forked) == 18
    assert all(token(forked).count(one) % 3 == 0 for one in token(cold))
    assert engine.storage.cache.sound()  # type: ignore[attr-defined]


@needs_kernels
def test_steps_are_planned_and_give_the_forwards_bits() -> None:
    """A decode step is a recorded plan in int8 too, in bursts, and its text is that of the kernels called one by one."""
    model = tiny("llama", torch.float32)

    def text(planned: bool) -> tuple[list[int], int]:
        engine = Engine.of(model, 200, SchedulerLimits(64), 8, kv="int8")
        plans = engine.run.plans  # type: ignore[attr-defined]
        plans.planned = planned
        engine.submit(Request(PROMPT, 20))
        out = [o.token.id for o in engine.outputs() if o.token is not None]
        return out, sum(b.plan is not None for b in plans.buffers.values())

    assert text(True)[0] == text(False)[0] and text(True)[1] == 1 and text(False)[1] == 0


def watched(model: Decoder, **how: Any) -> Any:
    """Return what a watch of a text in int8 saw in its prompt and its decode steps."""
    engine = Engine.of(model, 200, SchedulerLimits(64), 8, keep_all=False, kv="int8")
    number = engine.submit(Request(PROMPT, 4))
    with engine.watch(number, **how) as seen:
        list(engine.outputs())
    return seen


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_watch_sees_what_is_held(dtype: torch.dtype) -> None:
    """The prompt's rows and a decode step's show keys and values as held, the sum of a cell, and scores that are made of them."""
    seen = watched(tiny("llama", dtype), terms=True)
    for name, made_of in (("k_held", "k_rot"), ("v_held", "v")):
        records = seen.all(f"layers.1.attn.{name}")
        originals = seen.all(f"layers.1.attn.{made_of}")
        assert [s.shape for s in records] == [s.shape for s in originals] and len(records) == 4
        for s, x in zip(records, originals, strict=True):
            assert torch.equal(s.value, from_int8(*to_int8(x.value))) and not torch.equal(s.value, x.value)
            assert s.op == "int8" and s.inputs == (f"layers.1.attn.{made_of}",)
            assert s.terms((0, 0, 1, 3)).total() == pytest.approx(float(s.value[0, 0, 1, 3]), rel=0.01)
    scores = seen.all("layers.1.attn.scores")
    assert all(s.inputs[1] == "layers.1.attn.k_held" for s in scores)
    first, q = scores[0], seen.all("layers.1.attn.q_rot")[0].value
    held_rows = seen.all("layers.1.attn.k_held")[0].value
    want = torch.einsum("btgrk,bsgk->bgrts", q.unflatten(2, (held_rows.shape[2], -1)).double(), held_rows.double()).flatten(1, 2)
    bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    assert torch.allclose(first.value.double(), want * q.shape[-1] ** -0.5, atol=bound, rtol=bound)


@needs_kernels
def test_a_replayed_step_shows_what_a_forward_shows() -> None:
    model = tiny("llama", torch.float32)
    replayed = watched(model)
    edited = watched(model, edit={"layers.0.attn.q": lambda x: x * 1.0})  # an edit runs the forward itself
    for one, other in zip(replayed.all("layers.0.attn.k_held"), edited.all("layers.0.attn.k_held"), strict=True):
        assert torch.equal(one.value, other.value)


def test_an_edit_of_what_is_held_is_stored() -> None:
    """With all values held at zero, attention gives zero in this step and in later ones."""
    seen = watched(tiny("llama", torch.float64), edit={"layers.*.attn.v_held": torch.zeros_like})
    assert all(s.value.eq(0).all() for s in seen.all("layers.1.attn.z"))
    plain = watched(tiny("llama", torch.float64))
    assert not any(s.value.eq(0).all() for s in plain.all("layers.1.attn.z"))


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("deepseek_v3", "MLA"),
        ("t5", "source"),
        ("lfm2", "layers.0"),
        ("qwen3_next", "layers.0"),
        ("mamba2", "layers.0"),
        ("falcon_h1", "mamba"),
    ],
)
def test_models_that_store_anything_else_are_refused_by_name(family: str, names: str) -> None:
    with pytest.raises(UseError, match=names):
        ops.format_for(config_of(family, "plain"), "int8")
    with pytest.raises(UseError, match="int8"):
        ops.format_for(tiny("llama", torch.float32).config, "int4")


def test_engines_of_two_formats_are_kept_apart() -> None:
    model, free = tiny("llama", torch.float32), list[Engine]()
    for kv in (None, "int8", "int8", None):
        list(generate(model, [Request(PROMPT, 3)], free, kv=kv))
    assert sorted(str(e.kv) for e in free) == ["None", "int8"]
