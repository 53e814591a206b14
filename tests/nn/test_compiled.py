"""One model, every way to run it: in the open, by torch's fused kernels, over pages, by the native kernels, through torch.compile."""

import importlib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pellucid.batch.kv_cache import PagedCache
from pellucid.ops import native
from pellucid.watching.watch import watch
from tiny import DECODERS, FAMILIES, LLAMA, far, ids, inputs, law, serve, swapped, tiny

attend = importlib.import_module("pellucid.ops.attend")  # the package names functions like their modules
experts = importlib.import_module("pellucid.ops.experts")
latent = importlib.import_module("pellucid.ops.latent")
sdpa, by_pages, linear = attend.attend_sdpa, attend.attend_pages, native.linear
DENSE = ("gpt2", "llama", "qwen3")
SMALL = replace(LLAMA, layers=LLAMA.layers[:1])
TOKENS = ids(11)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def opened(model: nn.Module, *args: Tensor) -> Tensor:
    """The logits where attention is its reference, and every other op torch's."""
    with native.off(), watch(model, only="*.pattern", inside="reference"):
        return model(*args)  # type: ignore[no-any-return]


def off(*a: Any) -> Tensor:
    return sdpa(*a) * 1.1  # type: ignore[no-any-return]


@law(
    off=(attend, "attend_sdpa", off),
    off_latent=(latent, "attend_sdpa", off),
    unscaled=(attend, "attend_sdpa", lambda *a: sdpa(*a[:-1], 1.0)),
)
def test_26_fused_is_open() -> float:
    """torch's fused attention, with every mask, bias and sink of the families."""
    return max(far(tiny(f)(*inputs(f)), opened(tiny(f), *inputs(f))) for f in FAMILIES)


@law(off=(attend, "attend_pages", lambda *a: by_pages(*a) * 1.1), off_latent=(latent, "attend_sdpa", off))
def test_26_pages_are_open() -> float:
    """One token at a time, over pages where they lie; a latent is absorbed there."""
    gaps = []
    for f in DECODERS:
        model = tiny(f)
        rows = serve(model, {0: TOKENS}, [{0: 1}] * len(TOKENS), PagedCache(8, 2))[0]
        gaps.append(far(rows, opened(model, TOKENS[None])[0]))
    return max(gaps)


def error(f: str, rows: Tensor) -> float:
    """How far these logits of TOKENS [T V] are from those of float64, relative to the largest."""
    truth = opened(tiny(f), TOKENS[None])[0]
    return far(rows, truth) / float(truth.abs().max())


KERNELS: dict[str, Any] = {"off": (native, "linear", lambda *a: linear(*a) * 1.1)} if native.available() else {}


@law(1e-5, **KERNELS)
def test_26_kernels_are_open() -> float:
    """In float32 the native kernels, a prompt at once and token by token, and torch's: all near float64's open form."""
    gaps = []
    for f in DECODERS:
        model = tiny(f, torch.float32)
        each = serve(model, {0: TOKENS}, [{0: 1}] * len(TOKENS), PagedCache(8, 2))[0]
        gaps += [error(f, x) for x in (model(TOKENS[None])[0], each, opened(model, TOKENS[None])[0])]
    return max(gaps)


def compiled(model: nn.Module, *args: Tensor, backend: str = "aot_eager") -> Tensor:
    torch._dynamo.reset()
    return torch.compile(model, backend=backend)(*args)  # type: ignore[no-any-return]


def off_compiled(*a: Any) -> Tensor:
    """Wrong in what the compiler reads, and only there."""
    return sdpa(*a) * (1.1 if torch.compiler.is_compiling() else 1.0)  # type: ignore[no-any-return]


@law(off=(attend, "attend_sdpa", off_compiled))
def test_26_traced_is_open() -> float:
    """The graphs that torch.compile takes, in float64."""
    return max(far(compiled(tiny(f), *inputs(f)), opened(tiny(f), *inputs(f))) for f in DENSE)


@law(1e-5, off=(attend, "attend_sdpa", off_compiled))
def test_26_traced_is_open_in_float32() -> float:
    """Where the model itself would run the native kernels, which no graph may hold."""
    return max(error(f, compiled(tiny(f, torch.float32), TOKENS[None])[0]) for f in DENSE)


@law(off=(attend, "attend_sdpa", off_compiled))
def test_26_compiled_is_open() -> float:
    """Down to inductor's own C++; one layer, and no vectors, which the compiler takes longest for."""
    quick: dict[str, Any] = {"compile_threads": 1, "cpp.simdlen": 1}
    with importlib.import_module("torch._inductor.config").patch(quick):
        return far(compiled(tiny(SMALL), TOKENS[None], backend="inductor"), opened(tiny(SMALL), TOKENS[None]))


def test_26_experts_are_traced_in_float32() -> None:
    """torch's grouped product knows float32 when it runs, and when it is traced, before 2.15, only bfloat16."""
    args = inputs("deepseek_v3")
    model = tiny(replace(FAMILIES["deepseek_v3"], layers=FAMILIES["deepseek_v3"].layers[-1:]), torch.float32)
    assert far(compiled(model, *args), model(*args)) < 1e-4
    refused = pytest.raises(Exception, match="BF16") if torch.__version__ < "2.15" else nullcontext()
    with swapped(experts, "fits_grouped_mm", lambda rows, weight: rows.dtype is torch.float32), refused:
        assert far(compiled(model, *args), model(*args)) < 1e-4
