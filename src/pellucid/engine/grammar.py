"""Texts of a given form: a JSON schema, a regular expression, a choice or a grammar says which tokens may come next.

    {"type": "integer"}     after ""      -  0 1 2 ... 12 ...
                            after "-1"    0 1 2 ... and the tokens that end a text

llguidance computes the masks; the first stage of sampling, `allowed`, lays them on the logits.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from pellucid.engine.proposals import agreement
from pellucid.errors import UseError
from pellucid.ops.sampling.token_mask import TokenMask
from pellucid.tokenizer.tokenizer import Tokenizer

KINDS = ("json", "regex", "choice", "grammar", "lark")
# Between the tokens of JSON. Without a bound a model may write spaces to the end of its text.
SPACES = r"[ \n\t]{0,24}"


class GrammarCompiler:
    """A tokenizer's vocabulary as llguidance reads it. vocab: the model's ids.  stops: the ids that end a text, at least one.

    Raises a UseError without llguidance, or without a stop.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int, stops: Sequence[int]) -> None:
        try:
            import llguidance
        except ImportError:
            raise UseError("grammar.library") from None
        if not stops:
            raise UseError("grammar.stops")
        self.library, self.vocab, self.stops = llguidance, vocab, sorted(stops)
        pieces = tokenizer.pieces(range(vocab))
        empty = [p.id for p in pieces if not p.raw and p.id not in self.stops]
        self.readable = None if not empty else TokenMask.of(torch.ones(vocab, dtype=torch.bool)).without(empty)
        wrapper = llguidance.TokenizerWrapper(VocabularyBytes(tokenizer, [p.raw for p in pieces], self.stops))
        self.tokens = llguidance.LLTokenizer(wrapper, n_vocab=vocab, eos_token=self.stops)

    def compile(self, kind: str, source: Any, around: str | None = None) -> "GrammarConstraint":
        """Return the constraint of a grammar: a schema as an object or JSON text, a text, or a list of texts for a choice.

        around: the Lark grammar of the whole text, in which `@form` stands for this one. None: it is the whole text's.
        Raises a UseError, in one line, for one that llguidance cannot hold a text to.
        """
        try:
            text = self.text_of(kind, source)
            text = text if around is None else joined(around, text)
        except (Exception, RecursionError) as fault:
            raise UseError("grammar.refused", kind=kind, reason=" ".join(str(fault).split())) from None
        matcher = self.library.LLMatcher(self.tokens, text, log_level=0)
        if matcher.is_error():
            raise UseError("grammar.refused", kind=kind, reason=" ".join(matcher.get_error().split()))
        return GrammarConstraint(matcher, self.vocab, self.readable)

    def text_of(self, kind: str, source: Any) -> str:
        """Return a grammar as llguidance's own text."""
        of = self.library.LLMatcher
        if kind == "json":
            return str(of.grammar_from_json_schema(json.dumps(source) if isinstance(source, Mapping) else source, JSON_DEFAULTS))
        if kind == "regex":
            return str(of.grammar_from_regex(source))
        if kind == "choice":
            return str(of.grammar_from_lark("start: " + " | ".join(json.dumps(each) for each in source)))
        return str(of.grammar_from_lark(source) if kind == "lark" else self.library.grammar_from("grammar", source))


def joined(around: str, form: str) -> str:
    """Return a Lark grammar and the grammar that its `@form` stands for, in llguidance's own text, as one."""
    (inner,) = json.loads(form)["grammars"] if form.startswith("{") else [{"lark_grammar": form}]
    return json.dumps({"grammars": [{"lark_grammar": around}, {**inner, "name": "form"}]})


JSON_DEFAULTS: Any = {"whitespace_flexible": True, "whitespace_pattern": SPACES}


class VocabularyBytes:
    """What llguidance asks of a tokenizer: each token's bytes, the special ones, and the ids of a text."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], stops: list[int]) -> None:
        self.tokenizer, self.tokens, self.eos_token_id = tokenizer, tokens, stops[0]
        self.special_token_ids = [p.id for p in tokenizer.pieces(range(len(tokens))) if p.special or p.id in stops]

    def __call__(self, text: str | bytes) -> list[int]:
        return self.tokenizer.encode(text.decode("utf-8") if isinstance(text, bytes) else text, special=False)


class GrammarConstraint:
    """A request's grammar: see requests.TokenConstraint. matcher: at the beginning of a text.

    readable: the tokens that have a text or end one; None if all do.
    Each text has a matcher of its own, which follows its new tokens, and goes back where a proposal was not accepted.
    """

    def __init__(self, matcher: Any, vocab: int, readable: TokenMask | None) -> None:
        self.matcher, self.vocab, self.readable = matcher, vocab, readable
        self.texts: dict[int, tuple[Any, list[int]]] = {}
        self.masks: dict[int, np.ndarray] = {}  # of texts whose matcher has not moved since

    def copy(self) -> "GrammarConstraint":
        """Return the same constraint for another request."""
        return GrammarConstraint(self.matcher, self.vocab, self.readable)

    def allowed(self, written: Sequence[int], index: int) -> TokenMask:
        """Return the tokens that may follow. Raises a UseError if the text has become too complex for llguidance."""
        matcher = self.follow(written, index)
        if matcher.is_error():
            raise UseError("grammar.failed", reason=" ".join(matcher.get_error().split()))
        mask = self.masks.pop(index, None)
        tokens = TokenMask.packed(matcher.compute_bitmask() if mask is None else mask, self.vocab)
        return tokens if self.readable is None else TokenMask(tokens.words & self.readable.words, self.vocab)

    def admits(self, written: Sequence[int], index: int, token: int) -> bool:
        """Return whether `token` may follow, which takes a hundredth of the time of a mask."""
        matcher = self.follow(written, index)
        if matcher.is_error() or (self.readable is not None and token not in self.readable):
            return False
        return bool(matcher.validate_tokens([token]) == 1)

    def failed(self, index: int) -> bool:
        """Return whether llguidance gave up on text number `index`."""
        return index in self.texts and bool(self.texts[index][0].is_error())

    def follow(self, written: Sequence[int], index: int) -> Any:
        """Return the matcher of text number `index` after its new tokens `written`."""
        matcher, read = self.texts.get(index, (None, []))
        if matcher is not None and (surplus := len(read) - agreement(read, written)):
            matcher.rollback(surplus)
            del read[-surplus:]
            self.masks.pop(index, None)
        if matcher is None or matcher.is_error():
            matcher, read = self.matcher.deep_copy(), []
            self.texts[index] = matcher, read
            self.masks.pop(index, None)
        for token in written[len(read) :]:
            matcher.consume_token(token)
            read.append(token)
            self.masks.pop(index, None)
        return matcher


@cache
def executor(threads: int) -> Any:
    """Return llguidance's threads."""
    from llguidance import LLExecutor

    return LLExecutor(threads)


def compute_masks(texts: Iterable[tuple[Any, Sequence[int], int]]) -> None:
    """Compute the masks of several texts at once, on torch's number of threads, for the next call of `allowed` of each.

    texts: of each its constraint, its new tokens and its number; those whose constraint is no grammar are left alone. At 152,000 ids
    a mask takes 0.1 ms: one after another, 16 texts would add 3% to a step.
    """
    grammars = [text for text in texts if isinstance(text[0], GrammarConstraint) and not text[0].failed(text[2])]
    due = [(c, index, c.follow(written, index)) for c, written, index in grammars]
    due = [(c, index, matcher) for c, index, matcher in due if not matcher.is_error()]
    if len(due) < 2:
        return
    from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

    masks = allocate_token_bitmask(len(due), due[0][0].vocab)
    fill_next_token_bitmask_par(executor(torch.get_num_threads()), [(matcher, i) for i, (_, _, matcher) in enumerate(due)], masks)
    for (constraint, index, _), mask in zip(due, masks, strict=True):
        constraint.masks[index] = mask
