"""Models by their id on the Hugging Face hub, or on the mirror in HF_ENDPOINT: only files that are read are fetched.

They are kept in the hub library's own cache (HF_HOME), where each is named after its hash; a fetched file with another hash is removed.
If the hub cannot be reached, a model that is complete in the cache is used, with a warning.
"""

import glob
import hashlib
import os
import re
import warnings
from collections.abc import Callable, Container, Iterable
from fnmatch import fnmatch
from logging import CRITICAL
from pathlib import Path
from typing import Any

from pellucid.checkpoint.disk import inside, regular
from pellucid.checkpoint.folder import ADAPTER, INDEX, TOKENIZER_FILES, WEIGHTS, weightless
from pellucid.checkpoint.json_file import TABLE_BYTES, read_object
from pellucid.errors import CheckpointError
from pellucid.messages import say
from pellucid.tokenizer.chat_template import TEMPLATE_FOLDER

SMALL = ("config.json", "generation_config.json", INDEX, *TOKENIZER_FILES, f"{TEMPLATE_FOLDER}/*.jinja")
NEEDED = "tokenizer_config.json"  # of every tokenizer that was saved
PART = r"[A-Za-z0-9][\w.-]{0,95}"
NAME = re.compile(rf"({PART}/{PART})(?:@({PART}(?:/{PART})*))?", re.ASCII)
CHUNK = 1 << 20  # bytes read at a time to hash them

Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """Ignore progress."""


def is_hub_id(name: str) -> bool:
    """True if a name has the form owner/model or owner/model@revision."""
    return NAME.fullmatch(name) is not None


def fetch(name: str, progress: Progress = silent) -> Path:
    """Return the local folder of a hub id with config.json, the tokenizer's files and the weights; downloads what is not there yet.

    HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE and HF_TOKEN are honoured.  progress(bytes of weights done, bytes in all).
    """
    with Hub(name) as hub:
        there = hub.file_sizes("config.json")
        if there is None:
            return hub.kept(lambda folder: "config.json" if not (folder / "config.json").exists() else lacking(folder))
        if not {WEIGHTS, INDEX} & there.keys():
            raise weightless(name, there)
        folder = hub.download(small(there))
        shards = [n for n in weights(folder, there) if n in there and not (folder / n).exists()]
        hub.download(shards, folder.name, progress, sum(there[n] for n in shards))
        return folder


def fetch_config(name: str) -> Path:
    """Return the local path of a hub id's config.json, and fetch nothing else."""
    return inside(fetch_these(name, ("config.json",)), "config.json")


def fetch_tokenizer(name: str) -> Path:
    """Return the local folder of a hub id with its small files, the tokenizer's among them, without weights."""
    with Hub(name) as hub:
        there = hub.file_sizes(NEEDED)
        if there is None:
            return hub.kept(lambda folder: None if (folder / NEEDED).exists() else NEEDED)
        return hub.download(small(there))


def small(there: Iterable[str]) -> list[str]:
    """Return the small files among `there`: configs, the index, the tokenizer's."""
    return [n for n in there if any(fnmatch(n, pattern) and n.count("/") == pattern.count("/") for pattern in SMALL)]


def fetch_adapter(name: str) -> Path:
    """Return the local folder of an adapter by its hub id."""
    return fetch_these(name, ADAPTER)


def fetch_these(name: str, files: tuple[str, ...]) -> Path:
    """Return the local folder of a hub id with these files. A CheckpointError if one is missing."""
    with Hub(name) as hub:
        there = hub.file_sizes(files[0])
        if there is None:
            return hub.kept(lambda folder: next((f for f in files if not (folder / f).exists()), None))
        if missing := [f for f in files if f not in there]:
            raise CheckpointError("hub.file", name=name, file=missing[0])
        return hub.download(list(files))


def weights(folder: Path, there: Container[str]) -> list[str]:
    """Return the files of a model's weights: one, or those that its index lists."""
    if WEIGHTS in there:
        return [WEIGHTS]
    table = read_object(inside(folder, INDEX), TABLE_BYTES, CheckpointError).get("weight_map")
    shards = set(table.values()) if isinstance(table, dict) and all(isinstance(n, str) for n in table.values()) else set()
    return sorted(n for n in shards if n.endswith(".safetensors"))


def lacking(folder: Path) -> str | None:
    """Return a file of weights that a folder in the cache lacks; None if it is complete."""
    if not (folder / WEIGHTS).exists() and not (folder / INDEX).exists():
        return WEIGHTS
    return next((n for n in weights(folder, {n.name for n in folder.iterdir()}) if not (folder / n).exists()), None)


class Hub:
    """A session with the hub about one id; the library's own log is silenced, and its errors are reported without the token."""

    def __init__(self, name: str) -> None:
        match = NAME.fullmatch(name)
        if match is None:
            raise CheckpointError("hub.name", name=name)
        self.name, self.id, self.revision = name, match[1], match[2] or "main"
        self.commit, self.away = "", ""

    def __enter__(self) -> "Hub":
        from huggingface_hub.utils import logging

        self.verbosity = logging.get_verbosity()
        logging.set_verbosity(CRITICAL)
        return self

    def __exit__(self, *failure: object) -> None:
        from huggingface_hub.utils import logging

        logging.set_verbosity(self.verbosity)

    def file_sizes(self, first: str) -> dict[str, int] | None:
        """Return {file: bytes} of the id on the hub; None if the hub is out of reach. A CheckpointError without the file `first`."""
        from huggingface_hub import HfApi

        try:
            info = HfApi().model_info(self.id, revision=self.revision, files_metadata=True, timeout=30)
        except Exception as broken:  # the library raises many kinds
            if status(broken) in (401, 403, 404):
                raise self.fault(broken) from None
            self.away = self.explain(broken)
            return None
        self.commit = info.sha or ""
        there = {f.rfilename: int(f.size or 0) for f in info.siblings or ()}
        if first not in there:
            raise CheckpointError("hub.file", name=self.name, file=first)
        return there

    def kept(self, missing: Callable[[Path], str | None]) -> Path:
        """Return the folder in the cache, with a warning. missing(folder): a file that it lacks, which is a CheckpointError, or None."""
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(self.id, revision=self.revision, local_files_only=True, allow_patterns=["config.json"]))
        except Exception:
            raise CheckpointError("hub.away", name=self.name, reason=self.away) from None
        if (lost := missing(folder)) is not None:
            raise CheckpointError("hub.partly", name=self.name, reason=self.away, file=lost)
        warnings.warn(say("hub.kept", name=self.name, reason=self.away, commit=folder.name[:8]), stacklevel=4)
        return folder

    def download(self, files: list[str], revision: str | None = None, progress: Progress = silent, total: int = 0) -> Path:
        """Download these files and return their folder; verifies the hashes of new ones. revision: in place of the id's own."""
        from huggingface_hub import snapshot_download

        new = [n for n in files if not self.has(n)]
        how: dict[str, Any] = {"allow_patterns": [glob.escape(n) for n in files], "tqdm_class": bar(progress, total)}
        try:
            folder = Path(snapshot_download(self.id, revision=revision or self.revision, **how))
        except Exception as broken:
            raise self.fault(broken) from None
        for n in new:
            verify(folder / n)
        return folder

    def has(self, file: str) -> bool:
        """True if the cache has this file at the listed commit."""
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(self.id, file, revision=self.commit), str)

    def fault(self, broken: Exception) -> CheckpointError:
        """Return a CheckpointError for what the library raised."""
        code = status(broken)
        if code in (401, 403):
            return CheckpointError("hub.login", name=self.name, status=code)
        if code == 404:
            return CheckpointError("hub.unknown", name=self.name)
        return CheckpointError("hub.fetch", name=self.name, reason=self.explain(broken))

    def explain(self, broken: Exception) -> str:
        """Return why the hub gave nothing, without secrets: an address can be signed, and a bad header contains the token."""
        from huggingface_hub import constants, get_token

        if constants.HF_HUB_OFFLINE:
            return "HF_HUB_OFFLINE"
        if (code := status(broken)) is not None:
            return f"HTTP {code}"
        first = (str(broken).strip() or type(broken).__name__).split("\n")[0]
        return re.sub(r"\?\S*", "", first.replace(get_token() or "\n", "***"))


def status(broken: BaseException | None) -> int | None:
    """Return the HTTP status at the root of a failure, None if there is none."""
    while broken is not None:
        if isinstance(code := getattr(getattr(broken, "response", None), "status_code", None), int):
            return code
        broken = broken.__cause__
    return None


def verify(path: Path) -> None:
    """Check a cached file's hash, SHA-256 or git's, against its name. Removes the file and raises a CheckpointError if they differ."""
    if not path.is_symlink():
        return  # a system without links has files by their own names
    named = Path(os.readlink(path)).name
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", named):
        return  # a mirror may name files as it likes
    with regular(path) as fd:
        size = os.fstat(fd).st_size
        digest = hashlib.sha256() if len(named) == 64 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        while chunk := os.read(fd, CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != named:
        path.resolve().unlink()
        path.unlink()
        raise CheckpointError("hub.hash", file=path.name, found=digest.hexdigest(), named=named)


def bar(progress: Progress, total: int) -> type:
    """Return a progress bar class that shows nothing and calls `progress` with the bytes received and `total`."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *items: Any, **how: Any) -> None:
            self.received, self.bytes = 0, how.get("unit") == "B"
            super().__init__(*items, **{**how, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self.received += int(n or 0)
            if self.bytes and total:
                progress(min(self.received, total), total)

    return Bar
