"""A text as tokens: ids, the vocabulary's writing, bytes, and what the ids decode to."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypedDict

from pellucid.documents.definition import Constraint, Count
from pellucid.runs.answers import visible
from pellucid.tokenizer.tokenizer import Tokenizer

SCHEMA: Final = 1
Bytes = Annotated[str, Constraint(pattern="^([0-9a-f]{2})*$")]


class PieceDocument(TypedDict):
    """One token of a text."""

    id: Count
    piece: Annotated[str, "the vocabulary's writing"]
    text: Annotated[str, "bytes that are no UTF-8 as U+FFFD"]
    shown: Annotated[str, "a space as ·, incomplete UTF-8 in hex"]
    bytes: Bytes
    special: bool


class TokensDocument(TypedDict):
    """A text as tokens of one tokenizer, or ids as a text."""

    schema: Literal[1]
    model: Annotated[str, "whose tokenizer"]
    prompt: Annotated[str | None, "None where ids were given"]
    ids: list[Count]
    tokens: list[PieceDocument]
    text: Annotated[str, "what the ids decode to"]
    bytes: Annotated[Count, "of the text, without special tokens"]
    rate: Annotated[float | None, "bytes for each token that is not special"]
    vocabulary: Annotated[Count, "the highest id and one"]


def tokens_document(name: str, tokenizer: Tokenizer, given: str | Sequence[int], special: bool = True) -> TokensDocument:
    """Return a text, or ids, as tokens of a tokenizer.

    name: whose it is.  special: with the special tokens that it adds to a text, and those of the ids in what they decode to.
    """
    ids = tokenizer.encode(given, special=special) if isinstance(given, str) else list(given)
    tokens: list[PieceDocument] = [
        {"id": p.id, "piece": tokenizer.piece(p.id), "text": p.text, "shown": visible(p), "bytes": p.raw.hex(), "special": p.special}
        for p in tokenizer.pieces(ids)
    ]
    prompt = given if isinstance(given, str) else None
    text = tokenizer.decode(ids, skip_special=not special)
    plain = [len(p["bytes"]) // 2 for p in tokens if not p["special"]]
    return {
        "schema": SCHEMA,
        "model": name,
        "prompt": prompt,
        "ids": ids,
        "tokens": tokens,
        "text": text,
        "bytes": sum(plain),
        "rate": sum(plain) / len(plain) if plain else None,
        "vocabulary": tokenizer.size,
    }
