"""The glossary's terms: their tensors in a run, their words in both languages."""

import pytest

import pellucid
from pellucid.analysis.terms_of_art import TERMS, Term, tensor_of, words
from pellucid.exhibits import names
from pellucid.tracing import Trace


@pytest.fixture(scope="module")
def run() -> Trace:
    return pellucid.trace(pellucid.load("pellucid/capitals", dtype="float32"), "The capital of France is")


def test_tensors(run: Trace) -> None:
    assert tensor_of(run, TERMS["query"]) == "layers.0.attn.q [1, 5, 4, 32]"
    assert all(tensor_of(run, term) for term in TERMS.values() if term.path)


def test_a_term_without_a_tensor(run: Trace) -> None:
    assert tensor_of(run, Term("pieces")) == tensor_of(run, Term("pieces", "layers.9.attn.q")) == ""


def test_words_and_exhibits() -> None:
    assert words("exhibit.glossary.key.term") == ["key", "键"]
    assert {term.exhibit for term in TERMS.values()} <= {*names()}
