"""One campaign in full, in several processes; its counts, seed and outcome go to benchmarks/results/fuzz_<name>.json.

PYTHONPATH=tests/support python -m campaigns safetensors [--count N] [--seed N] [--workers 2] [--only I]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from campaigns import FULL, Tally, Watcher, campaign

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
BATCH = 2000  # attempts of one process: a crash loses no more


def work(name: str, seed: int, start: int, stop: int) -> None:
    """Run a worker's attempts, and print their tally as one line of JSON."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        tally = campaign(name, seed, range(start, stop), Path(folder), Watcher(Path(folder)))
    print(json.dumps([dict(tally.outcomes), tally.faults]), flush=True)


def started(name: str, seed: int, start: int, stop: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "campaigns", name, "--seed", str(seed), "--batch", str(start), str(stop)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(FULL))
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int)
    parser.add_argument("--batch", type=int, nargs=2)
    a = parser.parse_args()
    if a.batch or a.only is not None:
        work(a.name, a.seed, *(a.batch or (a.only, a.only + 1)))
        return 0
    count, began = a.count or FULL[a.name], time.time()
    size = min(BATCH * 10 if a.name in ("safetensors", "gguf") else BATCH, -(-count // a.workers))
    left, running, total = [range(i, min(i + size, count)) for i in range(0, count, size)][::-1], {}, Tally()
    while left or running:
        while left and len(running) < a.workers:
            part = left.pop()
            running[started(a.name, a.seed, part.start, part.stop)] = part
        process = next(iter(running))
        part, (out, _) = running.pop(process), process.communicate()
        if process.returncode:
            total.add(part.start, "crash", f"attempts {part.start} to {part.stop - 1}: exit {process.returncode}")
            continue
        outcomes, faults = json.loads(out.splitlines()[-1])
        total.outcomes.update(outcomes)
        total.faults += faults[: 20 - len(total.faults)]
        print(f"{sum(total.outcomes.values()):,} of {count:,}  {dict(total.outcomes)}", file=sys.stderr, flush=True)
    bad = {k: n for k, n in total.outcomes.items() if k not in ("loaded", "refused")}
    report: dict[str, Any] = {
        "schema": 1, "campaign": a.name, "seed": a.seed, "count": count, "outcomes": dict(total.outcomes), "faults": total.faults,
        "seconds": round(time.time() - began, 1), "python": sys.version.split()[0],
    }  # fmt: skip
    if count >= FULL[a.name]:
        (RESULTS / f"fuzz_{a.name}.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(report, ensure_ascii=False, indent=2))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
