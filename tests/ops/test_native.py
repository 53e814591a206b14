"""Each native kernel against float64, a row's bits among others, the choice of an implementation, and torch's path without kernels."""

import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid import ops
from pellucid.batch.kv_cache import KVCache, Paged, Segment
from pellucid.batch.mask import causal
from pellucid.config import Rope
from pellucid.ops import native
from pellucid.ops.native import library, make, twins
from pellucid.ops.rotate import frequencies

DTYPES = [torch.float32, torch.bfloat16]
TINY = {torch.float32: 2e-6, torch.bfloat16: 1.6e-2}  # of the largest value: sums of some thousand terms; half a step of bf16 is 0.4%
WIDTHS = [1, 3, 8, 15, 16, 17, 31, 64, 100, 257, 768]
ACTS = ["gelu_tanh", "gelu", "silu", "relu"]


def rand(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))) * scale).to(dtype)


def near(y: Tensor, truth: Tensor, times: float = 1.0) -> bool:
    """Return True if y is truth up to rounding, relative to the largest value."""
    gap = (y.double() - truth).abs().max().item()
    return gap <= times * TINY[y.dtype] * max(truth.abs().max().item(), 1e-3) and y.isfinite().all().item()


def no_worse(y: Tensor, theirs: Tensor, truth: Tensor) -> bool:
    """Return True if y's error is at most twice torch's, plus a tiny floor."""
    ours, other = ((t.double() - truth).abs().max().item() for t in (y, theirs))
    return ours <= 2 * other + 1e-6 * max(1.0, truth.abs().max().item())


def test_kernels_are_built_where_they_can_be() -> None:
    """With AVX2 or NEON and a compiler these tests run on the kernels, elsewhere on torch."""
    if make.compiler() is None or not library.wanted():
        assert not native.available()
        return
    assert native.available(), "build them: python src/pellucid/ops/native/make.py"
    assert native.instructions() in make.FLAGS


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [*WIDTHS, 1100, 2500])
def test_linear(dtype: torch.dtype, k: int) -> None:
    for n in (1, 7, 33, 300):
        x, w, b = rand(16, k, dtype=dtype), rand(n, k, dtype=dtype, seed=1), rand(n, dtype=dtype, seed=2)
        truth = x.double() @ w.double().T
        assert near(ops.linear(x, w, None), truth, 2)
        many = ops.linear(x, w, b)
        assert near(many, truth + b.double(), 2) and no_worse(many, F.linear(x, w, b), truth + b.double())
        if native.fits_linear(x, w, b):
            for rows in range(1, 17):
                assert torch.equal(ops.linear(x[:rows], w, b), many[:rows])
            assert torch.equal(ops.linear(x[5:6], w, b), many[5:6])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms(dtype: torch.dtype, width: int) -> None:
    x, w, b = rand(2, 5, width, dtype=dtype, scale=3) + 1, rand(width, dtype=dtype, seed=1), rand(width, dtype=dtype, seed=2)
    d = x.double()
    truth = d * torch.rsqrt(d.pow(2).mean(-1, keepdim=True) + 1e-5) * w.double()
    assert near(ops.rms(x, w, 1e-5), truth)
    truth = F.layer_norm(d, (width,), w.double(), b.double(), 1e-5)
    assert near(ops.layer(x, w, b, 1e-5), truth, 2)
    assert torch.equal(ops.rms(x[1:], w, 1e-5)[:, 2:3], ops.rms(x[1:, 2:3].contiguous(), w, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_rounds_before_its_weight_as_llama_does(dtype: torch.dtype) -> None:
    """With an inverse root of 1, which leaves only the rounding, the kernel has the formula's bits."""
    x = torch.ones(1, 1, 64, dtype=dtype) * torch.tensor([1.0, -1.0], dtype=dtype).repeat(32)
    w = rand(64, dtype=dtype)
    assert torch.equal(ops.rms(x, w, 1e-2), (x.float() * torch.rsqrt(torch.tensor(1 + 1e-2))).to(dtype) * w)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 9, 64, 1027, 3072])
def test_add_and_gates(dtype: torch.dtype, width: int) -> None:
    x, y = rand(1, 4, width, dtype=dtype, scale=4), rand(1, 4, width, dtype=dtype, seed=3)
    assert torch.equal(ops.add(x, y), x + y)
    for act in ACTS:
        f = ops.gate.__globals__["ACTS"][act]
        with native.off():
            alone, gated = ops.gate(x, None, act), ops.gate(x, y, act)
        assert no_worse(ops.gate(x, None, act), alone, f(x.double()))
        assert no_worse(ops.gate(x, y, act), gated, f(x.double()) * y.double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_gates_at_the_ends(dtype: torch.dtype) -> None:
    """At large values, infinity and NaN the kernels do what the functions do."""
    x = torch.tensor([[-1e30, -200.0, -20.0, -8.0, -3.0, -1e-3, 0.0, 1e-3, 3.0, 8.0, 20.0, 200.0, 1e30, math.inf, math.nan]], dtype=dtype)
    for act in ACTS:
        y, truth = ops.gate(x, None, act)[0], ops.gate.__globals__["ACTS"][act](x.double())[0]
        assert y[:13].isfinite().all() and torch.isnan(y[14]) and y[13] == math.inf
        assert ((y[:13].double() - truth[:13]).abs() <= 1e-6 + (1e-6 if dtype is torch.float32 else 8e-3) * truth[:13].abs()).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rows_of_bf16(dtype: torch.dtype) -> None:
    """If torch multiplies bf16 slowly the kernel takes any number of rows, 64 at a time."""
    x, w, b = rand(2, 100, 48, dtype=dtype), rand(9, 48, dtype=dtype, seed=1), rand(9, dtype=dtype, seed=2)
    assert native.fits_linear(x, w, b) == (native.available() and twins.leads(dtype))
    truth = x.double() @ w.double().T + b.double()
    assert near(ops.linear(x, w, b), truth, 2)
    if native.available():
        y = native.linear(x, w, b)
        assert near(y, truth, 2) and torch.equal(native.linear(x[:1, 70:72], w, b), y[:1, 70:72])


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(dtype: torch.dtype) -> None:
    table, ids = rand(50, 19, dtype=dtype), torch.tensor([[3, 0, 49, 3]])
    assert torch.equal(ops.embedding(ids, table), table[ids])
    if native.fits_embedding(ids, table):
        assert native.embedding(torch.tensor([50, -1, 1 << 60]), table).isnan().all()  # never other memory


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("width", "head"), [(64, 64), (6, 6), (16, 20), (34, 40)])
def test_angles_and_rotate(dtype: torch.dtype, interleaved: bool, width: int, head: int) -> None:
    at, rope, x = torch.tensor([[0, 1, 77, 1000]]), Rope(width, interleaved=interleaved), rand(1, 4, 3, head, dtype=dtype)
    angle = at[..., None, None].double() * frequencies(rope, torch.float64)
    cos, sin = angle.cos(), angle.sin()
    a, b = (x[..., 0:width:2], x[..., 1:width:2]) if interleaved else x[..., :width].chunk(2, -1)
    pair = a.double() * cos - b.double() * sin, b.double() * cos + a.double() * sin
    truth = torch.cat((torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1), x[..., width:].double()), -1)
    turn = ops.angles(at, rope, dtype)
    with native.off():
        theirs = ops.rotate(x, ops.angles(at, rope, dtype), interleaved)
    y = ops.rotate(x, turn, interleaved)
    assert turn[0].shape == (1, 4, 1, width // 2) and no_worse(turn[0], cos.to(dtype), cos) and no_worse(turn[1], sin.to(dtype), sin)
    assert no_worse(y, theirs, truth) and torch.equal(y[..., width:], x[..., width:])
    cut = rand(1, 4, 3, head + 5, dtype=dtype)[..., 5:]  # a slice of wider heads
    assert torch.equal(ops.rotate(cut, turn, interleaved), ops.rotate(cut.contiguous(), turn, interleaved))


def paged(dtype: torch.dtype, seen: int, rows: int, heads: int, groups: int, key: int, value: int, size: int, seed: int = 0):
    """Return a request of `seen` tokens whose last `rows` are queries, in shuffled pages among others' rows."""
    pages = -(-seen // size) + 3
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(seed))
    pools = rand(pages * size, groups, key, dtype=dtype, seed=1), rand(pages * size, groups, value, dtype=dtype, seed=2)
    at = torch.arange(seen - rows, seen)[None]
    slots = table[torch.arange(seen) // size] * size + torch.arange(seen) % size
    segment = Segment(0, slice(0, rows), at, lambda: torch.arange(seen)[None], lambda: tuple(p[slots][None] for p in pools), True,
                  Paged(pools, table, size, seen))  # fmt: skip
    return rand(1, rows, heads, key, dtype=dtype), segment


def attend_truth(q: Tensor, segment: Segment, scale: float) -> Tensor:
    k, v = (t[0].double().repeat_interleave(q.shape[2] // t.shape[2], 1) for t in segment.read())
    scores = torch.einsum("thk,shk->hts", q[0].double(), k) * scale
    hidden = torch.arange(k.shape[0])[None] > segment.q_at[0][:, None]
    return torch.einsum("hts,shw->thw", scores.masked_fill(hidden, -math.inf).softmax(-1), v)[None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "groups", "key", "value", "size"), [(4, 4, 64, 64, 16), (6, 2, 5, 9, 3), (2, 1, 80, 40, 7), (3, 3, 33, 130, 1)]
)
def test_attend(dtype: torch.dtype, heads: int, groups: int, key: int, value: int, size: int) -> None:
    for seen, rows in ((1, 1), (2, 2), (16, 16), (17, 3), (130, 1), (301, 9)):
        q, segment = paged(dtype, seen, rows, heads, groups, key, value, size)
        z, truth = ops.attend(q, KVCache([segment]), causal, key**-0.5), attend_truth(q, segment, key**-0.5)
        with native.off():
            theirs = ops.attend(q, KVCache([segment]), causal, key**-0.5)
        assert z.shape == truth.shape and near(z, truth) and no_worse(z, theirs, truth), (seen, rows)
        if native.available():
            pool, at = segment.paged.pools, segment.q_at
            assert native.fits_attend(q, pool, segment.paged.table, at, causal)
            alone = native.attend(q[:, -1:], pool, segment.paged.table, at[:, -1:].contiguous(), size, key**-0.5, causal)
            assert torch.equal(alone, z[:, -1:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_attend_is_the_same_on_pages_of_any_size(dtype: torch.dtype) -> None:
    if not native.available():
        return
    k, v, q, at = rand(40, 2, 24, dtype=dtype), rand(40, 2, 24, dtype=dtype, seed=1), rand(1, 1, 4, 24, dtype=dtype), torch.tensor([[39]])
    seen = []
    for size in (1, 3, 8, 40):
        table = torch.randperm(-(-40 // size) + 2)
        pools = tuple(torch.full((len(table) * size, 2, 24), math.nan, dtype=dtype) for _ in "kv")
        for pool, x in zip(pools, (k, v), strict=True):
            for t in range(40):  # one position at a time, as decoding does
                native.store(x[None, t : t + 1], (pool,), table, torch.tensor([[t]]), size)
        seen.append(native.attend(q, pools, table, at, size, 0.2, causal))
    assert all(torch.equal(s, seen[0]) for s in seen) and seen[0].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_store(dtype: torch.dtype) -> None:
    x, table, at = rand(1, 5, 3, 7, dtype=dtype), torch.tensor([2, 0, 3]), torch.tensor([[1, 2, 3, 4, 5]])
    pool = torch.zeros(16, 3, 7, dtype=dtype)
    if native.fits_store(x, (pool,), table, at):
        native.store(x, (pool,), table, at, 4)
        expected = torch.zeros_like(pool)
        expected[[9, 10, 11, 0, 1]] = x[0]
        assert torch.equal(pool, expected)
    else:
        assert not native.available()


@pytest.mark.parametrize("dtype", DTYPES)
def test_argmax(dtype: torch.dtype) -> None:
    if not native.available():
        return
    for n in (1, 5, 16, 100, 50257):
        x = rand(1, 3, n, dtype=dtype)
        x[0, 0, n // 2 :] = 9.0  # equal ones: the first
        assert native.argmax(x)[0, 0] == n // 2
        assert torch.equal(x.gather(-1, native.argmax(x)[..., None])[..., 0], x.amax(-1))
    x = torch.full((1, 20), -math.inf, dtype=dtype)
    assert native.argmax(x).tolist() == [0]
    x[0, 7], x[0, 3] = math.inf, 5.0
    assert native.argmax(x).tolist() == [7]
    x[0, 18] = math.nan
    assert native.argmax(x).tolist() == [18]


def test_a_nan_and_ties_are_rounded_as_torch_does() -> None:
    """In bf16 ties go to even, a NaN stays one, and what is too large becomes infinite."""
    if not native.available():
        return
    x = torch.tensor([[1.0, 2.0**-8, 3 * 2.0**-8, 3.0e38, math.nan, -math.inf, 1e-40] + [0.5] * 30]).bfloat16()
    y = torch.tensor([[2.0**-8, 1.0, 1.0, 3.0e38, 1.0, 1.0, 0.0] + [2.0**-9] * 30]).bfloat16()
    assert torch.equal(native.add(x, y).nan_to_num(7.0), (x + y).nan_to_num(7.0))


def test_which_calls_fit() -> None:
    """Kernels are used only where they compute the same: for their dtypes, their memory layout, a few rows, no gradients."""
    x, w = torch.randn(4, 32), torch.randn(8, 32)
    assert native.fits_linear(x, w, None) == native.available()
    wrong = [
        (x.double(), w.double()), (x, w.bfloat16()), (x.half(), w.half()), (x.to("meta"), w.to("meta")), (torch.randn(17, 32), w),
        (torch.randn(32, 4).T, w), (x, torch.randn(32, 8).T), (torch.randn(0, 32), w), (x, torch.nn.Parameter(w)),
    ]  # fmt: skip
    assert not any(native.fits_linear(a, b, None) for a, b in wrong)
    with torch.no_grad():
        assert native.fits_linear(x, torch.nn.Parameter(w), None) == native.available()
    with torch._subclasses.FakeTensorMode() as mode:
        assert not native.fits_linear(mode.from_tensor(x), mode.from_tensor(w), None)
    with native.off():
        assert not native.fits_linear(x, w, None) and native.instructions() is None


def test_gradients_flow_as_ever() -> None:
    x, w = torch.randn(2, 3, 8), torch.nn.Parameter(torch.randn(5, 8))
    ops.linear(x, w, None).sum().backward()
    assert torch.allclose(w.grad, x.flatten(0, 1).sum(0).expand(5, 8), atol=1e-5)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    """Every sum belongs to one thread, so that their number changes no bit."""
    if not native.available():
        return
    x, w, before = rand(3, 500, dtype=torch.bfloat16), rand(4000, 500, dtype=torch.bfloat16, seed=1), torch.get_num_threads()
    try:
        seen = []
        for n in (1, 2, 5):
            torch.set_num_threads(n)
            seen += [native.linear(x, w, None) for _ in range(3)]
        assert all(torch.equal(s, seen[0]) for s in seen)
    finally:
        torch.set_num_threads(before)


def test_without_a_compiler_nothing_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert make.build(tmp_path) == []
    monkeypatch.setattr(make, "compiler", lambda: "false")  # one that fails
    assert make.build(tmp_path) == [] and not list(tmp_path.iterdir())


def test_libraries_are_kept_for_their_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A second install compiles nothing; other sources or a compiler that failed before do."""
    calls = list[Path]()

    def build(into: Path) -> list[Path]:
        calls.append(into)
        made = [into / "kernels_avx2.so"] if len(calls) > 1 else []
        for path in made:
            path.write_bytes(make.digest().encode())
        return made

    monkeypatch.setattr(make, "build", build)
    monkeypatch.setattr(make, "FLAGS", {"avx2": ()})
    monkeypatch.setattr(make, "compiler", lambda: sys.executable)
    assert make.kept(tmp_path) == []
    first = make.kept(tmp_path)
    assert make.kept(tmp_path) == first and len(calls) == 2 and [p.name for p in first] == ["kernels_avx2.so"]
    monkeypatch.setattr(make, "digest", lambda: "other sources")
    assert make.kept(tmp_path) != first and len(calls) == 3
    monkeypatch.setattr(make, "compiler", lambda: None)
    assert make.kept(tmp_path) == []


def test_two_installs_at_once_compile_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the lock each compiles: both are in `build` together."""
    together = threading.Barrier(2)

    def build(into: Path) -> list[Path]:
        with suppress(threading.BrokenBarrierError):
            together.wait(0.3)
        (into / "kernels_avx2.so").write_bytes(b"")
        calls.append(into)
        return [into / "kernels_avx2.so"]

    monkeypatch.setattr(make, "build", build)
    monkeypatch.setattr(make, "FLAGS", {"avx2": ()})
    monkeypatch.setattr(make, "compiler", lambda: sys.executable)
    calls = list[Path]()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(make.kept, [tmp_path / "locked"] * 2)
    assert first == second and len(calls) == 1
    calls.clear()
    together.reset()
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    with ThreadPoolExecutor(2) as pool, suppress(OSError):  # the second finds the first one's folder
        list(pool.map(make.kept, [tmp_path / "open"] * 2))
    assert len(calls) == 2


def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.available():
        return
    assert library.load(native.instructions()) is not None
    monkeypatch.setattr(library, "digest", lambda: "other sources")
    assert library.load(native.instructions()) is None


def test_one_openmp_runtime() -> None:
    """The kernels use torch's threads."""
    if not native.available():
        return
    native.add(torch.randn(1, 16), torch.randn(1, 16))
    with open("/proc/self/maps") as maps:
        assert len({line.split()[-1] for line in maps if "gomp" in line or "iomp" in line}) == 1


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("rotate", lambda f: lambda x, c, s, i: f(x, s, c, i)),
        ("norm", lambda f: lambda x, w, b, eps, centred: f(x, w, b, eps, not centred)),
        ("linear", lambda f: lambda x, w, b: f(x, w, None)),
        ("gate", lambda f: lambda g, up, act: f(g, up, {"silu": "gelu", "gelu": "gelu_tanh"}.get(act, act))),
        ("attend", lambda f: lambda q, pools, table, *how: f(q, pools, table.flip(0).contiguous(), *how)),
    ],
)
def test_the_checks_see_a_wrong_kernel(name: str, wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.available():
        return
    monkeypatch.setattr(native, name, wrong(getattr(native, name)))
    with pytest.raises(AssertionError):
        {"rotate": lambda: test_angles_and_rotate(torch.float32, False, 64, 64), "norm": lambda: test_norms(torch.float32, 64),
         "linear": lambda: test_linear(torch.float32, 64), "gate": lambda: test_add_and_gates(torch.float32, 64),
         "attend": lambda: test_attend(torch.float32, 4, 4, 64, 64, 16)}[name]()  # fmt: skip
