"""Two runs side by side: every tensor's difference, rows paired from both ends, and the divergence of the answers."""

import sys

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid import add, compare, zero
from pellucid.analysis.compare import gap, paired
from pellucid.api.model import Model
from pellucid.documents.number import number
from pellucid.errors import TraceError
from pellucid.terminal.comparison_lines import first
from tiny import swapped

COMPARE = sys.modules["pellucid.analysis.compare"]
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals", dtype="float64")


def test_a_difference_of_rounding_is_written_as_two_numbers(model: Model) -> None:
    a = pellucid.trace(model, PROMPT)
    both = compare(a, pellucid.trace(model, PROMPT, edit=[add("layers.2.ffn", 1e-7, T=-1)]))
    (line,) = first(both, 500)
    assert both.first is not None and number(both.first.values[0]) == number(both.first.values[1])
    assert all(repr(x) in line.plain for x in both.first.values)


def test_a_change_is_seen_where_it_acts_and_after(model: Model) -> None:
    a, b = pellucid.trace(model, PROMPT, 2), pellucid.trace(model, PROMPT, 2, edit=[zero("layers.2.attn.z", H=3, T=-1)])
    both = compare(a, b)
    assert both.first is not None and (both.first.path, both.first.index[1:3]) == ("layers.2.attn.z", (4, 3))
    assert [t.path for t in both.tensors] == [s.path for s in a] and both.only_a == both.only_b == []
    for t, x, y in zip(both.tensors, a, b, strict=True):
        assert t.changed == (not torch.equal(x.value, y.value))
        apart = (x.value - y.value).double()
        assert t.largest == float(apart.abs().max()) and t.values == (float(x.value[t.index]), float(y.value[t.index]))
        size = float(x.value.double().norm())
        assert t.relative == pytest.approx(float(apart.norm()) / size if size else None)
    p, q = (s.value[0, -1].log_softmax(-1) for s in (a.all("logits")[0], b.all("logits")[0]))
    assert both.answers[0].divergence == pytest.approx(float(torch.nn.functional.kl_div(q, p, log_target=True, reduction="sum")))
    assert len(both.answers) == 2 and all(torch.equal(one.logits[0], a.last_logits(one.step)) for one in both.answers)


def test_equal_runs_are_equal(model: Model) -> None:
    a, b = pellucid.trace(model, PROMPT), pellucid.trace(model, PROMPT)
    both = compare(a, b)
    assert both.first is None and both.answers[0].divergence == 0.0 and "0 of" in repr(both)


PAIRS = {
    ((1, 2, 3), (4, 2, 5)): [(0, 0), (1, 1), (2, 2)],
    ((1, 2, 3, 4), (1, 3, 4)): [(0, 0), (2, 1), (3, 2)],
    ((1, 2), (1, 2, 2)): [(0, 0), (1, 1)],
    ((9, 1, 2), (1, 2)): [(1, 0), (2, 1)],
    ((1, 1), (2, 2, 2)): [],
}


@pytest.mark.parametrize("pair", PAIRS)
def test_rows_are_paired_from_both_ends(pair: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    assert paired(*pair) == PAIRS[pair]
    assert [(j, i) for i, j in paired(*pair[::-1])] == PAIRS[pair]


def test_prompts_of_unequal_length_are_compared_row_by_row(model: Model) -> None:
    """What differs is told of the common rows alone: before the two texts part, all numbers are equal."""
    a, b = pellucid.trace(model, "The capital of France is"), pellucid.trace(model, "The capital of South Korea is")
    both = compare(a, b)
    rows = both.rows
    assert rows[:3] == [(0, 0), (1, 1), (2, 2)] and rows[-1] == (len(a.ids) - 1, len(b.ids) - 1)
    for t in both.tensors:
        if t.largest > 1e-9 and "T" in (dims := a[t.path].dims.split()):
            assert max(t.index[dims.index(letter)] for letter in "TS" if letter in dims) >= 3, t.path
    start = next(t for t in both.tensors if t.path == "embed")
    assert not start.changed
    with swapped(COMPARE, "paired", lambda a, b: [(i, i) for i in range(min(len(a), len(b)))]):
        assert next(t for t in compare(a, b).tensors if t.path == "embed").changed


def test_nothing_in_common_is_an_error(model: Model) -> None:
    one, other = pellucid.trace(model, [1, 2]), pellucid.trace(model, [3, 4, 5])
    with pytest.raises(TraceError, match="2 and 3 tokens"):
        compare(one, other)
    with pytest.raises(TraceError):
        compare(pellucid.trace(model, [1, 2], only="embed"), pellucid.trace(model, [1, 2], only="logits"))


def test_the_gap_of_large_tensors_has_its_place() -> None:
    a = torch.zeros(3, 1 << 20)
    b = a.clone()
    b[2, 5], b[1, 7] = -4.0, 3.0
    assert gap(a, b) == (4.0, (2, 5), (0.0, -4.0))
    with swapped(COMPARE, "STRIP", 1 << 30):
        assert gap(a, b) == (4.0, (2, 5), (0.0, -4.0))
    nan = torch.tensor([float("nan"), 1.0])
    assert gap(nan, nan)[0] == 0.0 and gap(nan, torch.ones(2))[0] == float("inf")
    assert gap(torch.zeros(0, 2), torch.zeros(0, 2)) == (0.0, (), (0.0, 0.0))


def test_encoders_are_compared_at_their_blanks() -> None:
    bert = pellucid.load("pellucid/capitals-bert")
    prompt = "The capital of France is ___ ."

    def steer(direction: Tensor) -> pellucid.Trace:
        return pellucid.trace(bert, prompt, edit=[add("layers.0.ffn", direction, T=2)])

    width = bert.config.width
    both = compare(pellucid.trace(bert, prompt), steer(torch.ones(width)))
    assert [one.row for one in both.answers] == both.a.blanks and both.answers[0].divergence > 0
    assert compare(pellucid.trace(bert, prompt), steer(torch.zeros(width))).first is None


def test_an_encoder_without_a_blank_has_no_answer() -> None:
    """The mutant: the last row of an encoder is read as if it were a next token. With one blank of two runs there is none to compare."""
    bert = pellucid.load("pellucid/capitals-bert")
    plain, blank = (pellucid.trace(bert, f"The capital of France is{end}") for end in ("", " ___"))
    assert [compare(a, b).answers for a, b in ((plain, plain), (plain, blank), (blank, plain))] == [[], [], []]
    assert len(compare(blank, blank).answers) == 1
    with swapped(COMPARE, "encodes", lambda trace: bool(trace.blanks)):
        assert compare(plain, plain).answers
