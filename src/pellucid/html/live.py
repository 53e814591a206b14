"""The page in one file that runs its model: weights, a recorded plan, kernels as WebAssembly, and the server's answers that no run changes.

A tensor's document depends on a run only by its rows: T rows after which S keys are stored. A few runs of other lengths give the terms of
its FLOPs, and show that nothing else of it changes; a model of which that is not so is refused.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from safetensors.torch import save

from pellucid.api.model import Model
from pellucid.documents.run import run_document, step_document
from pellucid.documents.summands import labels
from pellucid.engine.written_plan import WrittenPlan, written_plan
from pellucid.errors import UseError
from pellucid.html.file import inert, packed, page
from pellucid.html.recording import counts
from pellucid.html.shown import subject
from pellucid.messages import language
from pellucid.ops.native import make
from pellucid.runs.answers import tokenizer_of
from pellucid.runs.execute import run_prompt
from pellucid.runs.kept_run import Run
from pellucid.runs.limits import LIMITS
from pellucid.runs.model_registry import LoadedModel
from pellucid.runs.request import RunRequest
from pellucid.runs.worker import Stop
from pellucid.tokenizer.tokenizer import Tokenizer

SCHEMA = 1
LONGEST = 1024  # tokens of a text, for a model without a limit of its own
ALLOWED = " 'wasm-unsafe-eval'"  # compile WebAssembly; nothing else is evaluated
MOST = 64_000_000  # bytes of weights: a file is read whole, and its text is a third longer
LENGTHS, NEW = (3, 5), 3  # of the prompts that are run, and their new tokens
STARTS = 50  # ids that are tried as a prompt's, until a text goes on long enough
ALIKE = ("family", "kind", "parameters", "dtype", "values", "blocks", "masks", "routings")  # fields that all runs of a model have alike
OWN = ("n", "shape", "step", "bytes", "flops", "error", "stats", "min", "mean", "max")  # fields of a tensor that its run sets
SCORES = {"scale", "width"}  # the settings of scores that the page computes itself
# The ops whose cells the page takes apart, with the names of their terms; and the activations that its script computes.
TERMS = {
    "linear": ("x", "weight", "bias"), "look": ("weight",), "add": ("x", "y"), "scores": ("q", "k", "scale"), "softmax": ("e", "over"),
    "attend": ("pattern", "v"), "layer norm": ("centred", "over", "weight", "gain", "bias"), "rms": ("x", "over", "weight", "gain"),
    "act": ("act", "up"), "gate": ("act", "up"), "last row": ("x",), "rotate": ("x", "turn"),
}  # fmt: skip
ACTS = ("silu", "relu", "relu2", "gelu_tanh")
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
        **tokenizer,
        **steps(model, plan),
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
    if not fits or spec.get("normalizer") or spec.get("post_processor") or not all(token.get("special") for token in added):
        raise UseError("live.tokenizer", model=model.name, found=described(spec))
    ranks = tokenizer.merges()
    return {
        "pieces": [piece(tokenizer, id) for id in range(model.config.vocab)],
        "merges": [" ".join(pair) for pair in sorted(ranks, key=ranks.__getitem__)],
        "special": [token["content"] for token in added],
    }


def piece(tokenizer: Tokenizer, id: int) -> str | None:
    """Return the piece of an id as its file writes it; None for a row of the embedding without one."""
    return tokenizer.piece(id) if id < tokenizer.size and tokenizer.pieces([id])[0].raw else None


def described(spec: Mapping[str, Any]) -> str:
    """Name the parts of a tokenizer."""
    parts = (spec.get(name) for name in ("normalizer", "pre_tokenizer", "model", "post_processor"))
    return " · ".join(str(part["type"]) for part in parts if isinstance(part, dict))


def steps(model: Model, plan: WrittenPlan) -> dict[str, Any]:
    """Return what every run of the model has alike: the fields of its document, and its tensors with the rows left open."""
    seen: list[tuple[int, int, list[dict[str, Any]]]] = []
    common: dict[str, Any] = {}
    for length in LENGTHS:
        run = run_of(model, length)
        own = {name: value for name, value in run_document(run).items() if name in ALIKE}
        if common and own != common:
            raise UseError("live.changing", model=model.name, path="-", field=next(n for n in ALIKE if own[n] != common[n]))
        common = own
        for k in range(NEW):
            rows = length if k == 0 else 1
            seen.append((rows, length + k, [dict(t) for t in step_document(run, k)["tensors"]]))
    dims = {s.path: s.dims for s in run.trace.seen}
    label = {s.path: labels(s, dims) for s in run.trace.seen}
    tensors = [opened(model, [(rows, keys, all_of[i]) for rows, keys, all_of in seen]) for i in range(len(seen[0][2]))]
    taps = {tap["path"] for tap in plan.document["taps"]}
    for t in tensors:
        if not (t["path"] in taps or computed(t)):
            raise UseError("live.tensor", model=model.name, path=t["path"], op=t["op"] or "-")
        summed = t["op"] in TERMS and t["settings"].get("act", "silu") in ACTS
        t |= {"terms": summed, "labels": {name: label[t["path"]](name) for name in TERMS.get(t["op"], ())}}
    return {"run": common, "tensors": tensors}


def run_of(model: Model, length: int) -> Run:
    """Return a run of a prompt of this many tokens with NEW new ones. A UseError if the model ends every text before."""
    for start in range(1, STARTS):
        ids = tuple((start + i) % model.config.vocab for i in range(length))
        run = run_prompt(loaded(model), RunRequest(model.name, ids=ids, new=NEW), Stop(), LIMITS)
        if run.trace.steps == NEW:
            return run
    raise UseError("live.ends", model=model.name)


def computed(t: Mapping[str, Any]) -> bool:
    """True if the page computes a tensor that the plan does not write: plain scores, their pattern, the last row of the logits."""
    if t["op"] == "scores":
        return set(t["settings"]) == SCORES and not t["weights"]
    return t["op"] == "last row" or (t["path"].endswith(".attn.pattern") and set(t["settings"]) == {"mask"} and not t["weights"])


def opened(model: Model, seen: list[tuple[int, int, dict[str, Any]]]) -> dict[str, Any]:
    """Return a tensor's document with its rows and keys left open. seen: rows, keys, and its document in a step that had these."""
    first = seen[0][2]
    alike = {name: value for name, value in first.items() if name not in OWN}
    letters = first["dims"].split()
    shape = [letter if letter in ("T", "S") else n for letter, n in zip(letters, first["shape"], strict=True)]
    flops = None if first["flops"] is None else polynomial([(rows, keys, t["flops"]) for rows, keys, t in seen[:3]])
    for rows, keys, t in seen:
        put = {"T": rows, "S": keys}
        right = {
            "shape": [put.get(str(n), n) for n in shape],
            "flops": None if flops is None else flops[0] + flops[1] * rows + flops[2] * rows * keys,
            **alike,
        }
        for field, value in right.items():
            if t[field] != value:
                raise UseError("live.changing", model=model.name, path=t["path"], field=field)
    return alike | {"shape": shape, "flops": flops}


def polynomial(at: list[tuple[int, int, int]]) -> list[int]:
    """Return a, b and c of a + b·T + c·T·S through three points: (T, S, value), the last two with one row each."""
    (rows, keys, many), (_, before, one), (_, after, other) = at
    c = (other - one) // (after - before)
    level = one - c * before  # a + b
    b = (many - c * rows * keys - level) // (rows - 1)
    return [level - b, b, c]
