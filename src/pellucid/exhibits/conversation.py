"""What a chat costs, turn by turn: without a cache, with one, with one that turns share, and in new chats."""

from collections.abc import Iterator

from pellucid.analysis.conversation import WAYS, changed_fact, reading_chat, run_turns, summed
from pellucid.analysis.invented_questions import facts_read
from pellucid.analysis.needs import READER
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel, TablePanel, TextPanel
from pellucid.messages import say

NAMES = (
    "exhibit.conversation.none",
    "exhibit.conversation.cache",
    "exhibit.conversation.shared",
    "exhibit.conversation.new",
)
PHASES = (
    "exhibit.conversation.phase",
    "exhibit.conversation.rows",
    "exhibit.conversation.work",
    "exhibit.conversation.moved",
    "exhibit.conversation.intensity",
    "exhibit.conversation.handed",
)
CHANGES = (
    "exhibit.conversation.change",
    "exhibit.conversation.place",
    "exhibit.conversation.reused",
    "exhibit.conversation.computed",
    "exhibit.conversation.differing",
)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    chat = reading_chat(int(e.number("facts")))
    none, cache, shared, new = (run_turns(e.model, chat, e.on(way, "none")) for way in WAYS)
    ways = list(map(say, NAMES))
    lines = [f"{message} → {turn.answer}" for message, turn in zip(chat.messages, shared, strict=True)]
    yield TextPanel(say("exhibit.conversation.chat"), [chat.opening, *lines])
    flops = {way: [turn.total.flops for turn in turns] for way, turns in zip(ways, (none, cache, shared, new), strict=True)}
    yield LinePanel(say("exhibit.conversation.flops"), say("exhibit.conversation.tokens"), [turn.tokens for turn in shared], flops)
    heads = list(map(say, PHASES))
    first, last = cache[-1], shared[-1]
    phases = [
        (say("exhibit.conversation.whole"), first.prefill, first.handed),
        (say("exhibit.conversation.message"), last.prefill, last.handed),
        (say("exhibit.conversation.token"), last.decode, None),
    ]
    table = [(name, cost.rows, cost.flops, cost.moved, cost.intensity, handed) for name, cost, handed in phases]
    yield TablePanel(say("exhibit.conversation.phases"), heads, table)
    heads = list(map(say, CHANGES))
    changes = [changed_fact(e.model, chat, number) for number in range(1, len(chat.messages))]
    rows = [(f"{c.before} → {c.after}", c.at, c.reused, c.computed, c.differing) for c in changes]
    yield TablePanel(say("exhibit.conversation.changed", tokens=changes[0].tokens), heads, rows)
    answers = [[turn.answer for turn in turns] for turns in (none, cache, shared)]
    yield e.claim("same", answers[0] == answers[1] == answers[2], turns=len(shared))
    a, b, c = (summed(turns).flops for turns in (none, cache, shared))
    yield e.claim("less", c < b < a, none=a, cache=b, shared=c)
    low, high = last.decode.intensity, first.prefill.intensity
    yield e.claim("phases", 0 < low < high, decode=low, prefill=high)
    d, lost = summed(new).flops, len([turn for turn in new if not turn.right])
    kept = len([turn for turn in shared if not turn.right])
    able = facts_read(e.model)
    if able.able:
        yield e.claim("new", d < c and kept == 0 < lost, new=d, shared=c, lost=lost, turns=len(new))
    else:
        yield e.claim("unable", d < c, new=d, shared=c, right=able.right, of=able.of, model=e.model.name)
    exact = all(c.at == c.reused == c.first and c.computed == c.differing for c in changes)
    yield e.claim("first", exact, before=changes[0].at, tokens=changes[0].tokens, computed=changes[0].computed)


EXHIBIT = Exhibit("conversation", show, "pellucid/reader", (Control("facts", 4, (2, 4, 6)),), needs=READER)
