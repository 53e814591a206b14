"""The cost of a chat, against sums by hand: reader has D = 96, F = 192, V = 680, a block that sees 5 tokens and one that sees all."""

import pytest

import pellucid
from pellucid.analysis.conversation import Cost, ReadingChat, changed_fact, reading_chat, run_turns, summed

D, F, V, WINDOW = 96, 192, 680, 5
ROW = 2 * D * 8  # bytes of a token's key and value in one block, float64


@pytest.fixture(scope="module")
def model() -> pellucid.Model:
    return pellucid.load("pellucid/reader", dtype="float64")


@pytest.fixture(scope="module")
def chat() -> ReadingChat:
    return reading_chat(2)


def products(rows: int) -> int:
    """Return the FLOPs of all matrices for `rows` rows, and of the head for one."""
    return rows * 2 * 2 * (4 * D * D + 3 * D * F) + 2 * D * V


def test_a_chat_asks_for_its_facts(chat: ReadingChat) -> None:
    assert len(chat.messages) == len(chat.expected) == 3
    assert all(word in chat.opening for word in chat.expected[:-1])
    assert chat.expected[-1] not in chat.opening and chat.expected[-1] in chat.messages[-2]


def test_decode_by_hand(model: pellucid.Model, chat: ReadingChat) -> None:
    weights = model.num_parameters() * 8
    for turn in run_turns(model, chat, "cache"):
        seen = turn.tokens + 1
        assert turn.decode.rows == 1 and turn.decode.flops == products(1) + 4 * D * (WINDOW + seen)
        assert turn.decode.moved == weights + 2 * ROW + (WINDOW + seen) * ROW
        assert turn.handed == (WINDOW + turn.tokens) * ROW


def test_rows_of_each_way(model: pellucid.Model, chat: ReadingChat) -> None:
    none, cache, shared, new = (run_turns(model, chat, way) for way in ("none", "cache", "shared", "new"))
    messages = [len(model.ids(message)) for message in chat.messages]
    assert [t.prefill.rows for t in cache] == [t.tokens for t in cache] == [t.prefill.rows for t in none]
    assert [t.decode.rows for t in none] == [t.tokens + 1 for t in none]
    assert [t.prefill.rows for t in shared] == [messages[0], *(n + 1 for n in messages[1:])]  # the stop that ended the turn before
    assert [t.prefill.rows for t in new] == messages
    assert [t.answer for t in none] == [t.answer for t in cache] == [t.answer for t in shared]
    assert [t.right for t in shared] == [True] * 3 and [t.right for t in new] == [True, True, False]
    assert summed(cache).rows == sum(t.prefill.rows + t.decode.rows for t in cache)
    assert cache[0].prefill.flops > products(cache[0].tokens)


def test_a_cost_without_bytes() -> None:
    assert Cost().intensity == 0 and Cost(1, 6, 3).intensity == 2


def test_the_first_changed_token(model: pellucid.Model, chat: ReadingChat) -> None:
    for number in (1, 2):
        change, ids = changed_fact(model, chat, number), model.ids(chat.opening)
        assert change.before == chat.expected[2 - number] and change.after == chat.expected[2]
        assert change.at == change.reused == change.first == ids.index(model.ids(change.before)[0])
        assert change.computed == change.differing == len(ids) - change.at == change.tokens - change.at


def test_a_cache_that_does_not_read_its_tokens_is_seen(model: pellucid.Model, chat: ReadingChat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.engine.prefix_cache.edge", lambda tokens: None)
    change = changed_fact(model, chat, 1)
    assert change.reused > change.at
