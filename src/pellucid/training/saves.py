"""Saved states of a training run: written under another name, verified by a manifest, then renamed.

    run/saves/000500/   weights.safetensors  moments.safetensors  state.json  manifest.json (SHA-256 and size of each)

A state is valid if its manifest verifies; a run resumes from the newest valid one. As many of the newest are kept as `train.keep` says,
and always the one just written. Invalid states are moved aside, never deleted: run/aside/000500.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pellucid.checkpoint.disk import reason, sync
from pellucid.checkpoint.json_file import read_object
from pellucid.checkpoint.safetensors_file import read_header, read_tensor, write
from pellucid.errors import PellucidError, TrainError

NAME = re.compile("[0-9]{9,}")
FILES = ("weights.safetensors", "moments.safetensors", "state.json")


def save_state(
    root: Path,
    step: int,
    weights: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep: int | None = 2,
) -> Path:
    """Write one state completely, then drop all but the `keep` newest, None to drop none. States of later steps are moved aside."""
    final, part = root / f"{step:09d}", root / f".{step:09d}.part"
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write(part / "weights.safetensors", weights)
        write(part / "moments.safetensors", moments)
        text(part / "state.json", {**state, "step": step})
        text(part / "manifest.json", {f.name: [digest(f), f.stat().st_size] for f in sorted(part.iterdir())})
        sync(part)
        for other in states(root):
            if int(other.name) >= step:
                set_aside(root.parent, other)
        os.replace(part, final)
        sync(root)
    except (OSError, PellucidError) as fault:
        shutil.rmtree(part, ignore_errors=True)
        kept, _ = newest(root)
        if kept is None:
            raise TrainError("train.save", path=final, reason=reason(fault)) from None
        raise TrainError("train.save.whole", path=final, reason=reason(fault), whole=kept.name) from None
    for old in states(root)[:-keep] if keep is not None else ():
        shutil.rmtree(old, ignore_errors=True)
    return final


def text(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    sync(path)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def states(root: Path) -> list[Path]:
    """Return every state in a folder by its step, verified or not."""
    try:
        names = [name for name in os.listdir(root) if NAME.fullmatch(name)]
    except FileNotFoundError:
        return []
    except OSError as fault:
        raise TrainError("file.closed", file=root, reason=reason(fault)) from None
    return [root / name for name in sorted(names, key=int)]


def set_aside(run: Path, path: Path) -> Path:
    """Move a damaged state, or the log of one, into the folder `aside` of a run, where nothing is deleted; return its new place."""
    place, number = run / "aside" / path.name, 1
    try:
        place.parent.mkdir(exist_ok=True)
        while place.exists():
            number += 1
            place = place.with_name(f"{path.name}.{number}")
        os.replace(path, place)
        sync(place.parent)
        sync(path.parent)
    except OSError as fault:
        raise TrainError("train.save", path=path, reason=reason(fault)) from None
    return place


def newest(root: Path) -> tuple[Path | None, dict[Path, str]]:
    """Return the newest state that verifies, None if none does, and the fault of each later one."""
    faults: dict[Path, str] = {}
    for folder in reversed(states(root)):
        try:
            check_state(folder)
            return folder, faults
        except (PellucidError, OSError) as fault:
            faults[folder] = str(fault)
    return None, faults


def check_state(folder: Path) -> dict[str, Any]:
    """Return the manifest of a state. A TrainError that names the first file that does not match it."""
    manifest = read_object(folder / "manifest.json", error=TrainError)
    for name in FILES:
        if [digest(folder / name), (folder / name).stat().st_size] != manifest.get(name):
            raise TrainError("train.damaged", path=folder / name)
    return manifest


def read_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Return the weights, moments and state of one saved state."""
    weights, moments = (
        {name: read_tensor(entry) for name, entry in read_header(folder / f"{kind}.safetensors").items()} for kind in ("weights", "moments")
    )
    return weights, moments, read_object(folder / "state.json", error=TrainError)
