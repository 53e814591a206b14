"""The page with a model that it runs itself as a folder for a web server: index.html, and the weights in chunks.

    site/index.html                        the page, the plan, the kernels, and each chunk's SHA-256
    site/weights-000-3f09a1c2.safetensors  tensors of up to 8 MB together; "embed.weight@12000" is a part that begins at row 12000

A chunk's name has the start of its hash, so that a browser never takes a stored one for another. The page fetches the chunks before its
first run, two at a time, checks each, and writes it into the kernels' memory: no weight is held twice.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from pellucid.api.model import Model
from pellucid.checkpoint.disk import reason, replacing
from pellucid.engine.written_plan import HEAD
from pellucid.errors import TraceError, UseError
from pellucid.html.file import inert, packed, page
from pellucid.html.live import ALLOWED, DECODED, RUNS, kernels, live_document

CHUNK = 8_000_000  # bytes
TOGETHER = 2  # chunks that a page holds while it loads
MOST = 2_000_000_000  # bytes of weights: WebAssembly addresses 4 GiB, and the cache and the page need some


@dataclass(frozen=True)
class LiveFolder:
    """A written folder. bytes: of all its files.  memory: bytes that a page's tab takes at most for weights, cache, runs and loading."""

    chunks: int
    bytes: int
    memory: int


def live_folder(model: Model, out: Path) -> LiveFolder:
    """Write the page with a model that it runs itself to a folder, which must be new or empty. A UseError names what it cannot run yet."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UseError("convert.exists", path=out)
    document, plan = live_document(model, MOST)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as broken:
        raise TraceError("file.write", file=out, reason=reason(broken)) from None
    document["chunks"] = []
    for i, part in enumerate(chunks(plan.weights)):
        content = save(part)
        sha256 = hashlib.sha256(content).hexdigest()
        name = f"weights-{i:03}-{sha256[:8]}.safetensors"
        with replacing(out / name, TraceError) as file:
            file.write_bytes(content)
        document["chunks"].append({"file": name, "bytes": len(content), "sha256": sha256})
    text = page({"live": inert(document), "kernels": packed(kernels())}, ALLOWED, "'self'")
    with replacing(out / "index.html", TraceError) as file:  # last: a folder without it is none
        file.write_text(text, encoding="utf-8")
    size = len(text.encode()) + sum(chunk["bytes"] for chunk in document["chunks"])
    memory = kernel_bytes(document["plan"], document["longest"]) + RUNS + DECODED + TOGETHER * CHUNK
    return LiveFolder(len(document["chunks"]), size, memory)


def kernel_bytes(plan: Mapping[str, Any], longest: int) -> int:
    """Count the bytes of the kernels' memory, at most: the regions of a plan, and its calls as words.

    Rows that see one another have regions and calls of their own. A longer text's get memory anew, by powers of two; none is given back.
    """
    rows = 1
    if plan["together"] or plan["source"]:
        rows = 2 ** ((longest - 1).bit_length() + 1) - 1  # 1 + 2 + 4 + ... until a text of `longest` tokens has room
    shared: int = sum(r["bytes"] for r in plan["regions"] if r["shared"])
    own: int = sum(r["bytes"] for r in plan["regions"] if not r["shared"])
    calls = sum(HEAD + 8 * len(call["words"]) for call in (*plan["source"], *plan["calls"]))
    return shared + rows * (own + calls)


def chunks(weights: Mapping[str, Tensor], most: int = CHUNK) -> Iterator[dict[str, Tensor]]:
    """Yield the weights in parts of up to `most` bytes, or one row if that has more."""
    part, size = dict[str, Tensor](), 0
    for name, x in weights.items():
        for key, rows in cut(name, x, most):
            if part and size + rows.nbytes > most:
                yield part
                part, size = {}, 0
            part[key], size = rows, size + rows.nbytes
    if part:
        yield part


def cut(name: str, x: Tensor, most: int) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor, or its rows by the thousand, each with its name and from the second on its first row."""
    if x.nbytes <= most:
        yield name, x
        return
    rows = max(1, most * len(x) // x.nbytes)
    for at in range(0, len(x), rows):
        yield f"{name}@{at}" if at else name, x[at : at + rows].clone()
