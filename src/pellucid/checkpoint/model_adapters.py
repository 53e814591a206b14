"""The adapter methods of a loaded model: adapt, unadapt, merge, save_adapter. checkpoint/adapter.py has what they do."""

import re
from pathlib import Path

from pellucid.checkpoint import adapter as lora
from pellucid.checkpoint.hub import fetch_adapter, is_hub_id
from pellucid.errors import UseError
from pellucid.families.family import Family
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.notebook import checked


class Adapting:
    """The part of a model that takes adapters. module: what runs.  family: the table of names that adapters' files use."""

    def __init__(self, module: Decoder | EncoderDecoder, family: Family) -> None:
        self.module, self.family = module, family
        self.adapters: dict[str, lora.Adapter] = {}

    @checked
    def adapt(self, folder: str | Path, name: str = "default") -> None:
        """Put the LoRA adapter of a folder or hub id on the model, in PEFT's format, under `name`; several add up. arXiv 2106.09685."""
        if not re.fullmatch(r"[\w-]+", name):
            raise UseError("adapter.name", name=name)
        if name in self.adapters:
            raise UseError("adapter.taken", name=name)
        text = str(folder)
        place = fetch_adapter(text) if is_hub_id(text) and not Path(text).is_dir() else Path(text)
        self.adapters[name] = lora.adapt(self.module, self.family, place, name, self.adapters)

    def unadapt(self, name: str | None = None) -> None:
        """Take one adapter off, or all of them; the model is then bit for bit as it was without."""
        for each in [*self.adapters] if name is None else [self.adapter(name).name]:
            lora.unadapt(self.module, self.adapters.pop(each))

    def merge(self) -> None:
        """Fold all adapters into the weights; this cannot be undone."""
        lora.merge(self.module, self.adapters)
        self.adapters = {}

    @checked
    def save_adapter(self, folder: str | Path, name: str | None = None, overwrite: bool = False) -> None:
        """Write the adapter `name`, or the only one, in PEFT's format."""
        lora.save_adapter(Path(folder), self.module, self.adapter(name), overwrite)

    def adapter(self, name: str | None = None) -> lora.Adapter:
        """Return the adapter `name`, or the only one if `name` is None. A UseError if there is no such one."""
        chosen = next(iter(self.adapters)) if name is None and len(self.adapters) == 1 else name
        if chosen not in self.adapters:
            raise UseError("adapter.unknown", name=name, known=", ".join(self.adapters) or "-")
        return self.adapters[str(chosen)]
