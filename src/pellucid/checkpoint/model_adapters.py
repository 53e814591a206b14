"""The adapter methods of a loaded model: adapt, lora, unadapt, merge, save_adapter. checkpoint/adapter.py has what they do."""

import re
from collections.abc import Sequence
from pathlib import Path

from pellucid.arguments import checked
from pellucid.batch.inference_mode import lasting
from pellucid.checkpoint import adapter as adapting
from pellucid.checkpoint.hub import fetch_adapter, is_hub_id
from pellucid.checkpoint.new_adapter import new_adapter
from pellucid.errors import UseError
from pellucid.families.family import Family
from pellucid.nn.transformer import Decoder, EncoderDecoder


class Adapting:
    """The part of a model that takes adapters. module: what runs.  family: the table of names that adapters' files use."""

    name: str

    def __init__(self, module: Decoder | EncoderDecoder, family: Family) -> None:
        self.module, self.family = module, family
        self.adapters: dict[str, adapting.Adapter] = {}

    @checked
    @lasting
    def adapt(self, folder: str | Path, name: str = "default") -> None:
        """Put the LoRA adapter of a folder or hub id on the model, in PEFT's format, under `name`; several add up. arXiv 2106.09685."""
        self.free(name)
        text = str(folder)
        place = fetch_adapter(text) if is_hub_id(text) and not Path(text).is_dir() else Path(text)
        self.adapters[name] = adapting.adapt(self.module, self.family, place, name, self.adapters)

    @checked
    @lasting
    def lora(
        self,
        rank: int = 8,
        targets: Sequence[str] = ("layers.*.attn.[qkvo]",),
        name: str = "default",
        alpha: float | None = None,
        seed: int = 0,
        dora: bool = False,
    ) -> None:
        """Put a new LoRA adapter on the model, to be trained: its matrices alone take gradients. arXiv 2106.09685.

        targets: paths of matrices, with `*`.  alpha: of the scale alpha / rank, by default twice the rank.  seed: of the first numbers.
        dora: the lengths of the changed matrices' rows train too (arXiv 2402.09353).
        B is zero, so that the model computes at first what it did.
        """
        self.free(name)
        if type(rank) is not int or rank < 1:
            raise UseError("adapter.rank", found=rank)
        paths, alpha = [targets] if isinstance(targets, str) else targets, 2 * rank if alpha is None else alpha
        self.adapters[name] = new_adapter(self.module, self.family, self.name, name, rank, alpha, paths, seed=seed, dora=dora)

    def free(self, name: str) -> None:
        """Raise a UseError unless an adapter can be put on under this name."""
        if not re.fullmatch(r"[\w-]+", name):
            raise UseError("adapter.name", name=name)
        if name in self.adapters:
            raise UseError("adapter.taken", name=name)

    def unadapt(self, name: str | None = None) -> None:
        """Take one adapter off, or all of them; the model is then bit for bit as it was without."""
        for each in [*self.adapters] if name is None else [self.adapter(name).name]:
            adapting.unadapt(self.module, self.adapters.pop(each))

    @lasting
    def merge(self, dequantise: bool = False) -> None:
        """Fold all adapters into the weights; this cannot be undone. dequantise: onto the values that int8 or int4 blocks stand for."""
        adapting.merge(self.module, self.adapters, dequantise)
        self.adapters = {}

    @checked
    def save_adapter(self, folder: str | Path, name: str | None = None, overwrite: bool = False) -> None:
        """Write the adapter `name`, or the only one, in PEFT's format."""
        adapting.save_adapter(Path(folder), self.module, self.adapter(name), overwrite)

    def adapter(self, name: str | None = None) -> adapting.Adapter:
        """Return the adapter `name`, or the only one if `name` is None. A UseError if there is no such one."""
        chosen = next(iter(self.adapters)) if name is None and len(self.adapters) == 1 else name
        if chosen not in self.adapters:
            raise UseError("adapter.unknown", name=name, known=", ".join(self.adapters) or "-")
        return self.adapters[str(chosen)]
