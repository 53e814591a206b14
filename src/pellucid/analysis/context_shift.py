"""How the words around it move a word: its row after each block in two texts, and the table it comes from."""

import hashlib

import torch
from torch import Tensor

from pellucid.analysis.rows import largest_gap, plane_of, stream
from pellucid.api.model import Model
from pellucid.tokenizer.pieces import find_word
from pellucid.tracing import Trace


def word_row(run: Trace, word: str) -> int:
    """Return the row of the last piece of a word in a run's prompt. A UseError unless the prompt has the word once."""
    return find_word(run.runner.tokenizer.pieces(run.ids), word)[-1]


def word_rows(run: Trace, word: str) -> Tensor:
    """Return the row of a word before the first block and after each [L+1 D], in float64."""
    at = word_row(run, word)
    return torch.stack([s.value[0, at].double() for s in stream(run)])


def cosines(a: Tensor, b: Tensor) -> list[float]:
    """Return the cosine of each row of a [L+1 D] with the same row of b."""
    own: list[float] = torch.cosine_similarity(a, b, dim=-1).tolist()
    return own


def on_plane(a: Tensor, b: Tensor) -> tuple[list[list[float]], list[list[float]], int]:
    """Return the rows of a and b [L+1 D] on the first two directions of both, and the share of these in percent."""
    places, share = plane_of(torch.cat([a, b]))
    first, second = places.split(len(a))
    return first.tolist(), second.tolist(), share


def table_gap(a: Trace, b: Trace, word: str) -> float:
    """Return the largest difference between the rows of the embedding that two runs took for a word."""
    return largest_gap(*(run.all("embed")[0].value[0, word_row(run, word)] for run in (a, b)))


def table_hash(model: Model) -> str:
    """Return the first figures of the SHA-256 of the embedding's bytes."""
    table = model.module.get_parameter("embed.weight").detach().cpu().contiguous()
    return hashlib.sha256(table.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
