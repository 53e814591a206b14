"""Five kinds of positions, read off runs: how often each acts, what it leaves alone, and what it adds to a score by distance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.analysis.rows import largest_gap
from pellucid.api.model import Model
from pellucid.batch.step import Step
from pellucid.errors import UseError
from pellucid.nn.transformer import EncoderDecoder
from pellucid.tracing import Trace, watch

SINUSOIDS, ALIBI = {"sinusoids": True}, {"positions": None, "layers.*.attn.alibi": True}  # switches of a model with learned positions


@dataclass(frozen=True)
class Entrances:
    """How often positions act in a run. added: to the rows that enter.  rotated: queries and keys.  biased: tables of scores.

    values: values of a block that were rotated.  blocks: that attend within the text.
    """

    added: int
    rotated: int
    biased: int
    values: int
    blocks: int


def entrances(run: Trace) -> Entrances:
    """Count where positions enter the first step of a run."""
    seen = [s for s in run if s.step == 0]
    names = [s.path.rpartition(".")[2] for s in seen if s.op == "rotate"]
    queries = sum(name in ("q_rot", "k_rot", "k_shared") for name in names)
    tables = [s for s in seen if s.path.endswith(".attn.scores") and s.path.startswith(first_block(run).partition("layers")[0])]
    biased = sum(bool({"slopes", "buckets"} & s.settings.keys()) for s in tables)
    return Entrances(sum(s.path.endswith("positions") for s in seen), queries, biased, len(names) - queries, len(tables))


def first_block(run: Trace) -> str:
    """Return the path of the attention that reads the prompt first, of an encoder if there is one."""
    return next(s.path for s in run if s.path.endswith(".attn.scores")).removesuffix(".scores")


@dataclass(frozen=True)
class Shift:
    """What changes in the first block if all tokens stand further on: the largest change of a score, and of a value."""

    scores: float
    values: float


def moved_on(run: Trace, by: int) -> Shift:
    """Run a recorded prompt again with every token `by` positions further on, and compare the first block's scores and values.

    A UseError if the positions are a table that ends before.
    """
    model, attn = run.runner, first_block(run)
    rows = model.config.positions
    if rows is not None and len(run.ids) + by > rows:
        raise UseError("generate.context", tokens=len(run.ids), new=by, rows=rows)
    before, after = (at_positions(model, run.ids, first, attn) for first in (0, by))
    return Shift(*(largest_gap(a, b) for a, b in zip(before, after, strict=True)))


def at_positions(model: Model, ids: list[int], first: int, attn: str) -> tuple[Tensor, Tensor]:
    """Run ids at the positions first, first + 1, ...; return the scores [B H T S], 0 where hidden, and the values of one attention."""
    tokens = torch.tensor([ids], device=model.device)
    step, module = Step(torch.arange(first, first + len(ids), device=model.device)[None], prompts=tokens), model.module
    with torch.no_grad(), watch(model, only=(f"{attn}.scores", f"{attn}.v")) as seen:
        module.encode(tokens, step) if isinstance(module, EncoderDecoder) else module(tokens, step)
    return seen[f"{attn}.scores"].value.nan_to_num(neginf=0.0), seen[f"{attn}.v"].value


@dataclass(frozen=True)
class Bias:
    """What a kind of positions adds to the first block's scores. by_distance: {t − s: a number for each head}.

    spread: how far the sums of one distance and head are apart.
    """

    by_distance: dict[int, list[float]]
    spread: float


def bias(run: Trace) -> Bias:
    """Read what was added to the products of queries and keys off the first block of a run, for each distance that a query sees."""
    attn = first_block(run)
    made, pattern = run[f"{attn}.scores"], run[f"{attn}.pattern"].value[0]
    q, k = (run[path].value.double() for path in made.inputs)
    products = torch.einsum("bthk,bshk->bhts", q, k.repeat_interleave(q.shape[2] // k.shape[2], 2)) * made.settings["scale"]
    added = (made.value.double() - products)[0]
    out, spread = dict[int, list[float]](), 0.0
    for distance in range(1 - added.shape[-1], added.shape[-1]):
        own = added.diagonal(-distance, -2, -1)  # [H n]
        if bool((pattern.diagonal(-distance, -2, -1) > 0).any()):
            out[distance] = own.mean(-1).tolist()
            spread = max(spread, float((own.amax(-1) - own.amin(-1)).max()))
    return Bias(out, spread)


def bent(by_distance: dict[int, list[float]]) -> float:
    """Return how far a bias is from a straight line: the largest gap of a distance's number to the distance times that of 1.

    Distances to later tokens are left out.
    """
    slopes = by_distance[1]
    return max(abs(v - n * slope) for n, own in by_distance.items() if n >= 0 for v, slope in zip(own, slopes, strict=True))


def lines(by_distance: dict[int, list[float]]) -> dict[int, list[float]]:
    """Return {head: a number for each distance} of {distance: a number for each head}."""
    return dict(enumerate(map(list, zip(*by_distance.values(), strict=True))))


def position_rows(run: Trace, channels: int) -> list[list[float]]:
    """Return the first channels of the rows that were added to the embedding's, one for each token; nothing if none were."""
    added = [s.value[0, :, :channels].tolist() for s in run if s.step == 0 and s.path.endswith("positions")]
    rows: list[list[float]] = added[0] if added else []
    return rows
