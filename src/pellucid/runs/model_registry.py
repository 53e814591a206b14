"""The models that the page may name: the one it was opened with, the specimens, and those of runs that ship.

A name from the page is only ever looked up here.

A model of the catalogue, and one with only a config.json, is built on meta: it has shapes and counts, and no values.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from pellucid import catalog
from pellucid.api.count import config_of, described
from pellucid.api.model import DTYPES, Model, load, specimens
from pellucid.checkpoint.default_dtype import Precision, name_of, precision
from pellucid.checkpoint.folder import bare
from pellucid.checkpoint.gguf.gguf_folder import gguf_of
from pellucid.checkpoint.hub import is_hub_id
from pellucid.checkpoint.opening import recorded_runs
from pellucid.config import Config
from pellucid.counting.meta_run import meta_model
from pellucid.counting.weights import Weight, weights
from pellucid.errors import RequestError
from pellucid.families import understand
from pellucid.nn.transformer import Encoder, EncoderDecoder, cast
from pellucid.runs.examples import examples
from pellucid.runs.stats import Stats
from pellucid.tokenizer.tokenizer import load_tokenizer

ChatRule = Literal["template", "joined", "last"]  # how a model reads a conversation: see chat_prompt.py


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in memory. model: with its tokenizer; None of a catalogue's entry, which has only shapes.  measures: its weights' stats.

    plain: the registry's entry that a model with switches was made from, None of one without.
    """

    name: str
    family: str
    module: Any
    model: Model | None
    measures: dict[str, Stats] = field(default_factory=dict)
    plain: "LoadedModel | None" = None

    @classmethod
    def of(cls, model: Model) -> "LoadedModel":
        """Return a model under its own name."""
        return cls(model.name, model.family.name, model.module, model)

    @property
    def config(self) -> Config:
        return self.module.config  # type: ignore[no-any-return]

    @property
    def kind(self) -> str:
        if isinstance(self.module, EncoderDecoder):
            return "encoder-decoder"
        return "encoder" if isinstance(self.module, Encoder) else "prefix" if self.config.prefix else "decoder"

    @property
    def has_weights(self) -> bool:
        return self.module.embed.weight.device.type != "meta"  # type: ignore[no-any-return]

    @property
    def chat_rule(self) -> ChatRule | None:
        """Return how it reads a conversation; None without a tokenizer, and of an encoder, which generates nothing."""
        if self.model is None or self.model._tokenizer is None or isinstance(self.module, Encoder):
            return None
        return "template" if self.model._tokenizer.templates else "joined" if self.config.starts is None else "last"

    @property
    def dtype(self) -> str:
        """Return the name of the dtype that it computes in."""
        return str(self.module.embed.weight.dtype if self.model is None else self.model.dtype).removeprefix("torch.")

    @cached_property
    def weights(self) -> dict[str, Weight]:
        """Return every weight by its path."""
        return {w.path: w for w in weights(self.module)}

    def tensor(self, path: str) -> torch.Tensor:
        """Return the values of the weight at `path`. A RequestError if there is none."""
        tensors: Mapping[str, torch.Tensor] = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        if path not in tensors:
            raise RequestError("server.weight", 404, "path", path=path, model=self.name)
        return tensors[path].detach()

    def row(self) -> dict[str, Any]:
        """Return its entry in the page's list."""
        parameters: list[nn.Parameter] = list(self.module.parameters())
        entry = {"name": self.name, "family": self.family, "kind": self.kind, "parameters": sum(p.numel() for p in parameters)}
        tokenizer = None if self.model is None else self.model._tokenizer
        tried = [] if tokenizer is None else examples(self.name, self.kind, tokenizer)
        return entry | {
            "bytes": sum(p.nbytes for p in parameters),
            "dtype": name_of(self.module.embed.weight.dtype),
            "held": name_of(self.module.embed.weight.dtype) if self.model is None else self.model.precision_note,
            "device": str(self.module.embed.weight.device),
            "positions": self.config.positions,
            "vocab": self.config.vocab,
            "layers": len(self.config.layers) + len(self.config.encoder or ()),
            "weights": self.has_weights,
            "prompt": tried[0] if tried else None,
            "examples": tried,
            "chat": self.chat_rule,
        }


class ModelRegistry:
    """The loaded models by name. opened: the command's own, or None; how: `load`'s settings for it.  most: specimens loaded beside it.

    served: models that are loaded already, and stay.
    """

    def __init__(self, opened: str | None, most: int, served: Mapping[str, LoadedModel] | None = None, **how: Any) -> None:
        self.opened, self.most, self.how, self.served = opened, most, how, dict(served or {})
        self.names = list(dict.fromkeys([*([opened] if opened else []), *self.served, *specimens(), *recorded_runs()]))
        self.loaded = dict(self.served)
        self.rows: dict[str, tuple[dict[str, Any], Precision | None]] = {}
        self.lock = threading.Lock()

    def __getitem__(self, name: str) -> LoadedModel:
        """Return the model of a name, and load it if it is not loaded. The least recently used specimen beyond `most` is dropped."""
        self.require(name)
        with self.lock:
            if (loaded := self.loaded.pop(name, None)) is None:
                loaded = opened(name, **(self.how if name == self.opened else {}))
            self.loaded[name] = loaded
            others = [n for n in self.loaded if n not in (name, self.opened, *self.served)]
            for n in others[: max(0, len(others) - self.most + 1)]:
                del self.loaded[n]
            return loaded

    def require(self, name: str) -> None:
        """Raise a RequestError for a name that is not in the registry."""
        if name not in self.names:
            raise RequestError("server.model", 404, "model", found=name, known=", ".join(self.names))

    def list(self) -> list[dict[str, Any]]:
        """Return the entry of every model. That of a model which is not loaded is made from its shapes."""
        for name in self.names:
            if name not in self.rows:
                own = self.loaded.get(name)
                self.rows[name] = (own.row(), None if own.model is None else own.model.precision) if own is not None else unread(name)
        rows = [self.rows[name] for name in self.names]
        return [entry | ({} if chosen is None else {"held": chosen.why}) for entry, chosen in rows]  # in the language of the request


def unread(name: str) -> tuple[dict[str, Any], Precision]:
    """Return the entry that a model will have once it is loaded, and its precision, without reading weights."""
    shapes = load(name, device="meta")
    own = shapes.precision
    will = replace(precision(None, own.stored, shapes.num_parameters()), formats=own.formats, matrices=own.matrices)
    cast(shapes.module, will.dtype)
    return LoadedModel(name, shapes.family.name, shapes.module, shapes).row() | {"weights": True, "device": "cpu"}, will


def opened(name: str, progress: Callable[[int, int], None] = lambda done, total: None, **how: Any) -> LoadedModel:
    """Open the model of a name: of the catalogue if no folder has the name, from a config.json if that is all, else by `load`."""
    dtype = DTYPES.get(how.get("dtype") or "", torch.bfloat16)
    if not Path(name).exists() and catalog.find(catalog.models(), name) is not None:
        family, cfg = described(name)
        return LoadedModel(name, family, meta_model(cfg, dtype), None)
    bare_file = Path(name).is_file() and gguf_of(Path(name)) is None
    if bare_file or bare(Path(name)) or (how.get("device") == "meta" and is_hub_id(name) and not name.startswith("pellucid/")):
        return shape(name, dtype, how.get("ignore_fields", ()))
    model = load(name, progress=progress, **how)
    return LoadedModel(name, model.family.name, model.module, model)


def shape(name: str, dtype: torch.dtype, ignore: Iterable[str]) -> LoadedModel:
    """Build the model of a folder's or hub id's config.json on meta, with a tokenizer if its folder has one."""
    values, file = config_of(name)
    kind, cfg = understand(values, file, ignore)
    tokenizer = load_tokenizer(name, cfg.vocab) if Path(name).is_dir() else None
    module = meta_model(cfg, dtype)
    return LoadedModel(name, kind.name, module, Model(name, module, kind, values, tokenizer))
