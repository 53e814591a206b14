"""What the parts that tests run on several ranks have in common: the grids, the families, and how a part measures and writes."""

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from kinds import KINDS
from pellucid.config import Config
from pellucid.distributed import leave, number
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
    """Return the tiny Config of a family, or of one of its quirks, "cohere: as Command R+"."""
    family, _, quirk = family.partition(": ")
    if family in DECODERS:
        return DECODERS[family]
    return understand({"model_type": family, **KINDS[family].tiny, **KINDS[family].quirks[quirk or "plain"]})[1]


def write_measured(measure: Callable[[Path], Measured], folder: Path) -> None:
    """Measure on the started ranks; the first one writes what `measure` returns as JSON into `folder`."""
    measured = measure(folder)
    if number() == 0:
        (folder / "measured.json").write_text(json.dumps(measured))
    leave()
