"""What every run of a model has alike, for a page that runs it: fields of a run's document, and its tensors with their lengths left open.

A tensor's document depends on a run by its rows and keys, and on the step: the first reads the prompt. A few runs of other lengths give the
terms of its FLOPs, and show that nothing else of it changes; a model of which that is not so is refused.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from pellucid.api.model import Model
from pellucid.documents.run import run_document, step_document
from pellucid.documents.summands import labels
from pellucid.engine.written_plan import WrittenPlan
from pellucid.errors import UseError
from pellucid.nn.transformer import Encoder
from pellucid.runs.execute import run_prompt
from pellucid.runs.kept_run import Run
from pellucid.runs.limits import LIMITS
from pellucid.runs.model_registry import LoadedModel
from pellucid.runs.request import RunRequest
from pellucid.runs.worker import Stop

LENGTHS, NEW = (3, 5, 6), 3  # of the prompts that are run, and their new tokens
STARTS = 50  # ids that are tried as a prompt's, until a text goes on long enough
ALIKE = ("family", "kind", "parameters", "dtype", "values", "blocks", "masks", "routings")  # fields that all runs of a model have alike
OWN = {"n", "shape", "step", "bytes", "flops", "error", "stats", "min", "mean", "max", "rows", "terms"}  # that a run, or the page, sets
PROMPT = "{prompt}"  # stands in a text for the length of the prompt, which a prefix mask names
SCORES = {"scale", "width"}  # the settings of scores that the page computes itself
RELATIVE = {*SCORES, "buckets", "reach", "both_ways"}  # and of those with a bias by distance, T5's
# The ops whose cells the page takes apart, with the names of their terms; and the activations that its script computes.
TERMS = {
    "linear": ("x", "weight", "bias"), "look": ("weight",), "add": ("x", "y"), "scores": ("q", "k", "scale", "distance"),
    "softmax": ("e", "over"), "attend": ("pattern", "v"), "attend latent": ("pattern", "v"),
    "layer norm": ("centred", "over", "weight", "gain", "bias"), "rms": ("x", "over", "weight", "gain"), "act": ("act", "up"),
    "gate": ("act", "up"), "last row": ("x",), "rotate": ("x", "turn"), "sigmoid": ("sigmoid",), "correct": ("x", "weight"),
    "top": ("expert",), "share": ("x", "over", "scale"), "pick": ("x",), "experts": ("x", "weight"), "combine": ("x", "share"),
}  # fmt: skip
ACTS = ("silu", "relu", "relu2", "gelu", "gelu_tanh")


class Lengths(NamedTuple):
    """The lengths of one step: its prompt, its rows, and the keys that are stored after it."""

    prompt: int
    rows: int
    keys: int


def alike(model: Model, plan: WrittenPlan) -> dict[str, Any]:
    """Return what every run of the model has alike: the fields of its document, and its tensors with rows and keys left open."""
    first: list[tuple[Lengths, dict[str, dict[str, Any]]]] = []
    later: list[tuple[Lengths, dict[str, dict[str, Any]]]] = []
    common: dict[str, Any] = {}
    for length in LENGTHS:
        run = run_of(model, length)
        own = opened_run(model, {name: value for name, value in run_document(run).items() if name in ALIKE})
        if common and own != common:
            raise UseError("live.changing", model=model.name, path="-", field=next(n for n in ALIKE if own[n] != common[n]))
        common = own
        for k in range(run.trace.steps):
            fed, cached = run.fed(k)
            documents = {t["path"]: opened_text(model, dict(t), length) for t in step_document(run, k)["tensors"]}
            (later if k else first).append((Lengths(length, len(fed), cached + len(fed)), documents))
    dims = {s.path: s.dims for s in run.trace.seen}
    label = {s.path: labels(s, dims) for s in run.trace.seen}
    taps = {tap["path"] for tap in plan.document["taps"]}
    tensors = []
    for path in first[0][1]:
        t = opened(model, path, [(at, own[path]) for at, own in first], [(at, own[path]) for at, own in later if path in own])
        if not (path in taps or computed(t)):
            raise UseError("live.tensor", model=model.name, path=path, op=t["op"] or "-")
        if path not in taps and t["op"] != "last row":  # by the page's script, beside the kernel
            t["source"] = "recomputed"
        summed = t["op"] in TERMS and t["settings"].get("act", "silu") in ACTS
        tensors.append(t | {"terms": summed, "labels": {name: label[path](name) for name in TERMS.get(t["op"], ())}})
    return {"run": common, "tensors": tensors}


def run_of(model: Model, length: int) -> Run:
    """Return a run of a prompt of this many tokens with NEW new ones, in the form that a plan has. A UseError if no text goes on so long.

    An encoder's run has one step.
    """
    new = 1 if isinstance(model.module, Encoder) else NEW
    for start in range(1, STARTS):
        ids = tuple((start + i) % model.config.vocab for i in range(length))
        run = run_prompt(LoadedModel.of(model), RunRequest(model.name, ids=ids, new=new, switches=switches(model)), Stop(), LIMITS)
        if run.trace.steps == new:
            return run
    raise UseError("live.ends", model=model.name)


def switches(model: Model) -> tuple[str, ...]:
    """Return the switches to the form that a plan of one row has: a latent is never expanded."""
    latent = (i for i, layer in enumerate(model.config.layers) if getattr(layer.attn, "form", "absorbed") is None)
    return tuple(f"layers.{i}.attn.form=absorbed" for i in latent)


def computed(t: Mapping[str, Any]) -> bool:
    """True if the page computes a tensor that the plan does not write: scores, their pattern, a latent's keys and values, the last row."""
    if t["op"] == "scores":
        return set(t["settings"]) == (RELATIVE if t["weights"] else SCORES)
    pattern = t["path"].endswith((".attn.pattern", ".cross.pattern")) and set(t["settings"]) == {"mask"} and not t["weights"]
    return t["op"] == "last row" or grown(t) or pattern


def grown(t: Mapping[str, Any]) -> bool:
    """True for keys and values that a latent is multiplied to, for all its rows in each step."""
    return t["op"] == "linear" and t["source"] == "recomputed" and str(t["dims"]).startswith("B S H")


def opened_run(model: Model, own: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a run with the length of its prompt left open, which a prefix mask names."""
    if model.config.prefix:
        own["masks"] = {path: mask | {"until": PROMPT} for path, mask in own["masks"].items()}
    return own


def opened_text(model: Model, t: dict[str, Any], prompt: int) -> dict[str, Any]:
    """Return a tensor's document with the length of the prompt left open in its texts, which a prefix mask names."""
    if not model.config.prefix:
        return t
    out: dict[str, Any] = json.loads(json.dumps(t, ensure_ascii=False).replace(f"s < {prompt}", f"s < {PROMPT}"))
    return out


def extent(path: str, at: Lengths) -> dict[str, int]:
    """Return T and S of a tensor in a step with these lengths: of an encoder beside a decoder, both are the prompt's."""
    if path == "source" or path.startswith("encoder."):
        return {"T": at.prompt, "S": at.prompt}
    return {"T": at.rows, "S": at.prompt if ".cross." in path else at.keys}


def opened(
    model: Model, path: str, first: list[tuple[Lengths, dict[str, Any]]], later: list[tuple[Lengths, dict[str, Any]]]
) -> dict[str, Any]:
    """Return a tensor's document with its rows and keys left open. first, later: its documents in first steps, and in later ones.

    "first" has the fields that are others in a first step; "flops" are b and c of b·T + c·T·S.
    """
    one = (later or first)[0][1]
    own = {name: value for name, value in one.items() if name not in OWN}
    begin = {name: value for name, value in first[0][1].items() if name not in OWN and own[name] != value}
    letters = one["dims"].split()
    shape = [letter if letter in ("T", "S", "N") else n for letter, n in zip(letters, one["shape"], strict=True)]
    seen = [(extent(path, at), t) for at, t in (*first, *later)]
    flops = None if one["flops"] is None else products([(put["T"], put["S"], t["flops"]) for put, t in seen])
    for i, (put, t) in enumerate(seen):
        put["N"] = len(t["rows"] or ())
        right = {
            "shape": [put.get(str(n), n) for n in shape],
            "flops": None if flops is None else flops[0] * put["T"] + flops[1] * put["T"] * put["S"],
            **own,
            **(begin if i < len(first) else {}),
        }
        for field, value in right.items():
            if t[field] != value:
                raise UseError("live.changing", model=model.name, path=path, field=field)
    return own | {"shape": shape, "flops": flops, "first": begin}


def products(at: list[tuple[int, int, int]]) -> list[int]:
    """Return b and c of b·T + c·T·S through points (T, S, value): no rows have no FLOPs."""
    t, s, value = at[0]
    other = next(((u, v, x) for u, v, x in at if v != s), None)
    c = 0 if other is None else (other[2] * t - value * other[0]) // (other[0] * t * (other[1] - s))
    return [value // t - c * s, c]
