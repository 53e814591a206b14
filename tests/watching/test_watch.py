"""A watch changes only what its edits say and leaves nothing behind, and what it records does not change."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pellucid import ops
from pellucid.batch.kv_cache import PagedCache
from pellucid.errors import ShapeError, TraceError, UseError
from pellucid.nn.attention import Attention
from pellucid.watching import change, tap, wrap
from pellucid.watching import watch as watching
from pellucid.watching.records import Records, Seen
from pellucid.watching.watch import Watch, watch
from tiny import FAMILIES, far, ids, inputs, serve, swapped, tiny

attend_module, latent_module = (sys.modules[f"pellucid.ops.{name}"] for name in ("attend", "latent"))
PLAN = [{"a": 5, "d": 2}, {"a": 1, "b": 4, "c": 6}, {"b": 2, "a": 1, "d": 1, "c": 3}, {"a": 1, "c": 1, "b": 1, "d": 1}]
PROMPTS = {r: ids(sum(chunks.get(r, 0) for chunks in PLAN), seed=i) for i, r in enumerate("abcd")}
SOURCES = {r: ids(n, seed=9) for r, n in {"a": 7, "b": 3, "c": 5, "d": 2}.items()}
TOKENS = ids(2, 11)


@pytest.fixture(autouse=True)
def _no_grad(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch.set_grad_enabled("grad" in request.node.name):
        yield


def flat_batch(family: str, model: Any, feed: Callable[..., Tensor]) -> dict[Any, Tensor]:
    return serve(model, PROMPTS, PLAN, PagedCache(64, 4), feed, SOURCES if family == "t5" else None)


def same(a: dict[Any, Tensor], b: dict[Any, Tensor], but: str = "") -> bool:
    """Return True if all bits are equal and no number is NaN."""
    return all(torch.equal(a[r], b[r]) and bool(a[r].isfinite().all()) for r in a if r != but)


# Reading


def reading(family: str, dtype: torch.dtype, **how: Any) -> bool:
    """Return True if watching leaves every bit of a plain batch and of a flat one over pages."""
    model = tiny(family, dtype)

    def feed(*arguments: Any) -> Tensor:
        with watch(model, **how):
            return model(*arguments)  # type: ignore[no-any-return]

    given = inputs(family)
    return torch.equal(feed(*given), model(*given)) and same(flat_batch(family, model, feed), flat_batch(family, model, model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_reading_changes_no_bit(family: str, dtype: torch.dtype) -> None:
    assert reading(family, dtype)
    assert reading(family, dtype, terms=True, request="c")


def test_reading_by_the_reference_mutant() -> None:
    def wrong(*names: str) -> str | None:
        return tap.inside(*names) and "reference"

    with swapped(attend_module, "inside", wrong), swapped(latent_module, "inside", wrong):
        assert not all(reading(family, torch.float32) for family in FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_recomputed_says_how_far_it_is(family: str) -> None:
    """The error of a recomputed tensor is the largest difference of its op's output; other records have none."""

    def marks() -> list[float]:
        model = tiny(family, torch.float32)
        with watch(model) as seen:
            model(*inputs(family))
        inner = [s for s in seen if s.source == "recomputed"]
        assert {s.path.rsplit(".")[-1] for s in inner} >= {"scores", "pattern"}
        assert all((s.error is not None) == (s in inner) for s in seen)
        return [s.error for s in inner if s.error is not None]

    assert 0 < max(marks()) < 1e-5
    right = attend_module.attend_sdpa
    wrong = lambda *a: right(*a) * 1.01  # noqa: E731
    with swapped(attend_module, "attend_sdpa", wrong), swapped(latent_module, "attend_sdpa", wrong):
        assert min(marks()) > 1e-4


def snapshot(family: str) -> bool:
    """Return True if all records of a plain batch and of a flat one's steps are as when they were made."""
    model = tiny(family, torch.float32)
    taken: list[tuple[Tensor, Tensor]] = []

    def feed(*arguments: Any) -> Tensor:
        with watch(model, keep=lambda x: taken.append((x, x.clone()))):
            return model(*arguments)  # type: ignore[no-any-return]

    feed(*inputs(family))
    flat_batch(family, model, feed)
    return len(taken) > 100 and all(torch.equal(x, copy) for x, copy in taken)


@pytest.mark.parametrize("family", FAMILIES)
def test_capture_is_a_snapshot(family: str) -> None:
    assert snapshot(family)
    with swapped(ops, "add", lambda x, y: x.add_(y)):
        assert not snapshot(family)


# Editing


def nothing(x: Tensor) -> None:
    """Overwrite the given tensor and return None."""
    x.zero_()


@pytest.mark.parametrize("family", FAMILIES)
def test_identity_edit_changes_no_bit(family: str) -> None:
    """Returning the tensor, or None, gives the plain output outside fused ops and the reference's inside."""
    model, given = tiny(family, torch.float32), inputs(family)
    plain = model(*given)
    with watch(model, inside="reference") as seen:
        reference = model(*given)
    inner = {s.path for s in seen if s.source == "reference"}

    def edited(f: Callable[[Tensor], Tensor | None], *paths: str) -> Tensor:
        with watch(model, only="logits", edit=dict.fromkeys(paths, f)):
            return model(*given)  # type: ignore[no-any-return]

    outer = [p for p in seen.paths() if p not in inner]
    for f in (lambda x: x, nothing):
        assert torch.equal(edited(f, *outer), plain)
        assert torch.equal(edited(f, *inner), reference)
    with swapped(Watch, "inside_of", lambda *_: "reference"):
        assert not torch.equal(edited(lambda x: x, *outer), plain) or torch.equal(plain, reference)
    assert not torch.equal(edited(lambda x: x + 1e-3, "*norm"), plain)


EDITS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "mid": ("*layers.0.mid", lambda x: x * 2),
    "pattern": ("*layers.0.attn.pattern", torch.zeros_like),
    "scores": ("*layers.1.attn.scores", lambda x: x + x.sin()),
}


ROUTED = ("deepseek_v3", "gpt_oss", "qwen2_moe")  # where c's rows go decides how many rows an expert multiplies: the others' last bit


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_edit_of_one_request_leaves_the_others(family: str, edit: str) -> None:
    """Request c of a batch changes and the others keep every bit; a watch that takes all rows for c's is seen."""
    model, (path, f) = tiny(family, torch.float32), EDITS[edit]
    sources: set[tuple[str, object]] = set()

    def feed(*arguments: Any) -> Tensor:
        with watch(model, request="c", edit={path: f}) as seen:
            out = model(*arguments)
        sources.update((s.source, s.request) for s in seen if s.path.endswith(path[1:]))
        return out  # type: ignore[no-any-return]

    plain, got = flat_batch(family, model, model), flat_batch(family, model, feed)
    others = same(plain, got, but="c") if family not in ROUTED else max(far(plain[r], got[r]) for r in "abd") < 1e-5
    assert others and far(plain["c"], got["c"]) > 1e-3
    assert sources == {("edited", "c")}
    if edit == "mid":
        with swapped(Watch, "part_of_request", lambda self, x, dims, rows, request=None: ((), rows)):
            assert not same(plain, flat_batch(family, model, feed), but="c")


@pytest.mark.parametrize("path", ["*.mid", "*.routed", "*.down"])
def test_edit_of_one_row_of_a_batch(path: str) -> None:
    """Routed rows are edited too: those of the row's own tokens, wherever sorting put them."""
    model = tiny("deepseek_v3")
    plain = model(TOKENS)
    with watch(model, request=1, edit={path: lambda x: x * 2}) as seen:
        out = model(TOKENS)
    assert far(out[0], plain[0]) < 1e-11 and far(out[1], plain[1]) > 1e-3
    for s in (s for s in seen if s.path.endswith("ffn.routed")):
        assert sorted(s.rows.tolist()) == sorted([*range(11)] * 2)  # type: ignore[union-attr]
    with watch(model, request=7, edit={path: lambda x: x * 2}) as seen:
        assert torch.equal(model(TOKENS), plain) and not len(seen)


def test_a_request_of_an_encoder_decoder_is_its_lone_run() -> None:
    """The encoder's rows are cut by the encoder's own spans."""
    model, records = tiny("t5"), list[Seen]()

    def feed(*arguments: Any) -> Tensor:
        with watch(model, request="c", to=records.append):
            return model(*arguments)  # type: ignore[no-any-return]

    def gap() -> float:
        records.clear()
        serve(model, PROMPTS, PLAN[1:2], PagedCache(64, 4), feed, SOURCES)
        mine = {(s.path, s.call): s for s in records}
        records.clear()
        serve(model, PROMPTS, [{"c": 6}], PagedCache(64, 4), feed, SOURCES)
        if list(mine) != [(s.path, s.call) for s in records] or "source" not in {p for p, _ in mine}:
            return float("inf")
        return max(far(mine[s.path, s.call].value, s.value) for s in records)

    assert gap() < 1e-11
    with swapped(sys.modules["pellucid.batch.step"], "spans_of", lambda steps, length: steps[0].spans):
        assert gap() > 1e-3


@pytest.mark.parametrize("wrong", [lambda x: x[:, :1], lambda x: x.double(), lambda x: 3, lambda x: x.to("meta")])
def test_edit_of_the_wrong_shape_is_an_error(wrong: Callable[[Tensor], Any]) -> None:
    model = tiny("llama", torch.float32)
    with pytest.raises(ShapeError, match=r"layers\.1\.attn"), watch(model, edit={"layers.1.attn": wrong}):
        model(TOKENS)
    assert clean(model)
    unchecked = lambda x: ()  # noqa: E731
    with swapped(change, "described", unchecked), watch(model, edit={"logits": lambda x: x.double()}):
        model(TOKENS)


def test_edit_that_never_met_its_tensor() -> None:
    model = tiny("llama")
    with pytest.raises(TraceError, match=r"layers\.0\.ffn\.gat.*layers\.0\.ffn\.gate"), watch(model, edit={"layers.0.ffn.gat": abs}):
        model(TOKENS)
    with pytest.raises(ZeroDivisionError), watch(model, edit={"layers.0.ffn.gat": abs, "layers.1.mid": lambda x: 1 / 0}):
        model(TOKENS)
    with watch(model, edit={"layers.0.ffn.gat": abs}):
        pass  # nothing ran
    with watch(model, request=5, edit={"layers.0.ffn.gate": abs}):
        model(TOKENS)  # the request was not there


def test_inside_is_beside_or_reference() -> None:
    with pytest.raises(UseError, match="sideways"), watch(tiny("llama"), inside="sideways"):
        pass


# Gradients


@pytest.mark.parametrize("learning", [True, False])
@pytest.mark.parametrize("path", ["embed", "layers.0.attn.q", "layers.0.attn.pattern", "layers.1.ffn.neurons", "layers.1.mid", "norm"])
def test_grad_is_the_finite_difference(path: str, learning: bool) -> None:
    """Gradients equal finite differences whether or not the parameters learn, and change no bit."""
    model, tokens = tiny("qwen3").requires_grad_(learning), ids(1, 7)

    def gap() -> float:
        with watch(model, only=path, grad=True, inside="reference") as seen:
            model(tokens)[0, -1, 3].backward()
        gradient = seen[path].grad
        assert gradient is not None and gradient.shape == seen[path].shape
        way = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

        def along(d: float) -> float:
            with torch.no_grad(), watch(model, only=(), edit={path: lambda x: x + d * way}):
                return float(model(tokens)[0, -1, 3])

        slope = (along(1e-5) - along(-1e-5)) / 2e-5
        return abs(float((gradient * way).sum()) - slope) / max(1.0, abs(slope))

    assert gap() < 1e-7
    with swapped(watching, "take_gradient", lambda of, part, g: setattr(of(), "grad", g * 1.001)):
        assert gap() > 1e-5
    with watch(model, only="*.mid", grad=True):
        out = model(tokens)
    assert torch.equal(out, model(tokens))


# Choosing what to keep


def test_only_keep_and_to() -> None:
    model, records = tiny("llama", torch.float32), list[Seen]()
    with watch(model, only=("layers.*.attn.[qk]", "logits")) as seen:
        model(TOKENS)
    assert seen.paths() == ["layers.0.attn.q", "layers.0.attn.k", "layers.1.attn.q", "layers.1.attn.k", "logits"]
    with watch(model, only="layers.0.*", keep=lambda x: float(x.norm()), to=records.append) as seen:
        model(TOKENS)
    assert not len(seen) and records and all(isinstance(s.value, float) and s.path.startswith("layers.0.") for s in records)


def test_steps_and_calls_are_counted() -> None:
    model = tiny("t5")
    with watch(model) as seen:
        model(*inputs("t5"))
        model(*inputs("t5"))
    tables = seen.all("decoder.layers.0.attn.scores")
    assert [(s.step, s.call) for s in tables] == [(0, 0), (1, 0)]


def test_asking_for_a_path() -> None:
    model = tiny("llama")
    with watch(model) as seen:
        model(TOKENS)
        model(TOKENS)
    with pytest.raises(TraceError, match=r"layers\.0\.attn\.pattern"):
        seen["layers.0.attn.patern"]
    with pytest.raises(TraceError, match="2 times"):
        seen["logits"]
    assert [s.step for s in seen.all("logits")] == [0, 1] and "logits" in seen and "logit" not in seen
    with swapped(Records, "all", lambda self, path: [s for s in self.seen if s.path == path][:1]):
        assert seen["logits"].step == 0  # a mutant that hides the second


def test_a_label_that_does_not_fit_is_caught() -> None:
    model, keys = tiny("t5"), Attention.project_kv
    with swapped(Attention, "project_kv", lambda self, x, length: keys(self, x, "T")):
        with pytest.raises(ShapeError, match=r"cross\.k"), watch(model):
            model(*inputs("t5"))
        with swapped(watching, "bind", lambda *_: None), watch(model, only="*.mid"):
            model(*inputs("t5"))  # a mutant that checks nothing


# Which model is recorded


def test_a_model_run_by_the_watcher_is_not_recorded() -> None:
    """Models run in keep, in edit and in to are not recorded, neither another nor this one."""
    model, other = tiny("llama", torch.float32), tiny("gpt2", torch.float32)

    def busy(x: Any) -> Any:
        other(TOKENS)
        model(TOKENS[:1])
        return x

    def paths(**how: Any) -> list[tuple[str, int]]:
        records: list[Seen] = []
        with watch(model, only="*.mid", **{"to": records.append} | how) as seen:
            model(TOKENS)
        return [(s.path, s.step) for s in records or seen]

    plain, kept = paths(), list[Seen]()
    assert paths(keep=busy) == paths(edit={"*.mid": busy}) == plain == [("layers.0.mid", 0), ("layers.1.mid", 0)]
    paths(to=lambda s: kept.append(busy(s)))
    assert [(s.path, s.step) for s in kept] == plain

    first = [True]

    def other_only(x: Tensor) -> Tensor:
        _ = other(TOKENS) if first and first.pop() else None
        return x

    with swapped(watching, "unwatched", lambda f, x: f(x)):
        assert paths(keep=other_only) != plain


def test_watches_nest_and_stand_side_by_side() -> None:
    model, other = tiny("llama", torch.float32), tiny("qwen3", torch.float32)
    with watch(model, only="layers.*.attn.z") as outer:
        with watch(model, only="logits", edit={"layers.0.attn": torch.zeros_like}) as inner, watch(other, only="*q_norm") as of_other:
            a = model(TOKENS)
            other(TOKENS)
        b = model(TOKENS)
    assert (len(outer), len(inner), len(of_other)) == (4, 1, 2)
    assert not torch.equal(a, b) and torch.equal(b, model(TOKENS)) and clean(model) and clean(other)
    assert torch.equal(inner["logits"].value, a)


def test_watches_may_end_in_another_order() -> None:
    model = tiny("llama")
    first, second = watch(model), watch(model, only="logits")
    first.__enter__()
    seen = second.__enter__()
    first.__exit__(None, None, None)
    model(TOKENS)
    second.__exit__(None, None, None)
    assert len(seen) == 1 and clean(model)


def clean(*models: nn.Module) -> bool:
    """Return True if no watch left anything on a module, in this thread or in the process."""
    on_modules = any("forward" in m.__dict__ for model in models for m in model.modules())
    stale = wrap.wrapped or watching.EAGER.watches or watching.EAGER.stance
    return not (on_modules or stale or tap.here.watches or tap.here.calls or tap.here.terms) and tap.here.recomputed is None


@pytest.mark.parametrize("path", ["layers.1.ffn.up", "layers.0.attn.pattern"])
def test_an_exception_leaves_nothing_behind(path: str) -> None:
    model = tiny("llama", torch.float32)
    own = model.layers[0].forward
    model.layers[0].__dict__["forward"] = own  # another library's, as accelerate sets it
    plain = model(TOKENS)

    def boom(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), watch(model, edit={path: boom}, terms=True):
        model(TOKENS)
    assert model.layers[0].__dict__.pop("forward") is own
    assert clean(model) and torch.equal(model(TOKENS), plain)
    right = watching.wrap_forwards
    with swapped(watching, "wrap_forwards", lambda modules, change: change > 0 and right(modules, change)):
        with pytest.raises(ZeroDivisionError), watch(model, edit={path: boom}):
            model(TOKENS)
        assert not clean(model)
    right(model.modules(), -1)
    assert clean(model)
