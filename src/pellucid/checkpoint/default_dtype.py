"""The default dtype of a loaded model's parameters: one rule for Python, every command, the page and a notebook.

    float32 on a CPU, if that takes at most a quarter of the memory; else as stored. What is stored wider than float32 stays so.

float32 is exact to the printed digits, and NumPy, probes and decompositions take it; bfloat16 is neither exact nor accepted there.
"""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from pellucid.errors import UseError
from pellucid.messages import say

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}
# What other programs call them.
SHORT = {
    "fp64": "float64", "f64": "float64", "fp32": "float32", "f32": "float32", "bf16": "bfloat16", "fp16": "float16", "f16": "float16",
}  # fmt: skip
AS_STORED = ("large", "stored", "unknown")  # reasons for the dtype of the files
SHARE = 4  # a model in float32 takes at most this part of the memory: a quarter
ROOT = Path("/")


@dataclass(frozen=True)
class Precision:
    """A dtype, and the reason for it.

    reason: asked, fits, given, large, stored or unknown.  stored: the dtype of the files.  memory: bytes that this process may use.
    formats: of matrices that are quantised on disk, as "Q4_K, Q6_K"; `stored` is then what their numbers are given in.
    matrices: the format that they keep in memory, int8 or int4; None if they are plain there.
    """

    dtype: torch.dtype
    reason: str
    stored: torch.dtype
    memory: int | None = None
    formats: str = ""
    matrices: str | None = None

    @property
    def why(self) -> str:
        """Return the dtype and its reason as text: "float32, stored in bfloat16: a quarter of 25.8 GB of memory holds it"."""
        memory = "?" if self.memory is None else f"{self.memory / 1e9:.1f}"
        name = f"{self.reason}.quantised" if self.formats and self.reason in AS_STORED else self.reason
        reason = say(f"precision.{name}", dtype=name_of(self.dtype), stored=self.formats or name_of(self.stored), memory=memory)
        return reason if self.matrices is None else say("precision.matrices", reason=reason, format=self.matrices)


def precision(requested: str | torch.dtype | None, stored: torch.dtype, parameters: int, device: str = "cpu") -> Precision:
    """Return `requested`, or if it is None the dtype by the rule above for this number of parameters. A UseError if it is no dtype."""
    if requested is not None:
        return Precision(named(requested), "asked", stored)
    if not device.startswith("cpu") or torch.promote_types(stored, torch.float32) == stored:
        return Precision(stored, "stored", stored)
    memory = machine_memory()
    if memory is None:
        return Precision(stored, "unknown", stored)
    fits = parameters * torch.float32.itemsize * SHARE <= memory
    return Precision(torch.float32, "fits", stored, memory) if fits else Precision(stored, "large", stored, memory)


def named(dtype: str | torch.dtype) -> torch.dtype:
    """Return the torch dtype of a name, such as "bfloat16" or "bf16", or of a dtype. A UseError if parameters cannot have it."""
    name = name_of(dtype) if isinstance(dtype, torch.dtype) else SHORT.get(dtype, dtype)
    if name not in DTYPES:
        raise UseError("model.dtype", found=name, allowed=", ".join(DTYPES))
    return DTYPES[name]


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def machine_memory(root: Path = ROOT) -> int | None:
    """Return the bytes of memory that this process may use: the machine's, or its control group's limit if lower; None if unknown."""
    limits = [n for n in (total(root), *group_limits(root)) if n is not None]
    return min(limits, default=None)


def total(root: Path) -> int | None:
    """Return the machine's bytes of memory, None if unknown."""
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def group_limits(root: Path) -> list[int]:
    """Return the memory limits of this process's control group and of those above it, of both versions of control groups."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for _, kinds, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if kinds and "memory" not in kinds.split(","):
            continue
        mount, file = (root / "sys/fs/cgroup/memory", "memory.limit_in_bytes") if kinds else (root / "sys/fs/cgroup", "memory.max")
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):
            try:
                text = (mount / group / file).read_text().strip()
            except OSError:
                continue
            if text.isdigit():  # "max" is none
                limits.append(int(text))
    return limits
