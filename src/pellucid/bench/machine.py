"""The machine this runs on: its processor's name and its memory, as the system tells them."""

import os
import platform
from pathlib import Path


def cpu() -> str:
    """The processor's name."""
    table = Path("/proc/cpuinfo")
    lines = table.read_text(encoding="utf-8", errors="replace").splitlines() if table.is_file() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor() or platform.machine())


def memory() -> int | None:
    """Bytes of memory, where the system tells."""
    names = getattr(os, "sysconf_names", {})
    known = "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else None
