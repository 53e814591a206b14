"""A check that a folder's weights can be those of its config.json, before a module is built: a small file cannot allocate much.

100,000 layers over a file of 26 tensors    n_embd 1,000,000,000 over one of 400 kB    -> refused, in milliseconds
"""

from math import prod

from pellucid.checkpoint.folder import Folder
from pellucid.checkpoint.gguf.gguf_folder import GgufFolder
from pellucid.config import Config
from pellucid.counting.distinct import distinct
from pellucid.errors import CheckpointError
from pellucid.nn.transformer import build
from pellucid.watching.meta import META

SLACK = 2  # up to this multiple of what is stored, missing tensors are named one by one


def judge_sizes(cfg: Config, folder: Folder | GgufFolder) -> None:
    """Refuse a config with more layers than the folder has tensors, or with many more numbers than it holds.

    Every layer has at least one tensor of its own on disk, and a number is stored once. Blocks that share weights are few (24 in ALBERT).
    """
    names, layers = folder.names(), len(cfg.layers) + len(cfg.encoder or ())
    if layers > len(names):
        raise CheckpointError("weights.layers", file=folder.path, layers=layers, tensors=len(names))
    needed, stored = numbers(cfg), sum(prod(folder.shape(name)) for name in names)
    if needed > SLACK * stored:
        raise CheckpointError("weights.sizes", file=folder.path, needed=f"{needed:,}", held=f"{stored:,}")


def numbers(cfg: Config) -> int:
    """Return the number of parameters of a model, by building one layer of each kind; layers that share weights have them once."""
    few = distinct(cfg)
    with META:
        module = build(few.config)
    places = ((few.place(path), p.numel()) for path, p in module.named_parameters())
    return sum(count * (1 if cfg.shares else at[1]) for at, count in places if at is not None)
