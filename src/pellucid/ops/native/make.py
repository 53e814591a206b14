"""How the kernels are compiled: the same sources once for AVX2 and once for AVX-512.

The standard library only: the wheel's build hook runs this file before anything is installed. OpenMP is compiled in but not linked;
its symbol is found in the runtime that torch has loaded. A library carries the digest of its sources, and is not used with others.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = {
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
}
COMMON = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-w")


def digest(sources: Path = HERE) -> str:
    """Names the sources: a library made from others has other structures."""
    parts = [p.read_bytes() for p in sorted(sources.iterdir()) if p.suffix in (".h", ".cpp")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def compiler() -> str | None:
    """The C++ compiler, where it can make these kernels: Linux on x86-64."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    return shutil.which(os.environ.get("CXX", "g++"))


def build(into: Path = HERE) -> list[Path]:
    """Make kernels_avx2.so and kernels_avx512.so in a folder: those that the compiler can make, and none without a compiler."""
    cxx, made = compiler(), list[Path]()
    if cxx is None:
        return made
    for name, flags in FLAGS.items():
        part, out = into / f"kernels_{name}.{os.getpid()}.o", into / f"kernels_{name}.so"
        stamp = f'-DDIGEST="{digest()}"'
        steps = (
            [cxx, *COMMON, *flags, stamp, "-c", str(HERE / "kernels.cpp"), "-o", str(part)],
            [cxx, "-shared", str(part), "-o", f"{part}.so"],
        )
        if all(subprocess.run(step, check=False).returncode == 0 for step in steps):
            os.replace(f"{part}.so", out)  # a process that has the old one open keeps it whole
            made.append(out)
        part.unlink(missing_ok=True)
    return made
