"""The page in one file that runs its model: weights, a recorded plan, kernels as WebAssembly, and answers that no run changes."""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from math import prod
from typing import Any

from safetensors.torch import save

from pellucid.api.model import Model
from pellucid.engine.memory import restart_lengths
from pellucid.engine.written_plan import WrittenPlan, written_plan
from pellucid.errors import UseError
from pellucid.html.file import inert, packed, page
from pellucid.html.live_tensors import alike, grown
from pellucid.html.live_tokenizer import carried, control
from pellucid.html.recording import counts
from pellucid.html.shown import subject
from pellucid.messages import language
from pellucid.nn.transformer import Encoder
from pellucid.ops.native import make
from pellucid.runs.answers import tokenizer_of
from pellucid.runs.limits import LIMITS
from pellucid.runs.model_registry import LoadedModel

SCHEMA = 1
LONGEST = 1024  # tokens of a text, for a model without a limit of its own
ALLOWED = " 'wasm-unsafe-eval'"  # compile WebAssembly; nothing else is evaluated
MOST = 64_000_000  # bytes of weights: a file is read whole, and its text is a third longer
RUNS = 512_000_000  # bytes of the tensors of the runs that a page keeps; one run takes up to half
DECODED = 64_000_000  # bytes of weights that a page keeps as numbers for its sums, beside the kernels' memory


def live_page(model: Model) -> str:
    """Return the page with a model that it runs itself, as the text of one HTML file. A UseError names what it cannot run yet."""
    document, plan = live_document(model, MOST)
    weights = save(plan.weights)
    document["sha256"]["weights"] = hashlib.sha256(weights).hexdigest()
    return page({"live": inert(document), "weights": packed(weights), "kernels": packed(kernels())}, ALLOWED)


def live_document(model: Model, most: int) -> tuple[dict[str, Any], WrittenPlan]:
    """Return what the page's script knows of a model but for its weights, and the plan with them. most: bytes of weights.

    A UseError names what the page cannot run yet.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    if dtype != "float32":
        raise UseError("live.held", model=model.name, found=dtype)
    if model.device.type != "cpu":
        raise UseError("live.device", model=model.name)
    longest = min(model.config.positions or LONGEST, LONGEST)
    plan = planned(model, longest)
    size = sum(x.nbytes for x in plan.weights.values())
    if size > most:
        raise UseError("live.large", model=model.name, size=size, limit=most)
    tokenizer = tokenizer_of(model)
    text, described = carried(tokenizer, model.name, model.config.vocab), alike(model, plan)
    if (fitting := longest_within(described["tensors"], longest, RUNS // 2, restart_lengths(model.module))) < longest:
        longest, plan = fitting, planned(model, fitting)
    document = {
        "schema": SCHEMA,
        "language": language(),
        "model": model.name,
        "quant": model.quant,
        "longest": longest,
        "restarts": restart_lengths(model.module),
        "memory": {"runs": RUNS, "weights": DECODED},
        "candidates": LIMITS.candidates,
        "stops": sorted(model.stops),
        "starts": model.config.starts,
        **text,
        "control": control(tokenizer) if tokenizer is not None and isinstance(model.module, Encoder) else None,
        **described,
        "plan": plan.document,
        "sha256": {"kernels": hashlib.sha256(kernels()).hexdigest()},
        "answers": answers(model),
    }
    return document, plan


def planned(model: Model, longest: int) -> WrittenPlan:
    """Return the model's plan for texts of up to `longest` tokens."""
    try:
        return written_plan(model.module, longest)
    except UseError as why:
        raise UseError("live.model", model=model.name, reason=str(why)) from None


def kernels() -> bytes:
    """Return the kernels as WebAssembly."""
    if not make.WASM.is_file():
        raise UseError("live.kernels", file=make.WASM.name)
    return make.WASM.read_bytes()


def run_bytes(tensors: list[dict[str, Any]], tokens: int, restarts: Sequence[int] = ()) -> int:
    """Count the bytes of a run's tensors in the page, at most: a prompt of `tokens` tokens, or a text that grew to them one by one.

    restarts: lengths beyond which a text is read again; then its first reading counts too.
    A last row comes with every token, and so do the keys and values of a latent, of all tokens until then.
    """
    sent = {t["path"].removesuffix("chosen"): t["shape"][-1] for t in tensors if t["path"].endswith(".chosen")}
    total = 0
    for t in tensors:
        rows = tokens * next((n for part, n in sent.items() if t["path"].startswith(part)), 1)
        steps = tokens if t["op"] == "last row" else (tokens + 1) / 2 if grown(t) else 1
        put = {"T": tokens, "S": tokens, "N": rows}
        total += int(prod(put.get(str(n), n) for n in t["shape"]) * steps)
    again = [n for n in restarts if n < tokens]
    return 4 * total + (run_bytes(tensors, again[-1], again[:-1]) if again else 0)


def longest_within(tensors: list[dict[str, Any]], longest: int, most: int, restarts: Sequence[int] = ()) -> int:
    """Return the tokens, `longest` at most, of a text whose tensors take up to `most` bytes."""
    return bisect_right(range(1, longest + 1), most, key=lambda n: run_bytes(tensors, n, restarts)) or 1


def answers(model: Model) -> dict[str, Any]:
    """Return the server's answers that no run changes: the models, the model's weights and its bill."""
    run, _ = subject(model)
    row = LoadedModel.of(model).row() | {"chat": None}
    models = {"schema": SCHEMA, "current": model.name, "run": None, "training": None, "models": [row]}
    return {"models": models, **counts(run, model)}
