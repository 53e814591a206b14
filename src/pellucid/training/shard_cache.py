"""The shards of earlier runs, for the next one with the same files, tokenizer and settings.

    ~/.cache/pellucid/shards/<key>/   tokenizer.json  00000.safetensors ...  index.json        as in a run's folder

The key is a hash of what shards depend on. Files are hard links where the disk allows it, so they are there once; deleting the folder costs
no run anything. A folder of shards is renamed into place when it is complete, so of two runs at once one wins, and a kill leaves nothing
that is read. A run checks the SHA-256 of what it takes as of its own. A cache that cannot be read or written is passed over.
"""

import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

from pellucid.checkpoint.disk import sync

FOLDER = "PELLUCID_CACHE"
"""The variable with another place than ~/.cache/pellucid; if it is empty, nothing is kept."""
INDEX, KEPT = "index.json", re.compile(r"tokenizer\.json|[0-9]{5,}\.safetensors")
OLD = 86_400  # seconds after which the rest of a killed run is removed


def cache_folder() -> Path | None:
    """Return the folder of all kept shards, None if there is to be none."""
    given = os.environ.get(FOLDER)
    if given is not None:
        return Path(given) / "shards" if given else None
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "pellucid" / "shards"
    except RuntimeError:  # no home
        return None


class ShardCache:
    """The kept shards of one key. folder: of those of all keys, None to keep nothing."""

    def __init__(self, key: str, folder: Path | None) -> None:
        self.key, self.folder = key, folder

    def take(self, into: Path) -> bool:
        """Link the shards into the folder of a run, the index last, in place of others there. False if there are none."""
        if self.folder is None:
            return False
        kept = self.folder / self.key
        try:
            names = sorted(path.name for path in kept.iterdir() if KEPT.fullmatch(path.name))
            if not (kept / INDEX).is_file():
                return False
            into.mkdir(parents=True, exist_ok=True)
            (into / INDEX).unlink(missing_ok=True)
            for path in [*into.glob(".*.part"), *into.glob("*.safetensors")]:
                path.unlink()
            for name in (*names, INDEX):
                link(kept / name, into / name)
            sync(into)
        except OSError:
            with suppress(OSError):
                (into / INDEX).unlink(missing_ok=True)
            return False
        return True

    def keep(self, made: Path) -> None:
        """Link the shards of a run into the cache, unless another run has done so."""
        if self.folder is None:
            return
        part = self.folder / f".{self.key}.{secrets.token_hex(6)}.part"
        try:
            part.mkdir(mode=0o700, parents=True)
            for path in sorted(made.iterdir()):
                if path.name == INDEX or KEPT.fullmatch(path.name):
                    link(path, part / path.name)
            sync(part)
            part.rename(self.folder / self.key)  # fails if it is there
            sync(self.folder)
        except OSError:
            pass
        self.clear(part)

    def drop(self) -> None:
        """Remove the shards, which are damaged."""
        if self.folder is not None:
            part = self.folder / f".{self.key}.{secrets.token_hex(6)}.part"
            with suppress(OSError):
                (self.folder / self.key).rename(part)
            self.clear(part)

    def clear(self, part: Path) -> None:
        """Remove an incomplete folder, and those that killed runs have left."""
        assert self.folder is not None
        shutil.rmtree(part, ignore_errors=True)
        with suppress(OSError):
            for other in self.folder.glob(".*.part"):
                if time.time() - other.stat().st_mtime > OLD:
                    shutil.rmtree(other, ignore_errors=True)


def link(path: Path, place: Path) -> None:
    """Make a file appear in another place, whole from its first moment: by a hard link, or else a copy."""
    part = place.with_name(f".{place.name}.{secrets.token_hex(6)}.part")
    try:
        try:
            os.link(path, part, follow_symlinks=False)
        except OSError:  # another disk, or one without links
            shutil.copyfile(path, part, follow_symlinks=False)
            sync(part)
        os.replace(part, place)
    finally:
        with suppress(OSError):  # two links to one file stay both
            part.unlink()
