"""How far a run has come, read by another thread while it goes on."""

from dataclasses import dataclass, field


@dataclass
class Progress:
    """A run that is going on. waiter: the name that its request gave itself, "" if it gave none.

    prompt: its tokens, 0 before they are known.  tensors: of the step that is computed.
    pieces: the text that each new token completes, "" while a character is incomplete.
    """

    waiter: str = ""
    prompt: int = 0
    tensors: int = 0
    pieces: list[str] = field(default_factory=list)

    def drawn(self, piece: str) -> None:
        """Note a new token, with which the next step begins."""
        self.tensors = 0
        self.pieces.append(piece)
