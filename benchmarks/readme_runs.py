"""The README's second command on an unpinned install, time after time, while every core is busy with other work.

    python benchmarks/readme_runs.py [--runs 4] [--lanes 2] [--folder FOLDER]

A fresh environment, `pip install '.[dev]'` without constraints, then its `pytest` in `lanes` clones of this checkout's commit at once: the
other work of each lane is the others. Each run is added to benchmarks/results/readme_runs.json as it ends, with the load that it had, the
versions that it met and the tests that failed; "in_a_row" counts the newest runs without one, over several calls of this script.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue
from typing import Any

from versions import commit

from pellucid.bench.machine import cpu

ROOT = Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "results" / "readme_runs.json"
VERSIONS = "torch", "transformers", "peft", "triton", "numpy", "tokenizers", "pytest"
ASKED = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
LOAD_EVERY = 30  # seconds
WORKERS = re.findall(r"pytest -n (\d+)", (ROOT / "README.md").read_text(encoding="utf-8"))[0]
LOCK = threading.Lock()


def variables(programs: Path) -> dict[str, str]:
    """Return this process' variables, with `programs` before all others and without what would change an install or a test."""
    own = {name: value for name, value in os.environ.items() if name not in ("PIP_CONSTRAINT", "PYTHONPATH", "OMP_NUM_THREADS")}
    return own | {"PATH": f"{programs}{os.pathsep}{own['PATH']}"}


def install(clone: Path, place: Path) -> tuple[Path, dict[str, str]]:
    """Make an environment at `place` with the packages of `clone`, the newest that there are. Returns its programs and their versions."""
    programs = place / "bin"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    subprocess.run([str(programs / "pip"), "install", "-q", ".[dev]"], cwd=clone, check=True, env=variables(programs))
    versions = subprocess.run([str(programs / "python"), "-c", ASKED, *VERSIONS], check=True, capture_output=True, text=True).stdout
    return programs, json.loads(versions) | {"python": sys.version.split()[0]}


def run(clone: Path, programs: Path) -> dict[str, Any]:
    """Run the tests of `clone` once. Returns when, for how long, beside how much, and what failed."""
    start, loads = time.time(), list[float]()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as written:
        tests = subprocess.Popen(
            [str(programs / "pytest"), "-n", WORKERS], cwd=clone, env=variables(programs), stdout=written, stderr=subprocess.STDOUT
        )
        while tests.poll() is None:
            loads.append(os.getloadavg()[0])
            try:
                tests.wait(LOAD_EVERY)
            except subprocess.TimeoutExpired:
                continue
        written.seek(0)
        text = written.read()
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", text[-2000:])}
    return {
        "start": datetime.fromtimestamp(start, UTC).isoformat(timespec="seconds"),
        "seconds": round(time.time() - start),
        "load": round(sum(loads) / len(loads), 2),
        "status": tests.returncode,
        "counts": counts,
        "failed": re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.M),
    }


def in_a_row(runs: list[dict[str, Any]]) -> int:
    """Return how many of the newest runs have no failed test."""
    count = 0
    while count < len(runs) and runs[-1 - count]["status"] == 0:
        count += 1
    return count


def keep(entry: dict[str, Any], out: Path) -> None:
    """Add a run to the file."""
    with LOCK:
        runs = [*(json.loads(out.read_text(encoding="utf-8"))["runs"] if out.exists() else []), entry]
        out.write_text(json.dumps({"schema": 1, "in_a_row": in_a_row(runs), "runs": runs}, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(entry), flush=True)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--runs", type=int, default=4)
    ask.add_argument("--lanes", type=int, default=2)
    ask.add_argument("--folder", type=Path, help="an empty folder for clones and environment; by default a temporary one")
    ask.add_argument("--out", type=Path, default=OUT)
    given = ask.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        clones = [folder / f"lane{n}" for n in range(given.lanes)]
        for clone in clones:
            subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
            if (packages := ROOT / "web" / "node_modules").is_dir():  # axe, which tests of the page run
                (clone / "web" / "node_modules").symlink_to(packages)
        programs, versions = install(clones[0], folder / "environment")
        about = {"commit": commit(ROOT), "cpu": cpu(), "cores": os.cpu_count(), "lanes": given.lanes, "workers": int(WORKERS)}
        about |= {"versions": versions}
        free = Queue[Path]()
        for clone in clones:
            free.put(clone)

        def one(_: int) -> None:
            clone = free.get()
            keep(about | run(clone, programs), given.out)
            free.put(clone)

        with ThreadPoolExecutor(given.lanes) as pool:
            list(pool.map(one, range(given.runs)))


if __name__ == "__main__":
    main()
