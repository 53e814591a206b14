"""What training the specimens took: steps, tokens and minutes from the logs of finished runs, accuracies from their cards.

python benchmarks/train.py RUN...      # the folders of runs; writes benchmarks/results/train.json
"""

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from meta import commit

from pellucid import __version__, load
from pellucid.bench.machine import cpu

HERE = Path(__file__).parent
ROW = re.compile(r"^\| (\w+) \| (en|zh) \| ([\d,]+) \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \|$", re.M)


def told(run: Path) -> dict[str, Any]:
    """One run; minutes are of the training alone, and of its last stretch where it was resumed."""
    last = json.loads((run / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    card = (run / "model" / "README.md").read_text(encoding="utf-8").split("\n# ")[1]
    model = load(run / "model")
    return {
        "name": card.splitlines()[0],
        "parameters": model.num_parameters(),
        "bytes": (run / "model" / "model.safetensors").stat().st_size,
        "steps": last["step"],
        "tokens": last["tokens"],
        "minutes": round(last["tokens"] / last["tokens_per_second"] / 60, 1),
        "last_loss": last["loss"],
        "right": {f"{relation}.{language}": float(share) for relation, language, _, share, _, _ in ROW.findall(card)},
        "bag_of_words": {f"{relation}.{language}": float(bag) for relation, language, _, _, _, bag in ROW.findall(card)},
    }


if __name__ == "__main__":
    machine = {"cpu": cpu(), "torch": torch.__version__, "threads": 1, "note": "one core to itself; other work ran on the second"}
    result = {
        "schema": 1,
        "benchmark": "train",
        "version": __version__,
        "commit": commit(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "runs": [told(Path(run)) for run in sys.argv[1:]],
    }
    (HERE / "results" / "train.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
