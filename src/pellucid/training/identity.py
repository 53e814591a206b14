"""The identity of a training run: a saved state is resumed only if every later number would be the same.

How often is logged and saved, whether beside the steps, the number of states kept, recomputation, and what a step that is not finite does
change no earlier number and may differ. The number of steps changes the learning rate and may not, except at a constant rate
(`floor = 1`), where it may be raised, and in the stable part of "wsd".
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pellucid.config import Config
from pellucid.distributed import ALONE
from pellucid.errors import TrainError
from pellucid.training.objectives import Document, Objective
from pellucid.training.recipe import TrainSettings
from pellucid.training.text_rows import TrainingRows

FREE = {"log_every", "save_every", "save_beside", "keep", "recompute", "on_nan", "skips"}
HASHES = {"model", "documents", "sources", "tokenizer", "base", "references", "teacher", "reward.file"}
LATER = {
    "second", "factors", "shares", "key_factor", "gate_factor", "gated_norm", "first", "side_by_side", "grows", "qk_own",
    "v_rms", "v_from_k", "backwards", "norms", "own_scale", "keys", "input", "down_bias", "norm_first", "tasks", "gated_heads",
    "beta_most", "out_eps", "corrects_logits",
}  # fmt: skip
"""Fields of specs that are newer than the first runs."""
MACHINE = {"torch", "threads", "cpu", "pellucid", "ranks"}
"""What rounding depends on: with other values a run goes on along another curve, as good a one."""


def identity(config: Config, objective: Objective, documents: Sequence[Document], s: TrainSettings) -> dict[str, Any]:
    """Return everything that a run's numbers depend on, for its saved states: settings by name, large parts by their SHA-256."""
    return {
        "settings": asdict(s),
        "model": digest(written(config)),
        "objective": type(objective).__name__,
        **(documents.identity() if isinstance(documents, TrainingRows) else {"documents": digest(json.dumps([d[:2] for d in documents]))}),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "pellucid": version("pellucid"),
    }


def written(spec: object) -> str:
    """Return the repr of a spec without the fields of LATER at their default: a run keeps its identity when specs gain fields."""
    if isinstance(spec, tuple) and type(spec) is tuple:
        return f"({', '.join(map(written, spec))}{',' * (len(spec) == 1)})"
    if not is_dataclass(spec):
        return repr(spec)
    own = ((f.name, getattr(spec, f.name), f.default) for f in fields(spec) if f.repr)
    parts = (f"{name}={written(value)}" for name, value, default in own if name not in LATER or value != default)
    return f"{type(spec).__qualname__}({', '.join(parts)})"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def stable(settings: Mapping[str, Any], step: int) -> bool:
    """True if a run with these settings had the full rate of "wsd" in all steps after its warm-up up to this one."""
    return settings.get("schedule") == "wsd" and TrainSettings(**settings).stable >= step


def require(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any], step: int, inexact: bool = False) -> str:
    """Raise TrainError if a run with the identity `own` cannot resume the state at `path`, of step `step` and identity `saved`.

    The error names each field that differs, with both values. inexact: fields of MACHINE may differ; they are returned as text.
    """
    before, now = saved.get("settings"), own["settings"]
    if not isinstance(before, dict):
        raise TrainError("train.differs", path=path, what="settings")
    level = before.get("floor") == now["floor"] == 1 and now["steps"] >= step
    level = level or (stable(before, step) and stable(now, step))
    names = sorted((before.keys() | now.keys()) - FREE - ({"steps"} if level else set()))
    defaults = {f.name: f.default for f in fields(TrainSettings)}  # of settings that are newer than the state
    pairs = {f"train.{name}": (before.get(name, defaults.get(name)), now.get(name)) for name in names}
    saved = {"ranks": str(ALONE), **saved}  # of states that are older than the field
    own = {"data.source": None, "multi_token.depth": None, "multi_token.weight": None, **own}  # which only some runs have
    pairs |= {name: (saved.get(name), value) for name, value in own.items() if name != "settings"}
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if differing.keys() == {"train.steps"}:
        raise TrainError("train.steps", path=path, held=before.get("steps"), found=now["steps"], step=step)
    if differing:
        what = ", ".join(name if name in HASHES else f"{name} ({pair[0]} → {pair[1]})" for name, pair in differing.items())
        if not inexact and differing.keys() <= MACHINE:
            raise TrainError("train.machine", path=path, what=what)
        if not differing.keys() <= MACHINE:
            raise TrainError("train.differs", path=path, what=what)
        return what
    return ""
