"""DeepSeek-V3 is built, counted and traced on the meta device, and a tiny model's trace there is its real one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pellucid import ops
from pellucid.batch.step import Step
from pellucid.families import understand
from pellucid.nn.block import Block
from pellucid.nn.moe import Moe
from pellucid.nn.transformer import build, cast
from pellucid.watching.tap import tap
from pellucid.watching.watch import watch
from published import DEEPSEEK_V3
from tiny import FAMILIES, inputs, swapped, tiny

ROOT = Path(__file__).parents[2]
TOTAL = 671_026_404_352


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the benchmark's numbers from a process of its own."""
    result = tmp_path_factory.mktemp("meta") / "meta.json"
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "meta.py", result],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result_json: dict[str, Any] = json.loads(result.read_text())
    print(json.dumps(result_json["measured"]))
    return result_json


def test_v3_is_traced(measured: dict[str, Any]) -> None:
    """All layers at 4,096 tokens have the published parameters, attention over the full square, and eight rows a token for experts."""
    m = measured["measured"]
    assert m["parameters"] == TOTAL
    assert m["pattern"] == [1, 128, 4096, 4096] and m["routed"] == [8 * 4096, 7168] and m["logits"] == [1, 4096, 129_280]
    dense, experts = 21, 33  # taps of a layer
    assert m["records"] == m["paths"] == 3 + 3 * dense + 58 * experts


def test_v3_needs_little_memory(measured: dict[str, Any]) -> None:
    m = measured["measured"]
    assert 0 < m["peak_bytes_after_import"] <= m["peak_bytes"] < m["peak_bytes_after_import"] + 1e9


def test_a_result_tells_what_it_was_measured_on(measured: dict[str, Any]) -> None:
    assert measured["schema"] == 1 and measured["versions"]["torch"] == torch.__version__
    assert measured["hardware"]["processor"] and measured["hardware"]["cores"] and measured["when"]


@pytest.fixture(scope="module")
def v3() -> Any:
    _, cfg = understand(DEEPSEEK_V3)
    with torch.device("meta"):
        return cast(build(cfg), torch.bfloat16)


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_v3_by_part(v3: Any) -> None:
    """The publisher's file gives the published counts; its storage in 8 bits changes none."""
    dense, sparse = v3.layers[0], v3.layers[3]
    assert size(v3) == TOTAL and [isinstance(x.ffn, Moe) for x in v3.layers] == [False] * 3 + [True] * 58
    assert size(v3.embed) == size(v3.head) == 926_679_040
    assert size(dense.attn) == size(sparse.attn) == 187_107_328
    assert size(dense.ffn) == 396_361_728
    assert size(sparse.ffn.shared) == sum(getattr(sparse.ffn, n)[0].numel() for n in ("gate", "up", "down")) == 44_040_192
    assert size(sparse.ffn.router) == 1_835_008
    assert size(sparse.attn_norm) + size(sparse.ffn_norm) == 14_336
    active = TOTAL - 58 * (256 - 8) * 44_040_192
    assert (active, active - 926_679_040) == (37_552_282_624, 36_625_603_584)


def test_correction_as_a_parameter_mutant(v3: Any) -> None:
    """A correction counted as a parameter would add 58 layers of 256."""
    corrections = sum(b.numel() for b in v3.buffers())
    assert corrections == 58 * 256 and size(v3) + corrections != TOTAL


def test_correction_survives_a_cast() -> None:
    """A cast rounds parameters and keeps the float32 correction, a buffer, bit for bit; the module's own cast would round it."""
    model = tiny("deepseek_v3", torch.float32)
    before = {n: b.clone() for n, b in model.named_buffers()}
    cast(model, torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16} and len(before) == 2
    assert all(b.dtype == torch.float32 and torch.equal(b, before[n]) for n, b in model.named_buffers())
    assert "layers.1.ffn.correction" in model.state_dict()
    model.bfloat16()
    assert not any(torch.equal(b.to(torch.float32), before[n]) for n, b in model.named_buffers())


def trace(model: Any, arguments: tuple[Tensor, ...]) -> list[tuple[Any, ...]]:
    with torch.no_grad(), watch(model) as seen:
        model(*arguments)
    return [(s.path, s.dims, s.shape, s.dtype, s.source, s.op, s.inputs, s.weights) for s in seen]


def traces(family: str, dtype: torch.dtype) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the real trace and that of the same model on meta."""
    with torch.device("meta"):
        meta_model = cast(build(FAMILIES[family]), dtype)
    return trace(tiny(family, dtype), inputs(family)), trace(meta_model, tuple(a.to("meta") for a in inputs(family)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(4)
def test_meta_trace_is_the_real_one(family: str, dtype: torch.dtype) -> None:
    """Path, axes, shape, dtype, source, op, operands and weights are equal, in order."""
    real, meta_model = traces(family, dtype)
    assert len(real) > 20 and real == meta_model


def test_a_branch_on_the_device_mutant() -> None:
    right = Block.sum

    def shorter(self: Block, x: Tensor, part: str, total: str, step: Step) -> Tensor:
        if x.device.type != "meta":
            return right(self, x, part, total, step)
        return tap(ops.add(x, getattr(self, part)(getattr(self, f"{part}_norm")(x), step)), f"{total}: B T D")

    with swapped(Block, "sum", shorter):
        real, meta_model = traces("llama", torch.float32)
    assert real != meta_model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(4)
def test_every_parameter_is_a_source(family: str) -> None:
    """Each parameter and buffer made at least one recorded tensor, on meta too."""
    model = tiny(family)
    names = {n for n, _ in model.named_parameters()} | {n for n, _ in model.named_buffers()}
    assert names == {w for *_, weights in traces(family, torch.float64)[1] for w in weights}
