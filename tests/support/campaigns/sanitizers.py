"""The kernels under GCC's sanitizers of addresses and undefined behaviour, and between pages without access.

    PYTHONPATH=tests/support python -m campaigns.sanitizers [--sets avx2 amx_bf16] [--quick] [tests and options of pytest]

Each set that this machine has is compiled with -fsanitize=address,undefined. A process of its own runs every kernel on odd shapes, and then
the tests of the ops, by `Fenced`, which sees the masked and tiled accesses that the sanitizers do not. The first fault ends it.

--quick: odd shapes alone, by the libraries as they are built, of which a first call of each kernel must end a process if it has a row more.
Needs g++ and its libasan and libubsan, but for --quick.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pellucid.ops.native import library, make

TESTS = Path(__file__).parents[2]
SANITIZE = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
MUTANTS = "wrong or mutants or broken"  # tests that give a kernel what it would read past
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0", "UBSAN_OPTIONS": "print_stacktrace=1"}  # Python leaks on purpose
FOUND = 1


def runtimes() -> list[str]:
    """Return the libraries to load before Python: the sanitizers', and C++'s, whose exceptions they watch. Empty if they are missing."""
    cxx = make.compiler()
    if cxx is None:
        return []
    paths = []
    for name in ("libasan.so", "libubsan.so", "libstdc++.so"):
        path = subprocess.run([cxx, f"-print-file-name={name}"], capture_output=True, text=True, check=False).stdout.strip()
        paths.append(os.path.realpath(path))
    return paths if all(os.path.isabs(path) and os.path.exists(path) for path in paths) else []


def missing() -> str | None:
    """Return what the sanitizers lack on this machine, or None."""
    if sys.platform != "linux" or not make.FLAGS:
        return "the sanitizers are used on Linux, where the kernels are compiled by g++"
    return None if runtimes() else "g++ with libasan and libubsan is not installed (Debian: g++)"


def build(name: str, into: Path, sources: Path = make.HERE) -> Path:
    """Compile a set of kernels under the sanitizers. Raises CalledProcessError if the compiler refuses."""
    flags = [flag for flag in make.COMMON if flag != "-O3"]
    out = into / f"kernels_{name}.so"
    stamp = f'-DDIGEST="{make.digest()}"'  # of the sources that this process has, also for a mutant
    command = [str(make.compiler()), *flags, *make.FLAGS[name], *SANITIZE, stamp, "-shared", str(sources / "kernels.cpp"), "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return out


def judged(path: Path, more: list[str], quick: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a library's kernels in a process of its own. Returns it as it has ended: with 0 if no fault was found."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    if not quick:
        env |= OPTIONS | {"LD_PRELOAD": " ".join(runtimes())}
    command = [sys.executable, "-m", "campaigns.sanitizers", "--library", str(path), *(["--quick"] if quick else []), *more]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def inside(path: Path, quick: bool, more: list[str]) -> int:
    """Run every kernel of a library on odd shapes, and unless `quick` the tests of the ops. Returns 0 if all is well."""
    sys.path[:0] = [str(folder) for folder in TESTS.iterdir() if folder.is_dir()]
    import pytest

    import odd_shapes
    from campaigns.arm64 import ELSEWHERE, OURS
    from emulated import installed
    from fenced import Fenced

    lib = Fenced(path, greedy=quick)
    with installed(lib):
        odd_shapes.run()
        never = sorted(lib.ops.keys() - lib.called)
        print(f"{path.name}: {lib.calls} calls on odd shapes; kernels never called: {never or 'none'}", flush=True)
        if quick:
            print(f"kernels that have a row too many and live: {sorted(lib.unseen) or 'none'}")
            return FOUND if never or lib.unseen else 0
        given = [arg for arg in more if not arg.startswith("-")]
        paths = [] if given else [str(TESTS / test) for test in OURS]
        command = [
            "-q",
            "-x",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "--timeout",
            "0",
            "-k",
            f"not ({ELSEWHERE} or {MUTANTS})",
            *paths,
            *more,
        ]
        return int(pytest.main(command)) or (FOUND if never else 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=make.FLAGS, default=list(library.wanted()))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)  # in the process of one library
    options, more = parser.parse_known_args()
    if options.library is not None:
        return inside(options.library, options.quick, more)
    if not options.quick and (lacks := missing()) is not None:
        print(lacks, file=sys.stderr)
        return 2
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sets:
            path = make.HERE / f"kernels_{name}.so" if options.quick else build(name, Path(folder))
            ended = judged(path, more, options.quick)
            result = "no fault" if ended.returncode == 0 else f"ended with {ended.returncode}"
            print(f"{name}: {result}\n{ended.stdout}{ended.stderr}", flush=True)
            worst = max(worst, abs(ended.returncode))
    return worst


if __name__ == "__main__":
    sys.exit(main())
