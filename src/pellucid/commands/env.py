"""`pellucid env`: versions, the machine, kernels, languages and settings, as a bug report needs them. Secrets are never shown."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import typer

from pellucid import __version__, messages
from pellucid.bench.machine import cpu, memory
from pellucid.commands.app import command
from pellucid.commands.screen import Screen
from pellucid.messages import say

SCHEMA = 1
PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "huggingface_hub", "jinja2", "typer", "rich", "transformers")
SETTINGS = ("HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "PELLUCID_LANG", "OMP_NUM_THREADS")


def add(app: typer.Typer) -> None:
    @command(app, "env", say("env.help"))
    def env(ctx: typer.Context) -> None:
        screen: Screen = ctx.obj
        all_facts = facts()
        if screen.json:
            screen.document({"schema": SCHEMA, **all_facts})
            return
        rows = [(key if isinstance(value, dict) else "", key, value) for key, value in all_facts.items()]
        flat = [(f"{key}.{k}" if group else key, v) for group, key, value in rows for k, v in (value.items() if group else [("", value)])]
        wide = max(len(key) for key, _ in flat)
        screen.text("".join(f"{key:<{wide}}  {written(value)}\n" for key, value in flat))


def facts() -> dict[str, Any]:
    """Return everything that the command reports."""
    import torch

    from pellucid.api.model import specimens
    from pellucid.ops import native

    versions = {name: installed(name) for name in PACKAGES}
    accelerators = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    accelerators += ["mps"] if torch.backends.mps.is_available() else []
    machine: dict[str, Any] = {
        "system": platform.platform(),
        "cpu": cpu(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
    }
    machine |= {"threads": torch.get_num_threads(), "memory": memory(), "accelerators": accelerators}
    hub = {name: os.environ.get(name) for name in SETTINGS} | {"HF_TOKEN": "HF_TOKEN" in os.environ}
    return {
        "pellucid": __version__, "python": platform.python_version(), "packages": versions, "machine": machine,
        "kernels": native.instructions(), "language": messages.language(), "languages": list(messages.LANGUAGES),
        "specimens": specimens(), "settings": hub,
    }  # fmt: skip


def installed(name: str) -> str | None:
    """Return the version of an installed package, None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def written(value: object) -> str:
    """Return a fact as text: "-" for None, bytes as numbers."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return say("env.yes") if value else say("env.no")
    return f"{value:,}" if isinstance(value, int) else "-" if value is None else messages.plain(value)
