"""What the scripts that tests run on several ranks have in common: the grids, the families, and how a script measures and writes.

torchrun --standalone --nproc-per-node 2 tests/support/trained_on_ranks.py FOLDER
"""

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from kinds import KINDS
from pellucid.config import Config
from pellucid.distributed import number
from pellucid.families import understand
from tiny import DECODERS

OF_EXPERTS = ("deepseek_v3", "qwen3_moe", "gpt_oss")
"""With a correction and a shared expert; with neither; with biases."""
SHARDED = (2, 1, 1, 2)
GRIDS = {
    2: ((2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 2, 2), SHARDED),
    4: ((2, 2, 1), (2, 1, 2), (4, 1, 1), (4, 1, 1, 2), (2, 2, 1, 2)),
}
"""By the number of processes: data, tensor and expert ranks, and the shards of data ranks."""
FULL = bool(os.environ.get("PELLUCID_FULL"))
PATIENCE = timedelta(seconds=60)
Measured = dict[str, Any]


def config(family: str) -> Config:
    """Return the tiny Config of a family."""
    if family in DECODERS:
        return DECODERS[family]
    return understand({"model_type": family, **KINDS[family].tiny, **KINDS[family].quirks["plain"]})[1]


def write_measured(measure: Callable[[Path], Measured]) -> None:
    """Measure on the started processes; the first one writes what `measure` returns as JSON into the folder that was given."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    measured = measure(folder)
    if number() == 0:
        (folder / "measured.json").write_text(json.dumps(measured))
    dist.destroy_process_group()
