"""Tokens proposed to follow a text, so that one step may give it several (arXiv 2211.17192; prompt lookup).

A step computes a text's newest token and the proposed ones behind it, a row each: on a CPU a few rows take little longer than one, as
weights are read once. A proposal is accepted if it is the token that was drawn before it, so the text is the one that comes without.

    text       ... the cat sat on the mat. the cat sat
    looked up      ~~~~~~~~~~~ on the mat.
    proposed                                           on  the  mat
    drawn                                              on  the  sofa       two are accepted, and sofa is the step's third token
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pellucid.ops import native
from pellucid.watching.tap import here

if TYPE_CHECKING:
    from pellucid.engine import requests

SIZES = (4, 2)  # tokens that are looked up, the most first
MOST = 7  # proposals a step
PAUSE = 32  # the most steps without proposals after some that failed


@dataclass
class PromptLookup:
    """Proposals for one text from its own tokens: what followed its last few ones the last time that they stood there.

    They become more while they are accepted, and pause while they are not.
    ends: of each few tokens, the places behind their last occurrence but one, 0 if there is none, and behind their last.
    """

    ends: dict[tuple[int, ...], tuple[int, int]] = field(default_factory=dict)
    read: int = 0  # tokens that are in `ends`
    most: int = 2
    pause: int = 0  # steps to wait
    failed: int = 0  # times in a row that none was accepted

    def propose(self, tokens: Sequence[int], most: int = MOST) -> list[int]:
        """Return at most `most` tokens that may follow these."""
        for end in range(self.read + 1, len(tokens) + 1):
            for size in SIZES:
                if size <= end:
                    gram = tuple(tokens[end - size : end])
                    self.ends[gram] = self.ends.get(gram, (0, 0))[1], end
        self.read = len(tokens)
        if self.pause:
            self.pause -= 1
            return []
        for size in SIZES:
            before, _ = self.ends.get(tuple(tokens[len(tokens) - size :]), (0, 0)) if size <= len(tokens) else (0, 0)
            if before:
                return list(tokens[before : before + min(most, self.most)])
        return []

    def learn(self, proposed: int, accepted: int) -> None:
        """Note how many of the last proposals were accepted."""
        if accepted == proposed:
            self.most = min(MOST, 2 * self.most + 1)
        else:
            self.most = max(1, accepted)
        self.failed = self.failed + 1 if accepted == 0 else 0
        self.pause = min(PAUSE, 2**self.failed) if self.failed > 1 else 0


def propose(running: "Sequence[requests.Sequence]") -> None:
    """Set the proposals of each running sequence that asks for them, as many as the kernels take rows.

    A watch of this thread records every row that runs, so that under one there are none.
    """
    left = 0 if here.watches else native.ROWS - len(running)
    for s in (s for s in running if s.request.speculate):
        s.proposed, most = [], min(left, MOST, s.request.new - s.written - 1)
        if s.request.source is None and s.written and s.pending == 1 and most > 0:
            s.lookup = PromptLookup() if s.lookup is None else s.lookup
            s.proposed = s.lookup.propose(s.tokens, most)
            left -= len(s.proposed)
