"""The comparison of a folder with a server of it: log-probabilities of the same ids over /v1/completions, beside ours.

{"prompt": ids, "max_tokens": 1, "echo": true, "logprobs": 1}    as evaluation programs ask; vLLM and `pellucid serve` answer it
{"prompt": ids[:n], "max_tokens": 1, "logprobs": 5}              for each n, of a server without echo that gives ids, as llama-server does:
                                                                 the likeliest ids after each prefix are compared
"""

import json
import os
import urllib.error
import urllib.request
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pellucid.analysis.verify import inputs
from pellucid.api.model import DTYPES, load
from pellucid.errors import UseError
from pellucid.nn.transformer import Encoder, EncoderDecoder
from pellucid.ops import native
from pellucid.ops.sampling.stages import logprobs

TOLERANCE = 0.05  # of a log-probability; a server in bfloat16 is within it
PATIENCE, LARGEST = 120.0, 50_000_000  # seconds of one answer, and bytes
LIKELIEST = 5  # ids after each prefix
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
    name: str | Path,
    server: str,
    served: str | None,
    dtype: str | None,
    prompt: str | None,
    tolerance: float = TOLERANCE,
    device: str = "cpu",
) -> ServerReport:
    """Compare a folder's log-probabilities with those of a server's model, by default its first.

    dtype: by default float64, or float32 of a quantised model, whose kernels round what they multiply by. Its rows have the bits that
    they have alone, as those of a deterministic server: a sum in another order may round to another int8, and move a logit by 0.1.
    prompt: a text; by default seeded random ids.  Raises a UseError for a server that does not answer, or not with log-probabilities.
    """
    if dtype not in (None, *DTYPES):
        raise UseError("model.dtype", found=dtype, allowed=", ".join(DTYPES))
    address = server.rstrip("/").removesuffix("/v1")
    models = fetched(address, "/v1/models").get("data")
    if not isinstance(models, list) or not models or not all(isinstance(m, dict) for m in models):
        raise UseError("verify.server.models", server=address)
    names = [str(m.get("id")) for m in models]
    if served is not None and served not in names:
        raise UseError("verify.server.model", server=address, found=served, known=", ".join(names))
    entry = models[0] if served is None else models[names.index(served)]
    model = load(name, dtype=DTYPES[dtype or "float64"], device=device)
    if dtype is None and model.quant:
        del model  # both would be in memory
        model = load(name, dtype=torch.float32, device=device)
    if isinstance(model.module, Encoder | EncoderDecoder):
        raise UseError("verify.server.kind", model=name)
    (ids,) = inputs(model, prompt)
    ids = ids[:, : (model.config.positions or ids.shape[1] + 1) - 1].to(model.device)  # the server adds one token
    if ids.shape[1] < 2:
        raise UseError("verify.server.short", model=name)
    with torch.no_grad(), native.any_rows() if model.quant else nullcontext():
        ours = [logprobs(model(row[None], prefix=0 if model.config.prefix else None))[0] for row in ids]
    gaps = list[TokenGap]()
    for text, (row, mine) in enumerate(zip(ids.tolist(), ours, strict=True)):
        for i, others in enumerate(answered(address, str(entry["id"]), row, model.config.vocab)):
            gaps += [TokenGap(text, i + 1, id, float(mine[i, id]), theirs) for id, theirs in others.items()]
    sizes = [gap.size for gap in gaps]
    first = next((gap for gap in gaps if not gap.size <= tolerance), None)
    mean, engine = sum(sizes) / len(sizes), engine_of(address, entry)
    computed = str(model.dtype).removeprefix("torch.")
    return ServerReport(str(name), address, engine, str(entry["id"]), computed, tolerance, len(gaps), max(sizes), mean, first)


def answered(address: str, model: str, ids: list[int], vocab: int) -> list[dict[int, float]]:
    """Return a server's log-probabilities after each prefix of `ids` but the whole, by id: of the next one, or of the likeliest."""
    body = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 1}
    try:
        first = written(address, body | {"echo": True})
        if "token_logprobs" not in first:
            tops = [likeliest(written(address, body | {"prompt": ids[:n], "logprobs": LIKELIEST}), vocab) for n in range(1, len(ids))]
            if 2 * sum(map(bool, tops)) < len(tops):  # null after most prefixes: nothing to agree with
                raise ValueError(tops)
            return tops
        return [{id: float(value)} for id, value in zip(ids[1:], first["token_logprobs"][1 : len(ids)], strict=True)]
    except (KeyError, IndexError, TypeError, ValueError):
        raise UseError("verify.server.logprobs", server=address, model=model) from None


def written(address: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return what a server says of the log-probabilities of its answer; {} for null, as of a token that is a part of a character."""
    of: dict[str, Any] | None = fetched(address, "/v1/completions", body)["choices"][0]["logprobs"]
    return of or {}


def likeliest(of: dict[str, Any], vocab: int) -> dict[int, float]:
    """Return the log-probabilities of the likeliest ids of the token that a server wrote; {} where it says nothing of it.

    A ValueError for an id that the model does not have.
    """
    values = {one["id"]: float(one["logprob"]) for token in of.get("content") or () for one in token["top_logprobs"]}
    if not all(type(id) is int and 0 <= id < vocab for id in values):
        raise ValueError(values)
    return values


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
