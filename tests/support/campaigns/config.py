"""Mutants of config.json: of every family's tiny configuration."""

import random
import warnings
from pathlib import Path

from transformers import AutoConfig

from campaigns import Attempt, named
from campaigns.mutate import bent, mangled, text
from kinds import KINDS
from pellucid.checkpoint.folder import Folder
from pellucid.families import understand


def prepare(folder: Path) -> Attempt:
    file = folder / "config.json"
    known = [AutoConfig.for_model(f, **kind.tiny | quirk).to_dict() for f, kind in KINDS.items() for quirk in kind.quirks.values()]
    seeds = [{k: v for k, v in tree.items() if v is not None} for tree in known]

    def attempt(draw: random.Random) -> str:
        tree = draw.choice(seeds)
        file.write_bytes(mangled(text(tree), draw) if draw.random() < 0.3 else text(bent(tree, draw)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return named(lambda: understand(Folder(folder).config, str(file)), file.name)

    return attempt
