"""The tokens that could come next at one place of a run, and the one that did: by id, piece, logit and probability."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.api.model import Model
from pellucid.errors import CheckpointError, TokenizerError
from pellucid.ops.sampling.stages import probabilities
from pellucid.tokenizer.pieces import Piece
from pellucid.tokenizer.tokenizer import Tokenizer

IGNORED = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x200B, 0x200F)),
    *((0x202A, 0x202E), (0x2060, 0x206F), (0x2800, 0x2800), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0)),
    *((0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
)
"""First and last of Unicode's characters that are passed over in drawing (Default_Ignorable_Code_Point), and Braille without a dot."""


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
    """The candidates of one place, and the picked one. row: of a blank; -1 for the place after the last row."""

    row: int
    candidates: list[Candidate]
    picked: Candidate


def answer(tokenizer: Tokenizer | None, logits: Tensor, row: int, token: int, best: int) -> Answer:
    """Return the answer at `row`: the `best` likeliest candidates by logits [V], and the picked `token`."""
    return Answer(row, best_candidates(tokenizer, logits, best), candidates(tokenizer, logits, [token])[0])


def best_candidates(tokenizer: Tokenizer | None, logits: Tensor, count: int) -> list[Candidate]:
    """Return the `count` likeliest candidates by logits [V]; of equal ones the lower id first."""
    return candidates(tokenizer, logits, torch.sort(logits, descending=True, stable=True)[1][:count].tolist())


def candidates(tokenizer: Tokenizer | None, logits: Tensor, ids: Sequence[int]) -> list[Candidate]:
    """Return these ids as candidates by logits [V]. Probabilities are over the full vocabulary."""
    shares = probabilities(logits)
    return [Candidate(piece_of(tokenizer, i), logits[i].item(), shares[i].item()) for i in ids]


def tokenizer_of(model: Model) -> Tokenizer | None:
    """Return the model's tokenizer, None if its folder has none."""
    try:
        return model.tokenizer
    except CheckpointError:
        return None


def piece_of(tokenizer: Tokenizer | None, id: int) -> Piece:
    """Return the piece of an id; one without bytes if the tokenizer has none."""
    if tokenizer is None:
        return Piece(id, "", b"", False)
    try:
        return tokenizer.pieces([id])[0]
    except TokenizerError:  # a table is often padded to more rows than there are pieces
        return Piece(id, "", b"", False)


def visible(piece: Piece) -> str:
    """Write a piece so that each of its bytes shows: a space as ·, incomplete UTF-8 as <E4 B8>, control characters escaped."""
    if not piece.raw:
        return ""
    try:
        text = piece.raw.decode("utf-8")
    except UnicodeDecodeError:
        return f"<{piece.raw.hex(' ').upper()}>"
    return visible_text(text)


def visible_text(text: str) -> str:
    """Write a text so that each character shows: a space as ·, what does not show escaped, a mark without a letter on a dotted circle."""
    written = "".join("·" if c == " " else c if shows(c) else c.encode("unicode_escape").decode() for c in text)
    return f"\u25cc{written}" if written and unicodedata.category(written[0])[0] == "M" else written


def shows(character: str) -> bool:
    """Return whether a character has a shape of its own. Joiners, fillers and selectors are printable and have none."""
    return character.isprintable() and not any(first <= ord(character) <= last for first, last in IGNORED)
