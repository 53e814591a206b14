"""Text to ids and back. The `tokenizers` library encodes, from a file that was checked first; decoding joins each piece's exact bytes.

Text is only ever text: "<|endoftext|>" typed by a person becomes ordinary pieces, unless the caller asks to `parse` control tokens.
"""

import json
import re
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from pellucid.checkpoint.disk import inside, read_whole, replacing
from pellucid.checkpoint.json_file import TABLE_BYTES, read_object
from pellucid.checkpoint.pieces import Piece, Stream, writing
from pellucid.checkpoint.tokenizer_file import Spec, check, vocabulary
from pellucid.errors import PellucidError, TokenizerError
from pellucid.words import say

NAMED = ("bos", "eos", "pad", "unk", "sep", "cls", "mask")
# Some files mark the tokens that divide a chat as ordinary added tokens; their shape tells them.
_CONTROL = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)
_FENCE = "\U0010fffe"  # not a character: a fenced name of a control token is no text that anyone writes
_END_OF_TEXT = "<|endoftext|>"


class Tokenizer:
    """A tokenizer from its files.

    size: highest id + 1.  special: the ids of bos, eos, pad, unk, sep, cls and mask, those that the files name.
    """

    def __init__(self, spec: Spec, file: str, named: dict[str, str] | None = None) -> None:
        self.file = file
        self._spec = check(spec, file)
        self._pieces = {id: piece for piece, id in vocabulary(self._spec["model"]).items()}
        added = self._spec.get("added_tokens") or []
        self._pieces |= {token["id"]: token["content"] for token in added}
        self._specials = frozenset(token["id"] for token in added if token.get("special"))
        self._control = self._specials | {token["id"] for token in added if _CONTROL.fullmatch(token["content"])}
        self._control -= {_unknown(self._spec["model"])}
        self._writing = writing(self._spec.get("decoder"), file)
        self._literal = frozenset(token["id"] for token in added) if self._writing.lettered else frozenset()
        if not self._pieces:
            raise TokenizerError("tokenizer.empty", file=file)
        self.size = max(self._pieces) + 1
        self.special = self._named(named or {})
        self._parsing: tokenizers.Tokenizer | None = None
        self._lock = threading.Lock()
        fenced = _fenced(self._spec, self._control)
        self._plain = _library(fenced, file)
        self._plain.encode_special_tokens = True
        self._refuse_renumbering(fenced)

    @classmethod
    def from_file(cls, path: str | Path, named: dict[str, str] | None = None) -> "Tokenizer":
        """A tokenizer.json; `named` gives the content of "bos", "eos", ... where other files tell it."""
        return cls(read_object(Path(path), TABLE_BYTES, TokenizerError), str(path), named)

    @classmethod
    def from_vocab(
        cls, vocab: str | Path, merges: str | Path, named: dict[str, str] | None = None, prefix_space: bool = False
    ) -> "Tokenizer":
        """GPT-2's byte-level BPE from vocab.json and merges.txt."""
        pieces = read_object(Path(vocab), TABLE_BYTES, TokenizerError)
        level = {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": False, "use_regex": True}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        added = [{"id": pieces[_END_OF_TEXT], "content": _END_OF_TEXT, **flags}] if _END_OF_TEXT in pieces else []
        model = {"type": "BPE", "vocab": pieces, "merges": _merge_lines(Path(merges))}
        spec = {"version": "1.0", "added_tokens": added, "pre_tokenizer": level, "post_processor": level, "decoder": level, "model": model}
        if named is None and added:
            named = {"bos": _END_OF_TEXT, "eos": _END_OF_TEXT}
        return cls(spec, str(vocab), named)

    def encode(self, text: str, special: bool = True, parse: bool = False) -> list[int]:
        """The ids of a text, with the special tokens that the file's post-processor adds.

        parse: take "<|endoftext|>" and its like in the text for the control tokens they name, as a rendered chat template needs.
        """
        try:
            text.encode()
        except UnicodeEncodeError as half:
            raise TokenizerError("tokenizer.text", offset=half.start) from None
        with _guarded(self.file):
            encoding = (self._parser() if parse else self._plain).encode(text, add_special_tokens=special)
            ids: list[int] = encoding.ids
            if not parse and not self._control.isdisjoint(ids):
                for id, made in zip(ids, encoding.special_tokens_mask, strict=True):
                    if id in self._control and not made:
                        raise TokenizerError("tokenizer.control", file=self.file, token=self._pieces[id], id=id)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of these ids; bytes that are no UTF-8 become U+FFFD."""
        return self.stream(skip_special).over(ids)

    def stream(self, skip_special: bool = False) -> Stream:
        """A stream for one request: `feed(id)` gives the text that is certain so far, `end()` the rest; their join is `decode` of all."""

        def spoken(id: int, first: bool) -> bytes | None:
            piece = self.piece(id)
            if skip_special and id in self._specials:
                return None
            return piece.encode() if id in self._literal else self._writing.spoken(piece, first)

        return Stream(spoken, self._writing.strip)

    def pieces(self, ids: Iterable[int]) -> list[Piece]:
        """Each id with its text and its exact bytes."""
        found = []
        for id in ids:
            piece = self.piece(id)
            raw = piece.encode() if id in self._literal else self._writing.raw(piece)
            found.append(Piece(id, raw.decode("utf-8", "replace"), raw, id in self._specials))
        return found

    def piece(self, id: int) -> str:
        """What the vocabulary writes for this id: "ĠParis"."""
        piece = self._pieces.get(id) if type(id) is int else None
        if piece is None:
            raise TokenizerError("tokenizer.out_of_range", id=id, size=self.size)
        return piece

    def write(self, path: str | Path) -> None:
        """Write it as a tokenizer.json."""
        with replacing(Path(path), TokenizerError) as part:
            part.write_text(json.dumps(self._spec, ensure_ascii=False, indent=2), encoding="utf-8")

    def fit(self, rows: int) -> "Tokenizer":
        """This tokenizer for an embedding of `rows` rows: a piece beyond them is an error, an added token is dropped with a warning."""
        if self.size <= rows:
            return self
        beyond = sorted(id for id in self._pieces if id >= rows)
        held = set(vocabulary(self._spec["model"]).values())
        if lost := [id for id in beyond if id in held]:
            raise TokenizerError("tokenizer.rows", file=self.file, token=self._pieces[lost[0]], id=lost[0], rows=rows)
        tokens = ", ".join(self._pieces[id] for id in beyond[:10])
        warnings.warn(say("tokenizer.dropped", file=self.file, count=len(beyond), tokens=tokens, rows=rows), stacklevel=2)
        kept = [token for token in self._spec["added_tokens"] if token["id"] < rows]
        named = {name: self._pieces[id] for name, id in self.special.items() if id < rows}
        return Tokenizer({**self._spec, "added_tokens": kept}, self.file, named)

    def _parser(self) -> tokenizers.Tokenizer:
        """The library's tokenizer that takes control tokens from text: a second one, since switching one over would race with threads."""
        with self._lock:
            if self._parsing is None:
                self._parsing = _library(self._spec, self.file)
            return self._parsing

    def _named(self, named: dict[str, str]) -> dict[str, int]:
        ids = {piece: id for id, piece in self._pieces.items()}
        lost = {name: token for name, token in named.items() if token not in ids}
        for name, token in lost.items():
            warnings.warn(say("tokenizer.unnamed", file=self.file, name=name, token=token), stacklevel=3)
        return {name: ids[token] for name, token in named.items() if name not in lost}

    def _refuse_renumbering(self, spec: Spec) -> None:
        """The library numbers added tokens itself and says nothing where a file declares others."""
        for token in spec.get("added_tokens") or []:
            found = self._plain.token_to_id(token["content"])
            if found != token["id"]:
                raise TokenizerError("tokenizer.renumbered", file=self.file, token=self._pieces[token["id"]], id=token["id"], found=found)


def load_tokenizer(folder: str | Path, model_vocab: int | None = None) -> Tokenizer | None:
    """The tokenizer of a checkpoint folder, None where it has none; its ids must be below `model_vocab`, the embedding's rows."""
    folder = Path(folder)

    def there(name: str) -> Path | None:
        return inside(folder, name, TokenizerError) if (folder / name).exists() or (folder / name).is_symlink() else None

    settings_file, map_file = there("tokenizer_config.json"), there("special_tokens_map.json")
    settings = read_object(settings_file, error=TokenizerError) if settings_file else {}
    named = _contents(read_object(map_file, error=TokenizerError) if map_file else {}) | _contents(settings)
    whole, vocab, merges = there("tokenizer.json"), there("vocab.json"), there("merges.txt")
    if whole:
        tokenizer = Tokenizer.from_file(whole, named)
    elif vocab and merges:
        kind = settings.get("tokenizer_class", "GPT2Tokenizer")
        if kind not in ("GPT2Tokenizer", "GPT2TokenizerFast"):
            raise TokenizerError("tokenizer.class", file=settings_file, found=kind)
        tokenizer = Tokenizer.from_vocab(vocab, merges, named or None, settings.get("add_prefix_space") is True)
    else:
        others = [name for name in ("tokenizer.model", "spiece.model", "vocab.txt", "vocab.json", "tokenizer.model.v3") if there(name)]
        if others:
            raise TokenizerError("tokenizer.files", file=folder, found=", ".join(others))
        return None
    return tokenizer if model_vocab is None else tokenizer.fit(model_vocab)


def _contents(table: dict[str, Any]) -> dict[str, str]:
    """The content of each special token that a settings file names: a string, or an object with `content`."""
    found = {}
    for name in NAMED:
        token = table.get(f"{name}_token")
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str) and content:
            found[name] = content
    return found


def _unknown(model: Spec) -> int | None:
    """The id that the model gives to what it does not know."""
    found: int | None = model.get("unk_id") if model["type"] == "Unigram" else model["vocab"].get(model.get("unk_token"))
    return found


def _fenced(spec: Spec, control: Iterable[int]) -> Spec:
    """The same tokenizer with control tokens under names that no text holds: else a unigram model finds "</s>" in a sentence.

    A token that merges build keeps its name, since the merges speak of it; `encode` then refuses a text that yields it.
    """
    model, fenced = spec["model"], set(control)
    merges = model.get("merges") or []
    prefix = len(model.get("continuing_subword_prefix") or "")
    built = {left + right[prefix:] for left, right in merges} | {half for pair in merges for half in pair}
    names = {token["content"] for token in spec.get("added_tokens") or [] if token["id"] in fenced} - built

    def fence(name: str) -> str:
        return f"{_FENCE}{name}{_FENCE}" if name in names else name

    if model["type"] == "Unigram":
        vocab: Any = [[fence(piece), score] for piece, score in model["vocab"]]
    else:
        vocab = {fence(piece): id for piece, id in model["vocab"].items()}
    added = [{**token, "content": fence(token["content"])} for token in spec.get("added_tokens") or []]
    return {**spec, "added_tokens": added, "model": {**model, "vocab": vocab}}


def _library(spec: Spec, file: str) -> tokenizers.Tokenizer:
    with _guarded(file):
        return tokenizers.Tokenizer.from_str(json.dumps(spec, ensure_ascii=False))


@contextmanager
def _guarded(file: str) -> Iterator[None]:
    """The library's faults as a TokenizerError; a panic of its Rust code is no Exception to Python."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, PellucidError):
        raise
    except BaseException as broken:
        raise TokenizerError("tokenizer.library", file=file, found=str(broken) or type(broken).__name__) from None


def _merge_lines(path: Path) -> list[str]:
    raw = read_whole(path, TABLE_BYTES, TokenizerError)
    try:
        lines = raw.decode("utf-8").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as broken:
        raise TokenizerError("json.encoding", file=path, offset=broken.start, found=raw[broken.start : broken.start + 4].hex(" ")) from None
    return [line for number, line in enumerate(lines) if line and not (number == 0 and line.startswith("#version"))]
