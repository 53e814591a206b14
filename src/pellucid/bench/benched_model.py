"""The model to measure: with its weights if there are any, else with random ones, which take the same time."""

from pathlib import Path

import torch

from pellucid.checkpoint.disk import require_memory
from pellucid.checkpoint.fill import place, targets
from pellucid.checkpoint.packing import Packing
from pellucid.config import Config
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, build, cast, retie
from pellucid.watching.meta import META

BLOCK = 1_000_003  # numbers that are drawn; a prime, so that no two rows of a matrix are alike
SPREAD = 0.02
CONTEXT = 512
MOST = 1 << 40


def reach(cfg: Config, context: int | None, new: int) -> int:
    """Return the tokens to read first: as given, or 512, or what the positions leave beside the new ones."""
    return min(CONTEXT, (cfg.positions or MOST) - new) if context is None else context


def check(name: str, cfg: Config, context: int, new: int, dtype: torch.dtype) -> None:
    """Refuse what cannot be measured: two stacks, a dtype without kernels, more tokens than positions, more bytes than memory."""
    if cfg.encoder is not None:
        raise UseError("bench.encoder", model=name)
    if dtype not in (torch.float32, torch.bfloat16):
        raise UseError("model.dtype", found=str(dtype).removeprefix("torch."), allowed="float32, bfloat16")
    if not 1 <= context <= (cfg.positions or MOST) - new:
        raise UseError("bench.context", found=context, new=new, most=(cfg.positions or MOST) - new)
    require_memory(context * cfg.vocab * dtype.itemsize, Path(name))  # the logits


def random_weights(name: str, cfg: Config, dtype: torch.dtype, quant: str | None = None) -> Decoder:
    """Return a model of a config with norms of 1 and one random block repeated for the rest. quant: int8 or int4."""
    with META:
        model = cast(build(cfg), dtype)
    packing = None if quant is None else Packing(quant, dtype)
    require_memory(sum(p.nbytes for p in model.parameters()) if packing is None else packing.bytes(model), Path(name))
    for path, t in targets(model).items():
        place(model, path, t.shape, t.dtype, None)
    retie(model)
    block = (torch.randn(BLOCK, generator=torch.Generator().manual_seed(0)) * SPREAD).to(dtype)
    with torch.no_grad():
        for path in [path for path, _ in model.named_parameters()]:
            p = model.get_parameter(path)
            flat = p.view(-1)
            for at in range(0, flat.numel(), BLOCK):
                flat[at : at + BLOCK] = block[: flat.numel() - at]
            if p.ndim == 1 and "norm" in path:
                p.fill_(1.0)
            if packing is not None:
                packing.pack(model, [path], name)
        retie(model)
        for b in model.buffers():
            b.zero_()
    assert isinstance(model, Decoder)
    return model.eval().requires_grad_(False)
