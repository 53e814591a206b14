"""An adapter's folder in PEFT's format, checked against a model: its settings, and A, B and the scale of each changed linear layer.

    base_model.model.<path>.lora_A.weight   [r in]         <path> is a layer as transformers calls it; scale = lora_alpha / r,
    base_model.model.<path>.lora_B.weight   [out r]        or lora_alpha / √r with use_rslora
    base_model.model.<path>.lora_magnitude_vector [out]    with use_dora: the lengths of the changed matrix's rows (arXiv 2402.09353)

Every tensor of the file is used or refused by name; a setting that changes the mathematics and is not supported is refused by name.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pellucid.checkpoint.disk import inside
from pellucid.checkpoint.json_file import name_of, read_object
from pellucid.checkpoint.safetensors_file import Entry, read_header, read_tensor
from pellucid.errors import CheckpointError
from pellucid.families.names import TensorGroup
from pellucid.ops.blocks import Blocks, quantised, same

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
LOW = re.compile(r"(.+)\.(lora_[AB](?=\.weight)|lora_magnitude_vector)(?:\.weight)?")
MAGNITUDE = "lora_magnitude_vector"
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
SHOWN = 10  # names that an error lists
LENGTH, REPEATS, WAYS = 300, 2, 64  # of a pattern: letters, repeats, and ways through its choices

# Settings that may change the mathematics: the values at which they do not; () where only an empty value is allowed.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),  # the others change the model's own weights
}
HARMLESS = {
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode", "runtime_config", "lora_dropout",
    "fan_in_fan_out", "megatron_config", "megatron_core", "qalora_group_size", "eva_config", "corda_config", "loftq_config",
    "lora_ga_config", "ensure_weight_tying", "exclude_modules", "layers_to_transform", "layers_pattern",
}  # fmt: skip
READ = {"r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "target_modules", "modules_to_save"}


@dataclass(frozen=True)
class LowRankPair:
    """The low-rank change of one path's matrices: a [r in], b [out r], their scale, and the magnitudes [out] if it has some."""

    group: TensorGroup
    a: Tensor
    b: Tensor
    scale: float
    magnitude: Tensor | None = None


@dataclass(frozen=True)
class Layers:
    """What an adapter can name in a model: linear layers by path, weights by their names on disk, and ours by our names."""

    linears: Mapping[str, TensorGroup]
    weights: Mapping[str, TensorGroup]
    ours: Mapping[str, Tensor]

    def ends(self, group: TensorGroup) -> tuple[int, int]:
        """Return (out, in) of the layer that these matrices make up."""
        return sum(len(self.ours[n]) for n in group.ours), self.ours[group.ours[0]].shape[1]

    def disk(self, group: TensorGroup) -> Tensor:
        """Return the tensor on disk of a group that is one tensor there."""
        return group.layout.write([self.ours[n].detach() for n in group.ours])[0]

    def holds(self, group: TensorGroup, value: Tensor) -> bool:
        """True if the model's own weight equals `value` from disk, compared in the dtype or blocks of either."""
        weights = [self.ours[n].detach() for n in group.ours]
        if blocked := [t for t in weights if isinstance(t, Blocks)]:
            parts = group.layout.read([value], [tuple(t.shape) for t in weights])
            return all(same(quantised(part, own.format), own) for part, own in zip(parts, blocked, strict=True))
        own = self.disk(group)
        return own.device.type == "meta" or torch.equal(own.to(value), value) or torch.equal(value.to(own), own)


class AdapterFile:
    """An adapter's folder. pairs: by path.  saved: full weights that replace the model's own, by their names on disk."""

    def __init__(self, folder: Path, layers: Layers) -> None:
        self.layers, self.config, self.file = layers, folder / CONFIG, inside(folder, WEIGHTS)
        self.settings = read_object(inside(folder, CONFIG), error=CheckpointError)
        self.judge()
        entries = read_header(self.file)
        if wrong := [n for n, e in entries.items() if not n.startswith(PREFIX) or e.dtype not in DTYPES]:
            raise CheckpointError("adapter.tensor", file=self.file, name=wrong[0])
        named = {n.removeprefix(PREFIX): e for n, e in entries.items()}
        low = {n: m for n in named if (m := LOW.fullmatch(n))}
        by_path: dict[str, dict[str, Entry]] = {}
        for name, match in low.items():
            by_path.setdefault(match[1], {})[match[2]] = named[name]
        self.complete(by_path)
        for path, parts in by_path.items():
            self.fits(path, parts)
        saves = self.settings.get("modules_to_save") or []
        full = {n: e for n, e in named.items() if n not in low}
        self.saved = {n: self.weight(n, e) for n, e in full.items() if any(is_inside(n.rpartition(".")[0], m) for m in saves)}
        for n in full.keys() - self.saved.keys():
            self.repeats(n, full[n])
        paths = [n.rpartition(".")[0] for n in self.saved]
        if lost := [m for m in saves if not any(is_inside(p, m) for p in paths)]:
            raise CheckpointError("adapter.saved", file=self.file, name=lost[0])
        self.pairs = {path: self.pair(path, parts) for path, parts in by_path.items()}

    def judge(self) -> None:
        """Refuse a setting that is not read and would change the mathematics, or that has the wrong type."""
        s = self.settings
        for name, allowed in NEUTRAL.items():
            if (value := s.get(name, allowed[0])) not in allowed:
                raise CheckpointError("adapter.setting", file=self.config, name=name, found=value, allowed=", ".join(map(str, allowed)))
        if set_ := [n for n, value in s.items() if value and n not in NEUTRAL.keys() | HARMLESS | READ]:
            raise CheckpointError("adapter.setting", file=self.config, name=set_[0], found=s[set_[0]], allowed="null, false")
        kinds: dict[str, tuple[type, ...]] = {"rank_pattern": (dict,), "alpha_pattern": (dict,), "modules_to_save": (list,)}
        for name, kind in (kinds | {"target_modules": (list, str)}).items():
            if s.get(name) and not isinstance(s[name], kind):
                allowed_kinds = ", ".join(name_of(k()) for k in kind)
                raise CheckpointError("adapter.setting", file=self.config, name=name, found=name_of(s[name]), allowed=allowed_kinds)
        for text in [*(s.get("rank_pattern") or ()), *(s.get("alpha_pattern") or ())]:
            if not bounded(text):
                raise CheckpointError("adapter.pattern", file=self.config, found=text)

    def complete(self, by_path: Mapping[str, object]) -> None:
        """Refuse layers that target_modules does not list, and listed ones that the file lacks. A pattern is not checked."""
        targets, saved = self.settings.get("target_modules"), self.settings.get("modules_to_save") or []
        if not isinstance(targets, list):
            return
        for path in by_path:
            if not any(f".{path}".endswith(f".{t}") for t in targets):
                raise CheckpointError("adapter.extra", file=self.file, name=path, allowed=", ".join(map(str, targets[:SHOWN])))
        if any(self.settings.get(n) is not None for n in ("layers_to_transform", "exclude_modules")):
            return
        aimed = [
            p
            for p in self.layers.linears
            if any(f".{p}".endswith(f".{t}") for t in targets) and not any(f".{m}." in f".{p}." for m in saved)
        ]
        if missing := [p for p in aimed if p not in by_path]:
            raise CheckpointError("adapter.missing", file=self.file, count=len(missing), names=", ".join(missing[:SHOWN]))

    def fits(self, path: str, parts: Mapping[str, Entry]) -> None:
        """Refuse a pair if the model lacks its layer, a matrix is missing, or its shapes do not fit the layer and the rank."""
        if (group := self.layers.linears.get(path)) is None:
            raise CheckpointError("adapter.layer", file=self.file, name=path, near=", ".join([*self.layers.linears][:3]))
        (out, width), rank = self.layers.ends(group), self.rank(path)
        needs = {"lora_A": (rank, width), "lora_B": (out, rank)} | ({MAGNITUDE: (out,)} if self.settings.get("use_dora") else {})
        full = {name: f"{path}.{name}" + ("" if name == MAGNITUDE else ".weight") for name in (*needs, *parts)}
        if lost := [name for name in needs if name not in parts]:
            raise CheckpointError("adapter.half", file=self.file, name=full[lost[0]])
        if extra := [name for name in parts if name not in needs]:
            raise CheckpointError("adapter.tensor", file=self.file, name=PREFIX + full[extra[0]])
        for name, needed in needs.items():
            if parts[name].shape != needed:
                values = {"name": full[name], "found": parts[name].shape, "needed": needed}
                raise CheckpointError("weights.shape", file=self.file, **values)

    def weight(self, name: str, entry: Entry) -> tuple[TensorGroup, Tensor]:
        """Return the group and value of a full weight. A CheckpointError if the model lacks it, or its shape differs."""
        if (group := self.layers.weights.get(name)) is None:
            raise CheckpointError("adapter.tensor", file=self.file, name=PREFIX + name)
        if entry.shape != (needed := tuple(self.layers.disk(group).shape)):
            raise CheckpointError("weights.shape", file=self.file, name=name, found=entry.shape, needed=needed)
        return group, read_tensor(entry)

    def repeats(self, name: str, entry: Entry) -> None:
        """PEFT writes an adapted head's or embedding's own weight as well: as long as it is the model's, nothing is lost."""
        group, value = self.weight(name.replace(".base_layer.", "."), entry)
        if not self.layers.holds(group, value):
            raise CheckpointError("adapter.own", file=self.file, name=PREFIX + name)

    def pair(self, path: str, parts: Mapping[str, Entry]) -> LowRankPair:
        alpha, rank = self.number("lora_alpha", "alpha_pattern", path), self.rank(path)
        scale = alpha / (math.sqrt(rank) if self.settings.get("use_rslora") else rank)
        read = {name: read_tensor(entry) for name, entry in parts.items()}
        return LowRankPair(self.layers.linears[path], read["lora_A"], read["lora_B"], scale, read.get(MAGNITUDE))

    def rank(self, path: str) -> int:
        """Return the rank that the settings give the layer at `path`."""
        rank = self.number("r", "rank_pattern", path)
        if type(rank) is not int or rank < 1:
            raise CheckpointError("adapter.setting", file=self.config, name="r", found=rank, allowed="1, 2, 3, …")
        return rank

    def number(self, name: str, pattern: str, path: str) -> int | float:
        """Return the setting `name`, or the value of the first key in the table `pattern` that matches the end of `path`."""
        table = self.settings.get(pattern) or {}
        key = next((k for k in table if re.match(rf"(.*\.)?({k})$", path)), None)
        value = self.settings.get(name, 8) if key is None else table[key]
        if type(value) not in (int, float):
            raise CheckpointError("adapter.setting", file=self.config, name=name, found=value, allowed="1, 2, 3, …")
        return value  # type: ignore[no-any-return]


def is_inside(path: str, module: object) -> bool:
    """True if `path` ends in, or lies inside, a module whose path ends like `module`: PEFT's `norm` also names `input_layernorm`."""
    return f"{module}." in f"{path}."


def bounded(text: str) -> bool:
    """True if a text is a regular expression that matches any path in few steps.

    Python's matcher tries every reading of a pattern: each repeat multiplies them, `?` and `{}` as much as `*`, and so does each choice
    `a|b`. What is allowed keeps that number small: no repeated group, no lookaround or flags, few repeats and choices.
    """
    plain = re.sub(r"\\.", "x", text, flags=re.DOTALL).replace("(?:", "(")
    plain = re.sub(r"\[\^?[^][^]+\]", "x", plain)  # a set is one letter
    if len(text) > LENGTH or re.search(r"\)[*+?{]|\{|\[|\(\?", plain) or sum(map(plain.count, "*+?")) > REPEATS or ways(plain) > WAYS:
        return False
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def ways(plain: str) -> int:
    """Return the number of ways to choose the branches of a pattern without escapes and sets: the product over its groups."""
    done, opened = 1, [1]
    for letter in plain:
        if letter == "(":
            opened.append(1)
        elif letter == ")" and len(opened) > 1:
            done *= opened.pop()
        elif letter == "|":
            opened[-1] += 1
    return done * math.prod(opened)
