"""Byte pairs by hand: the pair of the lowest rank first, and a vocabulary's parts."""

import pytest

import pellucid
from pellucid.analysis import byte_pairs
from pellucid.analysis.byte_pairs import agreeing, merge_steps, merged_ids, vocabulary_parts
from pellucid.errors import UseError
from pellucid.tokenizer.tokenizer import Tokenizer

RANKS = {("b", "c"): 0, ("a", "b"): 1, ("a", "bc"): 2}


def test_lowest_rank_first() -> None:
    steps = merge_steps("abcab", RANKS)
    assert [(s.rank, s.pair) for s in steps] == [(0, ("b", "c")), (1, ("a", "b")), (2, ("a", "bc"))]
    assert [list(s.pieces) for s in steps] == [["a", "bc", "a", "b"], ["a", "bc", "ab"], ["abc", "ab"]]
    assert [list(s.pieces) for s in merge_steps("abc", RANKS, ranked=False)] == [["ab", "c"]]
    assert merge_steps("a", RANKS) == []


def test_ids_are_those_of_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of digits, spaces and what no merge joins; two swapped ranks are seen."""
    tokenizer = pellucid.load("pellucid/capitals").tokenizer
    texts = ["The capital of France is", "  two  spaces\n", "1984, isn't it?", "大家共同努力", " Banana", ""]
    assert agreeing(tokenizer, texts) == len(texts)
    assert merged_ids(tokenizer, " France") == [3349]
    swapped = {pair: -rank for pair, rank in byte_pairs.merges_of(tokenizer).items()}
    monkeypatch.setattr(byte_pairs, "merges_of", lambda _: swapped)
    assert agreeing(tokenizer, texts) < len(texts)


def test_parts() -> None:
    parts = vocabulary_parts(pellucid.load("pellucid/capitals-bert").tokenizer, 4480)
    assert (parts.bytes, parts.merges, parts.added, parts.total, parts.rows) == (256, 4220, 4, 4480, 4480)


def test_other_tokenizers_are_refused() -> None:
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    spec = {"version": "1.0", "added_tokens": [{"id": 3, "content": "<s>", **added}], "model": model}
    with pytest.raises(UseError, match="byte-level"):
        byte_pairs.merges_of(Tokenizer(spec, "own"))
