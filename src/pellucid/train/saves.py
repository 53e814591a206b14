"""Saved states of a training run: written beside, verified by a manifest, and only then named.

    run/saves/000500/   weights.safetensors  moments.safetensors  state.json  manifest.json (SHA-256 and size of each)

A state without a manifest that verifies does not count; the newest that does is where a run goes on. Two are kept.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pellucid.checkpoint.disk import reason, sync
from pellucid.checkpoint.json_file import read_object
from pellucid.checkpoint.safetensors_file import read_header, read_tensor, write
from pellucid.errors import PellucidError, TrainError

KEPT = 2


def save_state(root: Path, step: int, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write one state whole, then drop all but the newest ones."""
    final, part = root / f"{step:09d}", root / f".{step:09d}.part"
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write(part / "weights.safetensors", weights)
        write(part / "moments.safetensors", moments)
        text(part / "state.json", {**state, "step": step})
        text(part / "manifest.json", {f.name: [digest(f), f.stat().st_size] for f in sorted(part.iterdir())})
        sync(part)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(part, final)
        sync(root)
    except (OSError, PellucidError) as fault:
        shutil.rmtree(part, ignore_errors=True)
        raise TrainError("train.save", path=final, reason=reason(fault)) from None
    for old in sorted(root.glob("[0-9]*"))[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def text(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    sync(path)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def newest(root: Path) -> tuple[Path | None, list[str]]:
    """The newest state that verifies, and what is wrong with those that do not."""
    faults: list[str] = []
    for folder in sorted(root.glob("[0-9]*"), reverse=True):
        try:
            told = read_object(folder / "manifest.json", error=TrainError)
            for name in ("weights.safetensors", "moments.safetensors", "state.json"):
                if [digest(folder / name), (folder / name).stat().st_size] != told.get(name):
                    raise TrainError("train.damaged", path=folder / name)
            return folder, faults
        except (PellucidError, OSError) as fault:
            faults.append(str(fault))
    return None, faults


def read_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Weights, moments and state of one saved state."""
    weights, moments = (
        {name: read_tensor(entry) for name, entry in read_header(folder / f"{kind}.safetensors").items()} for kind in ("weights", "moments")
    )
    return weights, moments, read_object(folder / "state.json", error=TrainError)
