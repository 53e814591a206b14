"""`python src/pellucid/ops/native/make.py`: compile the kernels next to their sources.

On x86-64: one library for AVX2, one for AVX-512, and three for AVX-512 with more: sums of bytes (VNNI), products of bf16 in vectors (BF16)
and in tiles (AMX). On arm64: one for NEON, and one for NEON with sums of bytes (dot products). All are made from the same sources.
`make.py wasm` compiles the kernels of a decode step to WebAssembly, for the page in one file. That library is committed, since it serves
every machine and needs Debian's clang-16, lld-16, wasi-libc and libc++-16-dev-wasm32. `make.py kept` compiles what the next wheel takes.

It imports the standard library only, since the wheel's build hook runs it before anything is installed. On Linux OpenMP is compiled in but
not linked; its symbol is found in the runtime that torch has loaded. Apple's compiler has no OpenMP: there the kernels have threads of
their own. A library holds the digest of its sources, and is not loaded beside others.
"""

import atexit
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
KEPT = HERE.parents[3] / "build" / "kernels"  # of wheels
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
VNNI = (*AVX512, "-mavx512vnni")
BF16 = (*VNNI, "-mavx512bf16")
AMX = (*BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8")
X86 = {"avx2": AVX2, "avx512": AVX512, "avx512_vnni": VNNI, "avx512_bf16": BF16, "amx_bf16": AMX}
ARM = {"neon": (), "neon_dot": ("-march=armv8.2-a+dotprod",)}
MACHINES = {("linux", "x86_64"): X86, ("linux", "aarch64"): ARM, ("darwin", "arm64"): ARM}
FLAGS: dict[str, tuple[str, ...]] = MACHINES.get((sys.platform, platform.machine()), {})  # of each library for this machine
OLDEST_MACOS = "11.0"  # the first one on arm64
SYSTEMS = (f"-mmacosx-version-min={OLDEST_MACOS}",) if sys.platform == "darwin" else ("-fopenmp",)
COMMON = ("-std=c++17", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-w", *SYSTEMS)

WASM = HERE / "kernels.wasm"
WASM_COMPILER = "16.0.6 (15~deb12u1)"  # Debian's clang that made the committed file; another may write other bytes
SYSTEM = Path("/usr/include/wasm32-wasi")  # headers of C and C++ for WebAssembly
TO_WASM = (
    "--target=wasm32-wasi", "-msimd128", "-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-w",
    "-fno-exceptions", "-fno-rtti", "-fno-c++-static-destructors", "-mexec-model=reactor", "-nodefaultlibs",
    "-isystem", str(SYSTEM / "c++" / "v1"), "-isystem", str(SYSTEM),
    "-Wl,--export=room,--export=run,--export=kernels,--strip-all", "-lc++", "-lc++abi", "-lc",
)  # fmt: skip


def digest(sources: Path = HERE) -> str:
    """Return the digest of the sources. A library built from others may have other structs."""
    parts = [p.read_bytes() for p in sorted(sources.iterdir()) if p.suffix in (".h", ".cpp")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def compiler() -> str | None:
    """Return the C++ compiler. None if there is none, or the kernels are not for this machine."""
    return shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")) if FLAGS else None


def build(into: Path = HERE) -> list[Path]:
    """Compile this machine's libraries, such as kernels_avx2.so, into a folder, as many at once as there are cores.

    Returns the libraries that compiled, none without a compiler.
    """
    cxx = compiler()
    if cxx is None:
        return []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(lambda name: compiled(cxx, name, into), FLAGS)
        return [path for path in made if path is not None]


def kept(folder: Path = KEPT) -> list[Path]:
    """Return this machine's libraries as they are kept in `folder` for these sources, flags and compiler; compile them if they are not.

    Where another process compiles them this one waits for it.
    """
    if (cxx := compiler()) is None:
        return []
    import fcntl  # of the systems that have kernels

    version = subprocess.run([cxx, "--version"], capture_output=True, check=False).stdout
    key = hashlib.sha256(b"\0".join((digest().encode(), repr((COMMON, FLAGS)).encode(), version))).hexdigest()[:16]
    own = folder / key
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not own.is_dir():
            part = Path(tempfile.mkdtemp(dir=folder))
            if len(made := build(part)) < len(FLAGS):  # nothing is kept of a compiler that refuses, beyond the wheel that is made of it
                atexit.register(shutil.rmtree, part, ignore_errors=True)
                return made
            part.rename(own)  # atomic: of all libraries or none
    return sorted(own.iterdir())


def compiled(cxx: str, name: str, into: Path) -> Path | None:
    """Compile the library of one instruction set. None if the compiler refuses."""
    part, out = into / f"kernels_{name}.{os.getpid()}.o", into / f"kernels_{name}.so"
    stamp = f'-DDIGEST="{digest()}"'
    steps = (
        [cxx, *COMMON, *FLAGS[name], stamp, "-c", str(HERE / "kernels.cpp"), "-o", str(part)],
        [cxx, "-shared", str(part), "-o", f"{part}.so"],
    )
    built = all(subprocess.run(step, check=False).returncode == 0 for step in steps)
    part.unlink(missing_ok=True)
    if not built:
        return None
    os.replace(f"{part}.so", out)  # atomic: a process that has the old one open keeps it
    return out


def wasm_compiler() -> tuple[str, str] | None:
    """Return the compiler for WebAssembly, and the line in which it names itself. None if it, its linker or its headers are missing."""
    clang = shutil.which("clang++-16")
    if clang is None or shutil.which("wasm-ld-16") is None or not (SYSTEM / "c++" / "v1").is_dir():
        return None
    named = subprocess.run([clang, "--version"], capture_output=True, text=True, check=False).stdout
    return clang, named.partition("\n")[0]


def wasm(out: Path = WASM) -> Path | None:
    """Compile kernels.wasm, with the same bytes wherever the same compiler runs. None without it, or if it refuses."""
    if (known := wasm_compiler()) is None:
        return None
    clang, _ = known
    made = subprocess.run([clang, "kernels.cpp", "-o", str(out), *TO_WASM], cwd=HERE, check=False)
    if made.returncode:
        return None
    out.chmod(0o644)  # the linker makes a program
    return out


def platform_tag(libraries: list[Path], system: str = sys.platform, machine: str = platform.machine()) -> str:
    """Return the platform of a wheel that holds `libraries`: on Linux the oldest glibc that has every symbol they need.

    An index refuses plain `linux_x86_64`, which says nothing of the C library. Libraries of another C library keep that name.
    """
    if system == "darwin":
        return f"macosx_{OLDEST_MACOS.replace('.', '_')}_{machine}"
    named = [re.findall(rb"\bGLIBC_(\d+)\.(\d+)", path.read_bytes()) for path in libraries]
    versions = [(int(major), int(minor)) for symbols in named for major, minor in symbols]
    if not versions:
        return f"linux_{machine}"
    major, minor = max(versions)
    return f"manylinux_{major}_{max(minor, 17)}_{machine}"  # 2.17 is the oldest that pip knows by this name


if __name__ == "__main__":
    ways = {"wasm": lambda: [path for path in [wasm()] if path is not None], "kept": kept, "": build}
    libraries = ways[" ".join(sys.argv[1:])]()
    print(*libraries, sep="\n")
    sys.exit(0 if libraries else 1)
