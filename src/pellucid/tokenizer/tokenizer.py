"""Text to ids and back. The `tokenizers` library encodes, from a checked file; decoding joins each piece's exact bytes.

Text is only ever text: "<|endoftext|>" typed by a person becomes ordinary pieces, unless the caller asks to `parse` control tokens.
"""

import json
import os
import re
import threading
import warnings
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from pellucid.checkpoint.disk import inside, read_text, replacing
from pellucid.checkpoint.json_file import TABLE_BYTES, read_object
from pellucid.errors import TokenizerError
from pellucid.messages import say
from pellucid.tokenizer.backend import TextEncoder, library
from pellucid.tokenizer.chat_encoder import FENCE, Chat, fenceable, fenced, refuse_text
from pellucid.tokenizer.chat_template import Rendered, Template, choose, ended_after, templates
from pellucid.tokenizer.pieces import Piece, Stream, writing
from pellucid.tokenizer.tokenizer_file import Spec, check, vocabulary
from pellucid.tokenizer.wordpiece import wordpiece

NAMED = ("bos", "eos", "pad", "unk", "sep", "cls", "mask")
# Some files mark the tokens that divide a chat as ordinary added tokens; their shape tells them.
_CONTROL = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)
_END_OF_TEXT = "<|endoftext|>"


class Tokenizer:
    """A tokenizer from its files.

    size: highest id + 1.  special: the ids of bos, eos, pad, unk, sep, cls and mask, those that the files name.
    rows: of the embedding, which is often padded beyond the highest id; an id below it that no entry has writes nothing.
    """

    def __init__(
        self, spec: Spec, file: str, named: dict[str, str] | None = None, chat_templates: dict[str, Template] | None = None
    ) -> None:
        self.file, self.templates, self._given = file, chat_templates or {}, named or {}
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
        self.size = self.rows = max(self._pieces) + 1
        self.special = self._named(named or {})
        self._parsing: TextEncoder | None = None
        self._chats: dict[Template, Chat] = {}
        self._lock = threading.Lock()
        plain = fenced(self._spec, fenceable(self._spec, self._control))
        self._plain = library(plain, file, parse=False)
        self._refuse_renumbering(plain)
        # as the normalizer spells them: where it puts a "▁" before a text, the space before such a token is the token's own
        spelled = [token["id"] for token in added if token.get("normalized")]
        names = zip(spelled, self._plain.pieces(spelled) if spelled else (), strict=True)
        self._spelled = self._pieces | {id: name.replace(FENCE, "") for id, name in names if name is not None}

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self._spec, self.file, self._given, self.templates), {"rows": self.rows}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tokenizer":
        return self  # it does not change, and to build one of 150,000 pieces takes a second

    def __repr__(self) -> str:
        """Return one line: Tokenizer('tokenizer.json': BPE, 4,480 ids, bos 0, eos 0)."""
        facts = [self._spec["model"]["type"], f"{self.size:,} ids", *(f"{name} {id}" for name, id in self.special.items())]
        return f"Tokenizer({self.file!r}: {', '.join(facts)})"

    @classmethod
    def from_file(cls, path: str | Path, named: dict[str, str] | None = None) -> "Tokenizer":
        """Return the tokenizer of a tokenizer.json; `named` gives the content of "bos", "eos", ... if other files name them."""
        return cls(read_object(Path(path), TABLE_BYTES, TokenizerError), str(path), named)

    @classmethod
    def from_vocab(
        cls, vocab: str | Path, merges: str | Path, named: dict[str, str] | None = None, prefix_space: bool = False
    ) -> "Tokenizer":
        """Return GPT-2's byte-level BPE from vocab.json and merges.txt."""
        pieces = read_object(Path(vocab), TABLE_BYTES, TokenizerError)
        level = {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": False, "use_regex": True}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        added = [{"id": pieces[_END_OF_TEXT], "content": _END_OF_TEXT, **flags}] if _END_OF_TEXT in pieces else []
        model = {"type": "BPE", "vocab": pieces, "merges": _merge_lines(Path(merges))}
        spec = {"version": "1.0", "added_tokens": added, "pre_tokenizer": level, "post_processor": level, "decoder": level, "model": model}
        if named is None and added:
            named = {"bos": _END_OF_TEXT, "eos": _END_OF_TEXT}
        return cls(spec, str(vocab), named)

    @classmethod
    def from_wordpiece(cls, vocab: str | Path, settings: dict[str, Any] | None = None, named: dict[str, str] | None = None) -> "Tokenizer":
        """Return BERT's WordPiece from vocab.txt and the settings of tokenizer_config.json."""
        spec, special = wordpiece(Path(vocab), settings or {}, named or {})
        return cls(spec, str(vocab), special)

    def encode(self, text: str, pair: str | None = None, *, special: bool = True, parse: bool = False) -> list[int]:
        """Return the ids of a text, or of a text and its `pair`, with the special tokens of the file's post-processor.

        parse: take "<|endoftext|>" and its like in the text for the control tokens they name; `chat` is the door for messages.
        """
        refuse_text(text)
        refuse_text(pair or "")
        ids, made = (self._parser() if parse else self._plain).encode(text, pair, special)
        if not parse and not self._control.isdisjoint(ids):
            self._refuse_control(id for id, added in zip(ids, made, strict=True) if not added)
        return ids

    def chat(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, continue_final_message: bool = False, **how: Any
    ) -> list[int]:
        """Return the ids of a conversation, [{"role": "user", "content": "Hello"}], ready for the reply; `how` as in `render`.

        continue_final_message: end with the last message's content, so that the reply continues it.
        Only what the template itself wrote is read as control tokens: no content, name or tool can hold one.
        """
        template = choose(self.templates, self.file, how.pop("template", None), bool(tools))
        rendered = self.render(messages, tools, template=template, **how)
        rendered = ended_after(rendered, messages[-1]) if continue_final_message else rendered
        return self.chat_encoder(template).ids(rendered, (messages, tools, how))

    def render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, template: str | Template | None = None, **how: Any
    ) -> Rendered:
        """Return the prompt that the chat template makes of messages; `how` as in `Template.render` (now, settings, ...)."""
        if not isinstance(template, Template):
            template = choose(self.templates, self.file, template, bool(tools))
        tokens = {f"{name}_token": self._pieces[id] for name, id in self.special.items()}
        return template.render(messages, tools, tokens=tokens, **how)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the text of these ids; bytes that are no UTF-8 become U+FFFD."""
        return self.stream(skip_special).over(ids)

    def stream(self, skip_special: bool = False, kept: Container[int] = (), continues: bool = False) -> Stream:
        """Return a stream: `feed(id)` gives the text that is certain so far, `end()` the rest; their join is `decode` of all.

        kept: special tokens that are not skipped.  continues: the text goes on from an earlier one, so its first space is no beginning's.
        """

        def spoken(id: int, first: bool) -> bytes | None:
            piece = self.spelled(id)
            if piece is None or (skip_special and id in self._specials and id not in kept):
                return None
            return piece.encode() if id in self._literal else self._writing.spoken(piece, first)

        return Stream(spoken, 0 if continues else self._writing.strip, not continues)

    def after(self, prompt: Sequence[int], skip_special: bool = False, kept: Container[int] = ()) -> Stream:
        """Return a stream of the text after a prompt, which goes on from the prompt's; behind a special token, or nothing, one begins."""
        return self.stream(skip_special, kept, bool(prompt) and not self.pieces(prompt[-1:])[0].special)

    def pieces(self, ids: Iterable[int]) -> list[Piece]:
        """Return each id with its text and exact bytes, empty for an id without an entry."""
        tokens = []
        for id in ids:
            piece = self.spelled(id) or ""
            raw = piece.encode() if id in self._literal else self._writing.raw(piece)
            tokens.append(Piece(id, raw.decode("utf-8", "replace"), raw, id in self._specials))
        return tokens

    def words(self, text: str) -> list[str]:
        """Return the parts of a text that are encoded apart, in the vocabulary's writing: ["The", "Ġcapital"]."""
        refuse_text(text)
        return self._plain.words(text)

    def merges(self) -> dict[tuple[str, str], int]:
        """Return the rank of each pair of pieces that byte-pair encoding joins, {} for another kind of model."""
        pairs = self._spec["model"].get("merges") or []
        return {(left, right): rank for rank, (left, right) in enumerate(pairs)}

    def id_of(self, piece: str) -> int | None:
        """Return the id of a piece in the vocabulary's writing, None if there is none."""
        return vocabulary(self._spec["model"]).get(piece)

    @property
    def spec(self) -> Spec:
        """The checked tokenizer.json."""
        return self._spec

    @property
    def control(self) -> frozenset[int]:
        """The ids that no text becomes: special tokens, and those of a chat."""
        return self._control

    @property
    def added(self) -> int:
        """Return the number of added tokens, which no merge makes."""
        return len(self._spec.get("added_tokens") or [])

    def piece(self, id: int) -> str:
        """Return the vocabulary's writing of this id: "ĠParis"; "" if it has no entry."""
        return self.entry(self._pieces, id) or ""

    def spelled(self, id: int) -> str | None:
        """Return what this id adds to a text, in the vocabulary's writing."""
        return self.entry(self._spelled, id)

    def entry(self, table: dict[int, str], id: int) -> str | None:
        """Return the entry of an id, None if there is none. A TokenizerError if it is not below `rows`."""
        if type(id) is not int or not 0 <= id < self.rows:
            raise TokenizerError("tokenizer.out_of_range", id=id, size=self.rows)
        return table.get(id)

    def write(self, path: str | Path) -> None:
        """Write a tokenizer.json."""
        with replacing(Path(path), TokenizerError) as part:
            part.write_text(json.dumps(self._spec, ensure_ascii=False, indent=2), encoding="utf-8")

    def fit(self, rows: int) -> "Tokenizer":
        """Return this tokenizer for `rows` embedding rows: a piece beyond is an error, an added token is dropped with a warning."""
        if self.size <= rows:
            self.rows = rows
            return self
        beyond = sorted(id for id in self._pieces if id >= rows)
        in_vocabulary = set(vocabulary(self._spec["model"]).values())
        if lost := [id for id in beyond if id in in_vocabulary]:
            raise TokenizerError("tokenizer.rows", file=self.file, token=self._pieces[lost[0]], id=lost[0], rows=rows)
        tokens = ", ".join(self._pieces[id] for id in beyond[:10])
        warnings.warn(say("tokenizer.dropped", file=self.file, count=len(beyond), tokens=tokens, rows=rows), stacklevel=2)
        kept = [token for token in self._spec["added_tokens"] if token["id"] < rows]
        named = {name: self._pieces[id] for name, id in self.special.items() if id < rows}
        return Tokenizer({**self._spec, "added_tokens": kept}, self.file, named, self.templates)

    def _parser(self) -> TextEncoder:
        """Return the library's tokenizer that parses control tokens: a second one, since switching one is not thread-safe."""
        with self._lock:
            if self._parsing is None:
                self._parsing = library(self._spec, self.file, parse=True)
            return self._parsing

    def chat_encoder(self, template: Template) -> Chat:
        """Return the encoder of what a template renders."""
        literals = template.literals
        with self._lock:
            if template not in self._chats:
                added = self._spec.get("added_tokens") or []
                # a plain added token that the template writes divides its prompts too: "<tool_call>"; but not a run of spaces
                also = {token["id"] for token in added if token["content"].strip() and token["content"] in literals}
                self._chats[template] = Chat(self._spec, self.file, {id: self._pieces[id] for id in self._control | also})
            return self._chats[template]

    def warn_of_frame(self, settings: Path | None) -> None:
        """Warn if the file adds special tokens to a text that the settings beside it do not name."""
        ids, made = self._plain.encode("", None, True)
        odd = [self._pieces[id] for id, added in zip(ids, made, strict=True) if added and id not in self.special.values()]
        if odd and self.special:
            warnings.warn(say("tokenizer.frame", file=self.file, tokens=", ".join(odd), settings=settings), stacklevel=3)

    def _refuse_control(self, ids: Iterable[int]) -> None:
        for id in ids:
            if id in self._control:
                raise TokenizerError("tokenizer.control", file=self.file, token=self._pieces[id], id=id)

    def _named(self, named: dict[str, str]) -> dict[str, int]:
        ids = {piece: id for id, piece in self._pieces.items()}
        lost = {name: token for name, token in named.items() if token not in ids}
        for name, token in lost.items():
            warnings.warn(say("tokenizer.unnamed", file=self.file, name=name, token=token), stacklevel=3)
        return {name: ids[token] for name, token in named.items() if name not in lost}

    def _refuse_renumbering(self, spec: Spec) -> None:
        """Raise a TokenizerError if the library numbers added tokens otherwise than the file, which it does silently."""
        added = spec.get("added_tokens") or []
        for token, number in zip(added, self._plain.ids([token["content"] for token in added]), strict=True):
            if number != token["id"]:
                raise TokenizerError("tokenizer.renumbered", file=self.file, token=self._pieces[token["id"]], id=token["id"], found=number)


def has_tokenizer(folder: Path) -> bool:
    """True for a folder with the files of a tokenizer. Nothing is read."""
    return any(
        all(os.path.lexists(folder / name) for name in names)
        for names in (("tokenizer.json",), ("vocab.json", "merges.txt"), ("vocab.txt",))
    )


def load_tokenizer(folder: str | Path, model_vocab: int | None = None) -> Tokenizer | None:
    """Return the tokenizer of a checkpoint folder, None if it has none; ids must be below `model_vocab`, the embedding's rows."""
    folder = Path(folder)

    def there(name: str) -> Path | None:
        return inside(folder, name, TokenizerError) if os.path.lexists(folder / name) else None

    settings_file, map_file = there("tokenizer_config.json"), there("special_tokens_map.json")
    settings = read_object(settings_file, error=TokenizerError) if settings_file else {}
    mapped, named = _contents(read_object(map_file, error=TokenizerError) if map_file else {}), _contents(settings)
    for name in mapped.keys() & named.keys():
        if mapped[name] != named[name]:
            warnings.warn(
                say("tokenizer.disagree", file=map_file, name=name, token=mapped[name], winner=settings_file, taken=named[name]),
                stacklevel=2,
            )
    named = mapped | named
    fast, vocab, merges, wordpieces = there("tokenizer.json"), there("vocab.json"), there("merges.txt"), there("vocab.txt")
    kind = settings.get("tokenizer_class")
    if fast:
        tokenizer = Tokenizer.from_file(fast, named)
        tokenizer.warn_of_frame(settings_file or map_file)
    elif vocab and merges:
        if kind not in (None, "GPT2Tokenizer", "GPT2TokenizerFast"):
            raise TokenizerError("tokenizer.class", file=settings_file, found=kind)
        tokenizer = Tokenizer.from_vocab(vocab, merges, named or None, settings.get("add_prefix_space") is True)
    elif wordpieces:
        tokenizer = Tokenizer.from_wordpiece(wordpieces, settings, named)
    else:
        others = [name for name in ("tokenizer.model", "spiece.model", "vocab.json", "tokenizer.model.v3") if there(name)]
        if others:
            raise TokenizerError("tokenizer.files", file=folder, found=", ".join(others))
        return None
    tokenizer.templates = templates(folder, settings, settings_file)
    return tokenizer if model_vocab is None else tokenizer.fit(model_vocab)


def _contents(table: dict[str, Any]) -> dict[str, str]:
    """Return the content of each special token in a settings file: a string, or an object with `content`."""
    contents = {}
    for name in NAMED:
        token = table.get(f"{name}_token")
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str) and content:
            contents[name] = content
    return contents


def _unknown(model: Spec) -> int | None:
    """Return the id of the model's unknown token."""
    id: int | None = model.get("unk_id") if model["type"] == "Unigram" else model["vocab"].get(model.get("unk_token"))
    return id


def _merge_lines(path: Path) -> list[str]:
    lines = read_text(path, TABLE_BYTES, TokenizerError).split("\n")
    return [line for number, line in enumerate(lines) if line and not (number == 0 and line.startswith("#version"))]
