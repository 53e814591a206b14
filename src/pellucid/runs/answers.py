"""The tokens that could come next at one place of a run, and the one that did: by id, piece, logit and probability."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.api.model import Model
from pellucid.errors import CheckpointError, TokenizerError
from pellucid.ops.sampling.stages import probabilities
from pellucid.tokenizer.pieces import Piece
from pellucid.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Candidate:
    """A token that could come next."""

    piece: Piece
    logit: float
    probability: float

    @property
    def id(self) -> int:
        return self.piece.id


@dataclass(frozen=True)
class Answer:
    """What could stand in one place, and what does: after the last row, or in a blank, whose row is told."""

    row: int
    candidates: list[Candidate]
    pick: Candidate


def answer(tokenizer: Tokenizer | None, logits: Tensor, row: int, pick: int, best: int) -> Answer:
    """The best candidates by logits [V], and the one that was taken."""
    order = torch.sort(logits, descending=True, stable=True)[1][:best].tolist()
    return Answer(row, candidates(tokenizer, logits, order), candidates(tokenizer, logits, [pick])[0])


def candidates(tokenizer: Tokenizer | None, logits: Tensor, ids: Sequence[int]) -> list[Candidate]:
    """These ids as candidates, by logits [V]; their probabilities are of the whole vocabulary."""
    shares = probabilities(logits)
    return [Candidate(piece_of(tokenizer, i), logits[i].item(), shares[i].item()) for i in ids]


def tokenizer_of(model: Model) -> Tokenizer | None:
    """The model's tokenizer, None where its folder has none: ids are explained without."""
    try:
        return model.tokenizer
    except CheckpointError:
        return None


def piece_of(tokenizer: Tokenizer | None, id: int) -> Piece:
    """An id's piece; an id that no piece has is empty of bytes."""
    if tokenizer is None:
        return Piece(id, "", b"", False)
    try:
        return tokenizer.pieces([id])[0]
    except TokenizerError:  # a table is often padded to more rows than there are pieces
        return Piece(id, "", b"", False)


def visible(piece: Piece) -> str:
    """A piece so that each of its bytes shows: a space as ·, bytes that are no text alone as <E4 B8>, control characters escaped."""
    if not piece.raw:
        return ""
    try:
        text = piece.raw.decode("utf-8")
    except UnicodeDecodeError:
        return f"<{piece.raw.hex(' ').upper()}>"
    return "".join("·" if c == " " else c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
