"""The device and dtype of a loaded model's parameters, and `to`, which changes them."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Never, Self

import torch
from torch import nn

from pellucid.batch.inference_mode import lasting
from pellucid.checkpoint.default_dtype import DTYPES, Precision, precision
from pellucid.errors import UseError
from pellucid.messages import say
from pellucid.nn.transformer import Decoder, EncoderDecoder, cast
from pellucid.ops.blocks import Blocks
from pellucid.watching.meta import META, need_numbers


class Placed:
    """The part of a model that has a device and a dtype. engines: have pages of both, so they are dropped when either changes."""

    module: Decoder | EncoderDecoder
    precision: Precision
    engines: list[Any]

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has, in memory or pickled: all but the engines, whose pages and locks are this model's."""
        return {**self.__dict__, "engines": []}

    if not TYPE_CHECKING:  # a type checker goes on to refuse a name that is not there

        def __getattr__(self, name: str) -> Never:
            """Raise an AttributeError, which says where a name of torch's modules is: model.module.parameters."""
            words = {"name": name, "kind": type(self).__name__}
            raise AttributeError(say("model.of_module" if hasattr(nn.Module, name) else "model.attribute", **words), name=name, obj=self)

    @property
    def dtype(self) -> torch.dtype:
        return self.module.embed.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.module.embed.weight.device

    @property
    def quant(self) -> str | None:
        """The format of its matrices, int8 or int4; None if they are plain."""
        return next((p.format for p in self.module.parameters() if isinstance(p, Blocks)), None)

    @property
    def precision_note(self) -> str:
        """The dtype of the parameters and the reason for it, as text."""
        return (self.precision if self.precision.dtype == self.dtype else Precision(self.dtype, "given", self.dtype)).why

    def eval(self) -> Self:
        """Return the model itself: it has no dropout, so it is always in evaluation."""
        return self

    @lasting
    def to(self, device: str | torch.device | torch.dtype | None = None, dtype: str | torch.dtype | None = None) -> Self:
        """Move the model to a device, its parameters to a dtype, or both, in place; `to(torch.float64)` takes the dtype alone."""
        if isinstance(device, torch.dtype) or device in DTYPES:
            device, dtype = None, device if dtype is None else dtype
        wanted = None if dtype is None else precision(dtype, self.precision.stored, 0)
        if device is not None:
            check_device(device)
            if torch.device(device) != META:
                need_numbers(self.module)
        if wanted is not None and wanted.dtype != self.dtype:
            if self.quant is not None:
                raise UseError("model.blocks", held=self.quant)
            cast(self.module, wanted.dtype)
            self.precision = replace(wanted, formats=self.precision.formats)
        if device is not None:
            self.module.to(device)
        self.engines.clear()  # their pages are of the old kind
        return self


def check_device(device: str | torch.device) -> None:
    """Raise a UseError if torch does not know the device or this machine lacks it."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as broken:
        raise UseError("model.device", found=device, reason=str(broken).split("\n")[0]) from None
