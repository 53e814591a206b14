"""What a run took: its memory at most and its seconds a step, beside which the page sets the bill that was made before it.

run/meter.json   {"schema": 1, "peak": bytes by which the process grew, at most}

The growth counts from before the model is made, so that Python and torch are not in it. It is the process', and so has what torch keeps
free for later, too.
"""

import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pellucid.checkpoint.disk import reason, replacing
from pellucid.checkpoint.json_file import read_object
from pellucid.errors import PellucidError, TrainError

METER = "meter.json"
SCHEMA = 1
STATUS, MARK = Path("/proc/self/status"), re.compile(r"^VmHWM:\s+(\d+) kB", re.M)
WARM = 20  # steps, before which a step's time is that of first calls


def resident() -> int | None:
    """Return the bytes that this process has held at most; None on Windows, where Python cannot tell.

    On Linux getrusage begins with what the process that started this one had held, so the kernel's own mark is read there.
    """
    with suppress(OSError):
        if (mark := MARK.search(STATUS.read_text(encoding="utf-8"))) is not None:  # some sandboxes do not write that line
            return int(mark[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_most() -> None:
    """Let the most begin with what is held now, where the system can do that: Linux. What ran in this process before is not the run's."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


class MemoryMeter:
    """The memory of a run that begins now."""

    def __init__(self) -> None:
        forget_most()
        self.before = resident()

    def write(self, folder: Path) -> None:
        """Write what the run took so far; what it took before it was stopped counts too."""
        if (now := resident()) is None or self.before is None:
            return
        peak = max(now - self.before, peak_of(folder) or 0)
        try:
            with replacing(folder / METER, TrainError) as part:
                part.write_text(json.dumps({"schema": SCHEMA, "peak": peak}) + "\n", encoding="utf-8")
        except OSError as fault:
            raise TrainError("train.save", path=folder / METER, reason=reason(fault)) from None


def peak_of(folder: Path) -> int | None:
    """Return the memory that a run took, None if it is not known."""
    try:
        peak = read_object(folder / METER, error=TrainError).get("peak")
    except PellucidError:
        return None
    return peak if type(peak) is int else None


def step_seconds(log: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the median of the steps' seconds, of those after the first WARM where there are any; None without steps."""
    own = [float(e["seconds"]) for e in log if e["step"] > WARM] or [float(e["seconds"]) for e in log]
    return statistics.median(own) if own else None
