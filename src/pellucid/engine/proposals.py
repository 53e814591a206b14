"""Tokens proposed to follow a text, so that one step may give it several (arXiv 2211.17192; prompt lookup).

A step computes a text's newest token and the proposed ones behind it, a row each: on a CPU a few rows take little longer than one, as
weights are read once. A proposal is accepted if it is the token that was drawn before it, so the text is the one that comes without.

    text       ... the cat sat on the mat. the cat sat
    looked up      ~~~~~~~~~~~ on the mat.
    proposed                                           on  the  mat
    drawn                                              on  the  sofa       two are accepted, and sofa is the step's third token

A smaller model may propose instead of the text itself: see draft.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pellucid.ops import native
from pellucid.watching.tap import here

if TYPE_CHECKING:
    from pellucid.engine import requests
    from pellucid.engine.draft import Draft

SIZES = (4, 2)  # tokens that are looked up, the most first
MOST = 7  # proposals a step
FIRST = 4  # steps of the first pause


@dataclass
class ProposalPace:
    """The number of proposals in each step: more while they are accepted, none for some steps while they are not.

    limit: failures, steps in which none was accepted, before a pause; an accepted token makes up for two.  growth: how many times as long
    each pause is as the last, until a token is accepted.  longest: steps of the longest pause.
    """

    most: int = 2
    limit: int = 2
    growth: int = 2
    longest: int = 32
    spent: int = 0  # failures that no accepted token has made up for
    pauses: int = 0  # in a row
    pause: int = 0  # steps to wait

    def next(self, most: int) -> int:
        """Return the number for the next step, at most `most`."""
        if self.pause:
            self.pause -= 1
            return 0
        return min(most, self.most)

    @property
    def idle(self) -> int:
        """Return the number of steps after the next that may come without proposals, so that a burst may take them at once."""
        return self.pause

    def learn(self, proposed: int, accepted: int) -> None:
        """Note how many of the last proposals were accepted."""
        if accepted == proposed:
            self.most = min(MOST, 2 * self.most + 1)
        else:
            self.most = max(1, accepted)
        if accepted:
            self.spent, self.pauses, self.pause = max(0, self.spent - 2 * accepted), 0, 0
            return
        self.spent = min(self.limit, self.spent + 1)
        if self.spent == self.limit:
            self.pause = min(self.longest, FIRST * self.growth**self.pauses)
            self.pauses = min(self.pauses + 1, MOST)


def draft_pace() -> ProposalPace:
    """Return the pace of one text's proposals by a draft. Wrong ones cost more than those that are looked up: steps of the draft."""
    return ProposalPace(most=1, limit=4, longest=64)


def trust() -> ProposalPace:
    """Return a draft's own pace over all texts: one that is wrong for each of them reads few of their prompts."""
    return ProposalPace(limit=16, growth=4, longest=512)


@dataclass
class PromptLookup(ProposalPace):
    """Proposals for one text from its own tokens: what followed its last few ones the last time that they stood there.

    ends: of each few tokens, the places behind their last occurrence but one, 0 if there is none, and behind their last.
    missed: look-ups in a row that found none.
    """

    ends: dict[tuple[int, ...], tuple[int, int]] = field(default_factory=dict)
    read: int = 0  # tokens that are in `ends`
    missed: int = 0

    @property
    def idle(self) -> int:
        return max(self.pause, min(self.missed, MOST))

    def propose(self, tokens: Sequence[int], most: int = MOST) -> list[int]:
        """Return at most `most` tokens that may follow these."""
        for end in range(self.read + 1, len(tokens) + 1):
            for size in SIZES:
                if size <= end:
                    gram = tuple(tokens[end - size : end])
                    self.ends[gram] = self.ends.get(gram, (0, 0))[1], end
        self.read = len(tokens)
        if not (most := self.next(most)):
            return []
        for size in SIZES:
            before, _ = self.ends.get(tuple(tokens[len(tokens) - size :]), (0, 0)) if size <= len(tokens) else (0, 0)
            if before:
                self.missed = 0
                return list(tokens[before : before + most])
        self.missed += 1
        return []


def learn(s: "requests.Sequence", draft: "Draft | None", proposed: int, accepted: int) -> None:
    """Let the pace of a sequence, and that of the draft that proposed, learn how many of its proposals were accepted."""
    assert s.pace is not None
    s.pace.learn(proposed, accepted)
    if draft is not None:
        draft.pace.learn(proposed, accepted)


def propose(running: "Sequence[requests.Sequence]", draft: "Draft | None" = None) -> None:
    """Set the proposals of each running sequence that asks for them, as many as the kernels take rows.

    draft: proposes, if every sequence decodes; None: each text proposes for itself.
    A watch of this thread records every row that runs, so that under one there are none.
    """
    left, numbers = 0 if here.watches else native.ROWS - len(running), dict["requests.Sequence", int]()
    for s in (s for s in running if s.request.speculate):
        s.proposed, most = [], min(left, MOST, s.request.new - s.written - 1)
        if s.request.source is None and s.written and s.pending == 1 and most > 0:
            if draft is None:
                s.pace = s.pace if isinstance(s.pace, PromptLookup) else PromptLookup()
                s.proposed = s.pace.propose(s.tokens, most)
                left -= len(s.proposed)
            else:
                s.pace = s.pace or draft_pace()
                numbers[s] = s.pace.next(most) if draft.pace.next(MOST) else 0
                left -= numbers[s]
    if draft is not None and all(s.written and s.pending == 1 for s in running):
        for s, tokens in draft.propose({s: most for s, most in numbers.items() if most}).items():
            s.proposed = tokens


def agreement(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of first tokens that two texts have in common."""
    most = min(len(a), len(b))
    return most if a[:most] == b[:most] else next((i for i in range(most) if a[i] != b[i]), most)
