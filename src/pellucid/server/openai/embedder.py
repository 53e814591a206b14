"""/v1/embeddings: an encoder's rows, pooled as the folder's own files say.

    modules.json           the folders of the steps after the encoder, as sentence-transformers writes them
    1_Pooling/config.json  which pooling: mean, cls, lasttoken, max
    2_Normalize            vectors of length 1

A folder without them is pooled by the mean, as in sentence-transformers. Texts run end to end in one forward and do not see each other.
"""

import base64
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pellucid.api.model import Model
from pellucid.batch.step import Step
from pellucid.checkpoint.disk import inside, read_text
from pellucid.checkpoint.json_file import parse, read_object
from pellucid.errors import CheckpointError, RequestError
from pellucid.nn.transformer import Encoder, Stack
from pellucid.runs.request import described, wrong
from pellucid.server.openai.body_fields import BodyFields
from pellucid.server.openai.prompts import prompts_of

if TYPE_CHECKING:
    from pellucid.server.openai.served_model import ServedModel

ROWS = 2048  # of one forward
MODULES, MODULES_BYTES = "modules.json", 100_000
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "cls_token": lambda rows: rows[0],
    "mean_tokens": lambda rows: rows.mean(0),
    "max_tokens": lambda rows: rows.amax(0),
    "lasttoken": lambda rows: rows[-1],
    "mean_sqrt_len_tokens": lambda rows: rows.sum(0) / len(rows) ** 0.5,
}
KNOWN = {"model", "input", "encoding_format", "dimensions", "add_special_tokens"}


@dataclass(frozen=True)
class Pooling:
    """How a text's rows [T D] become a vector [D]. kind: a name of POOLS.  normalised: to length 1."""

    kind: str = "mean_tokens"
    normalised: bool = False

    def __call__(self, rows: Tensor) -> Tensor:
        out = POOLS[self.kind](rows)
        return torch.nn.functional.normalize(out, dim=0) if self.normalised else out


def pooling_of(folder: Path | None) -> Pooling:
    """Read a folder's pooling. A CheckpointError for a kind that is not supported, or several at once."""
    if folder is None or not (folder / MODULES).exists():
        return Pooling()
    file = inside(folder, MODULES, CheckpointError)
    modules = parse(read_text(file, MODULES_BYTES, CheckpointError).encode(), str(file), CheckpointError)
    kind, normalised = "mean_tokens", False
    for module in modules if isinstance(modules, list) else []:
        step = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else "-"
        if step == "Pooling":
            config = inside(folder / str(module.get("path", "")), "config.json", CheckpointError)
            fields = read_object(config, error=CheckpointError)
            on = [name.removeprefix("pooling_mode_") for name, value in fields.items() if name.startswith("pooling_mode_") and value]
            if len(on) != 1 or on[0] not in POOLS:
                raise CheckpointError("serve.pooling", file=config, found=", ".join(on) or "-", allowed=", ".join(POOLS))
            kind = on[0]
        elif step == "Normalize":
            normalised = True
        elif step != "Transformer":
            raise CheckpointError("serve.pooling", file=file, found=step, allowed="Transformer, Pooling, Normalize")
    return Pooling(kind, normalised)


class Embedder:
    """An encoder with its pooling. One call runs at a time."""

    def __init__(self, model: Model, pooling: Pooling) -> None:
        self.model, self.pooling, self.lock = model, pooling, threading.Lock()

    def vectors(self, texts: list[list[int]]) -> list[Tensor]:
        """Return a vector [D] for each text's ids."""
        groups: list[list[list[int]]] = []
        for ids in texts:
            if not groups or sum(map(len, groups[-1])) + len(ids) > ROWS:
                groups.append([])
            groups[-1].append(ids)
        with self.lock, torch.no_grad():
            return [vector for group in groups for vector in self.pooled(group)]

    def pooled(self, texts: list[list[int]]) -> list[Tensor]:
        """Run texts end to end and pool each one's last rows."""
        module = self.model.module
        assert isinstance(module, Encoder)
        step = Step.packed([len(ids) for ids in texts], self.model.device)
        tokens = torch.tensor([[id for ids in texts for id in ids]], device=self.model.device)
        rows = Stack.forward(module, module.embed(tokens), step)[0].float()
        return [self.pooling(part).cpu() for part in rows.split([len(ids) for ids in texts])]


def embeddings_document(served: "ServedModel", body: Mapping[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the vectors of a body's `input`, as numbers or as base64 of little-endian float32. A RequestError for a decoder."""
    if served.embedder is None:
        raise RequestError("serve.decoder", 400, "model", name=served.name)
    fields = BodyFields(body, KNOWN)
    width = served.model.config.width
    if fields.given.get("dimensions", width) != width:
        raise wrong("dimensions", described(fields.given["dimensions"]), str(width))
    form = fields.text("encoding_format", "float")
    if form not in ("float", "base64"):
        raise wrong("encoding_format", described(form), "float | base64")
    texts = [ids for ids, _ in prompts_of(served, fields, "input")]
    for ids in texts:
        if len(ids) > served.longest:
            raise RequestError("serve.context", 400, "input", tokens=len(ids), new=0, most=served.longest)
    vectors = served.embedder.vectors(texts)
    data = [{"object": "embedding", "index": i, "embedding": encoded(v, form)} for i, v in enumerate(vectors)]
    count = sum(map(len, texts))
    facts["prompt_tokens"] = count
    return {"object": "list", "model": served.name, "data": data, "usage": {"prompt_tokens": count, "total_tokens": count}}


def encoded(vector: Tensor, form: str) -> str | list[float]:
    """Return a vector in one of the two forms."""
    return vector.tolist() if form == "float" else base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
