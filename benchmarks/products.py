"""Products of bf16 at the shapes of GPT-2 and Qwen2.5-0.5B, by each instruction set of this machine and by torch, in turns.

    python benchmarks/products.py [--rows 1 4 16 64 512] [--sets amx_bf16 avx512_vnni] [--turns 20] [--threads 2]

The bounds come first: what the processor's three ways to multiply give in a loop of registers, and what the memory gives. A turn is one
product by each, every other time backwards, with another weight each time. Writes benchmarks/results/products-<time>.json.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from decode import machine
from torch.nn import functional as F

from pellucid import huge_pages
from pellucid.bench.machine_limits import reading
from pellucid.ops import native
from pellucid.ops.native import library
from pellucid.ops.native.make import FLAGS, compiler

HERE = Path(__file__).parent
SHAPES = {"gpt2": [(768, 768), (3072, 768), (768, 3072)], "qwen2": [(896, 896), (4864, 896), (896, 4864)]}  # [out in]
HELD = 256 << 20  # bytes of weights that take turns
PEAKS = {"fma": "avx512", "vdpbf16ps": "avx512_bf16", "tdpbf16ps": "amx_bf16"}  # an instruction, and the first set that has it
LOOP = r"""
#include <immintrin.h>
#include <algorithm>
#include <chrono>
static volatile float sink;
template <class F> static double best(double work, F f) {
  double most = 0;
  for (int turn = 0; turn < 60; turn++) {
    const auto began = std::chrono::steady_clock::now();
    f();
    most = std::max(most, work / std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  return most;
}
constexpr long N = 20000;
template <class F> static double vectors(double each, F f) {
  return best(N * 24 * each, [&] {
    __m512 sum[24], x = _mm512_set1_ps(1e-3f), all = x;
    for (auto& s : sum) s = x;
    for (long i = 0; i < N; i++) {
      asm volatile("" : "+v"(x));
#pragma GCC unroll 24
      for (int j = 0; j < 24; j++) sum[j] = f(sum[j], x);
    }
    for (auto s : sum) all = _mm512_add_ps(all, s);
    sink = _mm512_reduce_add_ps(all);
  });
}
extern "C" double peak() {
#if defined(__AMX_BF16__)
  alignas(64) static unsigned char shapes[64];
  shapes[0] = 1;
  for (int tile = 0; tile < 8; tile++) shapes[16 + 2 * tile] = 64, shapes[48 + tile] = 16;
  asm volatile("" ::: "memory");
  return best(N * 4. * 16 * 16 * 32 * 2, [] {
    _tile_loadconfig(shapes);
    for (long i = 0; i < N; i++) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
  });
#elif defined(__AVX512BF16__)
  return vectors(64, [](__m512 s, __m512 x) { return _mm512_dpbf16_ps(s, (__m512bh)x, (__m512bh)x); });
#else
  return vectors(32, [](__m512 s, __m512 x) { return _mm512_fmadd_ps(x, x, s); });
#endif
}
"""


def peaks() -> dict[str, float]:
    """FLOP/s of one thread in a loop that touches no memory, the best of 60 short turns, of each instruction that this machine has."""
    found, cxx = dict[str, float](), compiler()
    with tempfile.TemporaryDirectory() as folder:
        for name, family in PEAKS.items():
            if cxx is None or family not in library.wanted():
                continue
            source, out = Path(folder) / f"{name}.cpp", Path(folder) / f"{name}.so"
            source.write_text(LOOP)
            subprocess.run([cxx, "-O3", *FLAGS[family], "-shared", "-fPIC", str(source), "-o", str(out)], check=True)
            loop = ctypes.CDLL(str(out)).peak
            loop.restype = ctypes.c_double
            found[name] = loop()
    return found


def case(n: int, k: int, rows: int, sets: list[str], turns: int) -> dict[str, Any]:
    """Seconds of each turn of one product."""
    count = max(2, HELD // (n * k * 2))
    weights = huge_pages.empty((count, n, k), torch.bfloat16).normal_(generator=torch.Generator().manual_seed(0))
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(1)).bfloat16()
    libraries, seconds = {name: library.load(name) for name in sets}, {name: list[float]() for name in [*sets, "torch"]}
    for turn in range(turns + 1):
        for i, name in enumerate(list(seconds) if turn % 2 == 0 else list(seconds)[::-1]):
            w = weights[(turn * len(seconds) + i) % count]
            if name != "torch":
                library.lib = libraries[name]
            began = time.perf_counter()
            F.linear(x, w) if name == "torch" else native.linear(x, w, None)
            if turn:  # the first warms
                seconds[name].append(time.perf_counter() - began)
    flops, first = 2 * rows * n * k, sets[0]
    return {
        "out": n, "in": k, "rows": rows, "seconds": seconds,
        "gflop_s": {name: flops / statistics.median(s) / 1e9 for name, s in seconds.items()},
        "weight_gb_s": {name: n * k * 2 / statistics.median(s) / 1e9 for name, s in seconds.items()},
        "ratio_per_turn_median": {
            name: statistics.median(b / a for a, b in zip(seconds[first], s, strict=True)) for name, s in seconds.items() if name != first
        },
    }  # fmt: skip


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16, 64, 512])
    ask.add_argument("--sets", nargs="+", default=[name for name in library.wanted() if library.load(name)])
    ask.add_argument("--turns", type=int, default=20)
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--out", type=Path, default=HERE / "results")
    a = ask.parse_args()
    torch.set_num_threads(a.threads)
    torch.set_grad_enabled(False)
    block = huge_pages.empty((64 << 20,), torch.float32).fill_(1.0)
    report: dict[str, Any] = {"schema": 1, "benchmark": "products", "machine": machine(a.threads), "sets": a.sets, "shapes": {}}
    report["peak_gflop_s_one_thread"] = {name: flops / 1e9 for name, flops in peaks().items()}
    report["read_gb_s"] = [reading(block) / 1e9 for _ in range(5)]
    print(report["peak_gflop_s_one_thread"], "GFLOP/s,", f"{statistics.median(report['read_gb_s']):.1f} GB/s", flush=True)
    for shape, matrices in SHAPES.items():
        report["shapes"][shape] = cases = [case(n, k, rows, a.sets, a.turns) for n, k in matrices for rows in a.rows]
        for c in cases:
            words = [f"{name} {c['gflop_s'][name]:.0f} GFLOP/s {c['weight_gb_s'][name]:.1f} GB/s" for name in c["seconds"]]
            times = [f"{r:.2f}x {name}" for name, r in c["ratio_per_turn_median"].items()]
            print(f"{shape} {c['out']}x{c['in']} rows {c['rows']}: {', '.join(words)}; {a.sets[0]} is {', '.join(times)}", flush=True)
    report["read_gb_s"] += [reading(block) / 1e9 for _ in range(5)]
    path = a.out / f"products-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
