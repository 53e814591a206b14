"""The page in one file that runs its model: weights, a recorded plan, kernels as WebAssembly, and answers that no run changes."""

import hashlib
from collections.abc import Mapping
from typing import Any

from safetensors.torch import save

from pellucid.api.model import Model
from pellucid.engine.written_plan import written_plan
from pellucid.errors import UseError
from pellucid.html.file import inert, packed, page
from pellucid.html.live_tensors import alike
from pellucid.html.recording import counts
from pellucid.html.shown import subject
from pellucid.messages import language
from pellucid.nn.transformer import Encoder
from pellucid.ops.native import make
from pellucid.runs.answers import tokenizer_of
from pellucid.runs.limits import LIMITS
from pellucid.runs.model_registry import LoadedModel
from pellucid.tokenizer.tokenizer import Tokenizer

SCHEMA = 1
LONGEST = 1024  # tokens of a text, for a model without a limit of its own
ALLOWED = " 'wasm-unsafe-eval'"  # compile WebAssembly; nothing else is evaluated
MOST = 64_000_000  # bytes of weights: a file is read whole, and its text is a third longer
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
PLAIN_BPE = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges", "fuse_unk")


def live_page(model: Model) -> str:
    """Return the page with a model that it runs itself, as the text of one HTML file. A UseError names what it cannot run yet."""
    longest = min(model.config.positions or LONGEST, LONGEST)
    dtype = model.quant or str(model.dtype).removeprefix("torch.")
    if dtype != "float32":
        raise UseError("live.held", model=model.name, found=dtype)
    if model.module.embed.weight.device.type != "cpu":
        raise UseError("live.device", model=model.name)
    try:
        plan = written_plan(model.module, longest)
    except UseError as why:
        raise UseError("live.model", model=model.name, reason=str(why)) from None
    tokenizer = vocabulary(model)
    if not make.WASM.is_file():
        raise UseError("live.kernels", file=make.WASM.name)
    weights, kernels = save(plan.weights), make.WASM.read_bytes()
    if len(weights) > MOST:
        raise UseError("live.large", model=model.name, size=len(weights), limit=MOST)
    document = {
        "schema": SCHEMA,
        "language": language(),
        "model": model.name,
        "longest": longest,
        "candidates": LIMITS.candidates,
        "stops": sorted(model.stops),
        "starts": model.config.starts,
        **tokenizer,
        **alike(model, plan),
        "plan": plan.document,
        "sha256": {"weights": hashlib.sha256(weights).hexdigest(), "kernels": hashlib.sha256(kernels).hexdigest()},
        "answers": answers(model),
    }
    return page({"live": inert(document), "weights": packed(weights), "kernels": packed(kernels)}, ALLOWED)


def answers(model: Model) -> dict[str, Any]:
    """Return the server's answers that no run changes: the models, the model's weights and its bill."""
    run, _ = subject(model)
    row = loaded(model).row() | {"chat": None}
    models = {"schema": SCHEMA, "current": model.name, "run": None, "training": None, "models": [row]}
    return {"models": models, **counts(run, model)}


def loaded(model: Model) -> LoadedModel:
    """Return the model as the page's list has it."""
    return LoadedModel(model.name, model.family.name, model.module, model)


def vocabulary(model: Model) -> dict[str, Any]:
    """Return a byte-level BPE for the page's script. A UseError if the model's tokenizer is another."""
    tokenizer = tokenizer_of(model)
    if tokenizer is None:
        raise UseError("live.tokenizer", model=model.name, found="-")
    spec, bpe = tokenizer.spec, tokenizer.spec["model"]
    added = spec.get("added_tokens") or []
    given = {name: (spec.get("pre_tokenizer") or {}).get(name) for name in BYTE_LEVEL}
    fits = bpe["type"] == "BPE" and not any(bpe.get(field) for field in PLAIN_BPE) and given == BYTE_LEVEL
    if not fits or spec.get("normalizer") or not all(token.get("special") for token in added):
        raise UseError("live.tokenizer", model=model.name, found=described(spec))
    ranks = tokenizer.merges()
    return {
        "pieces": [piece(tokenizer, id) for id in range(model.config.vocab)],
        "merges": [" ".join(pair) for pair in sorted(ranks, key=ranks.__getitem__)],
        "special": [token["content"] for token in added],
        "around": around(tokenizer),
        "control": control(model, tokenizer) if isinstance(model.module, Encoder) else None,
    }


def around(tokenizer: Tokenizer) -> list[list[int]]:
    """Return the ids that the tokenizer's post-processor puts before a text, and those that it puts after it."""
    bare, ids = tokenizer.encode("a", special=False), tokenizer.encode("a")
    at = next(i for i in range(len(ids)) if ids[i : i + len(bare)] == bare)
    return [ids[:at], ids[at + len(bare) :]]


def control(model: Model, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the control tokens that an encoder's text may name, and the mask's id: a text that fills blanks names them."""
    added = tokenizer.spec.get("added_tokens") or []
    tokens = [{name: token[name] for name in ("id", "content", "lstrip", "rstrip")} for token in added]
    return {"tokens": tokens, "mask": tokenizer.special.get("mask")}


def piece(tokenizer: Tokenizer, id: int) -> str | None:
    """Return the piece of an id as its file writes it; None for a row of the embedding without one."""
    return tokenizer.piece(id) if id < tokenizer.size and tokenizer.pieces([id])[0].raw else None


def described(spec: Mapping[str, Any]) -> str:
    """Name the parts of a tokenizer."""
    parts = (spec.get(name) for name in ("normalizer", "pre_tokenizer", "model", "post_processor"))
    return " · ".join(str(part["type"]) for part in parts if isinstance(part, dict))
