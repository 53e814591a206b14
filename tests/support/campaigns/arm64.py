"""The arm64 kernels under qemu: the tests of the ops and of plans, every call compared with AVX2's bit by bit.

    PYTHONPATH=tests/support python -m campaigns.arm64 [--sets neon neon_dot] [--all] [tests and options of pytest]

Needs Debian's g++-aarch64-linux-gnu and qemu-user, and a machine with AVX2. Says nothing of speed. --all: as PELLUCID_FULL=1.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import pytest

from pellucid.ops.native import make

TESTS = Path(__file__).parents[2]
OPS = ("native", "native_experts", "native_kinds", "native_rows", "blocks", "convolve", "ssd", "cuts")
OURS = (*(f"ops/test_{name}.py" for name in OPS), "engine/test_states.py", "engine/test_plan.py", "engine/test_plan_families.py")
ELSEWHERE = "built or library or compiler or openmp"  # tests of which library this machine loads


class Plugin:
    """Runs every test by a set's kernels."""

    def __init__(self, program: Path) -> None:
        self.program = program

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        import emulated

        self.lib = emulated.Compared(self.program)
        self.open = emulated.installed(self.lib)
        self.open.__enter__()

    def pytest_sessionfinish(self) -> None:
        self.open.__exit__(None, None, None)
        silent = sorted(self.lib.ops.keys() - self.lib.called)
        print(f"\n{self.lib.path.name}: {self.lib.calls} calls, {self.lib.bytes} bytes compared; kernels never called: {silent or 'none'}")


def run(name: str, folder: Path, more: list[str]) -> int:
    """Run the tests by one set. Returns pytest's status."""
    import emulated

    given = [arg for arg in more if not arg.startswith("-")]
    paths = [] if given else [str(TESTS / test) for test in OURS]
    command = ["-q", "-n", "0", "-p", "no:cacheprovider", "-k", f"not ({ELSEWHERE})", *paths, *more]
    return int(pytest.main(command, [Plugin(emulated.build(name, folder))]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=make.ARM, default=list(make.ARM))
    parser.add_argument("--all", action="store_true")
    options, more = parser.parse_known_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.all:
        os.environ["PELLUCID_FULL"] = "1"
    import emulated

    if (lacks := emulated.missing()) is not None:
        print(lacks, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        return max(run(name, Path(folder), more) for name in options.sets)


if __name__ == "__main__":
    sys.exit(main())
