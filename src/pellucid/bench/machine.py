"""The machine: its processor's name and its memory, as far as the system reports them."""

import os
import platform
from pathlib import Path


def cpu() -> str:
    """Return the processor's name."""
    table = Path("/proc/cpuinfo")
    lines = table.read_text(encoding="utf-8", errors="replace").splitlines() if table.is_file() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor() or platform.machine())


def memory() -> int | None:
    """Return the bytes of memory, None if unknown."""
    names = getattr(os, "sysconf_names", {})
    known = "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else None
