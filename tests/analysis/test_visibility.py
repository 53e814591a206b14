"""Which word sees which, by hand and by the models' own masks; a mask that shows one word more is seen."""

import pytest
import torch

import pellucid
from pellucid.analysis import visibility as v
from pellucid.analysis.needs import PAST, unmet
from pellucid.api.model import Model

TEXT = "大家共同努力"


@pytest.fixture(scope="module")
def prefix() -> Model:
    return pellucid.load("pellucid/capitals-prefix", dtype="float64")


def test_words_are_whole_characters(prefix: Model) -> None:
    assert v.words_of(prefix, prefix.ids(TEXT)) == ([*TEXT], [1, 2, 4, 6, 7, 8])
    assert v.words_of(prefix, prefix.ids(TEXT)[:3]) == (["大", "家", "\ufffd"], [1, 2, 3])  # half a character is the last word
    assert [v.prefix_pieces(prefix, TEXT, n) for n in (0, 2, 3, 6, 9)] == [0, 2, 4, 8, 8]


def test_a_pattern_by_word_by_hand() -> None:
    pattern = torch.tensor([[[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], [[1.0, 0.0, 0.0], [0.1, 0.9, 0.0], [0.4, 0.3, 0.3]]]])
    assert torch.allclose(v.by_word(pattern, [1, 3], [1, 3]), torch.tensor([[1.0, 0.0], [0.3, 0.7]], dtype=torch.float64))
    own = v.Visibility(["a", "b"], torch.tensor([[1.0, 0.0], [0.3, 0.7]]))
    assert (own.pairs, own.later, own.complete) == (3, 0, False) and own.cells[0] == [1.0, None] and own.off(2) == pytest.approx(1.0)
    assert own.unlike(torch.tensor([[0.5, 0.0], [0.5, 0.5]]), 1e-6) == 0 and own.unlike(torch.ones(2, 2), 1e-6) == 1


@pytest.mark.parametrize("words", range(7))
def test_a_prefix_and_its_count(prefix: Model, words: int) -> None:
    with torch.no_grad():
        own, moved = v.visibility(prefix, TEXT, words), v.reached(prefix, TEXT, words)
    assert own.pairs == v.pairs_of(6, words) and own.unlike(moved, 1e-6) == 0
    assert own.seen.tolist() == [[s <= t or s < words for s in range(6)] for t in range(6)]


def test_a_prefix_one_longer_is_seen(prefix: Model) -> None:
    with torch.no_grad():
        longer, moved = v.visibility(prefix, TEXT, 4), v.reached(prefix, TEXT, 3)
    assert longer.pairs != v.pairs_of(6, 3) and longer.unlike(moved, 1e-6) == 3


def test_two_stacks_in_one_matrix() -> None:
    model = pellucid.load("pellucid/capitals-t5", dtype="float64")
    with torch.no_grad():
        own = v.across(model, TEXT, 3)
    assert own.words == [*TEXT[:3], "<|endoftext|>", *TEXT[3:]]
    assert own.seen.tolist() == [[s <= t or s < 3 for s in range(7)] for t in range(7)]
    assert own.sums == pytest.approx([1.0] * 3 + [2.0] * 4, abs=1e-10)


def test_which_models_have_the_causal_picture() -> None:
    fits = {name: unmet(PAST, pellucid.load(f"pellucid/{name}").config) for name in ("capitals", "capitals-deepseek", "reader")}
    none = {name: unmet(PAST, pellucid.load(f"pellucid/{name}").config) for name in ("capitals-prefix", "capitals-t5", "capitals-bert")}
    assert not any(fits.values()) and all(none.values())


@pytest.mark.parametrize("window", [1, 2, 4, 8])
def test_a_window_shows_the_nearest_tokens(window: int) -> None:
    """The pairs that have weight are those whose last token is among the window's; without the switch they are another number."""
    model = pellucid.load("pellucid/capitals", dtype="float64")
    near = v.visibility(pellucid.variant(model, {"layers.*.attn.window": window}), TEXT)
    tokens = len(v.text_ids(model, TEXT))
    assert near.pairs == v.window_pairs(model, TEXT, window) and near.later == 0
    assert (near.pairs == v.visibility(model, TEXT).pairs) == (window >= tokens)
    assert all(abs(one - 1) < 1e-10 for one in near.sums)
