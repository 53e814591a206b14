"""The comparison of a folder with a server of it: log-probabilities of the same ids over /v1/completions, beside ours.

{"prompt": ids, "max_tokens": 1, "echo": true, "logprobs": 1}    as evaluation programs ask; vLLM and `pellucid serve` answer it
"""

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pellucid.analysis.verify import inputs
from pellucid.api.model import DTYPES, load
from pellucid.errors import UseError
from pellucid.nn.transformer import Encoder, EncoderDecoder

TOLERANCE = 0.05  # of a log-probability; a server in bfloat16 is within it
PATIENCE, LARGEST = 120.0, 50_000_000  # seconds of one answer, and bytes
KEYS = ("PELLUCID_API_KEY", "OPENAI_API_KEY")


@dataclass(frozen=True)
class TokenGap:
    """The log-probabilities of one token, ours and the server's. text: the number of the prompt.  position: of the token in it."""

    text: int
    position: int
    id: int
    ours: float
    theirs: float

    @property
    def size(self) -> float:
        return abs(self.ours - self.theirs)


@dataclass(frozen=True)
class ServerReport:
    """The result of a comparison. engine: what the server says of itself.  served: the model's name there.  tokens: compared ones.

    largest, mean: differences of log-probabilities.  first: the first token beyond the tolerance.
    """

    model: str
    server: str
    engine: str
    served: str
    dtype: str
    tolerance: float
    tokens: int
    largest: float
    mean: float
    first: TokenGap | None


def verify_server(
    name: str | Path, server: str, served: str | None, dtype: str, prompt: str | None, tolerance: float = TOLERANCE, device: str = "cpu"
) -> ServerReport:
    """Compare a folder's log-probabilities with those of a server's model, by default its first.

    prompt: a text; by default seeded random ids.  Raises a UseError for a server that does not answer, or not with log-probabilities.
    """
    if dtype not in DTYPES:
        raise UseError("model.dtype", found=dtype, allowed=", ".join(DTYPES))
    address = server.rstrip("/").removesuffix("/v1")
    models = fetched(address, "/v1/models").get("data")
    if not isinstance(models, list) or not models or not all(isinstance(m, dict) for m in models):
        raise UseError("verify.server.models", server=address)
    names = [str(m.get("id")) for m in models]
    if served is not None and served not in names:
        raise UseError("verify.server.model", server=address, found=served, known=", ".join(names))
    entry = models[0] if served is None else models[names.index(served)]
    model = load(name, dtype=DTYPES[dtype], device=device)
    if isinstance(model.module, Encoder | EncoderDecoder):
        raise UseError("verify.server.kind", model=name)
    (ids,) = inputs(model, prompt)
    ids = ids[:, : (model.config.positions or ids.shape[1] + 1) - 1].to(model.device)  # the server adds one token
    with torch.no_grad():
        ours = model.logprobs(ids).tolist()
    gaps = list[TokenGap]()
    for text, (row, mine) in enumerate(zip(ids.tolist(), ours, strict=True)):
        other = scored(address, str(entry["id"]), row)
        gaps += [TokenGap(text, i + 1, row[i + 1], a, b) for i, (a, b) in enumerate(zip(mine, other, strict=True))]
    sizes = [gap.size for gap in gaps]
    first = next((gap for gap in gaps if not gap.size <= tolerance), None)
    mean, engine = sum(sizes) / len(sizes), engine_of(address, entry)
    return ServerReport(str(name), address, engine, str(entry["id"]), dtype, tolerance, len(gaps), max(sizes), mean, first)


def scored(address: str, model: str, ids: list[int]) -> list[float]:
    """Return a server's log-probability of each id after the first."""
    body = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    answer = fetched(address, "/v1/completions", body)
    try:
        values = answer["choices"][0]["logprobs"]["token_logprobs"][1 : len(ids)]
        if len(values) != len(ids) - 1:
            raise ValueError(len(values))
        return [float(value) for value in values]
    except (KeyError, IndexError, TypeError, ValueError):
        raise UseError("verify.server.logprobs", server=address, model=model) from None


def engine_of(address: str, entry: dict[str, Any]) -> str:
    """Return the name of a server's engine and its version, as far as it says them."""
    try:
        version = str(fetched(address, "/version").get("version") or "")
    except UseError:
        version = ""
    return f"{entry.get('owned_by') or '-'} {version}".strip()


def fetched(address: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON object that a server answers. A UseError in one line for anything else."""
    key = next((os.environ[name] for name in KEYS if os.environ.get(name)), None)
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    if not address.startswith(("http://", "https://")):
        raise UseError("verify.server.url", found=address)
    request = urllib.request.Request(address + path, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            answer = json.loads(reply.read(LARGEST))
    except urllib.error.HTTPError as refused:
        reason = " ".join(refused.read(400).decode("utf-8", "replace").split())
        raise UseError("verify.server.status", server=address + path, status=refused.code, reason=reason) from None
    except (OSError, ValueError) as broken:
        raise UseError("verify.server.silent", server=address + path, reason=" ".join(str(broken).split())) from None
    if not isinstance(answer, dict):
        raise UseError("verify.server.silent", server=address + path, reason=type(answer).__name__)
    return answer
